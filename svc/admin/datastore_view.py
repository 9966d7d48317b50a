"""The datastores of a node: what its agent knows of them, and what svcctl has read now.

The agent probes a datastore every 30 s. What svcctl has read is newer, so its readiness counts. That svcctl reaches a datastore
does not prove that the agent does, so a datastore that the agent does not reach stays down.
"""

import time
from collections.abc import Iterable
from typing import Any

from svc.model.errors import CallerError, SvcError

Json = dict[str, Any]


def datastores(known: Iterable[Json], named: Json | None, read: Json | None, failure: SvcError | None) -> list[Json]:
    """Return the datastores that the agent knows, and the one that svcctl names.

    `named` has the place, node and networks of the latter, `read` what svcctl has read of it, and `failure` why it has not.
    `is_outdated` of a datastore is true if the agent has reached it, and svcctl does not now.
    """
    stores = [store | {"is_outdated": False} for store in known]
    if named is None or isinstance(failure, CallerError) or (read is None and failure is None):
        return stores
    if all(store["place"] != named["place"] for store in stores):
        stores.append(_unknown(named))
    return [_read(store, read) if store["place"] == named["place"] else store for store in stores]


def _unknown(named: Json) -> Json:
    """Return a datastore that the agent has not used."""
    state = {"is_open": False, "is_up": None, "is_ready": None, "held_seconds": 0.0, "checked": None, "error": None}
    return {**named, **state, "is_outdated": False}


def _read(store: Json, read: Json | None) -> Json:
    if read is None:
        return store | ({"is_outdated": True} if store["is_up"] else {"is_up": False})
    if store["is_up"] is False or read["is_ready"] is None:
        return store | {"is_up": store["is_up"] is not False}
    is_changed = store["is_ready"] is not read["is_ready"]
    found = {"is_up": True, "is_ready": read["is_ready"], "error": read["error"] if is_changed else store["error"]}
    return store | (found | {"checked": time.time()} if is_changed else found)

"""Summary of the datastore that the options of svcctl name."""

from contextlib import suppress
from typing import Any

from svc.admin.usage import ORPHANS, usage
from svc.attach.datastore_ready import DatastoreLocked, DatastoreReadiness
from svc.attach.places import datastore_place
from svc.ctl.cli_context import CliContext, own_node
from svc.datastore import open as open_datastore
from svc.datastore.api import Backend, StoreError
from svc.model.errors import SvcError


def load_packages(context: CliContext) -> None:
    """Import the packages of the datastore. An error is left to `summary`."""
    with suppress(SvcError):
        open_datastore.load_packages(context.target.settings["kind"])


def summary(context: CliContext) -> dict[str, Any]:
    """Return the datastore, the use of its pools, its readiness, also of a cluster of another version.

    Raise CallerError if none can be determined, StoreError."""
    target = context.target
    with context.without_version_check.store(target) as store:
        pools = [pool for pool in usage(store) if pool.name != ORPHANS]
        readiness = _readiness(store)
    counts = ("capacity", "in_use", "reserved", "available")
    rows = [{"name": pool.name, "cidr": str(pool.cidr)} | {name: getattr(pool, name) for name in counts} for pool in pools]
    return {"place": str(target), "pools": rows, **readiness}


def named(context: CliContext) -> dict[str, Any]:
    """Return `place`, `node` and `networks` of the datastore, as the agent reports them. Send no request. Raise CallerError."""
    target = context.target
    networks = [target.netconf.name] if target.netconf else []
    return {"place": datastore_place(target.settings), "node": own_node(target), "networks": networks}


def _readiness(store: Backend) -> dict[str, Any]:
    """Return `is_ready`, which is None if it cannot be read, and the error."""
    try:
        DatastoreReadiness(store).require()
    except StoreError as error:
        is_ready = False if isinstance(error, DatastoreLocked) else None
        return {"is_ready": is_ready, "error": {"message": error.msg, "details": error.details}}
    return {"is_ready": True, "error": None}

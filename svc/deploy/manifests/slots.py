"""Rules of the slots for a policy agent and a data-path proxy, which are not part of svc."""

from collections.abc import Sequence
from typing import Any

from svc.deploy.manifests.settings import Settings
from svc.deploy.server_apply import describe, identity_of
from svc.model.errors import CallerError

Json = dict[str, Any]


def require_slots(settings: Settings, containers: Sequence[str], own: Sequence[Json]) -> None:
    """Raise CallerError if a slot has a name of svc: of its `containers`, or of its `own` objects."""
    name = (settings.policy_agent or {}).get("name")
    if name in containers:
        raise CallerError(f"--policy-agent: name = {name!r} is a container of svc", details="give the container another name")
    taken = set(map(identity_of, own))
    for document in settings.proxy:
        if _identity_of(document) in taken:
            raise CallerError(f"--proxy: {describe(document)} is an object of svc", details="give the object another name")


def _identity_of(document: Json) -> tuple[str, str]:
    try:
        return identity_of(document)
    except CallerError as error:
        error.msg = f"--proxy: {error.msg}"
        raise

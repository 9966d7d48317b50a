"""The profile that a network's endpoints name where no policy type is set: policy agents let nothing through without it."""

from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from svc.attach.sessions import Session
from svc.datastore.api import Conflict, Create
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, new_uid, stamp

KIND = "Profile"


def ensure_profile(session: Session, network: str, *, pod: bool) -> None:
    """Made once, by whoever comes first, and never changed: it is the user's from then on. One that has been seen is not
    looked for again; in the orchestrator's API profiles follow from namespaces, and none is kept. StoreError.
    """
    if network in session.profiles or session.settings["kind"] == "orch":
        return
    resource = Resource(KIND, {"name": network}, profile_spec(network, pod=pod))
    stamp(resource, datetime.now(timezone.utc), new_uid())
    with suppress(Conflict):
        session.backend.write([Create(ResourceKey(KIND, network), resource)])
    session.profiles.add(network)


def profile_spec(network: str, *, pod: bool) -> dict[str, Any]:
    """Everything may leave; pods are reached by all, other containers by those of their network."""
    ingress: dict[str, Any] = {"action": "Allow"}
    if not pod:
        ingress["source"] = {"selector": f"has({network})"}
    return {"ingress": [ingress], "egress": [{"action": "Allow"}], "labelsToApply": {network: ""}}

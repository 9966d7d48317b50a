"""The policy profile of a network without a policy type. Without it, policy agents block all traffic of its endpoints."""

from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from svc.attach.sessions import Session
from svc.datastore.api import Conflict, Create
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, new_uid, set_identity

KIND = "Profile"


def ensure_profile(session: Session, network: str, *, pod: bool) -> None:
    """Create the profile if it does not exist. Never change an existing one, because users may edit it.

    A session remembers the existing profiles. In the Kubernetes API, profiles are derived from namespaces, so do nothing.
    Raise StoreError if the datastore fails.
    """
    if network in session.profiles or session.settings["kind"] == "orch":
        return
    resource = Resource(KIND, {"name": network}, profile_spec(network, pod=pod))
    set_identity(resource, datetime.now(timezone.utc), new_uid())
    with suppress(Conflict):
        session.backend.write([Create(ResourceKey(KIND, network), resource)])
    session.profiles.add(network)


def profile_spec(network: str, *, pod: bool) -> dict[str, Any]:
    """Return a spec that allows all egress.

    All endpoints may send to pods. Only endpoints of the same network may send to other containers.
    """
    ingress: dict[str, Any] = {"action": "Allow"}
    if not pod:
        ingress["source"] = {"selector": f"has({network})"}
    return {"ingress": [ingress], "egress": [{"action": "Allow"}], "labelsToApply": {network: ""}}

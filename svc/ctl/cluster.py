"""What svcctl does with the cluster's information: whose datastore it is, and whether it may be changed."""

import uuid
from collections.abc import Sequence
from datetime import datetime

from svc.ctl.resources import CREATED, UNCHANGED, UPDATED
from svc.ctl.retry import retry
from svc.datastore.api import Backend, Create, NotFound, Update
from svc.model.errors import CallerError, Code
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, stamp
from svc.names import Names

KEY = ResourceKey("ClusterInformation", "default")
READY = "datastoreReady"


def initialise(backend: Backend, names: Names, types: Sequence[str], version: str, now: datetime) -> str:
    """Makes the record, or completes it: an identity, readiness unless it is locked, further types of cluster, the version if
    one is given. What was done. StoreError."""
    return retry("the cluster's information", lambda: _initialise(backend, names, types, version, now))


def get(backend: Backend) -> Resource:
    """CallerError when there is none."""
    try:
        entry = backend.get(KEY)
    except NotFound:
        raise CallerError(
            "the datastore is not initialised", details="`svcctl clusterinfo init` does that", code=Code.DATASTORE_LOCKED
        ) from None
    assert isinstance(entry.value, Resource)
    return entry.value


def set_ready(backend: Backend, ready: bool) -> str:
    """Locks the datastore or opens it again; what was done. CallerError when it was never initialised, StoreError."""
    get(backend)
    return retry("the cluster's information", lambda: _change(backend, {READY: ready}))


def _initialise(backend: Backend, names: Names, types: Sequence[str], version: str, now: datetime) -> str:
    try:
        present = backend.get(KEY).value
    except NotFound:
        fresh = Resource(KEY.kind, {"name": KEY.name}, _completed(names, {}, types, version))
        stamp(fresh, now, str(uuid.uuid4()))
        backend.write([Create(KEY, fresh)], durable=True)
        return CREATED
    assert isinstance(present, Resource)
    return _change(backend, _completed(names, present.spec, types, version))


def _completed(names: Names, spec: dict[str, object], types: Sequence[str], version: str) -> dict[str, object]:
    """In the order in which the fields are written."""
    known = dict.fromkeys([*filter(None, str(spec.get("clusterType", "")).split(",")), *types])
    ready = spec.get(READY)
    wanted = {
        "clusterGUID": spec.get("clusterGUID") or uuid.uuid4().hex,
        "clusterType": ",".join(known),
        names.version_field: version or spec.get(names.version_field),
        READY: True if ready is None else ready,
    }
    return {name: value for name, value in wanted.items() if value not in ("", None)}


def _change(backend: Backend, fields: dict[str, object]) -> str:
    entry = backend.get(KEY)
    resource = entry.value
    assert isinstance(resource, Resource)
    if fields.items() <= resource.spec.items():
        return UNCHANGED
    before = {name: value for name, value in resource.spec.items() if name not in fields}
    resource.spec = fields | before if "clusterGUID" in fields else resource.spec | fields
    backend.write([Update(KEY, resource, entry.revision)], durable=True)
    return UPDATED

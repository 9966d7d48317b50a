"""The ClusterInformation of a datastore: its identity, and whether calls may change the datastore."""

import uuid
from collections.abc import Sequence
from datetime import datetime

from svc.admin.resources import CREATED, UNCHANGED, UPDATED, retry
from svc.datastore.api import Backend, Create, Entry, Update
from svc.model.errors import CallerError, Code
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, set_identity
from svc.names import Names

KEY = ResourceKey("ClusterInformation", "default")
READY = "datastoreReady"
_NOUN = "the cluster's information"


def initialise(backend: Backend, names: Names, types: Sequence[str], version: str, now: datetime) -> str:
    """Create the resource, or complete it: identity, readiness unless it is locked, further types, the version if given.

    Return what was done. Raise StoreError."""
    return retry(_NOUN, lambda: _initialise(backend, names, types, version, now))


def get(backend: Backend) -> Resource:
    """Return the resource. Raise CallerError if it does not exist."""
    return _require(backend).value


def set_ready(backend: Backend, ready: bool) -> str:
    """Lock or unlock the datastore; return what was done. Raise CallerError if it was never initialised, StoreError."""
    return retry(_NOUN, lambda: _change(backend, _require(backend), {READY: ready}))


def _require(backend: Backend) -> Entry[Resource]:
    if entry := backend.find(KEY):
        return entry
    raise CallerError(
        "the datastore is not initialised", details="`svcctl clusterinfo init` does that", code=Code.DATASTORE_LOCKED
    )


def _initialise(backend: Backend, names: Names, types: Sequence[str], version: str, now: datetime) -> str:
    entry = backend.find(KEY)
    if entry:
        return _change(backend, entry, _completed(names, entry.value.spec, types, version))
    fresh = Resource(KEY.kind, {"name": KEY.name}, _completed(names, {}, types, version))
    set_identity(fresh, now, str(uuid.uuid4()))
    backend.write([Create(KEY, fresh)], durable=True)
    return CREATED


def _completed(names: Names, spec: dict[str, object], types: Sequence[str], version: str) -> dict[str, object]:
    """Return the fields in the order in which they are written."""
    known = dict.fromkeys([*filter(None, str(spec.get("clusterType", "")).split(",")), *types])
    ready = spec.get(READY)
    wanted = {
        "clusterGUID": spec.get("clusterGUID") or uuid.uuid4().hex,
        "clusterType": ",".join(known),
        names.version_field: version or spec.get(names.version_field),
        READY: True if ready is None else ready,
    }
    return {name: value for name, value in wanted.items() if value not in ("", None)}


def _change(backend: Backend, entry: Entry[Resource], fields: dict[str, object]) -> str:
    resource = entry.value
    if fields.items() <= resource.spec.items():
        return UNCHANGED
    before = {name: value for name, value in resource.spec.items() if name not in fields}
    resource.spec = fields | before if "clusterGUID" in fields else resource.spec | fields
    backend.write([Update(KEY, resource, entry.revision)], durable=True)
    return UPDATED

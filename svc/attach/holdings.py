"""The endpoint and the handle of an attachment in the datastore.

One request reads both with the readiness of the datastore. One write releases both, if the datastore has transactions.
"""

from svc.attach.context import Context
from svc.attach.endpoints import delete_endpoint, deletion
from svc.attach.record import Record
from svc.attach.sessions import Session
from svc.attach.sources.select import source_of
from svc.call_trace import CallTrace
from svc.datastore.api import Conflict, Delete, Found, KeyedError, NotFound
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, Key
from svc.model.resource import Resource
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Holdings:
    """The endpoint and the handle that a session has read; None if they were not read."""

    session: Session
    endpoint: Found[Resource] | None = None
    handle: Found[Handle] | None = None


def read(session: Session, record: Record) -> Holdings:
    """Read both. Raise DatastoreLocked if the datastore does not accept changes, StoreError if it fails."""
    keys: dict[str, Key] = {}
    if record.is_wired and not record.shares:
        keys["endpoint"] = record.endpoint_key(session.names)
    if source_of(record).has_handle:
        keys["handle"] = HandleKey(record.handle)
    return Holdings(session, **dict(zip(keys, session.require_ready(tuple(keys.values())), strict=True)))


def release(context: Context, record: Record, holdings: Holdings, trace: CallTrace, *, has_endpoint: bool) -> None:
    """Delete the endpoint, if the attachment has one, and release the addresses, if possible in the same write.

    An endpoint never stays after its addresses are released. Raise PeerError if a write fails.
    """
    session, source = holdings.session, source_of(record)
    extra_write = _extra_write(session, record, holdings) if has_endpoint else None
    if extra_write is not None and not (source.has_handle and session.backend.atomic):
        _delete(session, record, extra_write)
        extra_write = None
    try:
        done = source.release(context, session, record, trace, extra_write, holdings.handle)
    except KeyedError as failure:
        if extra_write is None or failure.key != extra_write.key:
            raise
        delete_endpoint(session, record)  # another writer has changed the endpoint since it was read
        source.release(context, session, record, trace, None, None)
        return
    if extra_write is not None and not done:  # no address was to be released
        _delete(session, record, extra_write)


def _extra_write(session: Session, record: Record, holdings: Holdings) -> Delete | None:
    if holdings.endpoint is None:
        delete_endpoint(session, record)
        return None
    return deletion(record, holdings.endpoint)


def _delete(session: Session, record: Record, extra_write: Delete) -> None:
    try:
        session.backend.write([extra_write])
    except NotFound:
        return
    except Conflict:
        delete_endpoint(session, record)

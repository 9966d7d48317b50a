"""What an attachment has in the datastore: read in one request, with the question whether the datastore is locked, and released
in one write where the datastore has transactions.
"""

from svc.attach.context import Context
from svc.attach.endpoints import deletion, drop_endpoint
from svc.attach.record import Record
from svc.attach.releasing import give_back
from svc.attach.session import Session
from svc.datastore.api import Conflict, Delete, Found, KeyedError, NotFound
from svc.model.keys import HandleKey, Key
from svc.trace import Trace
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Holdings:
    """The endpoint and the handle as they were read in this session; None for what was not."""

    session: Session
    endpoint: Found | None = None
    handle: Found | None = None


def read(session: Session, record: Record) -> Holdings:
    """Read both. Raise Locked if the datastore takes no changes; StoreError."""
    keys: dict[str, Key] = {}
    if record.is_wired and not record.shares:
        keys["endpoint"] = record.endpoint_key(session.names)
    if record.delegate is None:
        keys["handle"] = HandleKey(record.handle)
    return Holdings(session, **dict(zip(keys, session.require_ready(tuple(keys.values())), strict=True)))


def release(context: Context, record: Record, holdings: Holdings, trace: Trace, *, has_endpoint: bool) -> None:
    """Remove the endpoint, if the attachment has one, and free the addresses: never these alone. Raise PeerError."""
    session = holdings.session
    companion = _companion(session, record, holdings) if has_endpoint else None
    if companion is not None and (record.delegate is not None or not session.backend.atomic):
        _delete(session, record, companion)
        companion = None
    try:
        done = give_back(context, session, record, trace, companion=companion, handle=holdings.handle)
    except KeyedError as failure:
        if companion is None or failure.key != companion.key:
            raise
        drop_endpoint(session, record)  # another process has changed it since it was read
        give_back(context, session, record, trace)
        return
    if companion is not None and not done:  # nothing was to be freed
        _delete(session, record, companion)


def _companion(session: Session, record: Record, holdings: Holdings) -> Delete | None:
    if holdings.endpoint is None:
        drop_endpoint(session, record)
        return None
    return deletion(record, holdings.endpoint)


def _delete(session: Session, record: Record, companion: Delete) -> None:
    try:
        session.backend.write([companion])
    except NotFound:
        return
    except Conflict:
        drop_endpoint(session, record)

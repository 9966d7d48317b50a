"""GC: tear down attachments that the runtime no longer knows, in the kernel and in the datastore."""

import time
from collections.abc import Iterable

from svc.attach.context import Context
from svc.attach.moved_store import can_follow
from svc.attach.record import ADDING, DELETING, WAITING, Record, SessionKey
from svc.attach.recovery import Teardowns, store_of
from svc.attach.rehoming import why_no_successor
from svc.attach.restore import restore_rows
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.base import AddressSource, Valid
from svc.attach.sources.own import POOLS_OF_SVC
from svc.call_trace import CallTrace
from svc.model.errors import PeerError, SvcError
from svc.model.field_errors import FieldErrors


def collect_garbage(
    context: Context,
    network: str,
    valid: Iterable[tuple[str, str]],
    where: SessionKey,
    trace: CallTrace,
    source: AddressSource = POOLS_OF_SVC,
    location: FieldErrors | None = None,
) -> None:
    """Tear down the network's attachments that are not in `valid`, then let its source release the addresses of unknown ones.

    Continue after a failure. Raise PeerError with all failures at the end. If the `location` of the datastore has errors, raise
    them, because only the rows know their datastore.
    """
    known = frozenset(valid)
    if location is not None and location.found:
        for failure in _tear_down_unknown(context, None, network, known, where, trace):
            trace.warning(failure)
        location.raise_if_any()
    session = context.session(where)
    session.require_ready()
    if session.claim is not None:
        session.claim.require_decided()
    session.rows.restored_after = -1  # also if no loss was noticed
    restore_rows(context, session, where, trace)
    failures = _tear_down_unknown(context, session, network, known, where, trace)
    failures += source.run_gc(context, session, network, known, trace)
    if failures:
        raise PeerError(
            f"{len(failures)} attachments of network {network!r} could not be collected", details="; ".join(failures)
        )


def _tear_down_unknown(
    context: Context, session: DatastoreSession | None, network: str, valid: Valid, where: SessionKey, trace: CallTrace
) -> list[str]:
    """Tear down the unknown attachments, and return the failures."""
    failures, teardowns = [], Teardowns(context)
    for found in context.journal.of_network(network):
        if (found.id.container_id, found.id.ifname) in valid or _is_under_way(context, found):
            continue
        record = context.journal.get(found.id)
        if record is None or record.generation != found.generation:  # another call has removed or replaced it
            continue
        try:
            is_elsewhere = record.state == DELETING and store_of(record) != (where.store, "")
            if is_elsewhere and (session is None or not _may_follow(context, record, session)):
                continue  # its release is retried outside of calls
            trace.info(f"collecting {record.id.container_id} {record.id.ifname}: the runtime does not know it")
            teardowns.tear_down(record, trace, where if session is not None else None)
        except SvcError as failure:
            failures.append(f"{record.id.container_id} {record.id.ifname}: {failure}")
    return failures


def _may_follow(context: Context, record: Record, session: DatastoreSession) -> bool:
    """Return whether the session reaches the datastore of the row, or the one that its content has moved to."""
    return can_follow(context, record, session) or not why_no_successor(context, record.session_key, session)


def _is_under_way(context: Context, record: Record) -> bool:
    """Return whether an in-flight ADD works on the row; the runtime may not know its attachment yet.

    Recovery tears down every other such row in an agent. A one-shot process works alone, except for ADDs that wait.
    """
    if record.boot_id != context.boot_id:
        return False
    if record.state == WAITING:
        return record.waits_until > time.time()
    return record.state == ADDING and context.resident

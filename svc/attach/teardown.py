"""Tear down an attachment, for DEL, GC, ADD rollback and recovery.

Each step is idempotent. Addresses are released last, because no other attachment may get an address while the interface exists.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from svc import deadline
from svc._core import netns
from svc.attach.context import Context
from svc.attach.datastore_ready import DatastoreLocked
from svc.attach.endpoints import can_delete, delete_endpoint
from svc.attach.moved_store import follow
from svc.attach.node_claim import CopiedRow
from svc.attach.record import ADDED, ADDING, WAITING, Record, SessionKey
from svc.attach.request import Sandbox
from svc.attach.sources.base import Holdings
from svc.attach.sources.select import source_of
from svc.call_trace import CallTrace
from svc.dataplane.kernel import delete_link, link_of
from svc.datastore.api import Conflict, Delete, KeyedError, NotFound, StoreError, entry_of
from svc.model.errors import CallerError, SvcError
from svc.model.keys import HandleKey, Key

ANSWER_SECONDS = 5.0  # timeout of the first read from the datastore; if it is slower, the release is pending
RELEASE_SECONDS = 10.0  # timeout of the whole release
PLAN_SECONDS = 1.0  # timeout of its plan, which the release can do without


def tear_down(
    context: Context, record: Record, trace: CallTrace, sandbox: Sandbox | None = None, where: SessionKey | None = None
) -> SvcError | None:
    """Remove the interface, then release what the attachment has in the datastore or from another IPAM plugin.

    If the datastore fails or is locked, and a call of the network (`where`) has other settings for it, use these.
    If the release fails, record it durably as pending and return the failure. Raise SvcError if the datastore is locked
    (nothing is changed then), if the interface stays, or if the journal cannot record the pending release. The caller can
    repeat a failed call.
    """
    if record.state == WAITING:  # nothing is attached yet
        context.journal.remove(record)
        return None
    held = _read_holdings(context, record, trace)
    if isinstance(held, (StoreError, CallerError)):
        if follow(context, record, where, releases=True):
            held = _read_holdings(context, record, trace)
        if isinstance(held, DatastoreLocked):
            raise held
    with trace.phase("unwire"):
        existed = unwire(context, record, meantime=lambda: _plan_release(held))
        if not existed and sandbox is not None and record.peer_index:
            pair = record.peer_index, record.host_index
            existed = remove_inside(sandbox, record.id.ifname, lambda link: (link["index"], link["peer_index"]) == pair)
    if isinstance(held, SvcError):
        if isinstance(held, CopiedRow):
            trace.warning(f"nothing of {record.handle} is released: {held}")
            context.journal.remove(record)
            return None
        if not record.generation and not existed:  # it never existed, because an ADD writes its row first
            known = f"nothing is known of {record.handle} on this node, and no release is pending"
            trace.info(f"{known}; its datastore cannot be asked: {held}")
            return None
        return _retry_later(context, record, held, trace)
    try:
        with trace.phase("datastore"), deadline.limit(RELEASE_SECONDS):
            release_resources(held)
    except SvcError as failure:
        return _retry_later(context, record, failure, trace)
    try:
        context.journal.remove(record)
    except StoreError as failure:  # all is released: a repeated release of the row changes nothing
        trace.warning(f"the row of {record.handle} stays for now: {failure}")
    return None


def unwire(context: Context, record: Record, *, meantime: Callable[[], object] = lambda: None) -> bool:
    """Remove the pair with its routes, unless the row is of an earlier boot. Return whether it existed. Raise PeerError.

    `meantime` is called while the kernel removes it, if that is the only removal.
    """
    if not record.is_wired or record.boot_id != context.boot_id:
        return False
    index = record.host_index or _unrecorded_index(context, record)
    return bool(index) and context.reaper.remove(index, record.host_name, peer_index=record.peer_index, meantime=meantime)


def remove_inside(sandbox: Sandbox, ifname: str, is_own: Callable[[dict[str, Any]], bool]) -> bool:
    """Remove an interface from the sandbox if `is_own` returns true for the link. Return whether that was done."""
    with netns.Socket(sandbox.fd) as socket:
        link = link_of(socket, name=ifname)
        if link is None or not is_own(link):
            return False
        delete_link(socket, link["index"])
    return True


def release_resources(held: Holdings) -> None:
    """Delete the endpoint and then, or in the same write, release the addresses. Raise PeerError if a write fails."""
    session, source = held.session, source_of(held.record)
    extra_write = _deletion(held)
    if extra_write is not None and not (source.has_handle and session.backend.atomic):
        _delete(held, extra_write)
        extra_write = None
    try:
        done = source.release(held, extra_write)
    except KeyedError as failure:
        if extra_write is None or failure.key != extra_write.key:
            raise
        delete_endpoint(session, held.record)  # another writer has changed the endpoint since it was read
        source.release(Holdings(held.context, session, held.record, held.trace), None)
        return
    if extra_write is not None and not done:  # no address was to be released
        _delete(held, extra_write)


def _plan_release(held: Holdings | SvcError) -> None:
    """Plan the release, if the endpoint was read and can be deleted along: then planning writes nothing."""
    if isinstance(held, SvcError) or not held.record.host_index or held.endpoint is None or not held.session.backend.atomic:
        return
    with suppress(Exception), deadline.limit(PLAN_SECONDS):  # the release meets the cause of a failure again, and reports it
        source_of(held.record).plan_release(held, _deletion(held))


def _deletion(held: Holdings) -> Delete | None:
    """Return the write that deletes the endpoint that was read, if any; delete one that was not read. Raise StoreError."""
    record = held.record
    if not record.is_wired or record.shares or is_another_networks(held.context, record):
        return None
    if held.endpoint is None:
        delete_endpoint(held.session, record)
        return None
    entry = entry_of(held.endpoint)
    return Delete(entry.key, entry.revision) if entry is not None and can_delete(entry.value, record) else None


def _delete(held: Holdings, extra_write: Delete) -> None:
    try:
        held.session.backend.write([extra_write])
    except NotFound:
        return
    except Conflict:
        delete_endpoint(held.session, held.record)


def record_pending_release(context: Context, record: Record, reason: str) -> None:
    """Record the release as pending: the agent retries it. Raise StoreError, PeerError if the state directory is lost."""
    context.require_state()
    context.journal.record_pending_release(record, reason)


def is_another_networks(context: Context, record: Record) -> bool:
    """Return whether another network's attachment of the container has the endpoint, because this one got no interface."""
    if record.host_index:
        return False
    same = (record.id.container_id, record.id.ifname)
    others = others_of_interface(context, record)
    return any(other.state == ADDED and (other.id.container_id, other.id.ifname) == same for other in others)


def others_of_interface(context: Context, record: Record) -> Iterator[Record]:
    """Return the other attachments whose host interface has, or had, the same name."""
    return (other for other in context.journal.with_host_name(record.host_name) if other.id != record.id)


def _unrecorded_index(context: Context, record: Record) -> int:
    """Return the index of the interface that a killed ADD may have created, found by its name.

    Return 0 if it does not exist, or if another attachment may own it: an in-flight ADD has not recorded its interface yet, and
    removes a stale interface of the same name itself.
    """
    link = context.kernel.find_link(name=record.host_name)
    if link is None:
        return 0
    index = int(link["index"])
    others = (other for other in others_of_interface(context, record) if other.boot_id == context.boot_id)
    return 0 if any(other.host_index == index or other.state == ADDING for other in others) else index


def _retry_later(context: Context, record: Record, failure: SvcError, trace: CallTrace) -> SvcError:
    """Record the release as pending, and return its failure."""
    trace.warning(f"release of {record.handle} is pending and will be retried: {failure}")
    record_pending_release(context, record, str(failure))
    return failure


def _require_own(context: Context, record: Record) -> None:
    """Raise SvcError if the attachment, which this boot has not recorded, may be another machine's of the same node name."""
    with deadline.limit(ANSWER_SECONDS):
        claim = context.session(record.session_key).claim
        wait = None if claim is None else claim.decision()
    if wait is not None:
        wait.join()
    if claim is not None:
        claim.require_release(record.boot_id if record.generation else "")


def _read_holdings(context: Context, record: Record, trace: CallTrace) -> Holdings | SvcError:
    """Read the endpoint and the handle with the readiness of the datastore. Return the failure of the first request.

    The caller sends no further request after a failure, because each may time out.
    """
    try:
        if record.boot_id != context.boot_id or not record.generation:
            _require_own(context, record)
        with deadline.limit(ANSWER_SECONDS):
            session = context.session(record.session_key)
            if record.state != ADDED:  # a write of its ADD, whose process has ended, may still be in flight
                session.fence()
            keys: dict[str, Key] = {}
            if record.is_wired and not record.shares:
                keys["endpoint"] = record.endpoint_key(session.names)
            if source_of(record).has_handle:
                keys["handle"] = HandleKey(record.handle)
            found = session.require_ready(tuple(keys.values()))
            read = dict(zip(keys, found, strict=True))
            return Holdings(context, session, record, trace, read.get("endpoint"), read.get("handle"))
    except SvcError as failure:
        return failure

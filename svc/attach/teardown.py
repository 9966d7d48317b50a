"""Taking an attachment down: the one way, used by DEL, by GC, by the undo of ADD and after a restart.

Every part may be repeated, and finds nothing to do where nothing is left. The address goes last: while the interface is
there, nobody else may get it.
"""

from svc import deadline
from svc._core import netns
from svc.attach import holdings
from svc.attach.context import Context
from svc.attach.datastore_ready import DatastoreLocked
from svc.attach.holdings import Holdings
from svc.attach.record import ADDED, ADDING, WAITING, Record
from svc.attach.request import Sandbox
from svc.call_trace import CallTrace
from svc.dataplane.kernel import delete_link, link_of
from svc.datastore.api import StoreError
from svc.model.errors import SvcError

ANSWER_SECONDS = 5.0  # for a datastore to say whether it is locked; one that is slower is not waited for
RELEASE_SECONDS = 10.0  # for all that is released


def take_down(context: Context, record: Record, trace: CallTrace, sandbox: Sandbox | None = None) -> bool:
    """Remove the attachment's interface, then release what it has in the datastore and of another IPAM plugin. Note durably
    what cannot be released now.

    Return whether no release is pending. Raise SvcError if the datastore is locked (then nothing is done), if the interface
    stays, or if the journal cannot note the pending release: then the call may be repeated.
    """
    if record.state == WAITING:  # nothing is attached yet
        context.journal.remove(record)
        return True
    held = _held(context, record)
    with trace.phase("unwire"):
        existed = unwire(context, record)
        if not existed and sandbox is not None and record.peer_index:
            existed = _remove_inside(record, sandbox)
    if isinstance(held, SvcError):
        return _put_off(context, record, held, trace, existed=existed)
    try:
        with trace.phase("datastore"), deadline.limit(RELEASE_SECONDS):
            settle(context, record, trace, held)
    except SvcError as failure:
        return _note_release(context, record, failure, trace)
    try:
        context.journal.remove(record)
    except StoreError as failure:  # nothing of it is left: to release it again does nothing
        trace.warning(f"the row of {record.handle} stays for now: {failure}")
    return True


def defer_release(context: Context, record: Record) -> None:
    """As `take_down` where the datastore is known to fail: it is not asked, what the attachment has there stays owed."""
    unwire(context, record)
    owe(context, record)


def unwire(context: Context, record: Record) -> bool:
    """Return, when the interface pair is gone, host routes included, whether there was one. PeerError if it stays."""
    if not record.is_wired or record.boot_id != context.boot_id:
        return False
    index = record.host_index or _unrecorded_index(context, record)
    return bool(index) and context.reaper.remove(index, record.host_name, peer_index=record.peer_index)


def _remove_inside(record: Record, sandbox: Sandbox) -> bool:
    """Remove the sandbox's side of a pair whose other side has left the host; return whether it was there."""
    with netns.Socket(sandbox.fd) as socket:
        link = link_of(socket, name=record.id.ifname)
        if link is None or (link["index"], link["peer_index"]) != (record.peer_index, record.host_index):
            return False
        delete_link(socket, link["index"])
    return True


def settle(context: Context, record: Record, trace: CallTrace, held: Holdings) -> None:
    """Delete the endpoint and release the addresses. Raise PeerError."""
    has_endpoint = record.is_wired and not record.shares and not is_another_networks(context, record)
    holdings.release(context, record, held, trace, has_endpoint=has_endpoint)


def owe(context: Context, record: Record) -> None:
    """From here on the agent tries again and again, also after a restart.

    StoreError when the journal cannot be written, PeerError when no restart would find it.
    """
    context.require_state()
    context.journal.owe(record)


def is_another_networks(context: Context, record: Record) -> bool:
    """Whether the endpoint is, for its name does not tell the network: what never got an interface may have been refused it
    because another network's attachment has it."""
    if record.host_index:
        return False
    same = (record.id.container_id, record.id.ifname)
    others = (other for other in context.journal.with_host_name(record.host_name) if other.id != record.id)
    return any(other.state == ADDED and (other.id.container_id, other.id.ifname) == same for other in others)


def _unrecorded_index(context: Context, record: Record) -> int:
    """The interface that a killed ADD may have made, known by its name, unless the name is another attachment's by now."""
    link = context.kernel.find_link(name=record.host_name)
    if link is None:
        return 0
    index = int(link["index"])
    others = (other for other in context.journal.with_host_name(record.host_name) if other.id != record.id)
    return 0 if any(_may_own(context, other, index) for other in others) else index


def _may_own(context: Context, other: Record, index: int) -> bool:
    """An ADD under way has not noted its interface yet; should this one be in its way, it removes it itself."""
    return other.boot_id == context.boot_id and (other.host_index == index or other.state == ADDING)


def _put_off(context: Context, record: Record, failure: SvcError, trace: CallTrace, *, existed: bool) -> bool:
    """Note the pending release of an attachment whose datastore has failed. Return whether none is pending.

    An attachment without a row or an interface was never made: an ADD writes its row before anything else.
    """
    if not record.generation and not existed:
        known = f"nothing is known of {record.handle} on this node, and no release is pending"
        trace.info(f"{known}; its datastore cannot be asked: {failure}")
        return True
    return _note_release(context, record, failure, trace)


def _note_release(context: Context, record: Record, failure: SvcError, trace: CallTrace) -> bool:
    """Return False: the release is pending."""
    trace.warning(f"release of {record.handle} is pending and will be retried: {failure}")
    owe(context, record)
    return False


def _held(context: Context, record: Record) -> Holdings | SvcError:
    """Return what the datastore has of the attachment, or the failure of the first request. The caller sends no further one,
    because each may be a timeout. Raise Locked."""
    try:
        with deadline.limit(ANSWER_SECONDS):
            session = context.session(record.session_key)
            if record.state != ADDED:  # a write of its ADD, whose process has ended, may still be in flight
                session.fence()
            return holdings.read(session, record)
    except DatastoreLocked:
        raise
    except SvcError as failure:
        return failure

"""CHECK: compare an attachment in journal, datastore and kernel with the result of its ADD."""

from collections.abc import Callable

from svc.attach.context import Context
from svc.attach.datastore_ready import DatastoreLocked
from svc.attach.endpoints import endpoint_matches
from svc.attach.moved_store import follow
from svc.attach.record import ADDED, AttachmentId, Record, SessionKey
from svc.attach.request import Sandbox
from svc.attach.sessions import DatastoreSession
from svc.attach.shared_interface import interface_owner
from svc.attach.sources.select import source_of
from svc.call_trace import CallTrace
from svc.dataplane.check import differences
from svc.dataplane.plan import VethSpec
from svc.datastore.api import StoreError
from svc.model.errors import CallerError, Code, PeerError
from svc.model.result import Result
from svc.values import replace


def check(
    context: Context,
    key: AttachmentId,
    sandbox: Sandbox | None,
    previous: Result,
    trace: CallTrace,
    where: Callable[[], SessionKey] | None = None,
) -> None:
    """Raise PeerError with all differences. Without a sandbox, check only the addresses.

    If the datastore fails or lacks the attachment, and the call (`where`) has other settings for it, use these.
    """
    record = context.journal.get(key)
    if record is None or record.state != ADDED:
        raise PeerError(
            f"container {key.container_id!r} has no attachment {key.ifname!r} to network {key.network!r}",
            details="it was never added on this node, or was deleted: ADD it",
            code=Code.UNKNOWN_CONTAINER,
        )
    wired = interface_owner(context, record) if record.shares else record
    reported = {ip.address.split("/")[0] for ip in previous.ips}  # later plugins may add addresses, but not remove them
    found = [f"prevResult lacks address {address}" for address in (wired or record).addresses if address not in reported]
    try:
        missing = _missing(context, record, trace)
    except (StoreError, CallerError):
        if where is None or not follow(context, record, where()):
            raise
        missing = _missing(context, record, trace)
    else:
        if missing and where is not None and follow(context, record, where()):
            missing = _missing(context, record, trace)
    found += missing
    if wired is None:
        found.append(f"the network that {key.ifname!r} was made for has left it")
    elif sandbox is not None:
        found += differences(context.kernel, _as_reported(wired.wiring(), previous), wired, sandbox.fd)
    if found:
        raise PeerError(
            f"attachment {key.ifname!r} of container {key.container_id!r} is not as it was added: {found[0]}",
            details="; ".join(found) + ". DEL it and ADD it again",
            code=Code.CHECK_FAILED,
        )


def _missing(context: Context, record: Record, trace: CallTrace) -> list[str]:
    """Return what the datastore lacks of the attachment."""
    session, found = context.session(record.session_key), []
    _require_not_left(session)
    if reason := source_of(record).why_not_held(session, record, trace):
        found.append(reason)
    if not endpoint_matches(session, record):
        found.append(f"the datastore has no endpoint {record.endpoint_key(session.names).name} of this container")
    return found


def _require_not_left(session: DatastoreSession) -> None:
    """Raise DatastoreLocked if the content of the datastore has moved: what it has of the attachment may be old by now."""
    try:
        session.expect_ready()
    except DatastoreLocked as refusal:
        if refusal.has_left:
            raise


def _as_reported(wiring: VethSpec, previous: Result) -> VethSpec:
    """Return the wiring with the MAC of the result, because a later plugin of the chain may have changed it."""
    reported = (each.mac for each in previous.interfaces if each.name == wiring.ifname and each.sandbox and each.mac)
    try:
        return replace(wiring, mac=bytes.fromhex(next(reported, wiring.mac.hex(":")).replace(":", "")))
    except ValueError:
        return wiring

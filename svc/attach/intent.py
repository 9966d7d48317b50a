"""The row of an ADD in the journal: an existing attachment, or the intent of an in-flight ADD."""

import time
from contextlib import suppress

from svc._core import netns
from svc.attach.adopt import adopt
from svc.attach.context import Context
from svc.attach.endpoints import endpoint_matches
from svc.attach.journal import intent_lost
from svc.attach.record import ADDED, WAITING, Record
from svc.attach.request import AddRequest
from svc.attach.sessions import Session
from svc.attach.shared_interface import still_shares
from svc.attach.sources.select import source_of
from svc.attach.teardown import take_down
from svc.attach.waiting import STORE_SECONDS, await_gates, await_policy, await_store
from svc.call_trace import CallTrace
from svc.dataplane.check import stands
from svc.dataplane.kernel import link_of
from svc.model.errors import Code, PeerError, SvcError
from svc.model.result import Result
from svc.waits.wait import Resumable


def previous_row(context: Context, request: AddRequest) -> Record | None:
    """Return the row of the attachment; None if it has none.

    Raise IntentLost if the call has waited in another process, and a DEL or another ADD came during the wait.
    """
    previous = context.journal.get(request.id)
    if request.intent and (previous is None or previous.generation != request.intent):
        raise intent_lost(request.id)
    return previous


def await_policy_again(
    context: Context, session: Session, request: AddRequest, record: Record, trace: CallTrace
) -> Resumable[None]:
    """Wait for the policy. A call that another process began keeps its deadline."""
    if not request.intent:
        record.waits_until = time.time() + request.policy_setup.seconds
    yield from await_policy(context, session, request, record, trace)


def pass_gates(
    context: Context, session: Session, request: AddRequest, previous: Record | None, trace: CallTrace
) -> Resumable[tuple[Record, bool]]:
    """Wait until the datastore may be used and the gates are ready. Return the row of the ADD, and whether the wait was long.

    If another process continues the call, the row shows that no DEL was answered during the wait.
    """
    if previous is not None and previous.state == WAITING and request.intent:
        row = previous
    else:
        if previous is not None and previous.state != WAITING:
            tear_down_previous(context, previous, request, trace)
        row = new_record(context, session, request)
        seconds = request.gates.seconds if request.gates.urls else STORE_SECONDS
        row.state, row.waits_until, row.outlives = WAITING, time.time() + seconds, not context.resident
        context.journal.begin(row)
    try:
        took_long = yield from await_store(context, session, request, row, trace)
        if request.gates.urls and (yield from await_gates(context, request, row, trace)):
            took_long = True
        return row, took_long
    except SvcError:
        with suppress(SvcError):
            context.journal.remove(row)
        raise


def tear_down_previous(context: Context, previous: Record, request: AddRequest, trace: CallTrace) -> None:
    """Tear down what an earlier ADD of the container has left. Raise SvcError if a release stays pending."""
    trace.info(f"an attachment in state {previous.state!r} is taken down first")
    if not take_down(context, previous, trace, request.sandbox):
        raise PeerError(
            f"an earlier attachment of container {previous.id.container_id!r} still has a pending release",
            details="the datastore, or the plugin that gave the address, failed during the call: try again when it answers",
            code=Code.DATASTORE,
        )


def new_record(context: Context, session: Session, request: AddRequest) -> Record:
    """Return a record with the fields that the request determines."""
    record = Record.of(request.id, request.workload, request.where, session.names, context.boot_id)
    record.sandbox = _identity(request)
    record.mtu, record.queues, record.allow_ip_forwarding = request.mtu, request.queues, request.allow_ip_forwarding
    record.routes = None if request.routes is None else [str(route) for route in request.routes]
    record.versions = list(request.versions)
    request.source.mark(record)
    return record


def recorded_result(context: Context, session: Session, record: Record, request: AddRequest, trace: CallTrace) -> Result | None:
    """Return the recorded result of an attachment that still exists; None otherwise.

    The sandbox and the boot must be the same, the interface must exist, and the addresses must still be allocated.
    """
    if record.state != ADDED or record.boot_id != context.boot_id or not _is_in_sandbox(record, request):
        return None
    if source_of(record).why_not_held(session, record, trace):
        return None
    if record.is_wired and not _wiring_stands(context, session, record, request):
        return None
    if record.shares and not still_shares(context, record):
        return None
    if record.result is None and record.is_wired:
        adopt(context, session, record, request, trace)
    _warn_of_families(record, request, trace)
    return Result.from_json(record.result or {})


def _is_in_sandbox(record: Record, request: AddRequest) -> bool:
    """Return whether the interface is in the sandbox. A restored row has no sandbox, so the interface pair is compared."""
    if not record.is_restored or request.sandbox is None:
        return record.sandbox == _identity(request)
    with netns.Socket(request.sandbox.fd) as socket:
        link = link_of(socket, name=record.id.ifname)
    if link is not None and not record.mac:  # a pod's endpoint in the Kubernetes API has no MAC
        record.mac = link["mac"].hex(":")
    return link is not None and (link["index"], link["peer_index"]) == (record.peer_index, record.host_index)


def _warn_of_families(record: Record, request: AddRequest, trace: CallTrace) -> None:
    """Warn if the network assigns other address families now: an existing attachment keeps its addresses."""
    if record.versions and request.source.uses_pools and set(record.versions) != set(request.versions):
        had, wanted = (" and ".join(f"IPv{version}" for version in each) for each in (record.versions, request.versions))
        trace.warning(f"the attachment was made for {had}, and this ADD asks for {wanted}: DEL it and ADD it again for that")


def _wiring_stands(context: Context, session: Session, record: Record, request: AddRequest) -> bool:
    sandbox = request.sandbox
    if sandbox is None or not stands(context.kernel, record.wiring(), record.wired(), sandbox.fd):
        return False
    return endpoint_matches(session, record)


def _identity(request: AddRequest) -> tuple[int, int]:
    return request.sandbox.identity if request.sandbox is not None else (0, 0)

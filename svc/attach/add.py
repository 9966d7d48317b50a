"""ADD: from the row of an earlier call, through the waits, to a transaction that attaches the sandbox."""

from contextlib import suppress

from svc.attach.addressing import read_pod, resolve_current_addressing
from svc.attach.context import Context
from svc.attach.datastore_ready import StoreReplaced
from svc.attach.endpoints import require_endpoint_support
from svc.attach.intent import pass_gates, previous_row, recorded_result, tear_down_previous, wait_for_policy_again
from svc.attach.reclaim import ATTEMPTS, adopt_rows, avoid_lost, restore, restore_lost
from svc.attach.record import WAITING, Record
from svc.attach.request import AddCall, AddRequest
from svc.attach.restore import restore_own
from svc.attach.shared_interface import can_join, join_interface
from svc.attach.sources.base import Addressing
from svc.attach.transaction import AddTransaction, RowLost
from svc.attach.waiting import must_wait
from svc.call_trace import CallTrace
from svc.dataplane.wire import AddressInUse
from svc.model.errors import SvcError
from svc.model.result import Result
from svc.orch.pod_info import PodInfo
from svc.values import replace
from svc.waits.wait import Resumable


def add(context: Context, request: AddRequest, trace: CallTrace, *, restored: bool = False) -> Resumable[Result]:
    """Attach the sandbox and return the result. If the attachment exists, return its recorded result.

    Raise SvcError if the ADD fails; it is rolled back then. Raise Suspended if the call continues in another process.
    The generator yields each wait for a gate, the datastore or the policy, and holds no lock during it.
    `restored` is true in the second attempt, after the row of an interface was found to be lost.
    """
    call = AddCall(context, context.session(request.where), request, trace, restored)
    previous = _previous(call)
    intent, pod = None, None
    if previous is not None and previous.state != WAITING:
        pod = read_pod(call)  # the row may describe an earlier pod of the same name
        result = _recorded(call, previous)
        if result is not None:
            trace.info("attached already: the recorded result is returned")
            yield from wait_for_policy_again(call, previous)
            return result
    has_gates = bool(request.netconf.gates.urls)
    if has_gates or must_wait(call.session):
        if has_gates and pod is None:
            pod = read_pod(call)
        intent, took_long = yield from pass_gates(call, previous)
        previous = None
        if took_long:  # the agent may have closed the idle session
            call, pod = replace(call, session=context.session(request.where)), None
    call.session.require_claim()
    try:
        try:
            attached = _attach(call, previous, intent, pod)
        except StoreReplaced:
            intent, _ = yield from pass_gates(call, None)
            attached = _attach(call, None, intent, None)
    except RowLost:
        context.journal.note_loss()
        return (yield from add(context, replace(request, intent=0), trace, restored=True))
    if isinstance(attached, Result):
        return attached
    yield from attached.wait_for_policy()
    return attached.result


def _previous(call: AddCall) -> Record | None:
    """Return the row of an earlier ADD, after rows were moved that name a former datastore, and lost ones were restored."""
    if call.request.sandbox is not None:
        require_endpoint_support(call.session, call.request.workload)
    if call.context.networks.former:
        adopt_rows(call)
    previous = previous_row(call)
    if previous is None and restore_own(call.context, call.session, call.request, call.trace):
        previous = previous_row(call)
    return previous


def _recorded(call: AddCall, previous: Record) -> Result | None:
    """Return the recorded result if the attachment exists; None if it must be attached again. Raise SvcError."""
    call.session.require_ready()
    result = recorded_result(call, previous)
    if result is None and call.session.identity.is_pending:  # its addresses may not have been claimed again yet
        with suppress(SvcError):
            restore(call.context, previous.id, call.trace)
            result = recorded_result(call, previous)
    return result


def _attach(call: AddCall, previous: Record | None, intent: Record | None, pod: PodInfo | None) -> "AddTransaction | Result":
    """Carry out the part of an ADD that does not wait. Return the finished transaction, or the result of a shared interface."""
    if pod is None:
        pod = read_pod(call)
    if call.session.held_seconds() > 0:
        raise StoreReplaced
    if not call.context.resident and call.session.identity.is_pending:
        restore_lost(call)
    addressing = resolve_current_addressing(call, pod)
    if previous is not None and previous.state != WAITING:
        tear_down_previous(call, previous)
    try:
        return _run(call, addressing, intent)
    except SvcError as refusal:
        shared = join_interface(call) if can_join(refusal) else None
        if shared is None:
            raise
        return shared


def _run(call: AddCall, addressing: Addressing, intent: Record | None) -> "AddTransaction":
    """Return a finished transaction. If the host already uses the address, assign another one."""
    left = ATTEMPTS
    while True:
        addition = AddTransaction(call, addressing, intent)
        left -= 1
        try:
            addition.run()
            return addition
        except AddressInUse as refusal:
            if not left or not avoid_lost(call, addressing, refusal):
                raise
            intent = None  # the rollback has removed its row

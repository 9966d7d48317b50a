"""Where an ADD waits: for readiness gates before anything is kept, for the pod's policy when all is done."""

import time
from typing import NoReturn

from svc.attach.context import Context
from svc.attach.record import Record
from svc.attach.request import AddRequest
from svc.attach.sessions import Session
from svc.call_trace import CallTrace
from svc.model.endpoint import has_endpoint
from svc.model.errors import CallerError, Code, PeerError
from svc.model.field_errors import without_query
from svc.waits.wait import Resumable, Suspended, Wait, WaitOutcome

STALE_SECONDS = 1.0  # what was read before a longer wait is read again
STORE_SECONDS = 60.0  # at most, of all waits for a datastore
STATUS_DIRECTORY = "endpoint-status"  # under the run directory of the deployment


def await_gates(context: Context, request: AddRequest, row: Record, trace: CallTrace) -> Resumable[bool]:
    """Whether it took long. `row` is the intent of the call, in the journal, which says until when it may wait.

    PeerError when the gates do not open in time, CallerError when nobody waits any more, Suspended where the call goes on
    elsewhere."""
    settings = request.gates
    began = time.monotonic()
    with trace.phase("gates"):
        wait = context.gates().wait(settings, began + _left(row.waits_until))
        yield wait
    outcome = wait.outcome or WaitOutcome.TIMEOUT
    _suspend_if_stopping(context, request, row, outcome)
    context.metrics.count("gate_waits_total", outcome=outcome.value)
    if outcome is not WaitOutcome.READY:
        states = [f"{without_query(url)}: {answer.text}" for url, answer in wait.answers.items()]
        closed = sum(not answer.ready for answer in wait.answers.values())
        _refuse(outcome, f"{closed} of {len(states)} readiness gates", settings.seconds, "; ".join(states))
    context.journal.require(row)
    return time.monotonic() - began > STALE_SECONDS


def must_wait(session: Session) -> bool:
    """Return whether `await_store` would wait. Raise StoreError."""
    return (session.claim is not None and session.claim.is_undecided()) or session.held_seconds() > 0


def await_store(context: Context, session: Session, request: AddRequest, row: Record, trace: CallTrace) -> Resumable[bool]:
    """Wait until it is known whether this machine may use the node's name, and while a datastore that has lost data is held.
    Return whether that took long.

    Raise CallerError if the container is no longer wanted, Suspended if the call goes on elsewhere; StoreError."""
    waited = False
    while (wait := _wait_for_store(session)) is not None:
        waited = True
        with trace.phase("datastore"):
            yield wait
        outcome = wait.outcome or WaitOutcome.TIMEOUT
        _suspend_if_stopping(context, request, row, outcome)
        if outcome in (WaitOutcome.DISCONNECTED, WaitOutcome.DELETED, WaitOutcome.SHUTDOWN):
            _refuse(outcome, f"claims in the datastore of node {session.node!r}", 0, "earlier claims are waited for")
        context.journal.require(row)
        session.require_claim()
    return waited


def _wait_for_store(session: Session) -> Wait | None:
    wait = session.claim.decision() if session.claim is not None else None
    if wait is None and (seconds := session.held_seconds()) > 0:
        wait = Wait(time.monotonic() + seconds)
    return wait


def _suspend_if_stopping(context: Context, request: AddRequest, row: Record, outcome: WaitOutcome) -> None:
    if outcome is not WaitOutcome.SHUTDOWN or not request.resumable:
        return
    context.require_state()
    if not row.outlives:
        row.outlives = True
        context.journal.update(row)
    raise Suspended(row.generation)


def waits_for_policy(session: Session, request: AddRequest) -> bool:
    """Whether the attachment is an endpoint whose policy is to be waited for."""
    workload = request.workload
    wanted = request.policy_setup.seconds > 0 and request.sandbox is not None and workload.is_pod
    return wanted and has_endpoint(session.names, workload, request.id.ifname)


def await_policy(context: Context, session: Session, request: AddRequest, row: Record, trace: CallTrace) -> Resumable[None]:
    """Holds a pod whose interface is an endpoint, until `row` says at most. CallerError when nobody waits any more, Suspended
    where the call goes on elsewhere."""
    if not waits_for_policy(session, request):
        return
    from svc.waits.policy import file_name  # with the first wait of this kind

    workload = request.workload
    name = file_name(workload.orchestrator(session.names), workload.namespace, workload.pod, request.id.ifname)
    directory = request.policy_setup.directory or f"{session.names.run_dir}/{STATUS_DIRECTORY}"
    with trace.phase("policy"):
        deadline = time.monotonic() + _left(row.waits_until)
        wait = context.status_files().wait(directory, name, row.addresses, deadline)
        if wait.outcome is None:
            yield wait
    outcome = wait.outcome or WaitOutcome.TIMEOUT
    if outcome is WaitOutcome.SHUTDOWN and request.resumable:
        context.require_state()
        raise Suspended(row.generation)
    context.metrics.count("policy_waits_total", outcome=outcome.value)
    if outcome in (WaitOutcome.DISCONNECTED, WaitOutcome.DELETED):
        _refuse(outcome, "", 0, "")
    context.journal.require(row)
    if outcome is not WaitOutcome.READY:
        reason = (
            "the agent stops" if outcome is WaitOutcome.SHUTDOWN else f"not set up in {trace.phases['policy'] / 1000:.1f} s"
        )
        trace.warning(f"policy: {reason}: the pod starts without: {wait.path!r}: {wait.why_not_ready()}")


def _left(moment: float) -> float:
    """Seconds until a Unix time: a wait goes on in another process, whose monotonic clock need not be ours."""
    return max(0.0, moment - time.time())


def _refuse(outcome: WaitOutcome, what: str, seconds: float, states: str) -> NoReturn:
    if outcome is WaitOutcome.TIMEOUT:
        raise PeerError(
            f"{what} did not open within {seconds:g} s",
            details=f"{states}; see why these do not answer with a status from 200 to 399, or correct readiness_gates",
            code=Code.GATES_CLOSED,
        )
    if outcome is WaitOutcome.SHUTDOWN:
        details = f"{states}; the agent that starts next serves the next try"
        raise PeerError(f"the agent stops while {what} are closed", details=details, code=Code.SHUTTING_DOWN)
    reason = "its DEL has come" if outcome is WaitOutcome.DELETED else "the runtime has given up"
    raise CallerError(
        f"the container is not wanted any more: {reason} during its ADD",
        details="nothing of this call was kept",
        code=Code.UNKNOWN_CONTAINER,
    )

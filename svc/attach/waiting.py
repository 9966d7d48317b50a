"""Waits of an ADD: for the datastore and readiness gates before it attaches, for the pod's policy afterwards."""

import time
from typing import NoReturn

from svc.attach.endpoints import needs_endpoint
from svc.attach.record import WAITING, Record
from svc.attach.request import AddCall
from svc.attach.sessions import DatastoreSession
from svc.model.errors import CallerError, Code, PeerError
from svc.model.field_errors import without_query
from svc.waits.wait import Resumable, Suspended, Wait, WaitOutcome

STALE_SECONDS = 1.0  # after a longer wait, an ADD reads the pod again
STORE_SECONDS = 60.0  # upper bound of the waits of an ADD for its datastore
STATUS_DIRECTORY = "endpoint-status"  # under the run directory of the deployment


def await_gates(call: AddCall, row: Record) -> Resumable[bool]:
    """Wait until all readiness gates are ready. Return whether that took longer than STALE_SECONDS.

    `row` is the call's row in the journal, with the deadline of the wait. Raise PeerError if a gate is not ready in time, or
    the agent stops. Raise CallerError if the container is no longer wanted, Suspended if the call continues in another process.
    """
    settings = call.request.netconf.gates
    began = time.monotonic()
    with call.trace.phase("gates"):
        wait = call.context.gates().wait(settings, began + _left(row.waits_until))
        yield wait
    outcome = _outcome_of(call, row, wait)
    call.context.metrics.count("gate_waits_total", outcome=outcome.value)
    if outcome is not WaitOutcome.READY:
        states = [f"{without_query(url)}: {answer.text}" for url, answer in wait.answers.items()]
        closed = sum(not answer.ready for answer in wait.answers.values())
        _refuse(outcome, f"{closed} of {len(states)} readiness gates are not ready", settings.seconds, "; ".join(states))
    call.context.journal.require(row)
    return time.monotonic() - began > STALE_SECONDS


def must_wait(session: DatastoreSession) -> bool:
    """Return whether `await_store` would wait. Raise StoreError."""
    return (session.claim is not None and session.claim.is_undecided()) or session.held_seconds() > 0


def await_store(call: AddCall, row: Record) -> Resumable[bool]:
    """Wait until the node claim is decided and the hold after a data loss of the datastore is over. Return whether it waited.

    Raise CallerError if the container is no longer wanted, Suspended if the call continues in another process. Raise
    PeerError if the agent stops or another machine has the node claim, StoreError if the datastore fails.
    """
    session, waited, until = call.session, False, time.monotonic() + STORE_SECONDS
    while time.monotonic() < until and (wait := _wait_for_store(session)) is not None:
        waited = True
        with call.trace.phase("datastore"):
            yield wait
        outcome = _outcome_of(call, row, wait)
        if outcome in (WaitOutcome.DISCONNECTED, WaitOutcome.DELETED, WaitOutcome.SHUTDOWN):
            restoring = "live attachments are claimed again"  # after a data loss
            waited_for = restoring if session.held_seconds() > 0 else f"the claim of node {session.node!r} is decided"
            _refuse(outcome, f"{waited_for} in the datastore")
        call.context.journal.require(row)
        session.require_claim()
    return waited


def _wait_for_store(session: DatastoreSession) -> Wait | None:
    wait = session.claim.decision() if session.claim is not None else None
    if wait is None and (seconds := session.held_seconds()) > 0:
        wait = Wait(time.monotonic() + seconds, "the datastore has lost data: live attachments are claimed again")
    return wait


def _outcome_of(call: AddCall, row: Record, wait: Wait) -> WaitOutcome:
    """Return the outcome of an ended wait. Raise Suspended if the agent stops and another process can continue the call."""
    outcome = wait.outcome or WaitOutcome.TIMEOUT
    if outcome is WaitOutcome.SHUTDOWN and call.request.resumable:
        call.context.require_state()
        if row.state == WAITING and not row.outlives:
            row.outlives = True
            call.context.journal.update(row)
        raise Suspended(row.generation)
    return outcome


def waits_for_policy(call: AddCall, record: Record) -> bool:
    """Return whether the ADD must wait for the policy of the attachment's endpoint."""
    return call.request.netconf.policy_setup.seconds > 0 and record.workload.is_pod and needs_endpoint(call.session, record)


def wait_for_policy(call: AddCall, row: Record) -> Resumable[None]:
    """Wait until the policy of a pod's endpoint is in place, or the deadline in `row` is over. On timeout, log a warning.

    Raise CallerError if the container is no longer wanted, Suspended if the call continues in another process.
    """
    if not waits_for_policy(call, row):
        return
    from svc.waits.policy import file_name  # imported late: few calls wait for policy

    names, trace, workload = call.session.names, call.trace, row.workload
    name = file_name(workload.orchestrator(names), workload.namespace, workload.pod, row.id.ifname)
    directory = call.request.netconf.policy_setup.directory or f"{names.run_dir}/{STATUS_DIRECTORY}"
    with trace.phase("policy"):
        deadline = time.monotonic() + _left(row.waits_until)
        wait = call.context.status_files().wait(directory, name, row.addresses, deadline)
        if wait.outcome is None:
            yield wait
    outcome = _outcome_of(call, row, wait)
    call.context.metrics.count("policy_waits_total", outcome=outcome.value)
    if outcome in (WaitOutcome.DISCONNECTED, WaitOutcome.DELETED):
        _refuse(outcome)
    call.context.journal.require(row)
    if outcome is not WaitOutcome.READY:
        stops = outcome is WaitOutcome.SHUTDOWN
        reason = "the agent stops" if stops else f"not set up in {trace.phases['policy'] / 1000:.1f} s"
        trace.warning(f"policy: {reason}: the pod starts without: {wait.path!r}: {wait.why_not_ready()}")


def _left(moment: float) -> float:
    """Return the seconds until a Unix time. A wait may continue in another process, whose monotonic clock may differ."""
    return max(0.0, moment - time.time())


def _refuse(outcome: WaitOutcome, what: str = "", seconds: float = 0, states: str = "") -> NoReturn:
    if outcome is WaitOutcome.TIMEOUT:
        raise PeerError(
            f"{what} after {seconds:g} s",
            details=f"{states}; see why these do not answer with a status from 200 to 399, or correct readiness_gates",
            code=Code.GATES_CLOSED,
        )
    if outcome is WaitOutcome.SHUTDOWN:
        details = f"{states}{'; ' if states else ''}the runtime repeats the call, and the agent that starts next serves it"
        raise PeerError(f"the agent stops while {what}", details=details, code=Code.SHUTTING_DOWN)
    reason = "its DEL has come" if outcome is WaitOutcome.DELETED else "the runtime has given up"
    raise CallerError(
        f"the container is not wanted any more: {reason} during its ADD",
        details="nothing of this call was kept",
        code=Code.UNKNOWN_CONTAINER,
    )

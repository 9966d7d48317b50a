"""The agent's life cycle: start, serve, drain."""

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from svc.agent import garbage, reconciliation, rehoming, spool
from svc.agent.call import AgentCall
from svc.agent.carrying_out import carry_out
from svc.agent.countdown import Countdown
from svc.agent.ended_calls import EndedCalls
from svc.agent.garbage import GarbageCollector
from svc.agent.heartbeat import Heartbeat, notify, watchdog_seconds
from svc.agent.introspection_server import Answer, IntrospectionServer
from svc.agent.lanes import RECOVERY, Lane, lane_of
from svc.agent.listener import Listener
from svc.agent.maintenance import Maintenance
from svc.agent.missing_rows import MissingRows
from svc.agent.parked import ParkedCalls
from svc.agent.periodic import Periodic, Task
from svc.agent.places import Places, UpgradeCheck
from svc.agent.preload import preload, probe_dependencies
from svc.agent.queue import AdmissionQueue, Job
from svc.agent.reconciliation import Reconciliation
from svc.agent.rehoming import Rehoming
from svc.agent.restoring import LOOK_SECONDS, Restoring
from svc.agent.spool import Spool
from svc.agent.stop_mark import leave_mark, remove_mark
from svc.agent.telemetry import Telemetry
from svc.agent.workers import WorkerPool
from svc.attach.context import Context
from svc.attach.record import Record
from svc.attach.recovery import Teardowns, interrupted, store_of
from svc.call_trace import CallTrace, new_request_id
from svc.cni.call_io import PROTOCOL, CallInput
from svc.cni.frame import own_version
from svc.cni.locks import AGENT, SocketLock, StateLock
from svc.dataplane.sysctls import SYSCTLS
from svc.datastore.api import Backend
from svc.datastore.open import open_backend
from svc.end_request import end_signals
from svc.model.errors import CallerError, Code, SvcError
from svc.names import Names
from svc.netconf.names_profiles import Profiles
from svc.private_directory import UnsafeDirectory
from svc.right_of_way import RIGHT_OF_WAY, end_precedence, take_precedence
from svc.values import dataclass
from svc.waits.wait import Wait, WaitOutcome

DRAIN_SECONDS = 20.0
TAKEOVER_LOOK_SECONDS = 0.02  # between two looks at the agent that is to end
LOCK_SECONDS = 60.0  # limit at the start for one-shot processes and a draining agent to end
PLACES_SECONDS = 1.0  # between checks of socket, journal and state directory
CHECK_SECONDS = 30.0  # between checks of the installed package
PERIOD_SECONDS = 30.0  # between retries of releases, searches for missing rows, probes, and checks for idle sessions
IDLE_SECONDS = 900.0  # a session that no call has used for this time is closed

_DIRECTORY = "name a directory that root can write with {option}, or move the file of this name away"
_SOCKET = "name a path with {option} in a directory that root can write, and not that of another file"
_ADDRESS = "name an address of this node and a port that is free with {option}; `ss -ltnp` shows which program has a port"
_TRACES = "name a file that root can write with {option}, or the URL of a collector"

log = logging.getLogger("svc.agent")


@dataclass(frozen=True, slots=True)
class Settings:
    """Paths and address of the agent."""

    socket: Path
    state_dir: Path
    run_dir: Path
    metrics: tuple[tuple[str, int] | Path, ...] = ()  # addresses of the metrics server
    traces: str = ""  # file or URL for traces, if any
    takeover: float = 0.0  # seconds for which the agent waits for another one of its directories to end
    sysctls: str = SYSCTLS  # folder in which those of the host can be written


class Agent:
    """The resident agent. `run` returns the exit status after SIGTERM or SIGINT."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queue = AdmissionQueue()
        self._parked = ParkedCalls()
        self._workers = WorkerPool(self._next_job, self._listen, lambda: self._listener.wake())
        self._heartbeat = Heartbeat(self._poll, self._put, self._workers.is_busy, watchdog_seconds())
        self._stopped, self._started = False, time.time()
        self._ended = EndedCalls()
        with _blaming("--state-dir", settings.state_dir, _DIRECTORY):
            self._state_lock = StateLock(settings.state_dir, AGENT, settings.socket.absolute())
        self._socket_lock = SocketLock(settings.run_dir)

    def run(self) -> int:
        with ExitStack() as stack:
            stack.callback(self._state_lock.close)
            stack.callback(self._socket_lock.close)
            self._end = stack.enter_context(end_signals())
            if not self._await_other():
                return 0
            self._start_up(stack)
            log.info("serving on %s", self._settings.socket)
            notify("READY=1")
            self._end.wait()
            return self._drain()

    def _await_other(self) -> bool:
        """Wait for another agent of these directories to end. Return False if this one is asked to end before."""
        seconds = self._settings.takeover
        until, other = time.monotonic() + seconds, ""
        while time.monotonic() < until and (holder := self._state_lock.holder()).purpose == AGENT:
            if str(holder) != other:
                other = str(holder)
                log.info("waiting up to %g s until %s ends, to serve in its place", seconds, other)
            if self._end.wait(TAKEOVER_LOOK_SECONDS):
                return False
        return True

    def _start_up(self, stack: ExitStack) -> None:
        settings = self._settings
        self._state_lock.take_as_agent(LOCK_SECONDS)
        with _blaming("--run-dir", settings.run_dir, _DIRECTORY):
            self._socket_lock.take()
        self._context = Context(
            Profiles().get, settings.state_dir, self._open_backend,
            resident=True, require_state=self._state_lock.require, sysctls=settings.sysctls,
        )  # fmt: skip
        stack.callback(self._context.close)
        self._telemetry = Telemetry(self._context, self._queue, self._put)
        self._open_telemetry(stack)
        with suppress(SvcError):
            self._context.networks.load()
        own_version()  # read it, and the package's state, before an upgrade can replace them on the disk
        self._upgrade_check = UpgradeCheck(self._context)
        self._begin_recovery()
        with _blaming("--socket", settings.socket, _SOCKET):
            introspection = IntrospectionServer(self._load_introspection)
            self._listener = Listener(settings.socket, self._admit, introspection.accept)
        self._spool = Spool(self._context, settings.state_dir, self._put, self._ended.add)
        self._context.metrics.collectors.append(self._spool.samples)
        self._spool.look()  # after the socket is there: what is spooled from now on is tried on the socket again
        remove_mark(settings.socket)
        self._state_lock.admit_earlier_calls()
        self._workers.start()
        self._heartbeat.start()
        self._telemetry.start()
        preload(settings.state_dir, self._context.journal)
        self._maintenance = Maintenance(self._context, self._put, self._queue.is_parked)
        self._reconciliation = Reconciliation(self._context, self._put, settings.state_dir)
        self._context.metrics.collectors.append(self._reconciliation.samples)
        self._periodic = Periodic(self._tasks())
        self._periodic.start()

    def _tasks(self) -> Sequence[Task]:
        """Return the periodic tasks. Those that must not wait for their first period run at once."""
        context, state_dir = self._context, self._settings.state_dir
        probe = partial(probe_dependencies, context, state_dir)
        missing = MissingRows(context, self._put, state_dir)
        places = Places(self._state_lock, context, self._settings.socket, self._socket_lock, self._listener, self._end.request)
        moved = Rehoming(context, self._put)
        probe()
        moved.look()
        missing.look()
        return (
            Task("idle sessions", PERIOD_SECONDS, partial(context.close_idle, IDLE_SECONDS)),
            Task("pending releases", PERIOD_SECONDS, self._maintenance.retry_releases),
            Task("spool", spool.LOOK_SECONDS, self._spool.look),
            Task("moved datastore", rehoming.LOOK_SECONDS, moved.look),
            Task("lost data", LOOK_SECONDS, Restoring(context, self._put).look),
            Task("missing rows", PERIOD_SECONDS, missing.look),
            Task("readiness", PERIOD_SECONDS, probe),
            Task("reconciliation", reconciliation.LOOK_SECONDS, self._reconciliation.look),
            Task("garbage", garbage.SECONDS, GarbageCollector(self._workers.report).run),
            Task("installed version", CHECK_SECONDS, self._upgrade_check.run),
            Task("directories", PLACES_SECONDS, places.check),
            *self._telemetry.tasks(),
        )

    def _open_backend(self, store: dict[str, str], names: Names) -> Backend:
        self._state_lock.require()
        return open_backend(store, self._settings.state_dir, names)

    def _load_introspection(self) -> Answer:
        from svc.agent.introspection import answer  # imported late: most agents are not inspected
        from svc.agent.state_report import AgentView

        paths = {name: str(getattr(self._settings, name)) for name in ("socket", "state_dir", "run_dir")}
        periodic = partial(getattr, self, "_periodic", None)  # the agent may still be starting
        reconciliation = partial(getattr, self, "_reconciliation", None)
        parts = self._context, self._queue, self._parked, self._workers, periodic, reconciliation, self._ended.read
        return partial(answer, AgentView(*parts, paths, self._started))

    def _open_telemetry(self, stack: ExitStack) -> None:
        for address in self._settings.metrics:
            remedy = _SOCKET if isinstance(address, Path) else _ADDRESS
            with _blaming("--metrics", _text(address), remedy):
                self._telemetry.listen(stack, address)
        if self._settings.traces:
            with _blaming("--traces", self._settings.traces, _TRACES):
                self._telemetry.trace_to(stack, self._settings.traces)

    def _drain(self) -> int:
        """Stop accepting calls, end the waits and finish accepted calls. Exit at the deadline."""
        notify("STOPPING=1")
        self._heartbeat.drain()
        self._maintenance.stop()
        self._spool.stop()
        self._periodic.stop()
        self._state_lock.drain(DRAIN_SECONDS)
        leave_mark(self._settings.socket)
        self._listener.stop_accepting()
        self._parked.end_all()
        self._stopped = True
        self._listener.wake_all()
        unfinished = self._workers.stop(time.monotonic() + DRAIN_SECONDS)
        if unfinished:
            log.error("%d calls were not finished %g s after SIGTERM: the next start undoes them", unfinished, DRAIN_SECONDS)
            os._exit(1)
        self._heartbeat.stop()
        self._listener.close()
        leave_mark(self._settings.socket)  # again: the drain may have taken long
        self._parked.close()
        if self._end.reason:
            log.error("stopped: %s: start the agent again", self._end.reason)
            return 1
        log.info("stopped")
        return 0

    def _begin_recovery(self) -> None:
        """Queue the recovery of interrupted attachments. Calls are served at once, after the recovery of their container."""
        records = interrupted(self._context)
        teardowns = Teardowns(self._context)
        open_ends = Countdown(len(records))
        for record in records:
            lane = Lane(RECOVERY, str(store_of(record)))
            self._queue.put(Job(lane, record.id.container_id, partial(self._recover_one, teardowns, record, open_ends)))

    def _recover_one(self, teardowns: Teardowns, record: Record, open_ends: Countdown, _: Job) -> None:
        if self._stopped:  # the next start continues it
            return
        trace = CallTrace(new_request_id())
        is_gone = False
        try:
            with trace.activated():
                is_gone = teardowns.recover(record, trace)
        finally:
            for level, text in trace.messages:
                log.log(level, "%s", text)
            open_ends.count(is_gone=is_gone)

    def _admit(self, connection: socket.socket, inputs: CallInput) -> None:
        verb, container = inputs.environment.get("CNI_COMMAND", ""), inputs.environment.get("CNI_CONTAINERID", "")
        lane = lane_of(verb, inputs.stdin)
        ended = partial(self._heartbeat.remove, connection)
        if verb == "ADD":
            self._spool.look_if_changed()
        call = AgentCall(
            connection, inputs, self._spool.answer, self._context.metrics, ended, self._ended.add, self._telemetry.tracer
        )
        if inputs.protocol == PROTOCOL:
            self._heartbeat.add(connection)
        if lane.is_short:
            RIGHT_OF_WAY.begin()
            take_precedence()
        self._queue.put(Job(lane, container, lambda job: self._carry_on(call, job)))

    def _run(self, job: Job) -> None:
        wait = None
        try:
            wait = carry_out(job)
        except Exception:
            log.exception("a job failed")
        if wait is None:
            self._queue.done(job)
        else:
            self._queue.park(job, partial(wait.end, WaitOutcome.DELETED))
            wait.then(partial(self._resume, job))

    def _carry_on(self, call: AgentCall, job: Job) -> Wait | None:
        wait = call.run(job)
        if wait is not None:
            self._parked.park(wait, call.connection, call.trace)
        return wait

    def _resume(self, job: Job) -> None:
        self._queue.resume(job)
        self._listener.wake()

    def _next_job(self) -> Callable[[], None] | None:
        """Block until a job may run. Return None when the agent stops and the queue is empty.

        All idle workers listen: the one that reads a request also runs it, so that no other thread must be woken.
        """
        self._listener.poll(wait=False)  # queue pending requests first, so that they take part in the fair order
        while (job := self._queue.take()) is None and not self._stopped:
            end_precedence()  # another worker carries out what this one has read
            self._listener.poll(wait=True)
        if self._queue.has_more():
            self._listener.wake()
        return None if job is None else partial(self._run, job)

    def _poll(self) -> None:
        """Read waiting requests: no worker listens while all are occupied."""
        has_read = False
        while not self._stopped and self._listener.poll(wait=False):  # a wake-up of all threads persists, and is not a request
            has_read = True
        end_precedence()
        if has_read:
            self._listener.wake()

    def _listen(self) -> None:
        self._listener.poll(wait=True)
        end_precedence()  # another thread carries out what this one has read

    def _put(self, job: Job) -> None:
        self._queue.put(job)
        self._listener.wake()


def _text(address: tuple[str, int] | Path) -> str:
    """Return an address of the metrics server, as the option has it."""
    if isinstance(address, Path):
        return f"unix:{address}"
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _blaming(option: str, value: object, remedy: str) -> Iterator[None]:
    """Raise CallerError, with the option and its value, for an OSError of the block."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            remedy = "name a shorter path with {option}"
        raise CallerError(
            f"{option} {str(value)!r} cannot be used: {error.strerror or error}",
            details=error.fix if isinstance(error, UnsafeDirectory) else remedy.format(option=option),
            code=Code.IO_FAILURE,
        ) from error

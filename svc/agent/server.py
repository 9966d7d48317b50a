"""The agent's life cycle: start, serve, drain."""

import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from svc.agent.call import AgentCall
from svc.agent.heartbeat import Heartbeat, notify, watchdog_seconds
from svc.agent.lanes import RECOVERY, Lane, lane_of
from svc.agent.listener import Listener
from svc.agent.maintenance import Maintenance
from svc.agent.missing_rows import MissingRows
from svc.agent.parked import ParkedCalls
from svc.agent.periodic import Periodic, Task
from svc.agent.places import Places, UpgradeCheck
from svc.agent.preload import preload, probe_dependencies
from svc.agent.queue import AdmissionQueue, Job
from svc.agent.restoring import LOOK_SECONDS, Restoring
from svc.agent.workers import WorkerPool
from svc.attach.context import Context
from svc.attach.record import Record
from svc.attach.recovery import Teardowns, interrupted, store_of
from svc.call_trace import CallTrace, new_request_id
from svc.cni.call_io import PROTOCOL, CallInput
from svc.cni.frame import own_version
from svc.cni.handler import handle_call
from svc.cni.locks import AGENT, SocketLock, StateLock
from svc.datastore.api import Backend
from svc.datastore.open import open_backend
from svc.model.errors import CallerError, Code, SvcError
from svc.names import Names
from svc.netconf.names_profiles import Profiles
from svc.private_directory import UnsafeDirectory
from svc.values import dataclass
from svc.waits.wait import Wait, WaitOutcome

DRAIN_SECONDS = 20.0
LOCK_SECONDS = 60.0  # limit at the start for one-shot processes and a draining agent to end
PLACES_SECONDS = 1.0  # between checks of socket, journal and state directory
CHECK_SECONDS = 30.0  # between checks of the installed package
PERIOD_SECONDS = 30.0  # between retries of releases, searches for missing rows, probes, and checks for idle sessions
IDLE_SECONDS = 900.0  # a session that no call has used for this time is closed

_DIRECTORY = "name a directory that root can write with {option}, or move the file of this name away"
_SOCKET = "name a path with {option} in a directory that root can write, and not that of another file"
_ADDRESS = "name an address of this node and a port that is free with {option}; `ss -ltnp` shows which program has a port"

log = logging.getLogger("svc.agent")


@dataclass(frozen=True, slots=True)
class Settings:
    """Paths and address of the agent."""

    socket: Path
    state_dir: Path
    run_dir: Path
    metrics: tuple[str, int] | None = None  # address of the metrics server, if any


class Agent:
    """The resident agent. `run` returns the exit status after SIGTERM or SIGINT."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queue = AdmissionQueue()
        self._parked = ParkedCalls()
        self._workers = WorkerPool(self._next_job)
        self._heartbeat = Heartbeat(self._poll, self._put, self._workers.is_busy, watchdog_seconds())
        self._stopped = False
        with _blaming("--state-dir", settings.state_dir, _DIRECTORY):
            self._state_lock = StateLock(settings.state_dir, AGENT, settings.socket.absolute())
        self._socket_lock = SocketLock(settings.run_dir)

    def run(self) -> int:
        with ExitStack() as stack:
            stack.callback(self._state_lock.close)
            stack.callback(self._socket_lock.close)
            self._end = stack.enter_context(_signals())
            self._start_up(stack)
            log.info("serving on %s", self._settings.socket)
            notify("READY=1")
            self._end.wait()
            return self._drain()

    def _start_up(self, stack: ExitStack) -> None:
        settings = self._settings
        self._state_lock.take_as_agent(LOCK_SECONDS)
        with _blaming("--run-dir", settings.run_dir, _DIRECTORY):
            self._socket_lock.take()
        self._context = Context(
            Profiles().get, settings.state_dir, self._open_backend, resident=True, require_state=self._state_lock.require
        )
        stack.callback(self._context.close)
        if settings.metrics is not None:
            self._serve_metrics(stack, *settings.metrics)
        with suppress(SvcError):
            self._context.networks.load()
        own_version()  # read it before an upgrade can replace it on the disk
        self._begin_recovery()
        with _blaming("--socket", settings.socket, _SOCKET):
            self._listener = Listener(settings.socket, self._admit)
        self._state_lock.admit_earlier_calls()
        self._workers.start()
        self._heartbeat.start()
        preload(settings.state_dir, self._context.journal)
        self._maintenance = Maintenance(self._context, self._put, self._queue.is_parked)
        self._periodic = Periodic(self._tasks())
        self._periodic.start()

    def _tasks(self) -> Sequence[Task]:
        """Return the periodic tasks. Those that must not wait for their first period run at once."""
        context, state_dir = self._context, self._settings.state_dir
        probe = partial(probe_dependencies, context, state_dir)
        missing = MissingRows(context, self._put, state_dir)
        places = Places(
            self._state_lock, context.journal, self._settings.socket, self._socket_lock, self._listener, self._end.request
        )
        probe()
        missing.look()
        return (
            Task("idle sessions", PERIOD_SECONDS, partial(context.close_idle, IDLE_SECONDS)),
            Task("pending releases", PERIOD_SECONDS, self._maintenance.retry_releases),
            Task("lost data", LOOK_SECONDS, Restoring(context, self._put).look),
            Task("missing rows", PERIOD_SECONDS, missing.look),
            Task("readiness", PERIOD_SECONDS, probe),
            Task("installed version", CHECK_SECONDS, UpgradeCheck(context).run),
            Task("directories", PLACES_SECONDS, places.check),
        )

    def _open_backend(self, store: dict[str, str], names: Names) -> Backend:
        self._state_lock.require()
        return open_backend(store, self._settings.state_dir, names)

    def _serve_metrics(self, stack: ExitStack, host: str, port: int) -> None:
        from svc.agent.metrics_server import MetricsServer  # it takes 2 MiB, and most nodes serve no metrics

        with _blaming("--metrics", f"[{host}]:{port}" if ":" in host else f"{host}:{port}", _ADDRESS):
            stack.callback(MetricsServer(host, port, self._context.metrics).close)

    def _drain(self) -> int:
        """Stop accepting calls, end the waits and finish accepted calls. Exit at the deadline."""
        notify("STOPPING=1")
        self._heartbeat.drain()
        self._maintenance.stop()
        self._periodic.stop()
        self._state_lock.drain(DRAIN_SECONDS)
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
        open_ends = _Countdown(len(records))
        for record in records:
            lane = Lane(RECOVERY, str(store_of(record)))
            self._queue.put(Job(lane, record.id.container_id, partial(self._recover_one, teardowns, record, open_ends)))

    def _recover_one(self, teardowns: Teardowns, record: Record, open_ends: "_Countdown", _: Job) -> None:
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
        call = AgentCall(connection, inputs, partial(handle_call, self._context), self._context.metrics, ended)
        if inputs.protocol == PROTOCOL:
            self._heartbeat.add(connection)
        self._queue.put(Job(lane, container, lambda job: self._carry_on(call, job)))

    def _run(self, job: Job) -> None:
        wait = None
        try:
            wait = job.run(job)
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
            self._parked.park(wait, call.connection)
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
            self._listener.poll(wait=True)
        if self._queue.has_more():
            self._listener.wake()
        return None if job is None else partial(self._run, job)

    def _poll(self) -> None:
        """Read waiting requests: no worker listens while all are occupied."""
        has_read = False
        while not self._stopped and self._listener.poll(wait=False):  # a wake-up of all threads persists, and is not a request
            has_read = True
        if has_read:
            self._listener.wake()

    def _put(self, job: Job) -> None:
        self._queue.put(job)
        self._listener.wake()


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


class _Countdown:
    """Counter of open recoveries, which logs the end of the last one."""

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._open = number
        self._left = 0
        if not number:
            self._report()

    def count(self, *, is_gone: bool) -> None:
        with self._lock:
            self._open -= 1
            self._left += not is_gone
            if not self._open:
                self._report()

    def _report(self) -> None:
        if self._left:
            log.warning("recovery ended: the releases of %d attachments are pending and will be retried", self._left)
        else:
            log.info("recovery ended: no release is pending")


class _End:
    """The request to end the agent, by a signal or, with a reason, by the agent itself."""

    def __init__(self, reader: socket.socket, writer: socket.socket) -> None:
        self._reader = reader
        self._writer = writer
        self.reason = ""

    def wait(self) -> None:
        self._reader.recv(1)

    def request(self, reason: str) -> None:
        self.reason = reason
        with suppress(BlockingIOError):
            self._writer.send(b"x")


@contextmanager
def _signals() -> Iterator[_End]:
    """Convert SIGTERM and SIGINT to the request to end. The descriptor wakes the main thread, whichever thread gets them."""

    def ignore(_number: int, _frame: FrameType | None) -> None:
        return

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        before = {number: signal.signal(number, ignore) for number in (signal.SIGTERM, signal.SIGINT)}
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield _End(reader, writer)
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)

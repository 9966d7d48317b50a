"""The agent's life: start up, serve, drain."""

import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from svc.agent.call import Call
from svc.agent.crew import Crew
from svc.agent.heartbeat import Heartbeat
from svc.agent.listener import Listener
from svc.agent.lobby import Lobby
from svc.agent.notify import notify, watchdog_seconds
from svc.agent.periodic import Periodic
from svc.agent.queue import AdmissionQueue, Job
from svc.agent.upkeep import Upkeep
from svc.attach.context import Context
from svc.attach.recover import recover
from svc.cni.edge import answer
from svc.cni.exclusive import alone, next_turn
from svc.cni.frame import PROTOCOL, Frame, own_version
from svc.cni.inputs import Inputs
from svc.datastore.open import open_backend
from svc.model.errors import CallerError, Code
from svc.netconf.profiles import Profiles
from svc.trace import Trace, new_request_id
from svc.waits.wait import End, Wait

# An ADD with a store on this node hardly waits, it computes: any number side by side would only take the interpreter from each
# other. Eight, for their addresses are one write then, and one may compute while another is in the kernel: a tenth more than
# two. With a store that is asked over a network they wait.
AT_ONCE = {"ADD here": 8}
DRAIN_SECONDS = 20.0

log = logging.getLogger("svc.agent")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the agent lives."""

    socket: Path
    state_dir: Path
    run_dir: Path
    metrics: tuple[str, int] | None = None  # where its figures are served; not at all


class Agent:
    """`run` returns when a SIGTERM or SIGINT was served; it returns the exit status."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queue = AdmissionQueue(AT_ONCE)
        self._lobby = Lobby()
        self._crew = Crew(self._next_job)
        self._heartbeat = Heartbeat(self._poll, self._put, self._crew.is_busy, watchdog_seconds())
        self._stopped = False

    def run(self) -> int:
        with ExitStack() as stack:
            stack.enter_context(_only_one(self._settings.run_dir / "agent.lock", 0o755))
            stack.enter_context(_only_one(self._settings.state_dir / "state.lock", 0o700))
            told = stack.enter_context(_signals())
            self._start_up(stack)
            self._serve(told)
            return self._drain()

    def _start_up(self, stack: ExitStack) -> None:
        settings = self._settings
        with next_turn(settings.state_dir), alone(settings.state_dir):
            self._context = Context(
                Profiles().get, settings.state_dir, lambda store, names: open_backend(store, settings.state_dir, names)
            )
            stack.callback(self._context.close)
            self._recover()
            if settings.metrics is not None:
                from svc.agent.metrics import MetricsServer  # 2 MiB that most nodes do without

                stack.callback(MetricsServer(*settings.metrics, self._context.metrics).close)
            own_version()  # from the disk, where an upgrade may replace it at any time
            self._listener = Listener(settings.socket, self._admit)
        self._crew.start()
        self._heartbeat.start()
        self._upkeep = Upkeep(self._context, self._put, self._queue.is_paused)
        self._periodic = Periodic(self._upkeep.tasks())
        self._periodic.start()

    def _serve(self, told: socket.socket) -> None:
        log.info("serving on %s", self._settings.socket)
        notify("READY=1")
        told.recv(1)

    def _drain(self) -> int:
        """Five steps: tell, accept nothing new, end what is waited for, finish what was accepted, give up at the deadline."""
        notify("STOPPING=1")
        self._upkeep.stop()
        self._periodic.stop()
        self._listener.refuse()
        self._lobby.dismiss()
        self._stopped = True
        self._listener.release()
        unfinished = self._crew.dismiss(time.monotonic() + DRAIN_SECONDS)
        if unfinished:
            log.error("%d calls were not finished %g s after SIGTERM: the next start undoes them", unfinished, DRAIN_SECONDS)
            os._exit(1)
        self._heartbeat.stop()
        self._listener.close()
        self._lobby.close()
        log.info("stopped")
        return 0

    def _recover(self) -> None:
        trace = Trace(new_request_id())
        left = recover(self._context, trace)
        for line in trace.lines:
            log.info("%s", line.rstrip())
        if left:
            log.warning("%d attachments of before are still owed a release", left)

    def _admit(self, connection: socket.socket, frame: Frame, netns_fd: int) -> None:
        inputs = Inputs(frame.name, frame.environment, frame.stdin, netns_fd, frame.profile)
        verb, container = frame.environment.get("CNI_COMMAND", ""), frame.environment.get("CNI_CONTAINERID", "")
        lane = _lane(verb, frame.stdin)
        ended = partial(self._heartbeat.remove, connection)
        call = Call(connection, inputs, partial(answer, self._context), self._context.metrics, ended, frame.protocol)
        if frame.protocol == PROTOCOL:
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
            self._queue.pause(job, partial(wait.end, End.DELETED))
            wait.then(partial(self._resume, job))

    def _carry_on(self, call: Call, job: Job) -> Wait | None:
        wait = call.run(job)
        if wait is not None:
            self._lobby.hold(wait, call.connection)
        return wait

    def _resume(self, job: Job) -> None:
        self._queue.resume(job)
        self._listener.wake()

    def _next_job(self) -> Callable[[], None] | None:
        """Idle workers all listen: who hears a call carries it out, and no other thread has to be woken for it. None when the
        agent stops and nothing is left to do.
        """
        self._listener.turn(wait=False)  # who came meanwhile takes part in the fair order
        while (job := self._queue.take()) is None and not self._stopped:
            self._listener.turn(wait=True)
        if self._queue.has_more():
            self._listener.wake()
        return None if job is None else partial(self._run, job)

    def _poll(self) -> None:
        """Read what nobody has read: while all workers are occupied nobody listens."""
        has_read = False
        while self._listener.turn(wait=False):
            has_read = True
        if has_read:
            self._listener.wake()

    def _put(self, job: Job) -> None:
        self._queue.put(job)
        self._listener.wake()


def _lane(verb: str, netconf: bytes) -> str:
    """A glance tells where the datastore is: it decides over nothing but the pace."""
    if verb == "ADD":
        computes = b'"embedded"' in netconf and b'"host-local"' not in netconf  # the other plugin is waited for
        return "ADD here" if computes else "ADD afar"
    return "DEL" if verb == "DEL" else "other"


@contextmanager
def _only_one(path: Path, mode: int) -> Iterator[None]:
    """Two of one state would undo each other's calls at their start, and answer for each other's attachments."""
    path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CallerError(
                f"another agent runs on {str(path.parent)!r}",
                details="stop it first, or give this one a --run-dir and a --state-dir of its own",
                code=Code.IO_FAILURE,
            ) from None
        yield


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Something can be read from the socket once SIGTERM or SIGINT has come; what was there before is put back.

    The kernel may give a signal to any thread, but only the main one runs handlers: the descriptor wakes it.
    """

    def told(_number: int, _frame: FrameType | None) -> None:
        return

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)

"""The agent of a node: its life cycle, its queue and its calls."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from simulation.blocking import Current
from simulation.scheduler import Killed, Process, Task
from simulation.world import World
from svc.agent.lanes import RECOVERY, Lane
from svc.agent.maintenance import Maintenance
from svc.agent.queue import AdmissionQueue, Job
from svc.agent.restoring import LOOK_SECONDS, Restoring
from svc.agent.server import DRAIN_SECONDS, LOCK_SECONDS
from svc.attach.context import Context
from svc.attach.record import Record
from svc.attach.recovery import Teardowns, interrupted
from svc.call_trace import CallTrace
from svc.cni.call_io import Reply
from svc.cni.handler import WORK_SECONDS
from svc.cni.locks import AGENT, StateLock
from svc.model.errors import SvcError
from svc.waits.wait import Resumable, Suspended, Wait, WaitOutcome, limited

WORKERS = 2
Body = Callable[[Context, CallTrace, int], Resumable[None]]
UNKNOWN = Reply(1, b"no answer", b"")


class Agent:
    """`svc.agent.server.Agent` without sockets: the life cycle of the process, with the real queue and the real verbs."""

    def __init__(self, world: World, node: str, number: int) -> None:
        self.world = world
        self.process = Process(f"agent-{node}{number}", node)
        self.process.ends.append(lambda: world.killed_agents.append(node))
        self.listening = False
        self.stopping = False
        self.ended = False
        self._stopped = False
        self._queue = AdmissionQueue()
        self._waits: list[Wait] = []
        self._busy = 0
        self._working = 0

    def start(self) -> None:
        self.process.ends.append(self._gone)
        self._spawn("life", self._life)

    def stop(self) -> None:
        """Stop the agent as SIGTERM does."""
        self.stopping = True

    def call(self, call: "Call") -> "Answering":
        """Accept a request. The caller has found that the agent is listening."""
        answering = Answering(self, call)
        self._queue.put(Job(Lane(call.verb, self.world.kind), call.container, lambda _: answering.carry_on()))
        return answering

    def retry(self) -> Callable[[], bool]:
        """Begin a round of retried releases. Return a function that tells whether the round has ended."""
        task = self._spawn("retry", self._retry)
        return lambda: task.over and not self._queue.has_more() and not self._working

    def _retry(self) -> None:
        if not self._stopped:
            self._busy += 1
            try:
                self._maintenance.retry_releases()
            finally:
                self._busy -= 1

    def _gone(self) -> None:
        self.listening, self.ended, self.process.over = False, True, True

    def _life(self) -> None:
        try:
            with ExitStack() as stack:
                lock = StateLock(self.world.stage.state_dir(self.process.node), AGENT)
                stack.callback(lock.close)
                lock.take_as_agent(LOCK_SECONDS)
                self.context = self.world.context(self.process.node, resident=True)
                stack.callback(self.context.close)
                self._maintenance = Maintenance(self.context, self._queue.put, self._queue.is_parked)
                self._recover()
                lock.admit_earlier_calls()
                self.listening = True
                for number in range(WORKERS):
                    self._spawn(f"worker{number}", self._work)
                self._spawn("restoring", self._restore)
                Current.scheduler.block("serves", lambda: self.stopping)
                self._drain(lock)
        except SvcError as refusal:
            Current.scheduler.note(f"does not start: {refusal}")
        finally:
            self._gone()

    def _restore(self) -> None:
        restoring = Restoring(self.context, self._queue.put)
        while not Current.scheduler.block("looks for lost data later", lambda: self._stopped, LOOK_SECONDS):
            self._busy += 1
            try:
                restoring.look()
            finally:
                self._busy -= 1

    def _recover(self) -> None:
        teardowns = Teardowns(self.context)
        for record in interrupted(self.context):
            run = partial(self._recover_one, teardowns, record)
            self._queue.put(Job(Lane(RECOVERY), record.id.container_id, run))

    def _recover_one(self, teardowns: Teardowns, record: Record, _: Job) -> None:
        if not self._stopped:
            teardowns.recover(record, CallTrace("recovery"))

    def _drain(self, lock: StateLock) -> None:
        self._maintenance.stop()
        lock.drain(DRAIN_SECONDS)
        self.listening = False
        for wait in self._waits:
            wait.end(WaitOutcome.SHUTDOWN)
        self._stopped = True
        if not Current.scheduler.block("drains", lambda: not self._busy, DRAIN_SECONDS):
            Current.scheduler.kill(self.process)
            raise Killed

    def _spawn(self, name: str, run: Callable[[], None]) -> Task:
        return Current.scheduler.spawn(self.process, f"{self.process.name}/{name}", run, daemon=True)

    def _work(self) -> None:
        self._busy += 1
        try:
            while True:
                job = self._queue.take()
                if job is not None:
                    self._run(job)
                elif self._stopped:
                    return
                else:
                    Current.scheduler.block("is idle", lambda: self._stopped or self._queue.has_more())
        finally:
            self._busy -= 1

    def _run(self, job: Job) -> None:
        self._working += 1
        try:
            wait = job.run(job)
        finally:
            self._working -= 1
        if wait is None:
            self._queue.done(job)
            return
        self._queue.park(job, partial(wait.end, WaitOutcome.DELETED))
        wait.then(partial(self._queue.resume, job))
        self._waits.append(wait)
        if self._stopped:
            wait.end(WaitOutcome.SHUTDOWN)
        self._spawn("parked calls", partial(_end_late, wait))


class Answering:
    """A request in progress in the agent."""

    def __init__(self, agent: Agent, call: "Call") -> None:
        self._agent = agent
        self._call = call
        self._reply: Reply | None = None
        self._running: Resumable[Reply] | None = None

    def carry_on(self) -> Wait | None:
        if self._running is None:
            self._running = answered(self._agent.context, self._call)
        try:
            return next(self._running)
        except StopIteration as end:
            self._reply = end.value
            return None

    def wait(self) -> Reply:
        """Return the reply to the client, or None if the agent has ended."""
        agent = self._agent
        Current.scheduler.block("waits for the agent's answer", lambda: self._reply is not None or agent.ended)
        return UNKNOWN if self._reply is None else self._reply


@dataclass
class Call:
    """A call of the runtime.

    `body` does the work of `svc.cni.verbs`; `intent` is that of a call that another process continues.
    """

    verb: str
    node: str
    container: str
    body: Body
    intent: int = 0


def answered(context: Context, call: Call) -> Resumable[Reply]:
    """Return a reply as `svc.cni.handler.handle_call` does. Every known failure becomes a reply, and any other is a bug."""
    steps = call.body(context, CallTrace(call.verb), call.intent)
    try:
        yield from limited(steps, WORK_SECONDS.get(call.verb, math.inf))
    except Suspended as moved:
        return Reply(0, b"", b"", moved.generation)
    except SvcError as refusal:
        return Reply(1, (str(refusal) or "error").encode(), b"")
    return Reply(0, b"", b"")


def _end_late(wait: Wait) -> None:
    scheduler = Current.scheduler
    if not scheduler.block("minds a wait", lambda: wait.outcome is not None, wait.deadline - scheduler.now):
        wait.end(WaitOutcome.TIMEOUT)

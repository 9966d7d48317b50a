"""The processes of a node: the agent with its queue, calls without an agent, and the runtime that makes the calls."""

import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from simulation.blocking import Current
from simulation.patches import Hooks
from simulation.scheduler import Killed, Process, Task
from simulation.world import IFNAME, NETWORK, NODES, Container, World
from svc.agent.agent import DRAIN_SECONDS, LOCK_SECONDS
from svc.agent.lanes import RECOVERY, Lane
from svc.agent.queue import AdmissionQueue, Job
from svc.agent.restoring import LOOK_SECONDS, Restoring
from svc.agent.upkeep import Upkeep
from svc.attach.add import add
from svc.attach.context import Context
from svc.attach.delete import delete
from svc.attach.gc import collect
from svc.attach.record import Record
from svc.attach.recover import Recovery, interrupted
from svc.attach.request import AddRequest
from svc.cni.__main__ import AGENTS, _carried_out_or_handed_on
from svc.cni.edge import WORK_SECONDS
from svc.cni.inputs import Inputs, Reply
from svc.cni.locks import AGENT, StateLock
from svc.model.errors import SvcError
from svc.model.hold import NO_GATES, GateSettings
from svc.trace import Trace
from svc.waits.wait import End, Steps, Suspended, Wait, limited

WORKERS = 2
GATE = GateSettings(urls=("http://gate/",), seconds=60)
Body = Callable[[Context, Trace, int], Steps[None]]
UNKNOWN = Reply(1, b"no answer", b"")


class Agent:
    """`svc.agent.agent.Agent` without its sockets: the life of the process, the real queue, the real verbs."""

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
        """Take a request; the caller has found the agent listening."""
        answering = Answering(self, call)
        self._queue.put(Job(Lane(call.verb, self.world.kind), call.container, lambda _: answering.carry_on()))
        return answering

    def retry(self) -> Callable[[], bool]:
        """Begin a round of retried releases; what is returned tells whether it is over."""
        task = self._spawn("retry", self._retry)
        return lambda: task.over and not self._queue.has_more() and not self._working

    def _retry(self) -> None:
        if not self._stopped:
            self._busy += 1
            try:
                self._upkeep.retry_releases()
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
                self._upkeep = Upkeep(self.context, self._queue.put, self._queue.is_paused)
                self._recover()
                lock.admit_calls_of_last_release()
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
        recovery = Recovery(self.context)
        for record in interrupted(self.context):
            run = partial(self._recover_one, recovery, record)
            self._queue.put(Job(Lane(RECOVERY), record.id.container_id, run))

    def _recover_one(self, recovery: Recovery, record: Record, _: Job) -> None:
        if not self._stopped:
            recovery.take_down(record, Trace("recovery"))

    def _drain(self, lock: StateLock) -> None:
        self._upkeep.stop()
        lock.drain(DRAIN_SECONDS)
        self.listening = False
        for wait in self._waits:
            wait.end(End.STOPPING)
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
        self._queue.pause(job, partial(wait.end, End.DELETED))
        wait.then(partial(self._queue.resume, job))
        self._waits.append(wait)
        if self._stopped:
            wait.end(End.STOPPING)
        self._spawn("lobby", partial(_end_late, wait))


class Answering:
    """A request on its way through the agent."""

    def __init__(self, agent: Agent, call: "Call") -> None:
        self._agent = agent
        self._call = call
        self._reply: Reply | None = None
        self._running: Steps[Reply] | None = None

    def carry_on(self) -> Wait | None:
        if self._running is None:
            self._running = answered(self._agent.context, self._call)
        try:
            return next(self._running)
        except StopIteration as end:
            self._reply = end.value
            return None

    def wait(self) -> Reply:
        """Return what the client gets: nothing when the agent is gone."""
        agent = self._agent
        Current.scheduler.block("waits for the agent's answer", lambda: self._reply is not None or agent.ended)
        return UNKNOWN if self._reply is None else self._reply


@dataclass
class Call:
    """A call of the runtime. `body` is what `svc.cni.verbs` would do; `intent` is that of a call that goes on elsewhere."""

    verb: str
    node: str
    container: str
    body: Body
    intent: int = 0


def answered(context: Context, call: Call) -> Steps[Reply]:
    """Answer as `svc.cni.edge.answer` does: every failure that the product knows becomes the reply, any other is a defect."""
    steps = call.body(context, Trace(call.verb), call.intent)
    try:
        yield from limited(steps, WORK_SECONDS.get(call.verb, math.inf))
    except Suspended as moved:
        return Reply(0, b"", b"", moved.generation)
    except SvcError as refusal:
        return Reply(1, (str(refusal) or "error").encode(), b"")
    return Reply(0, b"", b"")


class OneShot:
    """Processes of one call each: `svc.cni.__main__` on the models."""

    def __init__(self, world: World, agent: Callable[[str], Agent | None]) -> None:
        self._world = world
        self._agent = agent
        Hooks.steps, Hooks.handed_on = self._steps, self._handed_on
        Hooks.is_served = lambda node: agent(node) is not None

    def run(self, call: Call, number: int) -> Reply:
        process = Process(f"oneshot-{call.node}{number}", call.node)
        outcome: list[Reply] = []

        def main() -> None:
            try:
                outcome.append(self._answer(call))
            except SvcError as refusal:
                outcome.append(Reply(1, str(refusal).encode(), b""))
            finally:
                process.over = True

        task = Current.scheduler.spawn(process, f"{process.name} {call.verb} {call.container}", main)
        Current.scheduler.block("waits for the process", lambda: task.over)
        return outcome[0] if outcome else UNKNOWN

    def _answer(self, call: Call) -> Reply:
        state_dir = self._world.stage.state_dir(call.node)
        installed: Any = SimpleNamespace(state_dir=state_dir, socket=call.node)
        environment: dict[str, Any] = {"call": call}
        with closing(StateLock(state_dir, f"{call.verb} {call.container}")) as lock:
            return _carried_out_or_handed_on(lock, Inputs("svc", environment, b"", resumable=True), installed, Trace("oneshot"))

    def _steps(self, inputs: Inputs, _installed: object, _trace: Trace) -> Steps[Reply]:
        call = self._call_of(inputs)
        context = self._world.context(call.node, resident=False)
        try:
            return (yield from answered(context, call))
        finally:
            context.close()

    def _handed_on(self, inputs: Inputs, _installed: object) -> Reply | None:
        call = self._call_of(inputs)
        Current.scheduler.step("hands the call to the agent", "kill")
        agent = self._agent(call.node)
        return None if agent is None else agent.call(call).wait()

    @staticmethod
    def _call_of(inputs: Inputs) -> Call:
        call: object = inputs.environment["call"]
        assert isinstance(call, Call)
        return replace(call, intent=inputs.intent)


def _end_late(wait: Wait) -> None:
    scheduler = Current.scheduler
    if not scheduler.block("minds a wait", lambda: wait.outcome is not None, wait.deadline - scheduler.now):
        wait.end(End.LATE)


class Runtime:
    """Makes calls, by the agent or without, and starts, stops and kills agents."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._agents: dict[str, list[Agent]] = {node: [] for node in NODES}
        self._collecting: list[str] = []
        self._number = 0
        self._one_shot = OneShot(world, self.agent)

    # agents

    def start(self, node: str) -> None:
        self._number += 1
        agent = Agent(self.world, node, self._number)
        self._agents[node].append(agent)
        agent.start()
        Current.scheduler.block("waits for the agent", lambda: agent.listening or agent.ended)

    def stop(self, node: str) -> None:
        agents = self._agents[node]
        for agent in agents:
            agent.stop()
        Current.scheduler.block("waits for the agent to stop listening", lambda: not self.is_served(node))

    def kill(self, node: str) -> None:
        for agent in self._agents[node]:
            Current.scheduler.kill(agent.process)

    def agent(self, node: str) -> Agent | None:
        """Return the agent that listens."""
        return next((agent for agent in self._agents[node] if agent.listening), None)

    def is_served(self, node: str) -> bool:
        return self.agent(node) is not None

    def await_ends(self, node: str) -> None:
        """Return when every agent that was told to stop has ended."""
        ending = [agent for agent in self._agents[node] if agent.stopping]
        Current.scheduler.block("waits for agents to end", lambda: all(agent.ended for agent in ending))

    # calls

    def add(self, container: Container, *, gated: bool = False) -> str:
        Current.scheduler.block("waits for a GC", lambda: container.node not in self._collecting)
        container.issued += 1
        container.gone, before, disturbed = False, container.dels, container.deleting
        number = container.issued
        container.waiting.add(number)
        answer = self._dispatch(Call("ADD", container.node, container.name, self._addition(container, number, gated=gated)))
        container.waiting.discard(number)
        container.answers.append(f"ADD {answer or 'ok'}")
        if not answer and container.dels == before and not disturbed:
            container.live = True
        return answer

    def delete(self, container: Container) -> str:
        container.dels += 1
        container.deleting += 1
        container.live = False
        seen = [-1]
        answer = self._dispatch(Call("DEL", container.node, container.name, self._deletion(container, seen)))
        container.deleting -= 1
        container.answers.append(f"DEL {answer or 'ok'}")
        if not answer and container.issued == seen[0]:
            container.gone = True
        return answer

    def gc(self, node: str) -> str:
        """The runtime names every container that it has not seen deleted, and adds none before the GC is over."""
        valid = [(each.name, IFNAME) for each in self.world.containers.values() if each.node == node and not each.gone]

        def body(context: Context, trace: Trace, _intent: int) -> Steps[None]:
            collect(context, NETWORK, valid, self.world.where(node), trace)
            yield from ()

        self._collecting.append(node)
        answer = self._dispatch(Call("GC", node, "", body))
        self._collecting.remove(node)
        return answer

    def retry(self, node: str) -> None:
        """One round of the agent's retried releases."""
        agent = self.agent(node)
        if agent is not None:
            over = agent.retry()
            Current.scheduler.block("waits for retried releases", lambda: over() or agent.ended)

    def _dispatch(self, call: Call) -> str:
        """Answer a call as the executable does: by the agent, or by another process. Return what went wrong, if anything."""
        for _ in range(AGENTS):
            Current.scheduler.step(f"{call.verb} {call.container}: looks for the agent")
            agent = self.agent(call.node)
            if agent is None:
                self._number += 1
                reply = self._one_shot.run(call, self._number)
            else:
                reply = agent.call(call).wait()
            if not reply.intent:
                return reply.stdout.decode()
            call = replace(call, intent=reply.intent)
        return "the agent starts and ends again and again"

    def _addition(self, container: Container, number: int, *, gated: bool) -> Body:
        world = self.world

        def body(context: Context, trace: Trace, intent: int) -> Steps[None]:
            request = AddRequest(
                container.id, world.workload(container), container.open(), world.where(container.node), (4,), {},
                gates=GATE if gated else NO_GATES, intent=intent, resumable=True,
            )  # fmt: skip
            container.waiting.discard(number)
            yield from add(context, request, trace)

        return body

    def _deletion(self, container: Container, seen: list[int]) -> Body:
        """`seen` gets the number of ADDs that the DEL ends; -1 if one of them has not begun, for that one comes after it."""
        world = self.world

        def body(context: Context, trace: Trace, _intent: int) -> Steps[None]:
            seen[0] = -1 if container.waiting else container.issued
            delete(context, container.id, world.workload(container), world.where(container.node), None, trace)
            yield from ()

        return body

"""Calls without an agent, and the runtime that makes the calls."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from harness.add_requests import netconf
from simulation.agent import UNKNOWN, Agent, Body, Call, answered
from simulation.blocking import Current
from simulation.patches import Hooks
from simulation.scheduler import Process
from simulation.world import IFNAME, NETWORK, NODES, Container, World
from svc.attach.add import add
from svc.attach.context import Context
from svc.attach.delete import delete
from svc.attach.gc import collect_garbage
from svc.attach.request import AddRequest, Attachment
from svc.call_trace import CallTrace
from svc.cni.call_io import CallInput, Reply
from svc.cni.locks import StateLock
from svc.cni.oneshot import AGENTS, _run_or_forward
from svc.model.errors import SvcError
from svc.model.waits import NO_GATES, GateSettings
from svc.waits.wait import Resumable

GATE = GateSettings(urls=("http://gate/",), seconds=60)


class OneShot:
    """Processes that carry out one call each: `svc.cni.oneshot` on the models."""

    def __init__(self, world: World, agent: Callable[[str], Agent | None]) -> None:
        self._world = world
        self._agent = agent
        Hooks.steps, Hooks.forward = self._steps, self._forward
        Hooks.is_agent_listening = lambda node: agent(node) is not None

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
        inputs = CallInput("svc", dict[str, Any](call=call), b"", continuation=str(call.intent).encode())
        with closing(StateLock(state_dir, f"{call.verb} {call.container}")) as lock:
            return _run_or_forward(lock, inputs, installed, CallTrace("oneshot"))

    def _steps(self, inputs: CallInput, _installed: object, _trace: CallTrace) -> Resumable[Reply]:
        call = self._call_of(inputs)
        context = self._world.context(call.node, resident=False)
        try:
            return (yield from answered(context, call))
        finally:
            context.close()

    def _forward(self, inputs: CallInput, _installed: object) -> Reply | None:
        call = self._call_of(inputs)
        Current.scheduler.step("hands the call to the agent", "kill")
        agent = self._agent(call.node)
        return None if agent is None else agent.call(call).wait()

    @staticmethod
    def _call_of(inputs: CallInput) -> Call:
        call: object = inputs.environment["call"]
        assert isinstance(call, Call)
        return replace(call, intent=inputs.intent)


class Runtime:
    """The runtime. It makes calls with or without an agent, and starts, stops and kills agents."""

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
        """Wait until every agent that was asked to stop has ended."""
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
        """Run a GC that names every container whose deletion the runtime has not seen.

        The runtime adds no container during the GC.
        """
        valid = [(each.name, IFNAME) for each in self.world.containers.values() if each.node == node and not each.gone]

        def body(context: Context, trace: CallTrace, _intent: int) -> Resumable[None]:
            collect_garbage(context, NETWORK, valid, self.world.where(node), trace)
            yield from ()

        self._collecting.append(node)
        answer = self._dispatch(Call("GC", node, "", body))
        self._collecting.remove(node)
        return answer

    def retry(self, node: str) -> None:
        """Run one round of the agent's retried releases."""
        agent = self.agent(node)
        if agent is not None:
            over = agent.retry()
            Current.scheduler.block("waits for retried releases", lambda: over() or agent.ended)

    def _dispatch(self, call: Call) -> str:
        """Carry out a call as the executable does, by the agent or by another process. Return the failure, if any."""
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

        def body(context: Context, trace: CallTrace, intent: int) -> Resumable[None]:
            request = AddRequest(
                container.id, world.workload(container), container.open(), world.where(container.node),
                netconf(gates=GATE if gated else NO_GATES), intent=intent, resumable=True,
            )  # fmt: skip
            container.waiting.discard(number)
            yield from add(context, request, trace)

        return body

    def _deletion(self, container: Container, seen: list[int]) -> Body:
        """Make a DEL.

        `seen` gets the number of ADDs that the DEL ends, or -1 if one of them has not begun and so comes later.
        """
        world = self.world

        def body(context: Context, trace: CallTrace, _intent: int) -> Resumable[None]:
            seen[0] = -1 if container.waiting else container.issued
            delete(context, Attachment(container.id, world.workload(container), None, world.where(container.node)), trace)
            yield from ()

        return body

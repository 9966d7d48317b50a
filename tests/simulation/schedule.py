"""One schedule, from its first step until rest."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from simulation.actors import Runtime
from simulation.blocking import Current
from simulation.files import Files
from simulation.invariants import Invariants
from simulation.policies import RandomPolicy, ScriptedPolicy
from simulation.scenarios import Scenario
from simulation.scheduler import Process, Scheduler, Violation
from simulation.world import NODES, Stage, World, pool_write
from svc.agent.maintenance import RETRY_SECONDS
from svc.attach.journal import Journal
from svc.attach.record import DELETING
from svc.datastore.embedded import EmbeddedStore

RESTORE_SECONDS = 400.0  # time for two comparisons of attachments with their blocks
REPEATS = 6  # maximum number of repeated calls and of rounds of retried releases until rest


@dataclass
class Outcome:
    """The result of a schedule. `violation` is empty if every invariant held; `trace` has the steps, each with its task."""

    violation: str
    trace: list[tuple[str, str]]
    steps: int


def prepare(stage: Stage) -> None:
    """Make the files with which every schedule begins. Call it with the models in place."""
    scheduler = Current.scheduler = Scheduler(ScriptedPolicy({}), lambda: None)
    Current.random = random.Random(0)

    def make() -> None:
        for node in NODES:
            Journal(stage.state_dir(node) / "journal.db").close()
            store = EmbeddedStore(stage.state_dir(node) / "store.db")
            store.write([pool_write()])
            store.close()

    scheduler.spawn(Process("prepare", NODES[0]), "prepare", make)
    scheduler.run()
    _keep(stage.files, stage)


def _keep(files: Files, stage: Stage) -> None:
    for node in NODES:
        for name in ("journal.db", "store.db"):
            files.keep(stage.state_dir(node) / name)


class Schedule:
    """A scenario under a policy."""

    def __init__(self, stage: Stage, scenario: Scenario, policy: RandomPolicy | ScriptedPolicy) -> None:
        self._scenario = scenario
        self._policy = policy
        self._scheduler = Current.scheduler = Scheduler(policy, lambda: self._invariants.after_step())
        Current.random = random.Random(1)
        self._world = World(stage, self._scheduler, scenario.kind)
        self._invariants = Invariants(self._world)
        self._runtime = Runtime(self._world)
        self._process = Process("runtime", "")

    def run(self) -> Outcome:
        violation = ""
        try:
            self._act()
        except Violation as found:
            violation = str(found)
        except Exception as failure:
            violation = f"{type(failure).__name__}: {failure}"
            self._scheduler.note("".join(_traceback(failure)))
        finally:
            self._end()
        return Outcome(violation, self._scheduler.trace, len(self._scheduler.moves))

    def _act(self) -> None:
        self._policy.calm = True
        self._spawn_all([self._scenario.before])
        self._scheduler.run()
        self._policy.calm = False
        self._spawn_all(self._scenario.beside)
        self._scheduler.run()
        self._policy.calm = True
        self._scheduler.spawn(self._process, "rest", self._come_to_rest)
        self._scheduler.run()
        stuck = [task for task in self._scheduler.tasks if not task.daemon]
        if stuck:
            raise Violation(f"{', '.join(task.name for task in stuck)} never ends: {stuck[0].operation.text}")
        self._invariants.at_rest()

    def _spawn_all(self, lists: "tuple[tuple[str, ...], ...] | list[tuple[str, ...]]") -> None:
        for actions in lists:
            run = _in_turn(self._runtime, self._world, actions)
            self._scheduler.spawn(self._process, f"runtime [{'; '.join(actions)}]", run).is_script = True

    def _come_to_rest(self) -> None:
        """Stop all faults: agents run, the runtime repeats calls with an unknown outcome, and releases are retried."""
        self._scheduler.note("coming to rest")
        self._world.cluster.down = False
        self._world.open_gate()
        for node in sorted({each.node for each in self._world.containers.values()}):
            self._runtime.await_ends(node)
            if not self._runtime.is_served(node):
                self._runtime.start(node)
        if self._world.cluster.wipes:
            Current.scheduler.block("waits until live attachments are claimed again", lambda: False, RESTORE_SECONDS)
        self._retry()
        for container in list(self._world.containers.values()):
            for _ in range(REPEATS):
                if container.live or container.gone:
                    break
                self._runtime.delete(container)
            else:
                raise Violation(f"DEL of {container.name} fails {REPEATS} times: {container.answers[-1]}")
        self._retry()
        if self._world.kind == "orch":
            self._invariants.at_rest(counts=False)
            self._collect()

    def _collect(self) -> None:
        """Run a GC on every node, which finds handles that were written after their release."""
        for node in self._world.machines:
            self._runtime.gc(node)

    def _retry(self) -> None:
        """Run rounds of retried releases. After failures, the agent skips a datastore for several periods."""
        for node in self._world.machines:
            for number in range(REPEATS):
                if any(record.state == DELETING for record in self._invariants.rows(node)):
                    if number:
                        Current.scheduler.block("waits for the next round", lambda: False, RETRY_SECONDS)
                    self._runtime.retry(node)

    def _end(self) -> None:
        for task in self._scheduler.tasks:
            self._scheduler.kill(task.process)


def _in_turn(runtime: Runtime, world: World, actions: tuple[str, ...]) -> Callable[[], None]:
    def run() -> None:
        for action in actions:
            Current.scheduler.step(f"runtime: {action}")
            _do(runtime, world, *action.split())

    return run


def _do(runtime: Runtime, world: World, what: str, whom: str = "") -> None:
    match what:
        case "add" | "gadd":
            runtime.add(world.container(whom), gated=what == "gadd")
        case "del":
            runtime.delete(world.container(whom))
        case "open":
            world.open_gate()
        case "wipe":
            world.cluster.wipe()
        case "start" | "stop" | "kill" | "retry" | "gc":
            getattr(runtime, what)(whom)
        case _:
            raise ValueError(what)


def _traceback(failure: BaseException) -> list[str]:
    import traceback

    return traceback.format_exception(failure)

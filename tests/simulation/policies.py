"""Policies, which choose the next task and the next fault: at random from a seed, or by deviations from the simplest order."""

import random
import re
from collections.abc import Callable, Mapping

from simulation.scheduler import TICK, Move, Task

CALM = 10**9


class RandomPolicy:
    """Runs one task for some steps, then another one. Some operations fail."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._restless = self._random.choice((0.05, 0.15, 0.4))
        self._harm = self._random.choice((0.0, 0.01, 0.04))
        self._harms = self._random.choice((0, 1, 2, 3))
        self._haste = self._random.choice((0.0, 0.0, 0.01))
        self.calm = False

    def choose(self, runnable: Callable[[], list[Task]], last: Task | None, *, can_wait: Callable[[], bool]) -> Move:
        rnd = self._random
        if not self.calm and can_wait() and rnd.random() < self._haste:
            return TICK
        task = last if last is not None and rnd.random() >= self._restless else rnd.choice(runnable())
        faults = task.operation.faults
        if faults and self._harms and not self.calm and rnd.random() < self._harm:
            self._harms -= 1
            return Move(task.number, rnd.choice(faults))
        return Move(task.number)


class ScriptedPolicy:
    """Runs the current task as long as possible, then the newest task that has begun, except at the steps of the script.

    `menus` gets the alternatives at each step. A task that reaches an operation that matches `held` waits there until
    nothing else can run. With a `fault`, the first such operations (`times`) continue at once and fail in this way.
    """

    def __init__(self, script: Mapping[int, Move], held: str = "", fault: str = "", times: int = 1) -> None:
        self._script = script
        self._held = re.compile(held) if held else None
        self._fault = fault
        self._times = times
        self._count = 0
        self.menus: list[list[Move]] = []
        self.calm = False

    def choose(self, runnable: Callable[[], list[Task]], last: Task | None, *, can_wait: Callable[[], bool]) -> Move:
        number, self._count = self._count, self._count + 1
        if self.calm:
            self.menus.append([])
            return Move((last or max(runnable(), key=_precedence)).number)
        tasks = runnable()
        if self._held is not None and not self._fault:
            tasks = [task for task in tasks if not self._held.search(task.operation.text)] or tasks
        task = last if last is not None and last in tasks else max(tasks, key=_precedence)
        others = [Move(other.number) for other in tasks if other is not task]
        self.menus.append([*others, *(Move(task.number, fault) for fault in task.operation.faults)])
        move = self._script.get(number)
        if move is not None and any(other.number == move.task for other in tasks):
            return move
        if self._fault and self._times and self._held is not None and self._held.search(task.operation.text):
            self._times -= 1
            return Move(task.number, self._fault)
        return Move(task.number)


def _precedence(task: Task) -> tuple[int, int]:
    """Order the tasks: lists of actions begin in their order, each when nothing else can run. Late writes come last."""
    if task.process.name == "network":
        return 0, task.number
    if task.is_script and task.operation.text == "starts":
        return 1, -task.number
    return 2, task.number


def parse_script(text: str) -> dict[int, Move]:
    """Parse a script. Raise ValueError if it is invalid.

    `12:3,40:5!kill` means: at step 12 task 3 runs, and at step 40 the process of task 5 is killed.
    """
    script = {}
    for part in filter(None, text.split(",")):
        step, _, move = part.partition(":")
        task, _, fault = move.partition("!")
        script[int(step)] = Move(int(task), fault)
    return script


def spell_script(script: Mapping[int, Move]) -> str:
    """Write the script as `parse_script` reads it."""
    return ",".join(f"{step}:{move}" for step, move in sorted(script.items()))

"""Tasks on greenlets, of which one runs at a time. A policy decides which task runs next, and which operation fails.

A task yields at every operation on persistent or shared state: a read or write of a store, a file lock, the kernel, a wait. One
schedule is the sequence of the policy's decisions, so the same decisions repeat the same run.
"""

from collections.abc import Callable
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from svc.values import dataclass, field

MAX_STEPS = 30_000  # of one schedule; more steps mean a livelock of its tasks


class Killed(BaseException):
    """Raised in a task of a killed process at each further operation, which then has no effect."""


class Violation(Exception):
    """The code under simulation broke an invariant."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The next operation of a task. `faults` names its possible faults."""

    text: str
    faults: tuple[str, ...] = ()


@dataclass(eq=False)
class Process:
    """A process of a node. `ends` are called if it is killed; `over` means that it has ended by itself."""

    name: str
    node: str
    alive: bool = True
    over: bool = False
    ends: list[Callable[[], None]] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return self.alive and not self.over


@dataclass(eq=False)
class Task:
    """A thread of a process. It can run if `ready` returns true, or when the clock reaches `wake_at`."""

    number: int
    name: str
    process: Process
    operation: Operation
    glet: Any = None
    ready: Callable[[], bool] | None = None
    wake_at: float | None = None
    timed_out: bool = False
    over: bool = False
    daemon: bool = False
    is_script: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A decision: the task that runs, and the fault of its operation. Without a task, the clock advances."""

    task: int
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.task}{'!' + self.fault if self.fault else ''}"


class Policy(Protocol):
    """A choice among the tasks that can run."""

    def choose(self, runnable: Callable[[], list[Task]], last: Task | None, *, can_wait: Callable[[], bool]) -> Move:
        """Return the next move.

        `last` ran before and can continue; `can_wait` returns whether the clock may advance although tasks can run.
        """


TICK = Move(-1)


class Scheduler:
    """Runs tasks until none can continue, and calls `after_step` between steps."""

    def __init__(self, policy: Policy, after_step: Callable[[], None]) -> None:
        self.policy = policy
        self.now = 1000.0
        self.trace: list[tuple[str, str]] = []
        self.moves: list[Move] = []
        self.tasks: list[Task] = []
        self.crash: BaseException | None = None
        self._after_step = after_step
        self._hub = getcurrent()
        self._current: Task | None = None
        self._fault = ""
        self._count = 0

    @property
    def current(self) -> Task:
        assert self._current is not None, "an operation outside of any task"
        return self._current

    def is_inside(self) -> bool:
        """Return whether a task is running, not the scheduler."""
        return self._current is not None

    def spawn(self, process: Process, name: str, run: Callable[[], None], *, daemon: bool = False) -> Task:
        """Add a task. A daemon may still wait at the end."""
        task = Task(self._count, name, process, Operation("starts"), daemon=daemon)
        task.glet = greenlet(lambda: self._run(task, run), self._hub)
        self._count += 1
        self.tasks.append(task)
        return task

    def step(self, text: str, *faults: str) -> str:
        """Let other tasks run before the operation.

        Return the fault of the operation. Raise Killed if its process was killed.
        """
        task = self.current
        self._demand_alive(task)
        task.operation = Operation(text, faults)
        self._hub.switch()
        self._demand_alive(task)
        fault, self._fault = self._fault, ""
        return fault

    def block(self, text: str, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `ready` returns true, or until the timeout. Return whether it was ready."""
        task = self.current
        self._demand_alive(task)
        task.operation, task.ready = Operation(text), ready
        task.wake_at = None if timeout is None else self.now + max(0.0, timeout)
        self._hub.switch()
        task.ready, task.wake_at = None, None
        self._demand_alive(task)
        return ready()

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append((self._current.name if self._current else "-", text))

    def kill(self, process: Process) -> None:
        """Kill a process: its tasks have no further effect, and its open files are closed."""
        if not process.alive:
            return
        process.alive = False
        self.note(f"process {process.name} is killed")
        for end in process.ends:
            end()
        for task in self.tasks:
            if task.process is process and task is not self._current:
                self._unwind(task)

    def run(self) -> None:
        """Run until no task can continue, or only daemons wait for a time. Raise Violation."""
        last: Task | None = None
        while True:
            self.tasks = [task for task in self.tasks if not task.over]
            present = last if last is not None and not last.over and self._can_run(last) else None
            if present is None and not self._runnable():
                if not self._has_timer() or all(task.daemon for task in self.tasks):
                    return
                self._advance()
                continue
            move = self.policy.choose(self._runnable, present, can_wait=self._has_timer)
            self.moves.append(move)
            if len(self.moves) > MAX_STEPS:
                raise Violation("the tasks keep each other busy for ever")
            if move is TICK:
                self._advance()
                continue
            if last is None or last.number != move.task:
                last = next(task for task in self.tasks if task.number == move.task)
            self._resume(last, move.fault)

    def _resume(self, task: Task, fault: str) -> None:
        self.trace.append((task.name, task.operation.text + (f"  <-- {fault}" if fault else "")))
        if fault == "kill":
            self.kill(task.process)
            self._unwind(task)
        else:
            self._switch(task, fault)
        self._after_step()

    def _switch(self, task: Task, fault: str) -> None:
        self._current, self._fault = task, fault
        try:
            task.glet.switch()
        finally:
            self._current, self._fault = None, ""
        if self.crash is not None:
            raise self.crash

    def _unwind(self, task: Task) -> None:
        """End a task of a killed process. Its `finally` blocks run, and every operation in them raises Killed."""
        before, self._current = self._current, task
        try:
            if task.glet:
                task.glet.parent = getcurrent()
                task.glet.throw(Killed())
        finally:
            self._current = before
            task.over = True

    def _run(self, task: Task, run: Callable[[], None]) -> None:
        try:
            run()
        except Killed:
            pass
        except Violation as violation:
            self.crash = violation
        except BaseException as failure:
            self.crash = failure
        finally:
            task.over = True

    def _runnable(self) -> list[Task]:
        return [task for task in self.tasks if self._can_run(task)]

    def _can_run(self, task: Task) -> bool:
        if task.ready is None or task.ready():
            return True
        return task.wake_at is not None and task.wake_at <= self.now

    def _has_timer(self) -> bool:
        return any(task.wake_at is not None and not self._can_run(task) for task in self.tasks)

    def _advance(self) -> None:
        """Set the clock to the next time at which a task that cannot run wakes up."""
        times = [task.wake_at for task in self.tasks if task.wake_at is not None and not self._can_run(task)]
        self.now = max(self.now, min(times))

    @staticmethod
    def _demand_alive(task: Task) -> None:
        if not task.process.alive:
            raise Killed

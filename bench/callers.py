"""Callers that call a plugin without a pause, as a runtime does: ADD, CHECK, STATUS and DEL of one sandbox after another."""

import json
import threading
import time
from dataclasses import dataclass, replace
from itertools import count
from types import TracebackType

from bench.options import AT_ONCE
from bench.runtime import Outcome, Runtime
from bench.testbed import Failed, Plugin, Pod, Stage

LIMIT_SECONDS = 120.0
VERSION = "1.1.0"  # the first with STATUS


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that has ended, with the times of the monotonic clock in nanoseconds. `error` is empty after a success."""

    verb: str
    started: int
    ended: int
    error: str
    log: str  # its last line

    @property
    def seconds(self) -> float:
        return (self.ended - self.started) / 1e9

    def was_in_flight(self, kill: tuple[int, int]) -> bool:
        """Return whether the call ran at some time between the signal and the end of the agent."""
        return self.started <= kill[1] and kill[0] <= self.ended


class Callers:
    """AT_ONCE callers inside the `with` block. Each has a sandbox, and gives it a new container ID after each DEL."""

    def __init__(self, stage: Stage, plugin: Plugin, pods: list[Pod]) -> None:
        self.calls: list[Ended] = []
        self._stage = stage
        self._plugin = replace(plugin, netconf={**plugin.netconf, "cniVersion": VERSION})
        self._numbers = count(1)
        self._is_over = False
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, args=(pod,)) for pod in pods[:AT_ONCE]]

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join()
        if self._failure is not None and value is None:
            raise self._failure

    @property
    def failed(self) -> list[Ended]:
        return [call for call in self.calls if call.error]

    def wait(self, number: int) -> None:
        """Wait until so many further calls have ended. Raise Failed if that takes too long, or a caller has ended."""
        goal, deadline = len(self.calls) + number, time.monotonic() + LIMIT_SECONDS
        while len(self.calls) < goal:
            if time.monotonic() > deadline or self._failure is not None:
                raise Failed(f"{len(self.calls)} of {goal} calls ended in {LIMIT_SECONDS:g} s") from self._failure
            time.sleep(0.01)

    def _run(self, pod: Pod) -> None:
        try:
            with Runtime(self._stage.runtime.program, self._stage.node.netns.path) as runtime:
                while not self._is_over:
                    self._cycle(runtime, replace(pod, container=f"{next(self._numbers):08x}" + 56 * "c"))
        except BaseException as failure:
            self._failure = failure

    def _cycle(self, runtime: Runtime, pod: Pod) -> None:
        """Attach a container, and delete it. A runtime sends a DEL after a failed ADD, too, until one succeeds."""
        added = self._call(runtime, "ADD", pod)
        if not added.status:
            pod.result = json.loads(added.stdout)
            self._call(runtime, "CHECK", pod)
            self._call(runtime, "STATUS", None)
        deadline = time.monotonic() + LIMIT_SECONDS
        while self._call(runtime, "DEL", pod).status:
            if time.monotonic() > deadline:
                raise Failed(f"DEL of {pod.container} failed for {LIMIT_SECONDS:g} s: {self.failed[-1].error}")

    def _call(self, runtime: Runtime, verb: str, pod: Pod | None) -> Outcome:
        outcome = runtime.one(self._plugin.call(verb, pod))
        error = (outcome.stdout or outcome.stderr).decode(errors="replace") if outcome.status else ""
        error = error or ("no message" if outcome.status else "")
        log = outcome.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
        self.calls.append(Ended(verb, outcome.started, outcome.ended, error, log))
        return outcome

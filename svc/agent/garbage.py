"""Garbage collection between calls: every call waits for the interpreter while the collector runs, which takes some ms."""

import gc
import math
import time
from collections.abc import Callable
from typing import Final

from svc.heap import return_free_memory

SECONDS: Final = 10.0  # between looks
THRESHOLDS: Final = (20_000, 20, 20)  # of a collection during calls: a call creates some thousand objects and no cycles


class GarbageCollector:
    """Collector for the time between calls. `report` returns the number of workers, and of idle ones, and the seconds since a
    job last began or ended."""

    def __init__(self, report: Callable[[], tuple[int, int, float]]) -> None:
        self._report = report
        self._collected = -math.inf  # when it last did (monotonic clock)

    def run(self) -> None:
        """If no job runs, and some have run since the last time, collect garbage and return free memory to the system."""
        workers, idle, seconds = self._report()
        if idle < workers or time.monotonic() - seconds < self._collected:
            return
        self._collected = time.monotonic()
        gc.collect()
        return_free_memory()

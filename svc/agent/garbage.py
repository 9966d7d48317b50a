"""Garbage collection between calls: every call waits for the interpreter while the collector runs, which takes some ms."""

import gc
from collections.abc import Callable
from typing import Final

SECONDS: Final = 10.0  # between looks
THRESHOLDS: Final = (20_000, 20, 20)  # of a collection during calls: a call creates some thousand objects, and few cycles
_LEAST: Final = 2_000  # new objects


def collect_if(is_idle: Callable[[], bool]) -> None:
    """Collect garbage if there may be some and no call runs."""
    if gc.get_count()[0] >= _LEAST and is_idle():
        gc.collect()

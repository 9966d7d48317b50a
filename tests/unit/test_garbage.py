"""The agent collects garbage between calls."""

import gc
import weakref

from svc.agent.garbage import GarbageCollector


class Cycle:
    """Garbage that only the collector frees."""

    def __init__(self) -> None:
        self.me = self


def is_collected(collector: GarbageCollector) -> bool:
    """Return whether the collector collects garbage now."""
    gc.disable()
    try:
        found = weakref.ref(Cycle())
        collector.run()
        return found() is None
    finally:
        gc.enable()


def test_garbage_is_collected_when_no_job_runs() -> None:
    idle = 7
    collector = GarbageCollector(lambda: (8, idle, 0.0))
    assert not is_collected(collector)
    idle = 8
    assert is_collected(collector)


def test_garbage_is_collected_once_after_jobs() -> None:
    seconds = 3600.0  # a collection takes more than a second on a busy machine
    collector = GarbageCollector(lambda: (8, 8, seconds))
    assert is_collected(collector)
    assert not is_collected(collector)
    seconds = 0.0
    assert is_collected(collector)

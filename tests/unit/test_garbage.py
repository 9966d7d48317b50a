"""The agent collects garbage between calls."""

import gc
import weakref

import pytest

from svc.agent import garbage


class Cycle:
    """Garbage that only the collector frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("is_idle", [True, False])
def test_garbage_is_collected_if_no_call_runs(monkeypatch: pytest.MonkeyPatch, is_idle: bool) -> None:
    monkeypatch.setattr(garbage, "_LEAST", 0)
    gc.disable()
    try:
        garbage_object = weakref.ref(Cycle())
        garbage.collect_if(lambda: is_idle)
        assert (garbage_object() is None) == is_idle
    finally:
        gc.enable()


def test_few_new_objects_cost_no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_LEAST", 1 << 40)
    garbage.collect_if(lambda: pytest.fail("it asked whether the agent is idle"))

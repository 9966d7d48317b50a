"""Generations of a remote store: without a watch, no cache is valid."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from svc.datastore.generations import Generations
from svc.datastore.watching import Reconnecting


class Broken(Reconnecting[str]):
    """A watch that reports one change and ends with a bug."""

    def _attempt(self) -> Iterator[str]:
        yield "opened"
        raise RuntimeError("a bug")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_each_generation_differs_after_the_watch_ended_unexpectedly() -> None:
    with closing(Generations(lambda kind: Broken(kind, 1.0))) as generations:
        generations.current("IPPool")
        generations.current("IPPool")
        counter = generations._counters["IPPool"]
        assert counter is not None
        counter.thread.join()
        assert len({generations.current("IPPool") for _ in range(3)}) == 3

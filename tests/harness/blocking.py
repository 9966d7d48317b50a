"""Calls with waits, run on the thread of the test."""

from typing import TypeVar

from svc.waits.wait import Resumable

T = TypeVar("T")


def run_blocking(call: Resumable[T]) -> T:
    """Run the call on this thread, which blocks in each wait. Return what the call returns."""
    while True:
        try:
            wait = next(call)
        except StopIteration as end:
            result: T = end.value
            return result
        wait.join()

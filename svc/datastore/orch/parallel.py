"""Run independent writes in parallel, with as many threads as the system provides."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class ParallelWriter:
    """Pool of at most `most` threads, which start when they are needed. Thread-safe."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, do: Callable[[Item], Outcome], items: Iterable[Item]) -> Sequence[Outcome]:
        """Run `do` for each item and return the results in order. Raise the exception of an item if one fails.

        No item is running when it returns or raises. The calling thread works through the items, and helper threads take the
        items that are left. If the system provides no thread, an item that only waits in a pool might never run.
        """
        outcomes: dict[int, Outcome] = {}
        todo = deque(enumerate(items))

        def work() -> None:
            with suppress(IndexError):  # all items are taken
                while True:
                    number, item = todo.popleft()
                    outcomes[number] = do(item)

        count = len(todo)
        helpers = self._helpers(work, min(count, self._most) - 1)
        try:
            work()
        finally:
            todo.clear()
            wait([helper for helper in helpers if not helper.cancel()])
        for helper in helpers:
            if not helper.cancelled():
                helper.result()
        return [outcomes[number] for number in range(count)]

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _helpers(self, work: Callable[[], None], count: int) -> list["Future[None]"]:
        found: list[Future[None]] = []
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            with suppress(RuntimeError):  # the system provides no further thread
                while len(found) < count:
                    found.append(self._pool.submit(copy_context().run, work))
        return found

"""Items that wait for work, each once, and failed items with their back-off."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

from svc.retry import Backoff

MIN_BACKOFF, MAX_BACKOFF = 1.0, 300.0  # seconds before a failed item is tried again

Item = TypeVar("Item", bound=Hashable)


class RetryQueue(Generic[Item]):
    """Items by the time at which they are due, in seconds of the caller's clock. Not thread-safe."""

    def __init__(self) -> None:
        self._due: dict[Item, float] = {}
        self._order: list[tuple[float, int, Item]] = []  # a heap; entries that `_due` does not confirm are outdated
        self._added = 0
        self._backoffs: dict[Item, Backoff] = {}
        self._held: dict[Item, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, item: Item, now: float) -> None:
        """Make the item due at once, or when it is no longer held. A failed item keeps its back-off for the next failure."""
        due = max(now, self._held.get(item, now))
        self._put(item, min(due, self._due.get(item, due)))

    def hold(self, item: Item, until: float) -> None:
        """Let the item not be due before this time, also if it is added."""
        self._held[item] = until
        if self._due.get(item, until) < until:
            self._put(item, until)

    def forget_held(self, now: float) -> None:
        """Forget the items that are no longer held."""
        self._held = {item: until for item, until in self._held.items() if until > now}

    def take(self, now: float) -> Item | None:
        """Remove and return the item that has been due for the longest time; None if no item is due."""
        due = self.next_due()
        if due is None or due > now:
            return None
        item = heapq.heappop(self._order)[2]
        del self._due[item]
        return item

    def next_due(self) -> float | None:
        """Return when the next item is due; None if no item waits."""
        while self._order and self._due.get(self._order[0][2]) != self._order[0][0]:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None

    def failed(self, item: Item, now: float) -> float:
        """Make an item that was taken due after its back-off, unless it was added again. Return the back-off in seconds."""
        delay = self._backoffs.setdefault(item, Backoff(MIN_BACKOFF, MAX_BACKOFF)).next()
        if item not in self._due:
            self._put(item, now + delay)
        return delay

    def done(self, item: Item) -> bool:
        """Forget the failures of an item that was taken. Return whether it had any."""
        return self._backoffs.pop(item, None) is not None

    def _put(self, item: Item, due: float) -> None:
        if self._due.get(item) != due:
            self._due[item] = due
            self._added += 1
            heapq.heappush(self._order, (due, self._added, item))

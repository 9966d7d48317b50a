"""Pauses for items that another program changes again as soon as a controller has corrected them."""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

WRITES: Final = 10  # of one item in WINDOW_SECONDS that follow at once
WINDOW_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 10.0  # after each further write

Item = TypeVar("Item", bound=Hashable)


class DisputeLimit(Generic[Item]):
    """The writes of each item in its present window. Not thread-safe."""

    def __init__(self) -> None:
        self._windows: dict[Item, tuple[float, int]] = {}  # start and number of writes

    def written(self, item: Item, now: float) -> float:
        """Count a write at a time of a monotonic clock. Return the seconds for which the item must pause; 0 for none."""
        start, count = self._windows.get(item, (now, 0))
        if now - start >= WINDOW_SECONDS:
            start, count = now, 0
        self._windows[item] = start, count + 1
        return 0.0 if count < WRITES else PAUSE_SECONDS

    def forget_before(self, now: float) -> None:
        """Forget the windows that are over."""
        self._windows = {item: found for item, found in self._windows.items() if now - found[0] < WINDOW_SECONDS}

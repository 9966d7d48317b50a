"""How long this process has seen objects in one state, by its own clock: what a call in flight looks like lasts less long."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Object = TypeVar("Object", bound=Hashable)
State = TypeVar("State", bound=Hashable)


class Observations(Generic[Object, State]):
    """The states of objects that look wrong, each with the time since which every look has shown it. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Object, tuple[State, float]] = {}

    def look(self, present: Mapping[Object, State], seconds: float) -> list[Object]:
        """Note what looks wrong now, and forget the rest. Return the objects that have had their state for so many seconds."""
        now, before = self._clock(), self._since
        self._since = {
            each: before[each] if each in before and before[each][0] == state else (state, now)
            for each, state in present.items()
        }
        return [each for each, (_, since) in self._since.items() if since != now and now - since >= seconds]

    def wait(self, seconds: float) -> float | None:
        """Return the time until the next object has had its state for so many seconds; None if no object waits for that."""
        now = self._clock()
        return min((rest for _, since in self._since.values() if (rest := since + seconds - now) > 0), default=None)

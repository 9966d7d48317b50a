"""Conditions that controllers report: what an administrator has to know, and perhaps to decide."""

from collections.abc import Callable
from threading import Lock

from svc.values import dataclass

TRUE, FALSE = "True", "False"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as in the `status` of objects of Kubernetes. `reason` is one word, `message` a sentence with the remedy."""

    kind: str
    status: str
    reason: str
    message: str


class Conditions:
    """The present conditions of this process, by kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._present: dict[str, Condition] = {}
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have a listener called after each change, in the thread that makes it."""
        self._listeners.append(listener)

    def set(self, condition: Condition) -> None:
        """Report a condition in place of the present one of its kind."""
        with self._lock:
            if self._present.get(condition.kind) == condition:
                return
            self._present[condition.kind] = condition
        for listener in self._listeners:
            listener()

    def clear(self, kind: str) -> None:
        """Report no condition of this kind any more."""
        with self._lock:
            if self._present.pop(kind, None) is None:
                return
        for listener in self._listeners:
            listener()

    def all(self) -> tuple[Condition, ...]:
        """Return the conditions, by kind."""
        with self._lock:
            return tuple(self._present[kind] for kind in sorted(self._present))

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
    """The present conditions of this process, by kind. Thread-safe.

    A part that will judge a kind says so at its start. Until it has judged, what an earlier leader has reported holds.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._present: dict[str, Condition] = {}
        self._awaited: set[str] = set()  # kinds that no part has judged yet
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have a listener called after each change, in the thread that makes it."""
        self._listeners.append(listener)

    def set(self, condition: Condition) -> None:
        """Report a condition in place of the present one of its kind."""
        self._replace(condition.kind, condition)

    def clear(self, kind: str) -> None:
        """Report the absence of a condition of this kind."""
        self._replace(kind, None)

    def await_judgement(self, kind: str) -> None:
        """Report nothing of this kind until a part has judged: another process may know more."""
        self._replace(kind, None, is_judged=False)

    def all(self) -> tuple[Condition, ...]:
        """Return the conditions, by kind."""
        with self._lock:
            return self._sorted()

    def with_awaited(self) -> tuple[tuple[Condition, ...], frozenset[str]]:
        """Return the conditions, and the kinds that no part has judged yet."""
        with self._lock:
            return self._sorted(), frozenset(self._awaited)

    def _sorted(self) -> tuple[Condition, ...]:
        return tuple(self._present[kind] for kind in sorted(self._present))

    def _replace(self, kind: str, condition: Condition | None, *, is_judged: bool = True) -> None:
        """Have this condition of a kind, or none. Call the listeners if that changes something."""
        with self._lock:
            if self._present.get(kind) == condition and (kind not in self._awaited) == is_judged:
                return
            self._present.pop(kind, None)
            if condition is not None:
                self._present[kind] = condition
            (self._awaited.discard if is_judged else self._awaited.add)(kind)
        for listener in self._listeners:
            listener()

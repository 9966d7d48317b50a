"""Counters of a process, as sums only: readers compute rates."""

import threading
from collections import Counter
from typing import Final

Labels = tuple[tuple[str, str], ...]

COUNTERS: Final = {
    "calls_total": "Calls answered, by verb and outcome.",
    "queue_seconds_sum": "Time that calls have waited for a worker.",
    "queue_seconds_count": "Calls that have waited for a worker.",
    "package_changes_total": "Times that the installed package was replaced under the running agent: restart it.",
    "restored_attachments_total": "Live attachments claimed again in a datastore that has lost them, by outcome; a `conflict` "
    "means that another handle holds an address.",
    "gate_waits_total": "ADDs that waited for readiness gates, by outcome.",
    "policy_waits_total": "ADDs that waited for their policy, by outcome; after `timeout` the pod started without.",
}
WITHOUT_LABELS: Final = ("queue_seconds_sum", "queue_seconds_count", "package_changes_total")


class Metrics:
    """Counters, for any thread. One without labels is 0 until its first event, so that an alert sees the increase."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[tuple[str, Labels]] = Counter({(name, ()): 0 for name in WITHOUT_LABELS})

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter; `name` is one of COUNTERS."""
        key = name, tuple(labels.items())
        with self._lock:
            self._sums[key] += amount  # type: ignore[assignment]  # seconds are not whole numbers

    def read(self) -> dict[tuple[str, Labels], float]:
        with self._lock:
            return dict(self._sums)

"""When routes may be deleted, and when a refused route is tried again."""

from collections.abc import Iterable, Mapping
from typing import Final

from svc._core.cidr import Cidr
from svc.retry import Backoff
from svc.routes.applied import Applied, Failure
from svc.routes.wanted import Way
from svc.values import dataclass

HOLD_SECONDS: Final = 600.0  # that a large deletion waits: a wiped datastore reads as complete
_SMALLEST_HELD, _LARGEST_SHARE = 10, 0.2
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0


class DeletionGuard:
    """Holds deletions of more than a fifth of the routes, and any while the datastore is wiped. Times are monotonic."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.held = 0  # routes that are kept for now

    def allows(self, own: int, doomed: int, now: float, *, is_wiped: bool = False) -> bool:
        """Return whether this many of the own routes may be deleted now."""
        is_small = doomed < _SMALLEST_HELD or doomed <= own * _LARGEST_SHARE
        if not doomed or (is_small and not is_wiped):
            self._since, self.held = None, 0
            return True
        if self._since is None:
            self._since = now
        is_over = now - self._since >= HOLD_SECONDS
        self.held = 0 if is_over else doomed
        return is_over


@dataclass(slots=True)
class _Refusal:
    way: Way
    failure: Failure
    backoff: Backoff
    due: float


class Refusals:
    """Routes that the kernel has refused, each with the back-off until its next attempt."""

    def __init__(self) -> None:
        self._known: dict[Cidr, _Refusal] = {}

    @property
    def failures(self) -> dict[Cidr, Failure]:
        return {network: refusal.failure for network, refusal in self._known.items()}

    @property
    def next_due(self) -> float | None:
        """When the next attempt is due (monotonic time)."""
        return min((refusal.due for refusal in self._known.values()), default=None)

    def due_routes(self, wanted: Mapping[Cidr, Way], now: float) -> Mapping[Cidr, Way]:
        """Return the wanted routes without those that wait."""
        self._forget(network for network, refusal in self._known.items() if wanted.get(network) != refusal.way)
        waiting = {network for network, refusal in self._known.items() if refusal.due > now}
        return {network: way for network, way in wanted.items() if network not in waiting} if waiting else wanted

    def record(self, tried: Mapping[Cidr, Way], applied: Applied, now: float) -> None:
        """Note the outcome of an attempt with these routes."""
        self._forget(
            network
            for network, refusal in self._known.items()
            if tried.get(network) == refusal.way and network not in applied.failures
        )
        for network, failure in applied.failures.items():
            if network not in tried:
                continue
            refusal = self._known.get(network)
            backoff = Backoff(_MIN_BACKOFF, _MAX_BACKOFF) if refusal is None else refusal.backoff
            self._known[network] = _Refusal(tried[network], failure, backoff, now + backoff.next())

    def _forget(self, networks: Iterable[Cidr]) -> None:
        for network in list(networks):
            del self._known[network]

"""State of one process in the election of a leader, without I/O.

The processes share a Lease, which names its holder. Each process measures with its own clock how long the Lease has not
changed, so their clocks need not agree. The leader stops before another process takes over: RENEW_SECONDS after it began its
last renewal, and that is less than LEASE_SECONDS after any process has seen the renewal.
"""

import math
import time
from collections.abc import Callable

from svc.model.errors import Code, SvcError
from svc.values import dataclass

LEASE_SECONDS = 15  # after which another process takes a Lease that has not changed
RENEW_SECONDS = 10.0  # after which a leader that could not renew the Lease writes nothing more


class NotLeading(SvcError):
    """Refusal of a write, because this process does not lead, or may have been replaced."""

    code = Code.TRY_AGAIN

    def __init__(self) -> None:
        super().__init__("this process does not lead", details="the leader makes the change")


@dataclass(frozen=True, slots=True)
class Holding:
    """Content of a Lease: its holder, empty if it was released, its duration, and the revision that each renewal changes."""

    holder: str
    seconds: float
    revision: str


def boot_time() -> float:
    """Return the seconds since the boot. They include the time in which the machine was suspended, unlike `time.monotonic`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Election:
    """What this process knows of the Lease. One thread observes and renews it; any thread may ask whether the process leads."""

    def __init__(self, identity: str, clock: Callable[[], float] = boot_time) -> None:
        self.identity = identity
        self.clock = clock
        self._seen: Holding | None = None
        self._seen_at = -math.inf
        self._until = -math.inf

    def observe(self, found: Holding | None) -> bool:
        """Note the content of the Lease, None if it does not exist. Return whether this process may write it."""
        now = self.clock()
        if found is not None and found != self._seen:
            self._seen, self._seen_at = found, now
        seen = self._seen
        if seen is None or seen.holder == self.identity:
            return True
        if found is not None:
            self._until = -math.inf
        # A deleted Lease is not free at once: its holder may write until it sees the deletion.
        return not seen.holder or now >= self._seen_at + seen.seconds

    def renewed(self, began: float) -> None:
        """Note that this process has written the Lease. `began` is the time before its request was sent."""
        self._until = began + RENEW_SECONDS

    def resign(self) -> None:
        """Let this process lead no longer."""
        self._until = -math.inf

    @property
    def leads(self) -> bool:
        """Whether this process may write."""
        return self.clock() < self._until

    def require(self) -> float:
        """Return for how many seconds this process may write. Raise NotLeading if it may not."""
        left = self._until - self.clock()
        if left <= 0:
            raise NotLeading
        return left

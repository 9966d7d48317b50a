"""Whether the data of a server were replaced by older ones, as a restore does. Pure: the caller gives the time."""

from collections.abc import Callable, Sequence

from svc.admin.release_record import HOUR
from svc.datastore.api import Position
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """What a process has seen of its servers: the position in the datastore, and the setbacks of its tables."""

    position: Position
    setbacks: Sequence[int] = ()

    def is_behind(self, before: "Seen") -> bool:
        """Return whether something ran backwards since the earlier look, or the datastore has become another one."""
        clusters = before.position.cluster, self.position.cluster
        counts = [(before.position.setbacks, self.position.setbacks), *zip(before.setbacks, self.setbacks, strict=True)]
        return (clusters[0] not in ("", clusters[1])) or any(later > earlier for earlier, later in counts)


class Setbacks:
    """The last setback. A process that does not lead looks as well, and knows it if it leads within an hour."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look
        self._before = look()
        self._last: float | None = None

    def observe(self, now: float) -> None:
        """Look again."""
        seen = self._look()
        if seen.is_behind(self._before):
            self._last = now
        self._before = seen

    def was_recent(self, now: float) -> bool:
        """Return whether a setback was within the last hour, and is not settled."""
        return self._last is not None and now - self._last < HOUR

    def settle(self) -> None:
        """Forget the setback, which a stop has recorded."""
        self._last = None

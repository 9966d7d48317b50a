"""Whether the program works: its mode, and when it has last found a trace of another program."""

from typing import Final

from svc.routes.settings import AUTO, ON

CHECK_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 300.0  # without a trace, before the program works where it has found one
_SLACK_SECONDS: Final = 0.5  # of the rounds of the program, which come as seldom as the checks


class Mode:
    """The mode `auto` or `on`. The caller gives monotonic times.

    `recalled` are traces that an earlier process has found. They count as found at `now`, because a node that boots has none
    until the other program has started."""

    def __init__(self, mode: str, recalled: tuple[str, ...] = (), now: float = 0.0) -> None:
        self._mode = mode
        self._checked_at: float | None = None
        self._found_at = now if recalled else None
        self._idle_since = self._found_at
        self._recalled = recalled
        self.traces: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """The traces of the last check; otherwise those of before."""
        return self.traces or tuple(f"not found any more: {trace}" for trace in self._recalled)

    def is_check_due(self, now: float) -> bool:
        """Return whether to look for traces."""
        if self._mode not in (AUTO, ON):
            return False
        return self._checked_at is None or now - self._checked_at >= CHECK_SECONDS - _SLACK_SECONDS

    def record(self, traces: tuple[str, ...], now: float) -> None:
        """Note the outcome of a check."""
        self._checked_at, self.traces = now, traces
        if traces:
            self._found_at, self._recalled = now, traces
            self._idle_since = now if self._idle_since is None else self._idle_since

    def works(self, now: float) -> bool:
        """Return whether the program may change the kernel."""
        is_allowed = self._mode == ON or (self._mode == AUTO and self._is_quiet(now))
        if is_allowed:
            self._idle_since = None
        return is_allowed

    def idle_seconds(self, now: float) -> float:
        """Return for how long the program has been idle."""
        return 0.0 if self._idle_since is None else now - self._idle_since

    def _is_quiet(self, now: float) -> bool:
        return self._found_at is None or now - self._found_at >= QUIET_SECONDS

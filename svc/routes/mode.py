"""Whether the program works: its mode, and when it has last found a trace of another program."""

from typing import Final

from svc.routes.settings import AUTO, ON

CHECK_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 300.0  # without a trace, before the program works where it has found one


class Mode:
    """The mode `auto` or `on`. The caller gives monotonic times."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._checked_at: float | None = None
        self._found_at: float | None = None
        self.traces: tuple[str, ...] = ()

    def is_check_due(self, now: float) -> bool:
        """Return whether to look for traces."""
        return self._mode in (AUTO, ON) and (self._checked_at is None or now - self._checked_at >= CHECK_SECONDS)

    def record(self, traces: tuple[str, ...], now: float) -> None:
        """Note the outcome of a check."""
        self._checked_at, self.traces = now, traces
        if traces:
            self._found_at = now

    def works(self, now: float) -> bool:
        """Return whether the program may change the kernel."""
        if self._mode == ON:
            return True
        return self._mode == AUTO and (self._found_at is None or now - self._found_at >= QUIET_SECONDS)

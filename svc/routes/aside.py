"""Rounds of a program that makes way for another one: when they are due, and what remains after each."""

from collections.abc import Callable, Sequence
from typing import Final

from svc._core.cidr import Cidr
from svc.routes import trace_file
from svc.routes.handover import HANDOVER_SECONDS
from svc.routes.kernel_part import KernelPart
from svc.routes.mode import Mode
from svc.routes.report import IDLE, Report
from svc.routes.settings import AUTO, Settings
from svc.routes.wanted import Nat, Wanted

ROUND_SECONDS: Final = 60.0

MayDelete = Callable[[int, int, float], bool]
"""Tells, of a number of own routes, whether so many of them may be deleted now."""


class Aside:
    """The rounds, and whether they are needed. For one thread."""

    def __init__(self, settings: Settings, kernel: KernelPart, mode: Mode) -> None:
        self._settings = settings
        self._kernel = kernel
        self._mode = mode
        self._last: float | None = None
        self._remaining = 0
        self._nat: tuple[Nat | None] | None = None  # as it was brought with leave to remove networks

    def is_needed(self, pools: Sequence[Cidr], now: float) -> bool:
        """Look for traces of another program, if that is due. Return whether this one may change nothing.

        The traces are kept for the next process, until this one works. Raise PeerError."""
        if self._mode.is_check_due(now):
            self._mode.record(tuple(self._kernel.traces(pools)), now)
            if self._settings.mode == AUTO and self._mode.traces:
                trace_file.note(self._settings.state_dir, self._mode.traces)
        works = self._mode.works(now)
        if self._settings.mode == AUTO and works:
            trace_file.forget(self._settings.state_dir)
        if works:
            self._last = self._nat = None
        return not works

    def seconds(self, compare_at: float, now: float) -> float:
        """Return the seconds until a round is due. Changes of the kernel matter while own routes remain."""
        if self._last is None:
            return 0.0
        return max(0.0, (compare_at if self._remaining else self._last + ROUND_SECONDS) - now)

    def round(self, wanted: Wanted, pools: Sequence[Cidr], may_delete: MayDelete, now: float) -> Report:
        """Make way for the other program. Return the report. Raise PeerError."""
        keeps_tunnels = self._mode.idle_seconds(now) < HANDOVER_SECONDS
        applied = self._kernel.stand_aside(wanted, pools, keeps_tunnels=keeps_tunnels, may_delete=False)
        is_surplus = applied.unwanted > 0 or self._nat != (wanted.nat,)
        if may_delete(self._kernel.own_routes(), applied.unwanted, now) and is_surplus:
            applied = self._kernel.stand_aside(wanted, pools, keeps_tunnels=keeps_tunnels, may_delete=True)
            self._nat = (wanted.nat,)
        self._last, self._remaining = now, self._kernel.own_routes()
        traces, problems = self._mode.reasons, applied.problems
        return Report(IDLE, applied=applied, traces=traces, problems=problems, remaining=self._remaining)

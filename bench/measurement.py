"""The results of the benchmark: figures with their goals, as JSON lines and as a table."""

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


class Missing(Exception):
    """Something that a figure needs is not on this machine. The text says what, and how to install it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The median and the 95th percentile of the measurements (None for a single value)."""

    p50: float
    p95: float | None = None

    @staticmethod
    def of(values: Sequence[float]) -> "Sample":
        ordered = sorted(values)
        return Sample(statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)])


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound: `at_most(0.3)` or `at_least(3)`."""

    sign: str
    bound: float

    def met(self, value: float) -> bool:
        return value <= self.bound if self.sign == "<=" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"


def at_most(bound: float) -> Goal:
    return Goal("<=", bound)


def at_least(bound: float) -> Goal:
    return Goal(">=", bound)


@dataclass(frozen=True)
class Figure:
    """The value of svc beside a peer's. Goals apply to the ratio if there is a peer, otherwise to the value.

    The ratio is svc / peer, or for a speed-up the inverse.
    """

    name: str
    unit: str
    ours: Sample
    n: int
    peer: Sample | None = None
    peer_name: str = ""
    goal: Goal | None = None
    then: Goal | None = None
    speedup: bool = False
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        if self.peer is None or not self.peer.p50 or not self.ours.p50:
            return None
        return self.peer.p50 / self.ours.p50 if self.speedup else self.ours.p50 / self.peer.p50

    @property
    def judged(self) -> float | None:
        """Return the value that the goals apply to, or None if the required peer is missing."""
        return self.ratio if self.peer_name else self.ours.p50

    def verdict(self, goal: Goal | None) -> bool | None:
        return None if goal is None or self.judged is None else goal.met(self.judged)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ours": _short(self.ours.p50),
            "ours_p95": _short(self.ours.p95),
            "peer": _short(self.peer.p50 if self.peer else None),
            "peer_p95": _short(self.peer.p95 if self.peer else None),
            "peer_name": self.peer_name,
            "ratio": _short(self.ratio),
            "ratio_of": ("peer/ours" if self.speedup else "ours/peer") if self.peer_name else None,
            "goal": self.goal and str(self.goal),
            "met": self.verdict(self.goal),
            "then": self.then and str(self.then),
            "then_met": self.verdict(self.then),
            "unit": self.unit,
            "n": self.n,
            "note": self.note,
            "load": os.getloadavg()[0],
            "kernel": platform.release(),
            "cpus": os.cpu_count(),
            "versions": self.versions,
        }


def line(figure: Figure, busy: float) -> str:
    """Format a figure as a JSON line. `busy` is the share of the processors that other programs used just before."""
    return json.dumps({**figure.to_json(), "busy_before": round(busy, 3)})


HEADINGS = ("figure", "ours", "p95", "peer", "p95", "unit", "ratio", "goal", "", "then", "", "against")


def table(figures: Iterable[Figure]) -> str:
    rows = [HEADINGS, *map(_row, figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join("  ".join(_aligned(cell, widths[n], n) for n, cell in enumerate(row)).rstrip() for row in rows)


def _row(figure: Figure) -> tuple[str, ...]:
    peer = figure.peer or Sample(float("nan"))
    return (
        figure.name,
        _cell(figure.ours.p50),
        _cell(figure.ours.p95),
        _cell(peer.p50),
        _cell(peer.p95),
        figure.unit,
        _cell(figure.ratio),
        str(figure.goal or ""),
        _word(figure.verdict(figure.goal)),
        str(figure.then or ""),
        _word(figure.verdict(figure.then)),
        figure.peer_name,
    )


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if 1 <= column <= 4 or column == 6 else cell.ljust(width)


def _word(verdict: bool | None) -> str:
    return "" if verdict is None else "met" if verdict else "MISSED"


def _cell(value: float | None) -> str:
    return "" if value is None or value != value else f"{_short(value):,}"


def _short(value: float | None) -> float | None:
    """Round to four significant digits, because the machine is not more precise. Whole numbers stay."""
    if value is None:
        return None
    rounded = value if value == int(value) else float(f"{value:.4g}")
    return int(rounded) if rounded == int(rounded) else rounded

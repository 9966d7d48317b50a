"""The results of the benchmark: figures with their goals, as JSON lines and as a table."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.table import text_table


class Missing(Exception):
    """Something that a figure needs is not on this machine. The text says what, and how to install it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The median and the 95th percentile of the measurements (None for a single value), and all of them as measured."""

    p50: float
    p95: float | None = None
    values: tuple[float, ...] = ()

    @staticmethod
    def of(values: Sequence[float]) -> "Sample":
        return Sample(statistics.median(values), percentile(values, 95), tuple(values))

    def to_json(self) -> list[float]:
        return [_rounded(value) for value in self.values or (self.p50,)]


def percentile(values: Sequence[float], share: int) -> float:
    """Return the value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound: `at_most(0.3)` or `at_least(3)`."""

    sign: str
    bound: float

    def met(self, value: float) -> bool:
        return value <= self.bound if self.sign == "<=" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"

    @staticmethod
    def of_text(text: str | None) -> "Goal | None":
        """Return the goal that `str` has written."""
        return Goal(text.split()[0], float(text.split()[1])) if text else None


def at_most(bound: float) -> Goal:
    return Goal("<=", bound)


def at_least(bound: float) -> Goal:
    return Goal(">=", bound)


@dataclass(frozen=True)
class Figure:
    """The value of svc beside a peer's. Goals apply to the ratio if there is a peer, otherwise to the value.

    The ratio is svc / peer, or for a speed-up the inverse. `parameters` tells figures of one name apart.
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
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Return the name with the parameters, which no other figure of a run has."""
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.parameters.items())])

    @property
    def is_rate(self) -> bool:
        """Return whether a higher value is better."""
        return "/s" in self.unit

    @property
    def has_control(self) -> bool:
        """Return whether the peer is a program or a part of the kernel that no change of svc affects."""
        return self.peer is not None and not self.peer_name.startswith(("svc", "one at a time"))

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
            "parameters": self.parameters,
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
            "versions": self.versions,
            "values": self.ours.to_json(),
            "peer_values": self.peer.to_json() if self.peer else None,
        }

    @staticmethod
    def of_json(found: dict[str, Any]) -> "Figure":
        """Return the figure that `to_json` has written."""
        peer = None if found["peer"] is None else Sample(found["peer"], found["peer_p95"], tuple(found["peer_values"]))
        return Figure(
            found["name"], found["unit"], Sample(found["ours"], found["ours_p95"], tuple(found["values"])), found["n"],
            peer=peer, peer_name=found["peer_name"], goal=Goal.of_text(found["goal"]), then=Goal.of_text(found["then"]),
            speedup=found["ratio_of"] == "peer/ours", note=found["note"], versions=found["versions"],
            parameters=found["parameters"],
        )  # fmt: skip


HEADINGS = ("figure", "ours", "p95", "peer", "p95", "unit", "ratio", "goal", "", "then", "", "against")


def table(figures: Iterable[Figure]) -> str:
    return text_table([HEADINGS, *map(_row, figures)], right={1, 2, 3, 4, 6})


def _row(figure: Figure) -> tuple[str, ...]:
    peer = figure.peer or Sample(float("nan"))
    return (
        figure.key,
        cell(figure.ours.p50),
        cell(figure.ours.p95),
        cell(peer.p50),
        cell(peer.p95),
        figure.unit,
        cell(figure.ratio),
        str(figure.goal or ""),
        _word(figure.verdict(figure.goal)),
        str(figure.then or ""),
        _word(figure.verdict(figure.then)),
        figure.peer_name,
    )


def _word(verdict: bool | None) -> str:
    return "" if verdict is None else "met" if verdict else "MISSED"


def cell(value: float | None) -> str:
    """Format a value for a table; an empty text without one."""
    return "" if value is None or value != value else f"{_short(value):,}"


def _rounded(value: float) -> float:
    """Round a single measurement to five significant digits."""
    return float(f"{value:.5g}")


def _short(value: float | None) -> float | None:
    """Round to four significant digits, because the machine is not more precise. Whole numbers stay."""
    if value is None:
        return None
    rounded = value if value == int(value) else float(f"{value:.4g}")
    return int(rounded) if rounded == int(rounded) else rounded

"""What the plots show: lines and bars, as data that is kept beside each picture, from the figures of a run."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from bench.measurement import Figure, Sample
from bench.results import Json

PTP = "ptp with host-local"


@dataclass
class Line:
    """Points of a line. `low` and `high` are the quartiles of the measurements."""

    label: str
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, x: float, sample: Sample) -> None:
        low, high = quartiles(sample)
        for values, value in ((self.x, x), (self.y, sample.p50), (self.low, low), (self.high, high)):
            values.append(value)


@dataclass
class Panel:
    """One pair of axes. With `log_x` and `log_y` they are logarithmic."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line] = field(default_factory=list)
    log_x: bool = False
    log_y: bool = False


@dataclass
class Plot:
    """A picture: panels of lines, or stacked bars by name, from left to right."""

    name: str
    title: str
    panels: list[Panel] = field(default_factory=list)
    bars: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_json(self) -> Json:
        return asdict(self)

    @staticmethod
    def of_json(found: Json) -> "Plot":
        panels = [Panel(**{**panel, "lines": [Line(**line) for line in panel["lines"]]}) for panel in found["panels"]]
        return Plot(found["name"], found["title"], panels, found["bars"])


def plots(figures: Sequence[Figure]) -> list[Plot]:
    """Return the plots for which there are figures."""
    made = (make(figures) for make in (_pods, _parallel, _memory, _blocks, _pools, _phases, _large, _limit))
    return [plot for plot in made if plot.bars or any(panel.lines for panel in plot.panels)]


def quartiles(sample: Sample) -> tuple[float, float]:
    if len(sample.values) < 2:
        return sample.p50, sample.p50
    low, _, high = statistics.quantiles(sample.values, n=4, method="inclusive")
    return low, high


def _lines(
    figures: Iterable[Figure], name: str, x: str, label: Callable[[dict[str, Any]], str], *, peer: str = "", scale: float = 1
) -> list[Line]:
    """Return the lines of a figure over a parameter, and those of its peer if it has a label."""
    lines: dict[str, Line] = {}
    for figure in figures:
        if figure.name != name:
            continue
        ours = label(figure.parameters)
        lines.setdefault(ours, Line(ours)).add(figure.parameters[x], _scaled(figure.ours, scale))
        if peer and figure.peer:
            lines.setdefault(peer, Line(peer)).add(figure.parameters[x], _scaled(figure.peer, scale))
    return list(lines.values())


def _scaled(sample: Sample, scale: float) -> Sample:
    return Sample(sample.p50 * scale, None, tuple(value * scale for value in sample.values))


def _pods(figures: Sequence[Figure]) -> Plot:
    panels = [
        Panel(
            verb, "pods on the node", "milliseconds",
            _lines(figures, f"pods_{verb.lower()}", "pods", lambda _: "svc", peer=PTP)
            + _lines(figures, f"pods_{verb.lower()}_kernel", "pods", lambda _: "the kernel's own share"),
        )
        for verb in ("ADD", "DEL")
    ]  # fmt: skip
    return Plot("pods", "One call on a node with many pods", panels)


def _parallel(figures: Sequence[Figure]) -> Plot:
    panels = [
        Panel(
            verb, "calls at once", "pods per second",
            _lines(figures, f"parallel_{verb.lower()}", "at_once", lambda _: "svc", peer=PTP), log_x=True,
        )
        for verb in ("ADD", "DEL")
    ]  # fmt: skip
    return Plot("parallel", "Pods per second by the number of calls at once", panels)


_STORES = {"embedded": "embedded", "etcd": "etcd", "orch": "Kubernetes API"}


def _memory(figures: Sequence[Figure]) -> Plot:
    panels = [
        Panel(title, "pods on the node", "MiB", _lines(figures, name, "pods", lambda found: _STORES[found["store"]]))
        for name, title in (("growth_rss", "At rest"), ("growth_rss_after_adds", "Right after the ADDs, 16 at once"))
    ]
    return Plot("memory", "Memory of the agent (RSS) by datastore", panels)


def _blocks(figures: Sequence[Figure]) -> Plot:
    panels = [
        Panel(
            title, "use of the block, percent", "microseconds",
            _percent(_lines(figures, f"block_{name}", "fill", lambda parameters: f"{parameters['size']:,} addresses")),
            log_y=True,
        )
        for name, title in (("assign", "Allocation"), ("release", "Release"))
    ]  # fmt: skip
    return Plot("blocks", "Cost of an address by fill and size of its block, embedded store", panels)


def _percent(lines: list[Line]) -> list[Line]:
    for line in lines:
        line.x = [100 * value for value in line.x]
    return lines


def _pools(figures: Sequence[Figure]) -> Plot:
    names = {
        "pools_add": "ADD, the whole call", "pools_del": "DEL, the whole call", "pools_assign": "an allocation",
        "pools_match": "the choice of pools, uncached",
    }  # fmt: skip
    lines = [line for name, text in names.items() for line in _lines(figures, name, "pools", partial(_named, text))]
    panel = Panel("one pool selects this node", "pools", "microseconds", lines, log_x=True, log_y=True)
    return Plot("pools", "Cost of a call by the number of pools", [panel])


def _named(text: str, _: dict[str, Any]) -> str:
    return text


def _large(figures: Sequence[Figure]) -> Plot:
    """Costs in clusters of all sizes, of one node, pod, address or refusal: a flat line is a linear law of the whole."""
    names = {
        "claim": "a node's first address", "fill_call": "each further address", "borrow": "a borrowed address",
        "refusal": "a refusal",
    }  # fmt: skip
    panels = [
        Panel(
            _STORES[kind], "nodes", "milliseconds",
            [line for name, text in names.items() for line in _large_lines(figures, kind, name, text)],
            log_x=True, log_y=True,
        )
        for kind in ("etcd", "orch")
    ]  # fmt: skip
    return Plot("large", "A call in a large cluster, with 32 nodes at work at once", panels)


def _large_lines(figures: Sequence[Figure], kind: str, name: str, text: str) -> list[Line]:
    return _lines(figures, f"large_{kind}_{name}", "nodes", partial(_named, text))


def _limit(figures: Sequence[Figure]) -> Plot:
    names = {"rate": "svc", "bare": "bare requests"}
    panels = [
        Panel(
            _STORES[kind], "nodes at work at once", "pods that come and go, per second",
            [
                line
                for name, text in names.items()
                for line in _lines(figures, f"large_{kind}_{name}", "at_once", partial(_named, text))
            ],
            log_x=True, log_y=True,
        )
        for kind in ("etcd", "orch")
    ]  # fmt: skip
    return Plot("limit", "The limit of a datastore whose servers have one processor", panels)


def _phases(figures: Sequence[Figure]) -> Plot:
    bars: dict[str, dict[str, float]] = {}
    for figure in figures:
        if figure.name == "phase":
            bars.setdefault(figure.parameters["by"], {})[figure.parameters["phase"]] = figure.ours.p50
    return Plot("phases", "Where the time of an ADD goes", bars=bars)

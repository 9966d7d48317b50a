"""Draw plots as SVG. The same data gives the same bytes: no dates, no random identifiers, and letters as paths."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.series import PTP, Line, Panel, Plot

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b22222")
OF_LABEL = {"svc": COLOURS[0], PTP: COLOURS[1], "the kernel's own share": "#7f7f7f"}
PHASES = {
    "executable, socket, runtime": "#c8c8c8", "exec": "#c8c8c8", "queue": "#9ad0f0", "journal": "#e8b0d0",
    "ipam": "#e69f00", "endpoint": "#f5d68a", "kernel": "#90c060", "other work of the agent": "#7fb2dc",
    "whole call": COLOURS[1],
}  # fmt: skip
WIDTH, HEIGHT = 5.0, 3.6  # inches of a panel; a single one is wider
SMALL = 0.04  # of the longest bar; narrower parts have no number
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "svc", "svg.fonttype": "path", "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#606060",
    "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.8, "axes.axisbelow": True, "legend.frameon": False,
    "lines.linewidth": 1.8, "lines.markersize": 4, "figure.facecolor": "white",
}  # fmt: skip


def draw(plot: Plot, file: Path) -> None:
    with mpl.rc_context(STYLE):
        canvas = _bars(plot) if plot.bars else _panels(plot)
        canvas.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")


def _panels(plot: Plot) -> Canvas:
    panels = [panel for panel in plot.panels if panel.lines]
    canvas = Canvas(figsize=(WIDTH * max(1.5, len(panels)), HEIGHT), layout="constrained")
    axes = canvas.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for one, panel in zip(axes, panels, strict=True):
        _panel(one, panel)
        if not panel.log_y:
            one.set_ylim(bottom=0, top=1.08 * _highest(line for panel in panels for line in panel.lines))
    labels = {line.label: None for panel in panels for line in panel.lines}
    handles = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    canvas.legend([handles[label] for label in labels], list(labels), loc="outside lower center", ncols=min(4, len(labels)))
    canvas.suptitle(plot.title, x=0.01, ha="left", fontweight="bold", fontsize=11)
    return canvas


def _panel(axes: Any, panel: Panel) -> None:
    for number, line in enumerate(panel.lines):
        colour = OF_LABEL.get(line.label, COLOURS[number % len(COLOURS)])
        axes.plot(line.x, line.y, marker="o", color=colour, label=line.label)
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        axes.set_xscale("log", base=2)
        ticks = sorted({value for line in panel.lines for value in line.x})
        axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(_number))
    if not panel.log_x:
        axes.xaxis.set_major_formatter(FuncFormatter(_number))
        axes.set_xlim(left=0)


def _number(value: float, _: object) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _highest(lines: Iterable[Line]) -> float:
    return max(value for line in lines for value in line.high)


def _bars(plot: Plot) -> Canvas:
    names = list(plot.bars)
    canvas = Canvas(figsize=(2 * WIDTH, 0.55 * len(names) + 1.6), layout="constrained")
    axes = canvas.subplots()
    longest = max(sum(parts.values()) for parts in plot.bars.values())
    phases = {phase: None for parts in plot.bars.values() for phase in parts}
    spare = iter(COLOURS[2:])
    begins = dict.fromkeys(names, 0.0)
    for phase in sorted(phases, key=lambda phase: list(PHASES).index(phase) if phase in PHASES else 3.5):
        colour = PHASES.get(phase) or next(spare, "#999999")
        widths = [max(0.0, plot.bars[name].get(phase, 0.0)) for name in names]
        left = list(begins.values())
        axes.barh(names, widths, left=left, color=colour, label=phase, height=0.62, edgecolor="white", linewidth=0.6)
        for row, (name, width) in enumerate(zip(names, widths, strict=True)):
            if width > SMALL * longest:
                axes.text(begins[name] + width / 2, row, f"{width:.2f}", ha="center", va="center", fontsize=8)
            begins[name] += width
    for row, end in enumerate(begins.values()):
        axes.text(end + longest * 0.008, row, f"{end:.2f} ms", va="center", fontweight="bold", fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="milliseconds, sums of medians", xlim=(0, 1.1 * longest))
    canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    canvas.suptitle(plot.title, x=0.01, ha="left", fontweight="bold", fontsize=11)
    return canvas

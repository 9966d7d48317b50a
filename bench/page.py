"""Write the tables of docs/benchmarks.md from results. The text between them is written by hand, without numbers."""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import ROOT
from bench.cases import ALL
from bench.environment import words
from bench.growth_law import LAWS
from bench.idle_wait import BUSY
from bench.measurement import Figure, cell
from bench.options import Options
from bench.results import Run, read
from bench.table import markdown_table

PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "docs" / "plots" / "results.jsonl"
_BLOCK = re.compile(r"(<!-- begin (\w+)[^>]*-->\n).*?(<!-- end \2 -->)", re.S)

STORES = {"etcd": "etcd", "orch": "Kubernetes API"}
BOUNDS = {
    "bound": "pods that come and go each second, for which one processor of the servers is busy",
    "bound_nodes": "nodes that let pods come and go without a pause, and cause this load",
    "bound_processors": "processors of nodes that cause this load",
}
LARGE = "![Milliseconds of calls over the number of nodes, on etcd and the Kubernetes API](plots/large.svg)"
LIMIT = "![Pods that come and go in a second, over the nodes at work at once, beside bare requests](plots/limit.svg)"
GOALS = (
    ("ADD, one at a time", "add"),
    ("ADD, beside the kernel's work and the exec of a null program", "add_to_kernel"),
    ("DEL, one at a time", "del"),
    ("the same with a driver in Python", "add_python_driver"),
    ("the same DEL with a driver in Python", "del_python_driver"),
    ("pods per second, 16 calls at once", "burst_add"),
    ("the slowest 1 % of these ADDs, beside their median", "burst_add_tail"),
    ("DEL of as many pods, 16 at once", "burst_del"),
    ("ADD with etcd on loopback", "etcd_add"),
    ("ADD with the Kubernetes API on loopback", "orch_add"),
    ("ADD without an agent, embedded store", "one_shot_embedded_add"),
    ("ADD without an agent, etcd", "one_shot_etcd_add"),
    ("ADD at 2,000 pods beside 1 pod, without the kernel's own part", "pods_add_own pods=2000"),
    ("memory of the agent at rest with 2,000 pods, embedded store", "growth_rss store=embedded pods=2000"),
    ("the same with etcd", "growth_rss store=etcd pods=2000"),
    ("the same with the Kubernetes API", "growth_rss store=orch pods=2000"),
    ("ADD with 500 pools and 10,000 blocks, beside 1 pool", "pools_add pools=500 blocks=10000"),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench page", description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS, help=f"file of results ({RESULTS.relative_to(ROOT)})")
    try:
        write(parser.parse_args(arguments).results)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0


def write(results: Path, page: Path = PAGE) -> None:
    page.write_text(filled(page.read_text(), read(results)))
    print(page)


def filled(text: str, run: Run) -> str:
    """Return the page with the tables of this run."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]](run)}\n\n{match[3]}", text)


def _environment(run: Run) -> str:
    busy = [f"`{name}` ({share:.0%})" for name, share in run.busy().items() if share > BUSY]
    doubts = (
        f"\n\n**Provisional**: other programs used the processors beside {', '.join(busy)}. Such times "
        "are too long, and their ratios look better than they are."
        if busy
        else ""
    )
    joined = run.environment.get("joined", ())
    parts = f" Joined from several runs, at the commits {', '.join(joined)}." if len(joined) > 1 else ""
    return f"Measured {words(run.environment)}.{parts}{doubts}"


def _cases(_: Run) -> str:
    rows = [
        (
            f"`{case.name}`" + ("" if case.on_request or case.needs_root else ", no root"),
            case.measures,
            case.leaves_out,
            ", ".join(f"`{name}` {_value(name)}" for name in case.parameters) or "none",
            "by `--only`" if case.on_request else "always",
        )
        for case in ALL
    ]
    return markdown_table(("name", "measures", "leaves out", "parameters", "runs"), rows)


def _value(name: str) -> str:
    value = getattr(Options(), name)
    return " to ".join(f"{end:,}" for end in (value[0], value[-1])) if isinstance(value, tuple) else f"{value:,}"


def _goals(run: Run) -> str:
    figures = run.figures
    rows = [_goal(text, figures.get(key)) for text, key in GOALS]
    judged = [row[-1] for row in rows if row[-1]]
    summary = f"{judged.count('yes')} of {len(judged)} measured goals are reached."
    return f"{markdown_table(('figure', 'svc', 'beside', 'ratio', 'goal', 'reached'), rows)}\n\n{summary}"


def _goal(text: str, figure: Figure | None) -> tuple[str, ...]:
    if figure is None:
        return text, "not measured", "", "", "", ""
    peer = f"{cell(figure.peer.p50)} {figure.unit} ({figure.peer_name})" if figure.peer else ""
    goal = figure.then or figure.goal
    reached = {True: "yes", False: "**no**", None: ""}[figure.verdict(goal)]
    return text, f"{cell(figure.ours.p50)} {figure.unit}", peer, cell(figure.ratio), str(goal or ""), reached


def _phases(run: Run) -> str:
    found: dict[str, dict[str, float]] = {}
    for figure in run.figures.values():
        if figure.name == "phase":
            found.setdefault(figure.parameters["by"], {})[figure.parameters["phase"]] = figure.ours.p50
    rows = [
        (by, phase, f"{ms:.2f}", f"{ms / sum(parts.values()):.0%}")
        for by, parts in found.items()
        for phase, ms in sorted(parts.items(), key=lambda item: -item[1])
        if ms >= 0.005
    ]
    return markdown_table(("call", "phase", "ms (median)", "share"), rows)


def _figures(run: Run) -> str:
    rows = [
        (
            f"`{figure.key}`",
            f"{cell(figure.ours.p50)} {figure.unit}",
            cell(figure.ours.p95),
            f"{cell(figure.peer.p50)} ({figure.peer_name})" if figure.peer else "",
            cell(figure.ratio),
            figure.note,
        )
        for figure in run.figures.values()
        if not figure.parameters
    ]
    return markdown_table(("figure", "median", "95 %", "beside", "ratio", "note"), rows)


def _laws(run: Run) -> str:
    found: dict[str, dict[str, str]] = {}
    for figure in run.figures.values():
        if figure.name.endswith("_law"):
            found.setdefault(figure.parameters["of"], {})[figure.name.split("_")[1]] = figure.note
    rows = [(LAWS[name], *(laws.get(kind, "not measured") for kind in ("etcd", "orch"))) for name, laws in found.items()]
    heads = ("cost, as a function of the number of nodes", "etcd", "Kubernetes API")
    return _pictured(LARGE, heads, rows)


def _bounds(run: Run) -> str:
    """Return the limit of each datastore."""
    rows = [
        (
            STORES[kind],
            text,
            f"{cell(figure.ours.p50)} {figure.unit}",
            f"{cell(figure.peer.p50)}" if figure.peer else "",
            figure.note,
        )
        for kind in STORES
        for name, text in BOUNDS.items()
        if (figure := run.figures.get(f"large_{kind}_{name}"))
    ]
    return _pictured(LIMIT, ("datastore", "limit", "svc", "bare requests", "note"), rows)


def _pictured(picture: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a picture and a table, which a run without these cases does not have."""
    return f"{picture}\n\n{markdown_table(heads, rows)}" if rows else "Not measured."


BLOCKS: dict[str, Callable[[Run], str]] = {
    "environment": _environment,
    "cases": _cases,
    "goals": _goals,
    "phases": _phases,
    "figures": _figures,
    "laws": _laws,
    "bounds": _bounds,
}

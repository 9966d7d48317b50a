"""Measure svc beside its peers and its goals: JSON lines during the run, and a table at the end. Needs root."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from bench import (
    attachments,
    beside_adds,
    burst,
    cluster,
    core,
    density,
    ipam_check,
    memory,
    node,
    one_shot,
    restarts,
    routes,
    scale,
    sequential,
    shim_call,
    soak,
    verbs,
    waits,
)
from bench.idle_wait import BUSY, busy_share, wait_until_idle, wait_until_quiet
from bench.measurement import Figure, Missing, line, table
from bench.options import Options
from bench.testbed import Failed

PHASES: dict[str, Callable[[Options], Iterator[Figure]]] = {
    "single": sequential.run,
    "burst": burst.run,
    "executable": shim_call.run,
    "memory": memory.run,
    "density": density.run,
    "verbs": verbs.run,
    "waits": waits.run,
    "etcd": cluster.run_etcd,
    "orch": cluster.run_orch,
    "one-shot": one_shot.run,
    "check": ipam_check.run,
    "node": node.run,
    "core": core.run,
    "routes": routes.run,
    "attachments": attachments.run,
    "beside": beside_adds.run,
    "restarts": restarts.run_restarts,
    "kills": restarts.run_kills,
    "soak": soak.run,
    "scale": scale.run,
}
ON_REQUEST = {"attachments", "beside", "restarts", "kills", "soak", "scale"}  # not among the phases of a run without --only
NEED_NO_ROOT = {"check", "core", "scale"}


@dataclass
class Report:
    """The results. `busy` is the share of the processors in use before and after each phase.

    On a busy machine ratios look better than they are, because a peer that uses more processor time loses more.
    """

    figures: list[Figure] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    busy: dict[str, tuple[float, float]] = field(default_factory=dict)

    def text(self) -> str:
        peers = {figure.note for figure in self.figures if figure.peer_name and figure.peer is None}
        left_out = [f"left out: {text}" for text in (*self.missing, *sorted(peers))]
        return "\n".join(["", table(self.figures), "", *self._doubts(), *left_out])

    def _doubts(self) -> list[str]:
        return [
            f"DOUBTFUL: {name}: processors {before:.0%} busy before, {after:.0%} after (what it left to the kernel included)"
            for name, (before, after) in self.busy.items()
            if max(before, after) > BUSY
        ]


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is torn down
    options = Options.quick(arguments.rounds or 15) if arguments.quick else Options(arguments.rounds or 60)
    options = replace(options, scale_nodes=arguments.nodes, scale_pods=arguments.pods)
    report = Report()
    with ExitStack() as stack:
        sinks = [sys.stdout]
        if arguments.json:
            sinks.append(stack.enter_context(arguments.json.open("w")))
        for name in arguments.only or [name for name in PHASES if name not in ON_REQUEST]:
            _run_phase(name, options, arguments.wait, report, sinks)
    print(report.text())
    for text in report.failed:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if report.failed else 0


def _run_phase(name: str, options: Options, patience: float, report: Report, sinks: list[TextIO]) -> None:
    wait_until_quiet()
    before = wait_until_idle(patience)
    try:
        for figure in _figures(name, options):
            report.figures.append(figure)
            for sink in sinks:
                print(line(figure, before), file=sink, flush=True)
    except Missing as what:
        report.missing.append(f"{name}: {what}")
    except Failed as what:
        report.failed.append(f"{name}: {what}")
    wait_until_quiet()
    report.busy[name] = before, busy_share()


def _figures(name: str, options: Options) -> Iterator[Figure]:
    if name not in NEED_NO_ROOT and os.geteuid() != 0:
        raise Missing("needs root: it makes network namespaces")
    return PHASES[name](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PHASES,
        metavar="NAME",
        help=f"of {', '.join(PHASES)}; {', '.join(sorted(ON_REQUEST))} run only so",
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and pods: a first impression")
    parser.add_argument("--rounds", type=int, help="of one call each (60, or 15 with --quick)")
    parser.add_argument("--nodes", type=int, default=1000, help="of the measurement `scale` (1000)")
    parser.add_argument("--pods", type=int, default=30_000, help="of the measurement `scale`, at most 60 a node (30000)")
    parser.add_argument(
        "--wait", type=float, default=20.0, metavar="SECONDS", help="for an idle machine, before each phase (20)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON lines there as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())

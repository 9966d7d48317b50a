"""Measure svc beside its peers and its goals: a table at the end, and JSON lines in a file. Needs root.

Each measurement runs in a process of its own.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from bench.arguments import number, whole
from bench.cases import ALL, CASES
from bench.environment import environment, words
from bench.idle_wait import BUSY, busy_share, wait_until_idle, wait_until_quiet
from bench.measurement import Figure, table
from bench.options import Options
from bench.results import Json, create, write_line

_PODS_OF_A_NODE = 60
END_SECONDS = 120.0  # for the teardown of a measurement that is interrupted


@dataclass
class Report:
    """The results. `busy` is the share of the processors in use before and after each measurement.

    On a busy machine ratios look better than they are, because a peer that uses more processor time loses more.
    """

    file: Path
    figures: list[Figure] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    busy: dict[str, tuple[float, float]] = field(default_factory=dict)

    def text(self) -> str:
        peers = {figure.note for figure in self.figures if figure.peer_name and figure.peer is None}
        left_out = [f"left out: {text}" for text in (*self.missing, *sorted(peers))]
        return "\n".join(["", table(self.figures), "", *self._doubts(), *left_out])

    def note(self, line: Json) -> None:
        if "ours" in line:
            self.figures.append(Figure.of_json(line))
        elif "missing" in line:
            self.missing.append(line["missing"])
        elif "failed" in line:
            self.failed.append(line["failed"])

    def _doubts(self) -> list[str]:
        return [
            f"DOUBTFUL: {name}: processors {before:.0%} busy before, {after:.0%} after (what it left to the kernel included)"
            for name, (before, after) in self.busy.items()
            if max(before, after) > BUSY
        ]


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if wrong := _contradiction(options):
        _parser().error(wrong)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is torn down
    if options.against is not None:
        from bench.against import run_against  # it builds the other side

        return run_against(options.against, options.repetitions, options.json)
    names = options.only or [case.name for case in ALL if not case.on_request]
    report = run_cases(names, _sizes(options), options.wait, options.json)
    print(report.text())
    for text in report.failed:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if report.failed else 0


def _contradiction(options: argparse.Namespace) -> str:
    """Return which options do not go together; empty if all do."""
    if options.against is not None and (options.only or options.quick or options.rounds):
        return "--against makes calls of its own: leave out --only, --quick and --rounds, and choose --repetitions"
    most = _PODS_OF_A_NODE * options.nodes
    if "scale" in (options.only or ()) and options.pods > most:
        return f"--pods {options.pods}: {options.nodes} nodes have at most {most}: set fewer, or more --nodes"
    return ""


def run_cases(names: Sequence[str], sizes: Options, patience: float, file: Path | None = None) -> Report:
    """Measure, and write the results to standard output and to a file; without a name to one in the folder of results."""
    found = environment()
    with create(file, found) as sink:
        report, sinks = Report(Path(sink.name)), [sink]
        print(words(found), flush=True)
        write_line(sinks, {"environment": found, "options": sizes.to_json()})
        for name in names:
            _run_case(name, sizes, patience, report, sinks)
    print(f"\nresults: {report.file}")
    return report


def _run_case(name: str, sizes: Options, patience: float, report: Report, sinks: Sequence[TextIO]) -> None:
    wait_until_quiet()
    before, began = wait_until_idle(patience), time.monotonic()
    for line in _lines(name, sizes):
        report.note(line)
        write_line(sinks, {"case": name, **line})
        write_line([sys.stdout], {key: value for key, value in line.items() if not key.endswith("values")})
    seconds = time.monotonic() - began
    wait_until_quiet()
    report.busy[name] = before, busy_share()
    shares = [round(share, 3) for share in report.busy[name]]
    write_line(sinks, {"case": name, "busy": shares, "seconds": round(seconds, 1), "load": os.getloadavg()[0]})


def _lines(name: str, sizes: Options) -> Iterator[Json]:
    """Run a measurement in a process of its own, and yield its lines."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "bench.case", name, str(writer), json.dumps(sizes.to_json())]
    with os.fdopen(reader) as lines:
        process = subprocess.Popen(command, pass_fds=[writer])
        os.close(writer)
        try:
            yield from map(_decoded, lines)
            status = process.wait()
        finally:
            process.terminate()
            process.wait(END_SECONDS)
    if status:
        yield {"failed": f"{name}: the process of the measurement ended with status {status}"}


def _decoded(line: str) -> Json:
    found: dict[str, Any] = json.loads(line)
    return found


def _sizes(options: argparse.Namespace) -> Options:
    sizes = Options.quick(options.rounds or 15) if options.quick else Options(options.rounds or 60)
    return replace(sizes, scale_nodes=options.nodes, scale_pods=options.pods)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    on_request = ", ".join(case.name for case in ALL if case.on_request)
    parser.add_argument(
        "--only", nargs="+", choices=CASES, metavar="NAME", help=f"of {', '.join(CASES)}; {on_request} run only so"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and pods: a first impression")
    parser.add_argument("--rounds", type=whole(1), help="of one call each (60, or 15 with --quick)")
    parser.add_argument("--nodes", type=whole(1), default=1000, help="of the measurement `scale` (1000)")
    parser.add_argument("--pods", type=whole(1), default=30_000, help="of the measurement `scale`, at most 60 a node (30000)")
    parser.add_argument(
        "--wait", type=number(0), default=20.0, metavar="SECONDS", help="for an idle machine, before each measurement (20)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, and not to bench-results/")
    parser.add_argument(
        "--against", metavar="COMMIT", help="build this commit beside, and compare both builds in one interleaved run instead"
    )
    parser.add_argument(
        "--repetitions", type=whole(1), default=20, metavar="N", help="of --against: new agents of each build (20)"
    )
    return parser

"""Measure what docs/benchmarks.md shows, draw its plots, and write its tables.

It needs root, and some 40 minutes of a quiet machine.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import ROOT, page
from bench.arguments import number
from bench.drawing import draw
from bench.options import Options
from bench.results import Run, read
from bench.runs import run_cases
from bench.series import plots

CASES = (
    "single", "driver", "burst", "etcd", "orch", "one-shot", "pods", "parallel", "growth", "blocks", "pools", "phases",
    "large-etcd", "large-orch",
)  # fmt: skip
FOLDER = ROOT / "docs" / "plots"
RESULTS = FOLDER / "results.jsonl"


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    failed = list[str]()
    if options.results:
        try:
            join(options.results, RESULTS)
        except (OSError, ValueError) as error:
            _parser().error(str(error))
    elif os.geteuid():
        _parser().error("it makes network namespaces: run it as root, or draw results that are there by --from")
    else:
        sizes = Options.quick(15) if options.quick else Options()
        report = run_cases(CASES, sizes, options.wait)
        shutil.copyfile(report.file, RESULTS)  # not before all is measured: an interrupted run leaves the page's results
        failed = report.failed
    draw_all(read(RESULTS), FOLDER)
    page.write(RESULTS)
    for text in failed:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if failed else 0


def draw_all(run: Run, folder: Path) -> None:
    """Write each plot, and its data beside it."""
    for plot in plots(list(run.figures.values())):
        (folder / f"{plot.name}.json").write_text(json.dumps(plot.to_json(), indent=1) + "\n")
        draw(plot, folder / f"{plot.name}.svg")
        print(folder / f"{plot.name}.svg")


def join(files: Sequence[Path], target: Path) -> None:
    """Write the results of several runs as one. Its environment is that of the first run, and has the commits of all."""
    runs = [read(file) for file in files]
    commits = sorted({each for run in runs for each in run.environment.get("joined", [run.environment["commit"]])})
    lines = [{"environment": {**runs[0].environment, "joined": commits}}, *(line for run in runs for line in run.lines)]
    target.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench plots", description=__doc__)
    parser.add_argument("--from", dest="results", nargs="+", type=Path, metavar="FILE", help="draw these results instead")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and pods: a first impression; replaces the page's figures too"
    )
    parser.add_argument("--wait", type=number(0), default=20.0, metavar="SECONDS", help="for an idle machine (20)")
    return parser

"""Measure this checkout against another build of svc, to see whether a change made it slower.

`python -m bench --against COMMIT` builds the commit. `python -m bench.against PROGRAMS` uses an existing build: PROGRAMS is the
directory of its svcctl and svc-agent. Every repetition starts a new agent of each build, in alternating order, because two
agents of one build differ by some percent. Single calls alternate between the builds, bursts between rounds. The ratio is the
geometric mean over the repetitions of the ratio of the medians.
"""

import argparse
import os
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import verdict
from bench.arguments import whole
from bench.environment import environment, words
from bench.idle_wait import BUSY, busy_share, wait_until_quiet
from bench.memory import rss_mib
from bench.options import AT_ONCE
from bench.other_build import built
from bench.results import create, write_line
from bench.runtime import wall_ms
from bench.table import text_table
from bench.testbed import Stage
from harness.node import BIN, Node

PODS = 48  # agents of each build
ROUNDS = 4  # rounds in each repetition


def node_of(programs: Path) -> type[Node]:
    """Return the type of a node that runs the programs of this directory."""

    class OtherNode(Node):
        def prepare(self, *arguments: str, stdin: str | None = None) -> None:
            self.svcctl(*arguments, stdin=stdin)

        def start_agent(self, *program: str, **options: Any) -> None:
            super().start_agent(*program, recovered=False, **options)  # another build may log the recovery differently

    OtherNode.programs = programs
    return OtherNode


def repetition(kinds: tuple[type[Node], type[Node]]) -> Iterator[tuple[str, float]]:
    """Yield the ratio of the second kind of node to the first, by name."""
    with ExitStack() as stack:
        sides = [Side(stack.enter_context(Stage.open(kind))) for kind in kinds]
        for side in sides:
            side.warm_up()
        for number in range(ROUNDS):
            _call_in_turns(sides)
            for side in sides if number % 2 == 0 else reversed(sides):
                side.call_at_once()
        for side in sides:
            side.note("RSS", rss_mib(side.stage.node.agent_pid))
    for name, values in sides[0].samples.items():
        yield name, statistics.median(sides[1].samples[name]) / statistics.median(values)


def _call_in_turns(sides: Sequence["Side"]) -> None:
    """Make each call once on each side, in random order, so that a slow moment of the machine slows both sides."""
    pods = [side.stage.pods(PODS) for side in sides]
    wait_until_quiet()
    before = [cpu_ms(side.stage) for side in sides]
    for verb in ("ADD", "DEL"):
        for turn in zip(*pods, strict=True):
            for side, pod in random.sample([*zip(sides, turn, strict=True)], len(sides)):
                side.note(verb, side.stage.execute(side.plugin, verb, pod).ms)
    for side, cpu in zip(sides, before, strict=True):
        side.note("CPU of the agent", cpu_ms(side.stage) - cpu)


class Side:
    """A node of one build, and its samples by name."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.plugin = stage.svc_plugin()
        self.samples: dict[str, list[float]] = {}

    def note(self, name: str, value: float) -> None:
        self.samples.setdefault(name, []).append(value)

    def warm_up(self) -> None:
        pods = self.stage.pods(PODS)
        for verb in ("ADD", "DEL"):
            self.stage.execute_all(self.plugin, verb, pods, AT_ONCE)

    def call_at_once(self) -> None:
        pods = self.stage.pods(PODS)
        wait_until_quiet()
        before = cpu_ms(self.stage)
        for verb in ("ADD", "DEL"):
            self.note(f"burst {verb}", wall_ms(self.stage.execute_all(self.plugin, verb, pods, AT_ONCE)))
        self.note("burst CPU of the agent", cpu_ms(self.stage) - before)


def cpu_ms(stage: Stage) -> float:
    """Return the processor time of the agent, ended threads included: utime and stime, fields 14 and 15 of proc(5)."""
    stat = Path(f"/proc/{stage.node.agent_pid}/stat").read_text()
    return sum(map(int, stat.rpartition(")")[2].split()[11:13])) * 1000 / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", type=Path, help="directory of the other build's svcctl and svc-agent")
    parser.add_argument("--repetitions", type=whole(1), default=20, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios there, and not to bench-results/")
    options = parser.parse_args()
    if os.geteuid():
        parser.error("it makes network namespaces: run it as root")
    for program in ("svcctl", "svc-agent"):
        if not os.access(options.programs / program, os.X_OK):
            parser.error(f"{options.programs / program} is not a program: name the directory of the other build's programs")
    programs: Path = options.programs.resolve()
    title = f"ratios of this checkout to {programs}"
    return compare((node_of(programs), node_of(BIN)), options.repetitions, title, options.json)


def run_against(commit: str, repetitions: int, file: Path | None) -> int:
    """Build a commit, and compare this checkout with it."""
    if os.geteuid():
        raise SystemExit("it makes network namespaces: run it as root")
    return compare((node_of(built(commit)), node_of(BIN)), repetitions, f"ratios of this checkout to {commit}", file)


def compare(kinds: tuple[type[Node], type[Node]], repetitions: int, title: str, file: Path | None = None) -> int:
    """Print the ratios of the second kind of node to the first with a verdict, and write them to a file of results.

    `title` says what is compared.
    """
    found = environment()
    ratios: dict[str, list[float]] = {}
    with create(file, found) as sink:
        busy = busy_share()
        for number in range(repetitions):
            for name, ratio in repetition(kinds if number % 2 == 0 else (kinds[1], kinds[0])):
                ratios.setdefault(name, []).append(ratio if number % 2 == 0 else 1 / ratio)
        write_line([sink], {"environment": found, "title": title})
        for name, values in ratios.items():
            write_line([sink], {"against": name, "ratios": values})
    print(f"{words(found)}\n{title}, {repetitions} agents of each\n\n{report(ratios)}\n")
    print(f"results: {sink.name}")
    if busy > BUSY:
        print(f"DOUBTFUL: processors {busy:.0%} busy before")
    return 0


def report(ratios: dict[str, list[float]]) -> str:
    """Return a table with a verdict for each name."""
    compared = verdict.corrected(map(verdict.of_ratios, ratios.values()))
    rows = [(name, *one.cells, one.verdict(0.0, higher_is_better=False)) for name, one in zip(ratios, compared, strict=True)]
    return text_table([("what", "ratio", "95 %", "p", "verdict"), *rows], right={1, 2, 3})


if __name__ == "__main__":
    sys.exit(main())

"""The command line: explore schedules in parallel processes, or replay one with its trace."""

import argparse
import gc
import logging
import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from simulation.explore import Found, deviations, random_schedules, replay
from simulation.known import kind_of, reason_of
from simulation.patches import models
from simulation.regressions import REGRESSIONS
from simulation.scenarios import SCENARIOS
from simulation.schedule import Outcome, prepare
from simulation.scheduler import Killed
from simulation.world import Stage, directory

ENOUGH = 10  # kinds of unknown violations after which the exploration ends
_PROGRESS_SECONDS = 10.0
_POLL_SECONDS = 0.5  # maximum delay until an interruption is noticed
_CHUNK = 50  # schedules after which a process reports its progress


@dataclass
class Tally:
    """The violations found, by kind: their number, and the name of the first schedule that replays each."""

    schedules: int = 0
    seeds: int = 0  # the number of random schedules
    steps: int = 0
    failure: str = ""  # the reason why not all schedules were run
    count: dict[str, int] = field(default_factory=dict)
    first: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, found: Found) -> None:
        self.schedules += 1
        self.seeds += found.name.startswith("seed:")
        self.steps += found.outcome.steps
        if found.outcome.violation:
            kind = kind_of(found.outcome.violation)
            self.count[kind] = self.count.get(kind, 0) + 1
            self.first.setdefault(kind, (found.name, found.outcome.violation))

    def merge(self, other: "Tally") -> None:
        self.schedules += other.schedules
        self.seeds += other.seeds
        self.steps += other.steps
        for kind, number in other.count.items():
            self.count[kind] = self.count.get(kind, 0) + number
            self.first.setdefault(kind, other.first[kind])

    def unknown(self) -> list[str]:
        return [kind for kind in self.count if not reason_of(kind)]


@dataclass(frozen=True)
class Work:
    """The share of one of several processes, and its directory."""

    root: Path
    part: int
    parts: int
    bound: int
    scenarios: tuple[str, ...]
    seeds: range


def main() -> int:
    """Return the exit status: 1 if an unknown violation was found, or if not all schedules were run."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="random schedules to run [1000]")
    parser.add_argument("--seed", type=int, default=0, help="the first seed [0]")
    parser.add_argument("--bound", type=int, default=1, help="deviations of every scenario that are explored entirely [1]")
    parser.add_argument("--scenario", action="append", default=[], help="only this scenario; may be repeated")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes [one a CPU]")
    parser.add_argument(
        "--every", type=int, default=1, help="of the deviations only each so many-th, from the first seed on [1]"
    )
    parser.add_argument("--replay", default="", help="the name of a schedule: print its trace")
    parser.add_argument("--regressions", action="store_true", help="run those only: a line each, with what they break")
    options = parser.parse_args()
    _fix_hashes()
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = _report_unraisable
    if options.replay:
        return _replay(options.replay)
    if options.regressions:
        return _regressions()
    scenarios = tuple(options.scenario or SCENARIOS)
    seeds = range(options.seed, options.seed + options.schedules)
    jobs, every = options.jobs, options.every
    with directory() as root:
        works = [
            Work(
                root / str(part), part * every + options.seed % every, jobs * every, options.bound, scenarios, seeds[part::jobs]
            )
            for part in range(jobs)
        ]
        return report(_explore(works, seeds))


def run_alone(names: list[str]) -> list[Outcome]:
    """Replay schedules in this process, which must have fixed hashes."""
    with directory() as root, closing(Stage(root)) as stage, models(stage.files):
        prepare(stage)
        return [replay(stage, name) for name in names]


def _fix_hashes() -> None:
    """Replace a process that has random hashes by one without, because the order of sets is part of a schedule."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})


def _report_unraisable(found: "sys.UnraisableHookArgs") -> None:
    """Report an exception that cannot be raised, unless a generator of a killed process has raised it at its deletion."""
    if not isinstance(found.exc_value, Killed):
        sys.__unraisablehook__(found)


def _replay(name: str) -> int:
    (outcome,) = run_alone([name])
    for number, (task, text) in enumerate(outcome.trace):
        print(f"{number:5} {task:32} {text}")
    print(f"{outcome.steps} steps: {outcome.violation or 'every invariant held'}")
    return 1 if outcome.violation else 0


def _regressions() -> int:
    for name, outcome in zip(REGRESSIONS, run_alone(list(REGRESSIONS)), strict=True):
        print(f"{name}\t{outcome.violation}")
    return 0


def _explore(works: list[Work], seeds: range) -> Tally:
    """Run one process per share of the work. Return their results when all have ended or the run was interrupted."""
    total, began, said = Tally(), time.monotonic(), time.monotonic()

    def interrupt(*_: object) -> None:
        total.failure = "interrupted"

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    print(f"{len(seeds)} random schedules from seed {seeds.start} on, {len(works)} processes", flush=True)
    context = multiprocessing.get_context("fork")
    processes: dict[Connection[Tally, Tally], BaseProcess] = {}
    for work in works:
        reader, writer = context.Pipe(duplex=False)
        processes[reader] = context.Process(target=_work, args=(work, writer), daemon=True)
        processes[reader].start()
        writer.close()  # otherwise the reader does not detect the end of the process
    running = list(processes)
    while running and not total.failure and len(total.unknown()) < ENOUGH:
        ready = wait(running, _POLL_SECONDS)
        for reader in [reader for reader in running if reader in ready]:
            try:
                _merge(total, reader.recv())
            except EOFError:
                running.remove(reader)
        if time.monotonic() - said > _PROGRESS_SECONDS:
            said = time.monotonic()
            print(_progress(total, len(seeds), said - began), flush=True)
    for reader, process in processes.items():
        if reader in running:
            process.kill()
        process.join()
        if reader not in running and process.exitcode:
            total.failure = "a process ended with an error"
    print(f"{_progress(total, len(seeds), time.monotonic() - began)}, {total.steps} steps")
    return total


def _merge(total: Tally, tally: Tally) -> None:
    """Add the tally of one process. Print violations of new kinds at once."""
    for kind in tally.count.keys() - total.count.keys():
        print(_found(tally, kind), flush=True)
    total.merge(tally)


def _progress(total: Tally, seeds: int, seconds: float) -> str:
    return (
        f"{total.schedules} schedules ({total.seeds} of {seeds} random ones), {total.schedules / seconds:.0f} a second, "
        f"{sum(total.count.values())} violations"
    )


def _work(work: Work, writer: "Connection[Tally, Tally]") -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    tally = Tally()
    with closing(Stage(work.root)) as stage, models(stage.files):
        prepare(stage)
        gc.freeze()
        gc.disable()  # garbage collection during schedules would take a tenth of the time
        for found in _schedules(stage, work):
            tally.add(found)
            if tally.schedules >= _CHUNK:
                writer.send(tally)
                tally = Tally()
                gc.collect()
    writer.send(tally)


def _schedules(stage: Stage, work: Work) -> Iterator[Found]:
    if work.bound >= 0:
        for name in work.scenarios:
            yield from deviations(stage, SCENARIOS[name], work.bound, work.part, work.parts)
    yield from random_schedules(stage, work.seeds)


def report(total: Tally) -> int:
    for kind in sorted(total.count, key=lambda kind: -total.count[kind]):
        print(_found(total, kind))
    if total.failure:
        print(total.failure)
    return 1 if total.unknown() or total.failure else 0


def _found(tally: Tally, kind: str) -> str:
    """Describe the violations of a kind, and how to replay one."""
    name, violation = tally.first[kind]
    reason = reason_of(kind)
    command = f"PYTHONPATH=tests python -m simulation --replay {shlex.quote(name)}"
    return f"{tally.count[kind]} times: {violation}\n    {f'known: {reason}' if reason else 'UNKNOWN'}\n    replay: {command}"

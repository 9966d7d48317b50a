"""The command line: explore schedules in parallel processes, or replay one with its trace."""

import argparse
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path

from simulation.explore import Found, deviations, random_schedules, replay
from simulation.known import kind_of, reason_of
from simulation.patches import models
from simulation.regressions import REGRESSIONS
from simulation.scenarios import SCENARIOS
from simulation.schedule import Outcome, prepare
from simulation.world import Stage, directory

ENOUGH = 10  # kinds of unknown violations, after which exploring ends
_PROGRESS_SECONDS = 10.0
_CHUNK = 50  # schedules, after which a process tells how far it is


@dataclass
class Tally:
    """The violations found, by kind: how often, and the first name that replays it."""

    schedules: int = 0
    steps: int = 0
    count: dict[str, int] = field(default_factory=dict)
    first: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, found: Found) -> None:
        self.schedules += 1
        self.steps += found.outcome.steps
        if found.outcome.violation:
            kind = kind_of(found.outcome.violation)
            self.count[kind] = self.count.get(kind, 0) + 1
            self.first.setdefault(kind, (found.name, found.outcome.violation))

    def merge(self, other: "Tally") -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        for kind, number in other.count.items():
            self.count[kind] = self.count.get(kind, 0) + number
            self.first.setdefault(kind, other.first[kind])

    def unknown(self) -> list[str]:
        return [kind for kind in self.count if not reason_of(kind)]


@dataclass(frozen=True)
class Work:
    """The work of one process of several, and its directory."""

    root: Path
    part: int
    parts: int
    bound: int
    scenarios: tuple[str, ...]
    seeds: range


def main() -> int:
    """Return the exit status: 1 when an unknown violation was found."""
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
    if options.replay:
        return _replay(options.replay)
    if options.regressions:
        return _regressions()
    scenarios = tuple(options.scenario or SCENARIOS)
    seeds = range(options.seed, options.seed + options.schedules)
    jobs, every = options.jobs, options.every
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the directory is removed then, too
    with directory() as root:
        works = [
            Work(
                root / str(part), part * every + options.seed % every, jobs * every, options.bound, scenarios, seeds[part::jobs]
            )
            for part in range(jobs)
        ]
        return _report(_explore(works, len(seeds)))


def run_alone(names: list[str]) -> list[Outcome]:
    """Replay schedules in this process, which must have fixed hashes."""
    with directory() as root, closing(Stage(root)) as stage, models(stage.files):
        prepare(stage)
        return [replay(stage, name) for name in names]


def _fix_hashes() -> None:
    """The order of sets is part of a schedule: a process with random hashes is replaced by one without."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})


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


def _explore(works: list[Work], seeds: int) -> Tally:
    total, began, said = Tally(), time.monotonic(), time.monotonic()
    context = multiprocessing.get_context("fork")
    queue: Queue[Tally | None] = context.Queue()
    processes = [context.Process(target=_work, args=(work, queue), daemon=True) for work in works]
    for process in processes:
        process.start()
    running = len(processes)
    while running and len(total.unknown()) < ENOUGH:
        tally = queue.get()
        if tally is None:
            running -= 1
            continue
        total.merge(tally)
        if time.monotonic() - said > _PROGRESS_SECONDS:
            said = time.monotonic()
            rate = total.schedules / (said - began)
            found = sum(total.count.values())
            print(
                f"{total.schedules} schedules ({seeds} random ones wanted), {rate:.0f} a second, {found} violations", flush=True
            )
    for process in processes:
        process.terminate()
    print(f"{total.schedules} schedules, {total.steps} steps, {time.monotonic() - began:.1f} s")
    return total


def _work(work: Work, queue: "Queue[Tally | None]") -> None:
    tally = Tally()
    try:
        with closing(Stage(work.root)) as stage, models(stage.files):
            prepare(stage)
            for found in _schedules(stage, work):
                tally.add(found)
                if tally.schedules >= _CHUNK:
                    queue.put(tally)
                    tally = Tally()
        queue.put(tally)
    finally:
        queue.put(None)


def _schedules(stage: Stage, work: Work) -> Iterator[Found]:
    if work.bound >= 0:
        for name in work.scenarios:
            yield from deviations(stage, SCENARIOS[name], work.bound, work.part, work.parts)
    yield from random_schedules(stage, work.seeds)


def _report(total: Tally) -> int:
    for kind, number in sorted(total.count.items(), key=lambda each: -each[1]):
        name, violation = total.first[kind]
        reason = reason_of(kind)
        print(f"{number} times: {violation}\n    {f'known: {reason}' if reason else 'UNKNOWN'}\n    replay: {_command(name)}")
    return 1 if total.unknown() else 0


def _command(name: str) -> str:
    return f"PYTHONPATH=tests python -m simulation --replay {name}"

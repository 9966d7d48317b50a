"""Fuzz every target, or some: `python -m fuzz --inputs 1000000 --seed 0 [--target NAME]... [--keep]`.

Each target runs in its own process, so that a crash ends only that one. A failing input is written to `build/fuzz`, and
`--replay TARGET FILE` reads it again. Exit status 1 if an input failed.
"""

import argparse
import hashlib
import mmap
import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from fuzz import executable
from fuzz.mutate import MAX_BYTES
from fuzz.run import HANG_SECONDS, MAX_KEPT_BYTES, Report, Target, run
from fuzz.targets import ROOT, TARGETS, keep, kept

FAILED: Final = ROOT / "build" / "fuzz"
MAX_NOVEL: Final = 150  # inputs that a run keeps of one target
KNOWN: Final = {each.name: each for each in (*TARGETS, executable.TARGET)}  # the executable is a hundred times slower
_SPAWN: Final = multiprocessing.get_context("fork")


def main() -> int:
    options = _options()
    if options.replay:
        name, file = options.replay
        print(KNOWN[name].read(Path(file).read_bytes()))
        return 0
    targets = [KNOWN[name] for name in options.target] or list(TARGETS)
    share = -(-options.inputs // len(targets))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(_fuzz, target, share, options.seed) for target in targets]
        failed = sum([_report(target, *job.result(), is_kept=options.keep) for target, job in zip(targets, jobs, strict=True)])
    print(f"{failed} failures")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", default="0", help="other seeds give other inputs")
    parser.add_argument("--target", action="append", default=[], choices=sorted(KNOWN))
    parser.add_argument("--keep", action="store_true", help="add inputs with new answers to the corpus")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"))
    return parser.parse_args()


def _fuzz(target: Target, count: int, seed: str) -> tuple[Report | None, bytes, float]:
    """Run a target in a process. Return its report, or None with the input that ended the process; and the seconds."""
    begin = time.monotonic()
    last = mmap.mmap(-1, MAX_BYTES + 8)
    receiving, sending = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_work, args=(target, count, seed, last, sending))
    process.start()
    sending.close()
    report = _received(receiving, last)
    process.join(HANG_SECONDS)
    process.kill()
    data = last[8 : 8 + int.from_bytes(last[:8], "little")]
    return report, data, time.monotonic() - begin


def _received(receiving: "multiprocessing.connection.Connection", last: mmap.mmap) -> Report | None:
    """Wait for the report, as long as the process reads new inputs."""
    before = b""
    while not receiving.poll(4 * HANG_SECONDS):
        now = last[:]
        if now == before:
            return None
        before = now
    try:
        found = receiving.recv()
    except EOFError:
        return None
    assert isinstance(found, Report)
    return found


def _work(target: Target, count: int, seed: str, last: mmap.mmap, sending: "multiprocessing.connection.Connection") -> None:
    def announce(data: bytes) -> None:
        last[: 8 + len(data)] = len(data).to_bytes(8, "little") + data

    report = run(target, kept(target.name), count, seed, announce)
    for failure in report.failures:
        failure.error.__traceback__ = None
    sending.send(report)


def _report(target: Target, report: Report | None, last: bytes, seconds: float, *, is_kept: bool) -> int:
    """Print a line for the target, and one for each failure. Return the number of failures."""
    if report is None:
        print(f"{target.name}: the process ended or hung: {_saved(target.name, last)}")
        return 1
    rate = report.inputs / max(seconds, 0.001)
    print(f"{target.name}: {report.inputs} inputs, {report.accepted} accepted, {len(report.novel)} new answers, {rate:.0f}/s")
    for failure in report.failures:
        print(f"  {type(failure.error).__name__}: {failure.error}: {_saved(target.name, failure.data)}", file=sys.stderr)
    if is_kept:
        keep(target.name, [data for data in sorted(report.novel, key=len)[:MAX_NOVEL] if len(data) <= MAX_KEPT_BYTES])
    return len(report.failures)


def _saved(name: str, data: bytes) -> Path:
    FAILED.mkdir(parents=True, exist_ok=True)
    path = FAILED / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


if __name__ == "__main__":
    sys.exit(main())

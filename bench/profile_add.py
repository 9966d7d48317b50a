"""The share of each phase and function in the time of an ADD: `python -m bench.profile_add`.

First come the phases, as a real agent reports them to a real runtime. Then come the functions, with the same calls in this
process. Their wall time is sampled, which costs little and includes waiting. cProfile counts their calls in separate rounds.
The last list has the built-in and compiled functions that cProfile saw.
"""

import argparse
import cProfile
import os
import pstats
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from bench.measurement import Sample
from bench.phases import phases
from bench.sequential import AFTER_DELETION
from bench.testbed import Plugin, Pod, Stage
from harness.blocking import run_blocking
from harness.enter_netns import entered
from harness.node import Node
from svc.attach.context import Context
from svc.call_trace import CallTrace, new_request_id
from svc.cni.call_io import CallInput
from svc.cni.handler import handle_call
from svc.datastore.open import open_backend
from svc.names import DEFAULT

INTERVAL = 0.00025  # seconds between samples; each costs at least 0.03 ms
STALLED = 1.5  # slower calls, in medians, do not count
VERBS = ("ADD", "DEL")

Function = tuple[str, int, str]  # file, first line, name


def main() -> int:
    options = _parser().parse_args()
    with Stage.open() as stage:
        plugin = stage.svc_plugin(dual=options.dual)
        _print_phases(stage, plugin, options.rounds)
        with in_process(stage.directory) as answering:
            _answer_rounds(answering, stage, plugin, 5)
            sampled = {verb: Samples() for verb in VERBS}
            _answer_rounds(answering, stage, plugin, options.rounds, {verb: sampled[verb].taking for verb in VERBS})
            counted = {verb: cProfile.Profile() for verb in VERBS}
            _answer_rounds(answering, stage, plugin, options.rounds, {verb: _counting(counted[verb]) for verb in VERBS})
    for verb in VERBS:
        _print_functions(verb, sampled[verb], pstats.Stats(counted[verb]), options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--dual", action="store_true", help="both address families")
    parser.add_argument("--top", type=int, default=20, help="lines of each list")
    return parser


# Phases


def _print_phases(stage: Stage, plugin: Plugin, rounds: int) -> None:
    found: dict[str, dict[str, list[float]]] = {verb: {} for verb in VERBS}
    for pod in stage.pods(rounds):
        for verb in VERBS:
            outcome = stage.execute(plugin, verb, pod)
            reported = phases(outcome)
            named = sum(value for name, value in reported.items() if name not in ("queue", "total"))
            outside = outcome.ms - reported["total"] - reported["queue"]
            for name, value in {**reported, "rest": reported["total"] - named, "outside": outside, "whole": outcome.ms}.items():
                found[verb].setdefault(name, []).append(value)
            time.sleep(AFTER_DELETION)
    _print_bare_call(stage, plugin, rounds)
    print(f"Phases, ms, of {rounds} calls; rest: inside but in no phase; outside: exec, the socket and the threads between")
    for verb, times in found.items():
        samples = {name: Sample.of(values) for name, values in times.items()}
        print(f"  {verb}  p50  " + "  ".join(f"{name} {sample.p50:.2f}" for name, sample in samples.items()))
        print("       p95  " + "  ".join(f"{name} {sample.p95:.2f}" for name, sample in samples.items()))


def _print_bare_call(stage: Stage, plugin: Plugin, rounds: int) -> None:
    """Print the time of a VERSION, which has no work: it is the time of every call to a worker and back."""
    whole, inside = list[float](), list[float]()
    for _ in range(rounds):
        time.sleep(AFTER_DELETION)
        outcome = stage.connect(plugin, "VERSION")
        whole.append(outcome.ms)
        inside.append(phases(outcome)["total"])
    print(f"A VERSION by the socket, ms: whole {Sample.of(whole).p50:.2f}, inside {Sample.of(inside).p50:.2f}")


# The same calls in this process

Answering = Callable[[str, Plugin, Pod], None]


@contextmanager
def in_process(directory: Path) -> Iterator[Answering]:
    """Do the work of an agent's worker, on a node without an agent."""
    with ExitStack() as stack:
        node = stack.enter_context(Node(Path(tempfile.mkdtemp(dir=directory)), agent=False))
        node.apply_pools()
        stack.enter_context(entered(node.netns))
        context = Context(lambda _: DEFAULT, node.state_dir, lambda kind, names: open_backend(kind, node.state_dir, names))
        stack.callback(context.close)

        def answering(verb: str, plugin: Plugin, pod: Pod) -> None:
            call = plugin.call(verb, pod)
            netns = os.open(pod.netns, os.O_RDONLY | os.O_CLOEXEC)
            inputs = CallInput("svc", call.environment, call.stdin, netns_fd=netns)
            reply = run_blocking(handle_call(context, inputs, CallTrace(new_request_id())))
            if reply.status:
                raise RuntimeError(f"{verb}: {reply.stderr.decode()}")

        yield answering


Measuring = Callable[[Callable[[], None]], None]


def _answer_rounds(
    answering: Answering, stage: Stage, plugin: Plugin, rounds: int, measuring: dict[str, Measuring] | None = None
) -> None:
    for pod in stage.pods(rounds):
        for verb in VERBS:
            if measuring:
                measuring[verb](lambda verb=verb, pod=pod: answering(verb, plugin, pod))  # type: ignore[misc]
            else:
                answering(verb, plugin, pod)
            time.sleep(AFTER_DELETION)


def _counting(profile: cProfile.Profile) -> Measuring:
    def measure(call: Callable[[], None]) -> None:
        profile.enable()
        try:
            call()
        finally:
            profile.disable()

    return measure


@dataclass
class Sampled:
    """The duration of one call, and its ticks by function."""

    seconds: float = 0.0
    own: Counter[Function] = field(default_factory=Counter)
    whole: Counter[Function] = field(default_factory=Counter)


class Samples:
    """Wall time by function.

    Every tick of the timer weighs one interval. Python runs a signal's handler late during C code, so all ticks since the
    previous one belong to that code. Calls start at different phases of the interval, so that ticks hit all of the code.
    Much slower calls were delayed by other programs and do not count.
    """

    def __init__(self) -> None:
        self._calls: list[Sampled] = []
        self._first = 0.0
        self._ticks = 0

    def taking(self, call: Callable[[], None]) -> None:
        signal.signal(
            signal.SIGALRM, self._take
        )  # the handler stays, because the last tick may come after the timer was stopped
        signal.siginterrupt(signal.SIGALRM, False)
        delay = random.uniform(0.01, 1) * INTERVAL
        self._calls.append(Sampled())
        started = time.perf_counter()
        self._first, self._ticks = started + delay, 0
        signal.setitimer(signal.ITIMER_REAL, delay, INTERVAL)
        try:
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._calls[-1].seconds = time.perf_counter() - started

    def totals(self) -> tuple[int, Counter[Function], Counter[Function]]:
        """Return the calls that count, and their ticks: own, and with callees."""
        usual = statistics.median(call.seconds for call in self._calls)
        kept = [call for call in self._calls if call.seconds < STALLED * usual]
        own, whole = Counter[Function](), Counter[Function]()
        for call in kept:
            own.update(call.own)
            whole.update(call.whole)
        return len(kept), own, whole

    def _take(self, _: int, frame: FrameType | None) -> None:
        ticks = int((time.perf_counter() - self._first) / INTERVAL) + 1
        weight, self._ticks = ticks - self._ticks, ticks
        stack = list(_functions(frame))
        if stack:
            self._calls[-1].own[stack[0]] += weight
            for function in set(stack):
                self._calls[-1].whole[function] += weight


def _functions(frame: FrameType | None) -> Iterator[Function]:
    """Return the functions, innermost first.

    Functions that dataclasses generate have no file, and are named after the class.
    """
    while frame is not None and frame.f_code.co_filename != __file__:
        code = frame.f_code
        generated = code.co_filename == "<string>" and "self" in frame.f_locals
        owner = f"{type(frame.f_locals['self']).__name__}." if generated else ""
        yield code.co_filename, code.co_firstlineno, owner + code.co_name
        frame = frame.f_back


# The lists


def _print_functions(verb: str, samples: Samples, counted: pstats.Stats, options: argparse.Namespace) -> None:
    counts: dict[Function, tuple[int, int, float, float, object]] = counted.stats  # type: ignore[attr-defined]
    calls = {function: entry[1] / options.rounds for function, entry in counts.items()}
    kept, own, whole = samples.totals()
    for title, ticks in (("their own wall time", own), ("wall time with callees", whole)):
        print(f"\n{verb}: Python functions by {title}, microseconds a call of the plugin ({kept} sampled)")
        print(f"{'own':>8} {'with callees':>13} {'calls':>7}")
        for function, _ in ticks.most_common(options.top):
            times = [f"{count[function] * INTERVAL / kept * 1e6:.0f}" for count in (own, whole)]
            print(f"{times[0]:>8} {times[1]:>13} {calls.get(function, 0):>7.1f}  {_name(function)}")
    print(f"\n{verb}: built-in and compiled functions by cProfile, its own cost included")
    print(f"{'own':>8} {'calls':>7}")
    compiled = sorted(((entry[2], function) for function, entry in counts.items() if _is_compiled(function)), reverse=True)
    for seconds, function in compiled[: options.top]:
        print(f"{seconds / options.rounds * 1e6:>8.0f} {calls[function]:>7.1f}  {_name(function)}")


def _is_compiled(function: Function) -> bool:
    return not function[0].endswith(".py") and function[0] != "<string>"


def _name(function: Function) -> str:
    file, line, name = function
    short = re.sub(r".*/(site-packages|python3\.\d+)/", "", file)
    return f"{short}:{line} {name}" if line else name


if __name__ == "__main__":
    sys.exit(main())

"""A comparison of one operation of the compiled core with that of a peer library.

The rounds of both sides alternate, so that other load of the machine affects both. The medians are compared.
"""

import json
import platform
import statistics
import timeit
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

ROUND_SECONDS = 0.02


@dataclass(frozen=True)
class Case:
    """A comparison. `peer_name` starts with the peer's distribution name, if it has one, and may continue with a note."""

    name: str
    ours: Callable[[], object]
    peer: Callable[[], object]
    peer_name: str
    goal: float  # the least acceptable ratio of the peer's time to that of svc


def measure(case: Case, rounds: int = 7) -> dict[str, Any]:
    """Return nanoseconds per call on both sides, their ratio, the compared versions, and the values of all rounds."""
    sides = [(timeit.Timer(call), calls_per_round(call)) for call in (case.ours, case.peer)]
    samples = [[timer.timeit(calls) / calls for timer, calls in sides] for _ in range(rounds)]
    values = [[round(seconds * 1e9, 1) for seconds in times] for times in zip(*samples, strict=True)]
    ours, peer = map(statistics.median, values)
    return {
        "name": case.name,
        "ours_ns": ours,
        "peer_ns": peer,
        "values": values,
        "peer": case.peer_name,
        "ratio": round(peer / ours, 2),
        "goal": case.goal,
        "versions": versions(case.peer_name),
    }


def calls_per_round(call: Callable[[], object]) -> int:
    """Return the number of calls for about one round. The trial also warms caches up."""
    calls, elapsed = 1, timeit.timeit(call, number=1)
    while elapsed < ROUND_SECONDS / 4:
        calls *= 4
        elapsed = timeit.timeit(call, number=calls)
    return max(1, round(calls * ROUND_SECONDS / elapsed))


def versions(peer_name: str) -> dict[str, str]:
    found = {"python": platform.python_version()}
    distribution = peer_name.split()[0]
    with suppress(PackageNotFoundError):  # part of the standard library
        found[distribution] = version(distribution)
    return found


def run(cases: Iterable[Case]) -> None:
    """Print one JSON object per line."""
    for case in cases:
        print(json.dumps(measure(case)), flush=True)

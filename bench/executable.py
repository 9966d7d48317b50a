"""The executable: its size, and what it adds to a call that is made by the agent's socket directly.

Its own cost is a small difference of two large figures, and what other tenants of the machine take falls now on one, now on
the other. As they only ever add, the lower quartiles are compared; the medians stand beside them.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import programs, shim_cost
from bench.figure import Figure, Sample, at_most
from bench.options import Options
from bench.single import AFTER_DELETION
from bench.stage import Stage

STATUS_ROUNDS = 5  # times as many: they are short, and leave nothing behind
ADD_ROUNDS = 2


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage, TemporaryDirectory(prefix="svc-bench-") as name:
        executable = stage.node.bin_dir / "svc"
        null, installed = shim_cost.build(Path(name), executable)
        yield Figure("executable_size", "bytes", Sample(executable.stat().st_size), 1, goal=at_most(65536), then=at_most(20480))
        rounds = options.rounds * STATUS_ROUNDS
        yield _own_cost("own_cost_status", _status(stage, null, rounds + options.warm_up), options.warm_up)
        yield _own_cost("own_cost_add", _add(stage, null, options.rounds * ADD_ROUNDS + options.warm_up), options.warm_up)
        yield from _beside_null(shim_cost.measure(Path(name), null, installed, rounds), rounds)


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of the same call by the executable and by the socket, and of a program that does nothing."""

    executed: list[float] = field(default_factory=list)
    direct: list[float] = field(default_factory=list)
    null: list[float] = field(default_factory=list)


def _own_cost(name: str, times: Times, warm_up: int) -> Figure:
    whole, without, null = (_Quartiles.of(each[warm_up:]) for each in (times.executed, times.direct, times.null))
    note = (
        f"{whole.lower:.3f} ms by exec, {without.lower:.3f} by the socket; a null program {null.lower:.3f};"
        f" by the medians {whole.median - without.median:.3f}, {null.median:.3f}"
    )
    own = Sample(whole.lower - without.lower)
    return Figure(name, "ms", own, len(times.executed) - warm_up, goal=at_most(0.4), then=at_most(0.2), note=note)


@dataclass(frozen=True, slots=True)
class _Quartiles:
    lower: float
    median: float

    @staticmethod
    def of(values: list[float]) -> "_Quartiles":
        return _Quartiles(*statistics.quantiles(values, n=4)[:2])


def _status(stage: Stage, null: Path, rounds: int) -> Times:
    plugin, times = stage.ours(cniVersion="1.1.0"), Times()
    call = plugin.call("STATUS")
    for _ in range(rounds):
        times.executed.append(stage.runtime.one(call).ms)
        times.direct.append(stage.connect(plugin, "STATUS").ms)
        times.null.append(stage.runtime.one(replace(call, program=str(null))).ms)
    return times


def _add(stage: Stage, null: Path, rounds: int) -> Times:
    """Each after the same pause; the executable and the socket come first in turns."""
    plugin, times = stage.ours(), Times()
    pods = zip(stage.pods(rounds), stage.pods(rounds), strict=True)
    for number, (ours, by_socket) in enumerate(pods):
        turns = [(times.executed, stage.execute, ours), (times.direct, stage.connect, by_socket)]
        for figures, call, pod in turns if number % 2 else reversed(turns):
            time.sleep(AFTER_DELETION)
            figures.append(call(plugin, "ADD", pod).ms)
        time.sleep(AFTER_DELETION)
        times.null.append(stage.runtime.one(replace(plugin.call("ADD", ours), program=str(null))).ms)
        stage.execute_all(plugin, "DEL", [ours, by_socket])
    return times


def _beside_null(found: dict[str, dict[str, float]], rounds: int) -> Iterator[Figure]:
    """Against a server that answers at once: what is left of the call is the executable's own."""
    null_ms = found["null"]["us"] / 1000
    for figure, milliseconds in (("exec_version", found["version"]["us"]), ("exec_call", found["call"]["own_us"])):
        yield Figure(
            figure, "ms", Sample(milliseconds / 1000), rounds, peer=Sample(null_ms), peer_name="null program",
            note="VERSION" if figure == "exec_version" else "less the time of a server that answers at once",
            versions=programs.versions(),
        )  # fmt: skip

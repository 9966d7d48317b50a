"""The executable: its size, and what it adds to a call that is made by the agent's socket directly.

Its own cost is what a call takes outside of the agent, less what a call by the socket takes there: the time inside, which is
large beside both, is taken off call by call. What other tenants of the machine take falls now on one, now on the other. As they
only ever add, and for most of the time on some days, the lowest deciles are compared; the medians stand beside them.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import programs, shim_cost
from bench.measurement import Figure, Sample, at_most
from bench.options import Options
from bench.phases import outside_ms
from bench.sequential import AFTER_DELETION
from bench.testbed import Stage

STATUS_ROUNDS = 5  # times as many: they are short, and leave nothing behind
ADD_ROUNDS = 2
PAUSE = 0.01  # seconds


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage, TemporaryDirectory(prefix="svc-bench-") as name:
        executable = stage.node.bin_dir / "svc"
        null, installed = shim_cost.build(Path(name), executable)
        yield Figure("executable_size", "bytes", Sample(executable.stat().st_size), 1, goal=at_most(65536), then=at_most(24576))
        rounds = options.rounds * STATUS_ROUNDS
        yield _own_cost("own_cost_status", _status(stage, null, rounds + options.warm_up), options.warm_up)
        yield _own_cost("own_cost_add", _add(stage, null, options.rounds * ADD_ROUNDS + options.warm_up), options.warm_up)
        yield from _beside_null(shim_cost.measure(Path(name), null, installed, rounds), rounds)


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds outside of the agent, of the same call by the executable and by the socket; a program that does nothing."""

    executed: list[float] = field(default_factory=list)
    direct: list[float] = field(default_factory=list)
    null: list[float] = field(default_factory=list)


def _own_cost(name: str, times: Times, warm_up: int) -> Figure:
    whole, without, null = (_Spread.of(each[warm_up:]) for each in (times.executed, times.direct, times.null))
    note = (
        f"outside: {whole.lowest:.3f} ms by exec, {without.lowest:.3f} by the socket; a null program {null.lowest:.3f};"
        f" by the medians {whole.median - without.median:.3f}, {null.median:.3f}"
    )
    own = Sample(whole.lowest - without.lowest)
    return Figure(name, "ms", own, len(times.executed) - warm_up, goal=at_most(0.4), then=at_most(0.2), note=note)


@dataclass(frozen=True, slots=True)
class _Spread:
    lowest: float  # decile
    median: float

    @staticmethod
    def of(values: list[float]) -> "_Spread":
        return _Spread(statistics.quantiles(values, n=10)[0], statistics.median(values))


def _status(stage: Stage, null: Path, rounds: int) -> Times:
    """A processor that is never idle is soon taken by other tenants: so each after a pause here, too."""
    plugin, times = stage.ours(cniVersion="1.1.0"), Times()
    call = plugin.call("STATUS")
    for _ in range(rounds):
        time.sleep(PAUSE)
        times.executed.append(outside_ms(stage.runtime.one(call)))
        time.sleep(PAUSE)
        times.direct.append(outside_ms(stage.connect(plugin, "STATUS")))
        time.sleep(PAUSE)
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
            figures.append(outside_ms(call(plugin, "ADD", pod)))
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

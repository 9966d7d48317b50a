"""The executable: its size, and the time that it adds to a call through the agent's socket.

Its own cost is the time of a call outside the agent, minus that of a call through the socket. The time inside the agent is
large in comparison, so it is subtracted for each call. Other tenants of the machine delay some calls of both kinds. Delays only
add time, so the lowest deciles are compared, and the medians are printed beside them.
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

STATUS_ROUNDS = 5  # times as many rounds, because these calls are short and leave nothing behind
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
    """Milliseconds outside the agent: of a call by the executable, of one by the socket, and of a program that does nothing."""

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
    """Measure STATUS. A pause precedes each call, because other tenants soon use a processor that is never idle."""
    plugin, times = stage.svc_plugin(cniVersion="1.1.0"), Times()
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
    """Measure ADD. The same pause precedes each call, and executable and socket alternate in going first."""
    plugin, times = stage.svc_plugin(), Times()
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
    """Measure calls to a server that replies at once, so that the rest of the time is the executable's own."""
    null_ms = found["null"]["us"] / 1000
    for figure, milliseconds in (("exec_version", found["version"]["us"]), ("exec_call", found["call"]["own_us"])):
        yield Figure(
            figure, "ms", Sample(milliseconds / 1000), rounds, peer=Sample(null_ms), peer_name="null program",
            note="VERSION" if figure == "exec_version" else "less the time of a server that answers at once",
            versions=programs.versions(),
        )  # fmt: skip

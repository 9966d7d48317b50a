"""The executable: its size, and what it adds to a call that is made by the agent's socket directly."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import programs, shim_cost
from bench.figure import Figure, Sample, at_most
from bench.options import Options
from bench.single import AFTER_DELETION
from bench.stage import Plugin, Stage

STATUS_ROUNDS = 5  # times as many: they are short, and leave nothing behind


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage:
        size = (stage.node.bin_dir / "svc").stat().st_size
        yield Figure("executable_size", "bytes", Sample(size), 1, goal=at_most(65536), then=at_most(20480))
        rounds = options.rounds * STATUS_ROUNDS
        yield _own_cost("own_cost_status", *_status(stage, stage.ours(cniVersion="1.1.0"), rounds, options.warm_up))
        yield _own_cost("own_cost_add", *_add(stage, stage.ours(), options.rounds, options.warm_up))
        yield from _beside_null(stage.node.bin_dir / "svc", rounds)


def _own_cost(name: str, executed: list[float], direct: list[float]) -> Figure:
    whole, without = Sample.of(executed), Sample.of(direct)
    note = f"{whole.p50:.3f} ms by exec, {without.p50:.3f} by the socket"
    return Figure(name, "ms", Sample(whole.p50 - without.p50), len(executed), goal=at_most(0.4), then=at_most(0.2), note=note)


def _status(stage: Stage, plugin: Plugin, rounds: int, warm_up: int) -> tuple[list[float], list[float]]:
    executed, direct = list[float](), list[float]()
    for _ in range(rounds + warm_up):
        executed.append(stage.runtime.one(plugin.call("STATUS")).ms)
        direct.append(stage.connect(plugin, "STATUS").ms)
    return executed[warm_up:], direct[warm_up:]


def _add(stage: Stage, plugin: Plugin, rounds: int, warm_up: int) -> tuple[list[float], list[float]]:
    """Each after the same pause, and each the first in every other round."""
    executed, direct = list[float](), list[float]()
    pods = zip(stage.pods(rounds + warm_up), stage.pods(rounds + warm_up), strict=True)
    for number, (ours, by_socket) in enumerate(pods):
        turns = [(executed, stage.execute, ours), (direct, stage.connect, by_socket)]
        for times, call, pod in turns if number % 2 else reversed(turns):
            time.sleep(AFTER_DELETION)
            times.append(call(plugin, "ADD", pod).ms)
        stage.execute_all(plugin, "DEL", [ours, by_socket])
    return executed[warm_up:], direct[warm_up:]


def _beside_null(executable: Path, rounds: int) -> Iterator[Figure]:
    """Against a server that answers at once: what is left of the call is the executable's own."""
    with TemporaryDirectory(prefix="svc-bench-") as name:
        null, installed = shim_cost.build(Path(name), executable)
        found = shim_cost.measure(Path(name), null, installed, rounds)
    null_ms = found["null"]["us"] / 1000
    for figure, milliseconds in (("exec_version", found["version"]["us"]), ("exec_call", found["call"]["own_us"])):
        yield Figure(
            figure, "ms", Sample(milliseconds / 1000), rounds, peer=Sample(null_ms), peer_name="null program",
            note="VERSION" if figure == "exec_version" else "less the time of a server that answers at once",
            versions=programs.versions(),
        )  # fmt: skip

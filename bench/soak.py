"""The agent after a long run: memory, descriptors and threads after many cycles of ADD, CHECK and DEL."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.measurement import Figure, Sample, at_most
from bench.memory import rss_mib
from bench.options import AT_ONCE, VERSIONS, Options
from bench.testbed import Plugin, Pod, Stage
from svc.admin.agent_client import ask
from svc.agent import garbage

PODS = 100  # attached at the same time
FIRST_CYCLES = 1000
SETTLE_SECONDS = 2.0 + garbage.SECONDS  # until additional threads have ended, and the agent has collected garbage
KINDS = ("state", "attachments", "calls", "metrics", "threads")


@dataclass(frozen=True, slots=True)
class Use:
    """What the agent uses. Netlink sockets do not count: each thread opens one at its first use."""

    rss: float  # MiB
    descriptors: int
    threads: int

    @staticmethod
    def of(pid: int) -> "Use":
        time.sleep(SETTLE_SECONDS)
        process = Path(f"/proc/{pid}")
        sockets = {f"socket:[{line.split()[-1]}]" for line in (process / "net" / "netlink").read_text().splitlines()}
        descriptors = [target for fd in (process / "fd").iterdir() if (target := os.readlink(fd)) not in sockets]
        return Use(rss_mib(pid), len(descriptors), len(list((process / "task").iterdir())))


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage:
        plugin, pods, numbers = stage.svc_plugin(cniVersion="1.1.0"), stage.pods(PODS), count(1)
        _cycles(stage, plugin, pods, FIRST_CYCLES, numbers)
        first = Use.of(stage.node.agent_pid)
        _cycles(stage, plugin, pods, options.soak_cycles - FIRST_CYCLES, numbers)
        last = Use.of(stage.node.agent_pid)
    cycles, earlier = options.soak_cycles, f"after {FIRST_CYCLES} cycles"
    yield Figure(
        "soak_rss", "MiB", Sample(last.rss), cycles, peer=Sample(first.rss), peer_name=earlier, goal=at_most(1.1),
        versions=VERSIONS,
    )  # fmt: skip
    for name in ("descriptors", "threads"):
        more = getattr(last, name) - getattr(first, name)
        note = f"{getattr(last, name)}, {earlier} {getattr(first, name)}"
        yield Figure(f"soak_{name}_more", "", Sample(more), cycles, goal=at_most(0), note=note)


def _cycles(stage: Stage, plugin: Plugin, pods: Sequence[Pod], cycles: int, numbers: Iterator[int]) -> None:
    """Attach and delete new containers. After each round send a STATUS, and each introspection request."""
    for _ in range(cycles // len(pods)):
        for pod in pods:
            pod.container = f"{next(numbers):08x}" + 56 * "a"
        for verb in ("ADD", "CHECK", "DEL"):
            stage.execute_all(plugin, verb, pods, AT_ONCE)
        stage.connect(plugin, "STATUS")
        for kind in KINDS:
            ask(stage.node.state_dir, stage.node.socket, kind)

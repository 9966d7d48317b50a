"""The agent's memory: after its start, with many pods, and after their deletion."""

import re
from collections.abc import Iterator
from pathlib import Path

from bench.measurement import Figure, Goal, Sample, at_most
from bench.options import AT_ONCE, Options
from bench.testbed import Stage


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage:
        plugin = stage.svc_plugin()
        yield _figure(stage, "rss_start", 1)
        pods = stage.pods(options.memory_pods)
        stage.execute_all(plugin, "ADD", pods, AT_ONCE)
        yield _figure(stage, f"rss_{len(pods)}_pods", len(pods), at_most(40), at_most(30))
        stage.execute_all(plugin, "DEL", pods, AT_ONCE)
        yield _figure(stage, "rss_after", len(pods))


def _figure(stage: Stage, name: str, n: int, goal: Goal | None = None, then: Goal | None = None) -> Figure:
    return Figure(name, "MiB", Sample(rss_mib(stage.node.agent_pid)), n, goal=goal, then=then)


def rss_mib(pid: int, field: str = "VmRSS") -> float:
    """Return the memory of a process; for the field VmHWM its peak."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found, f"process {pid} has no memory"
    return int(found[1]) / 1024

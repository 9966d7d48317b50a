"""The agent's memory as a function of the pods on the node, on each datastore: right after their ADDs, and at rest.

Between calls the agent collects garbage and returns free memory to the system, within some seconds.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.cluster import Server, etcd_server, node_stage, orch_server
from bench.measurement import Figure, Missing, Sample, at_most
from bench.memory import rss_mib
from bench.options import AT_ONCE, Options
from bench.testbed import Plugin, Pod, Stage
from svc.agent import garbage

LIMIT = ("--max-blocks-per-host", "64", "--strictaffinity", "true")  # a limit of blocks needs both
REST_SECONDS = 1.3 * garbage.SECONDS  # with a collection
GOALS = {"embedded": 30, "etcd": 48, "orch": 60}  # MiB at 2,000 pods


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage:
        yield from _curve("embedded", stage, stage.svc_plugin(), lambda _: None, options)
    missing = list[str]()
    for kind, opened in (("etcd", _etcd), ("orch", orch_server)):
        try:
            with node_stage() as stage, opened(stage) as server:
                _raise_limit(stage)
                yield from _curve(kind, stage, server.plugin, server.prepare, options)
        except Missing as what:
            missing.append(f"{kind}: {what}")
    if missing:
        raise Missing("; ".join(missing))


def _raise_limit(stage: Stage) -> None:
    """Allow the node more blocks than a node of a cluster gets by default: 20, with 1,280 addresses."""
    file = stage.directory / "cluster.json"
    stage.node.svcctl("--netconf", str(file), "ipam", "configure", *LIMIT)


def _curve(kind: str, stage: Stage, plugin: Plugin, prepare: Callable[[list[Pod]], None], options: Options) -> Iterator[Figure]:
    yield _figure("growth_rss", kind, stage, 0)
    present = 0
    for number in options.curve_pods[::2]:
        pods = stage.pods(number - present)
        prepare(pods)
        stage.execute_all(plugin, "ADD", pods, AT_ONCE)
        present = number
        yield _figure("growth_rss_after_adds", kind, stage, present)
        time.sleep(REST_SECONDS)
        yield _figure("growth_rss", kind, stage, present)


def _figure(name: str, kind: str, stage: Stage, present: int) -> Figure:
    goal = at_most(GOALS[kind]) if name == "growth_rss" and present >= 2000 else None
    rss = Sample(rss_mib(stage.node.agent_pid))
    return Figure(name, "MiB", rss, 1, then=goal, parameters={"store": kind, "pods": present})


@contextmanager
def _etcd(stage: Stage) -> Iterator[Server]:
    with etcd_server(stage) as (server, _):
        yield server

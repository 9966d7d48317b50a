"""Restarts and kills of the agent under load, on each datastore: calls that fail, the longest call, and what remains."""

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from bench.callers import Callers, Ended
from bench.cluster import etcd_server, node_stage, orch_server
from bench.measurement import Figure, Sample, at_most
from bench.options import AT_ONCE, VERSIONS, Options
from bench.testbed import Failed, Plugin, Pod, Stage
from harness.audit import IpamAudit
from harness.node import Node
from harness.state import pod_links
from svc.attach.journal import Journal
from svc.datastore.open import open_backend
from svc.names import DEFAULT
from svc.netconf import netconf as netconfs

CALLS_BETWEEN = 3 * AT_ONCE
UNIT_NICE = -10  # Nice of the unit
UNIT_SECONDS = 1.0  # RestartSec of the unit: systemd starts a killed agent again after this time
REST_SECONDS = 60.0  # for pending releases at the end
SHOWN = 3  # errors in a note

MakePods = Callable[[int], list[Pod]]


@dataclass(frozen=True)
class Target:
    """A node with a datastore. `pods` makes sandboxes, with what the datastore must know of them. `before` is there already."""

    stage: Stage
    kind: str
    plugin: Plugin
    pods: MakePods
    before: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stage.node.restarts = True
        self.before.extend(self._found())

    def remains(self) -> list[str]:
        """Return what is left of pods, after pending releases have had time to complete."""
        deadline = time.monotonic() + REST_SECONDS
        while (found := [text for text in self._found() if text not in self.before]) and time.monotonic() < deadline:
            time.sleep(1)
        return found

    def _found(self) -> list[str]:
        node = self.stage.node
        settings = netconfs.parse(json.dumps(dict(self.plugin.netconf)).encode(), DEFAULT).datastore.to_json()
        with (
            closing(open_backend(settings, node.state_dir, DEFAULT)) as store,
            closing(Journal(node.state_dir / "journal.db")) as journal,
        ):
            return [*IpamAudit.read(store, journal).entries(), *(f"interface {name}" for name in pod_links(node))]


def run_restarts(options: Options) -> Iterator[Figure]:
    for kind in _TARGETS:
        with _TARGETS[kind]() as target:
            yield from _restarted(target, options.restarts)


def run_kills(options: Options) -> Iterator[Figure]:
    for kind in _TARGETS:
        with _TARGETS[kind]() as target:
            yield from _killed(target, options.restarts)


def _restarted(target: Target, number: int) -> Iterator[Figure]:
    node, kind, gaps = target.stage.node, target.kind, list[float]()
    with Callers(target.stage, target.plugin, target.pods(AT_ONCE)) as callers:
        for _ in range(number):
            callers.wait(CALLS_BETWEEN)
            began = time.monotonic()
            if node.stop_agent():
                raise Failed(f"the agent did not drain: {node.log.read_text()[-2000:]}")
            _start(node)
            gaps.append(time.monotonic() - began)
        callers.wait(CALLS_BETWEEN)
    remains = target.remains()
    failed, status = _apart(callers.failed)
    calls = callers.calls
    longest, note = max(calls, key=lambda call: call.seconds), f"{len(calls)} calls, {number} restarts"
    yield Figure(
        f"{kind}_restart_failed", "calls", Sample(len(failed)), len(calls), goal=at_most(0), note=_told(note, failed),
        versions=VERSIONS,
    )  # fmt: skip
    note = "STATUS alone, which reports that no agent runs"
    yield Figure(f"{kind}_restart_status_failed", "calls", Sample(len(status)), len(calls), note=note)
    yield Figure(f"{kind}_restart_longest", "s", Sample(longest.seconds), len(calls), goal=at_most(3), note=longest.log)
    yield Figure(f"{kind}_restart_gap", "s from SIGTERM until a new agent listens", Sample.of(gaps), number)
    yield Figure(f"{kind}_restart_remains", "objects", Sample(len(remains)), number, goal=at_most(0), note="; ".join(remains))


def _killed(target: Target, number: int) -> Iterator[Figure]:
    """Kill the agent at random moments, and start it after the time that systemd waits."""
    node, kind, dice, kills = target.stage.node, target.kind, random.Random(number), list[tuple[int, int]]()
    with Callers(target.stage, target.plugin, target.pods(AT_ONCE)) as callers:
        for _ in range(number):
            callers.wait(CALLS_BETWEEN)
            time.sleep(dice.random() / 10)
            began = time.monotonic_ns()
            node.kill_agent()
            kills.append((began, time.monotonic_ns()))
            time.sleep(UNIT_SECONDS)
            _start(node)
        callers.wait(CALLS_BETWEEN)
    failed, _ = _apart(callers.failed)
    in_flight = [call for call in failed if any(map(call.was_in_flight, kills))]
    others = [call for call in failed if call not in in_flight]
    remains, note = target.remains(), f"{len(callers.calls)} calls, {number} kills, {len(in_flight)} failed in flight"
    yield Figure(
        f"{kind}_kill_failed_others", "calls", Sample(len(others)), len(callers.calls), goal=at_most(0),
        note=_told(note, others), versions=VERSIONS,
    )  # fmt: skip
    yield Figure(f"{kind}_kill_remains", "objects", Sample(len(remains)), number, goal=at_most(0), note="; ".join(remains))


def _start(node: Node) -> None:
    """Start the agent with the priority that the unit gives it."""
    node.start_agent("nice", "-n", str(UNIT_NICE), str(node.programs / "svc-agent"), recovered=False)


def _apart(failed: list[Ended]) -> tuple[list[Ended], list[Ended]]:
    """Return the failed calls of containers, and those of STATUS."""
    return [call for call in failed if call.verb != "STATUS"], [call for call in failed if call.verb == "STATUS"]


def _told(note: str, failed: list[Ended]) -> str:
    return "; ".join([note, *(f"{call.verb}: {call.error}" for call in failed[:SHOWN])])


# datastores


@contextmanager
def _embedded() -> Iterator[Target]:
    with Stage.open() as stage:
        yield Target(stage, "embedded", stage.svc_plugin(), stage.pods)


@contextmanager
def _etcd() -> Iterator[Target]:
    with node_stage() as stage, etcd_server(stage) as (server, _):
        yield Target(stage, "etcd", server.plugin, stage.pods)


@contextmanager
def _orch() -> Iterator[Target]:
    with node_stage() as stage, orch_server(stage) as server:

        def pods(number: int) -> list[Pod]:
            made = stage.pods(number)
            server.prepare(made)
            return made

        yield Target(stage, "orch", server.plugin, pods)


_TARGETS = {"embedded": _embedded, "etcd": _etcd, "orch": _orch}

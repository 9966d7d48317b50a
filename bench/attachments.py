"""A node with many attachments: introspection, reconciliation, and the start of its agent."""

import time
from collections.abc import Iterator

from bench.measurement import Figure, Sample, at_most
from bench.options import AT_ONCE, VERSIONS, Options
from bench.soak import KINDS
from bench.testbed import Failed, Plugin, Stage
from harness.frames import parse_reply
from svc.admin.agent_client import ask

STARTS, RECONCILIATIONS = 5, 10
LIMIT_SECONDS = 20.0


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage:
        plugin, pods = stage.svc_plugin(cniVersion="1.1.0"), stage.pods(options.attachments)
        stage.execute_all(plugin, "ADD", pods, AT_ONCE)
        yield from _introspection(stage, options, len(pods))  # before the starts, which forget the calls
        yield _reconciliation(stage, len(pods))
        yield from _starts(stage, plugin, len(pods))


def _reconciliation(stage: Stage, present: int) -> Figure:
    """Measure a comparison of journal, kernel and datastore, as the agent reports it."""
    reports = [ask(stage.node.state_dir, stage.node.socket, "reconcile") for _ in range(RECONCILIATIONS)]
    if any(report["attachments"] != present or report["findings"] or report["errors"] for report in reports):
        raise Failed(f"the comparison of {present} attachments is wrong: {reports[-1]}")
    times = [report["seconds"] * 1000 for report in reports]
    return Figure(f"reconciliation_at_{present}", "ms", Sample.of(times), len(times), goal=at_most(200))


def _starts(stage: Stage, plugin: Plugin, present: int) -> Iterator[Figure]:
    """Measure the time from the execution of svc-agent until a STATUS succeeds."""
    times = []
    for _ in range(STARTS):
        stage.node.stop_agent()
        began = time.monotonic()
        stage.node.start_agent(recovered=False)
        _await_status(stage, plugin, began)
        times.append(time.monotonic() - began)
    note = "from its execution until STATUS succeeds"
    yield Figure(f"start_at_{present}", "s", Sample.of(times), STARTS, goal=at_most(1), note=note, versions=VERSIONS)


def _await_status(stage: Stage, plugin: Plugin, began: float) -> None:
    while parse_reply(stage.runtime.one(plugin.direct("STATUS", stage.node.socket)).stdout).status:
        if time.monotonic() - began > LIMIT_SECONDS:
            raise Failed(f"STATUS fails {LIMIT_SECONDS:g} s after the start of the agent")
        time.sleep(0.005)


def _introspection(stage: Stage, options: Options, present: int) -> Iterator[Figure]:
    for kind in KINDS:
        times = []
        for _ in range(options.rounds):
            began = time.perf_counter()
            ask(stage.node.state_dir, stage.node.socket, kind)
            times.append((time.perf_counter() - began) * 1000)
        note = f"longest of {len(times)}: {max(times):.1f} ms"
        yield Figure(f"introspection_{kind}_at_{present}", "ms", Sample.of(times), len(times), goal=at_most(100), note=note)

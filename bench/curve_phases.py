"""The phases of an ADD on each datastore, one call at a time, beside ptp with host-local and the kernel's own share."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench import programs
from bench.cluster import etcd_server, node_stage, orch_server
from bench.measurement import Figure, Missing, Sample
from bench.options import VERSIONS, Options
from bench.phases import phases
from bench.sequential import AFTER_DELETION
from bench.testbed import Plugin, Pod, Stage

WARM_UP = 3
REST, OUTSIDE = "other work of the agent", "executable, socket, runtime"


@dataclass
class Competitor:
    """A plugin, a pod, and the milliseconds of each phase of its ADDs."""

    name: str
    plugin: Plugin
    pod: Pod
    found: dict[str, list[float]] = field(default_factory=dict)

    def cycle(self, stage: Stage) -> None:
        outcome = stage.execute(self.plugin, "ADD", self.pod)
        if self.name.startswith("svc"):
            self._note_phases(phases(outcome), outcome.ms)
        elif self.name == "kernel alone":
            work = float(outcome.stdout) / 1000
            self.note("kernel", work)
            self.note("exec", outcome.ms - work)
        else:
            self.note("whole call", outcome.ms)
        stage.execute(self.plugin, "DEL", self.pod)
        time.sleep(AFTER_DELETION)

    def note(self, phase: str, ms: float) -> None:
        self.found.setdefault(phase, []).append(ms)

    def _note_phases(self, found: dict[str, float], whole: float) -> None:
        named = {name: ms for name, ms in found.items() if name != "total"}
        for name, ms in named.items():
            self.note(name, ms)
        self.note(REST, found["total"] - sum(ms for name, ms in named.items() if name != "queue"))
        self.note(OUTSIDE, whole - found["total"] - found["queue"])


def run(options: Options) -> Iterator[Figure]:
    missing = list[str]()
    with ExitStack() as stack:
        stage = stack.enter_context(node_stage())
        competitors = list(_competitors(stage, stack, missing))
        for number in range(options.rounds + WARM_UP):
            for competitor in competitors if number % 2 else reversed(competitors):
                competitor.cycle(stage)
    for competitor in competitors:
        for phase, values in competitor.found.items():
            parameters = {"by": competitor.name, "phase": phase}
            sample = Sample.of(values[WARM_UP:])
            yield Figure("phase", "ms", sample, options.rounds, versions=VERSIONS, parameters=parameters)
    if missing:
        raise Missing("; ".join(missing))


def _competitors(stage: Stage, stack: ExitStack, missing: list[str]) -> Iterator[Competitor]:
    plugins = {"svc, embedded": stage.svc_plugin()}
    pods = {name: stage.pods(1)[0] for name in ("svc, embedded", "svc, etcd", "svc, Kubernetes API", "ptp", "kernel")}
    try:
        server, _ = stack.enter_context(etcd_server(stage))
        plugins["svc, etcd"] = server.plugin
    except Missing as what:
        missing.append(f"etcd: {what}")
    try:
        server = stack.enter_context(orch_server(stage))
        server.prepare([pods["svc, Kubernetes API"]])
        plugins["svc, Kubernetes API"] = server.plugin
    except Missing as what:
        missing.append(f"orch: {what}")
    for name, plugin in plugins.items():
        yield Competitor(name, plugin, pods[name])
    if ptp := stage.ptp():
        yield Competitor("ptp with host-local", ptp, pods["ptp"])
    yield Competitor("kernel alone", Plugin("kernel alone", programs.build_floor(stage.directory), {}), pods["kernel"])

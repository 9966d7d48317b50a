"""Interleavings that once broke an invariant: scenarios with one operation that waits until nothing else can run."""

from dataclasses import dataclass

from simulation.world import KINDS


@dataclass(frozen=True, slots=True)
class Regression:
    """`held` is a regular expression over operations (empty: none is held up). With a `fault`, the first such operation fails
    in that way instead, or the first `times` ones. `open` says why the schedule still breaks an invariant, if it does."""

    scenario: str
    held: str
    violation: str
    open: str = ""
    fault: str = ""
    times: int = 1


def _all() -> dict[str, Regression]:
    found = {}
    for kind in KINDS:
        drain = f"add-drain-del-{kind}"
        found[f"drain-assign-{kind}"] = Regression(drain, "store: .*create HandleKey", "an address is leaked")
        found[f"drain-wire-{kind}"] = Regression(drain, "kernel: make link", "an interface is in no row")
        gated = f"gated-add-del-agent-starts-{kind}"
        found[f"gate-{kind}"] = Regression(gated, "", "an ADD without an agent attaches what the agent has deleted")
    del found["drain-assign-embedded"]
    for kind in ("etcdv3", "orch"):
        for what in ("lost-store", "lost-store-add", "lost-store-del"):
            found[f"{what}-{kind}"] = Regression(f"{what}-{kind}", "", "an address has two holders")
        release, pending = "store: .*update BlockKey", "at rest a release is pending"
        found[f"retry-fails-{kind}"] = Regression(f"retry-del-{kind}", release, pending, fault="refused", times=2)
    late, leak = "store: .*create HandleKey", "an address is leaked"
    found["late-write-of-killed-agent"] = Regression("add-del-agent-killed-etcdv3", late, leak, fault="kill-late")
    found["late-write-of-failed-add"] = Regression("add-del-agent-etcdv3", late, leak, fault="late")
    late_handle = "at rest a handle counts addresses that no block has"
    found["late-handle-orch"] = Regression("add-del-oneshot-orch", late, late_handle, fault="late")
    return found


REGRESSIONS = _all()

"""The engine of upgrades on a real API server: a manifest with a ConfigMap and a DaemonSet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.fake_kubelets import FakeKubelets
from harness.kube import Kube, running
from harness.upgrade_site import (
    CONFIG,
    CONFIG_STEP,
    DAEMON_SET,
    DAEMON_SET_STEP,
    LAST_APPLIED,
    UpgradeSite,
    new,
    old,
    running_site,
)

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with running(tmp_path_factory.mktemp("server"), has_workloads=True) as kube, kube.controllers("daemonset"):
        with FakeKubelets(kube, ["node1", "node2"]).running():
            yield kube


@pytest.fixture
def site(server: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpgradeSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    for made in running_site(server, tmp_path):
        made.install(old())
        yield made


def test_plan_apply_and_undo(site: UpgradeSite) -> None:
    """The new manifest replaces the former one, whose other fields go; undoing brings back what was there."""
    before, revision = site.state(old()), site.revision()
    planned = site.run("plan")
    assert planned.exit_code == 0, planned.output
    assert "spec.template.spec.containers[agent].image: svc:0.1.0 -> svc:0.1.1" in planned.output
    assert site.state(old()) == before
    done = site.run("apply")
    assert done.exit_code == 0, done.output
    found = site.kube.call("GET", DAEMON_SET)
    assert (
        found["spec"]["template"]["spec"]["containers"][0]["env"]
        == new()[1]["spec"]["template"]["spec"]["containers"][0]["env"]
    )
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1500", "added": "y"}
    assert LAST_APPLIED not in found["metadata"].get("annotations", {})
    record = site.record()
    assert record
    assert (record["state"], record["from"], record["to"]) == ("done", "0.1.0", "0.1.1")
    assert record["steps"] == {
        "remove-references": "skipped", CONFIG_STEP: "done", DAEMON_SET_STEP: "done", "restore-references": "skipped",
    }  # fmt: skip
    assert site.run("verify").exit_code == 0
    undone = site.run("undo")
    assert undone.exit_code == 0, undone.output
    assert site.state(old()) == before
    assert revision

"""svcctl moves a datastore by the procedure: real etcd and a real API server."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.datastores import EtcdSite, OrchSite
from harness.guarded_writes import nothing_written, raced_writes, require_guards, watched_writes
from harness.ipam import holdings, put
from harness.ipam_check import put_endpoint
from harness.move_procedure import STEPS, MoveProcedure, furnished
from harness.move_sites import ETCD_NODE, contents
from svc.admin.ipam_check.observation import Place
from svc.ctl.main import main
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.claim import Claimant, NodeClaim
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, NodeClaimKey, ResourceQuery
from svc.move import marks
from svc.upgrade import stalled_nodes
from svc.upgrade.outcomes import Blocked
from svc.upgrade.step import Step
from svc.upgrade.step_runner import StepRunner
from svc.upgrade.writer import MANAGER

pytestmark = pytest.mark.server


@pytest.fixture
def procedure(
    etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MoveProcedure]:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    with furnished(etcd_site, orch_site, tmp_path) as made:
        yield made


def test_there_and_back(procedure: MoveProcedure) -> None:
    """The datastore equals the original, document by document."""
    before = contents(procedure.sites.etcd)
    procedure.move()
    record = procedure.record()
    assert record
    assert record["state"] == "done"
    assert [name for name in record["steps"] if name in STEPS] == [*STEPS]
    with nothing_written():
        assert procedure.run("apply").stdout == "nothing to do\n"
    procedure.succeeds("verify")
    procedure.move(back=True)
    assert contents(procedure.sites.etcd) == before


def revision(procedure: MoveProcedure) -> str:
    """Return the revision of etcd."""
    with closing(procedure.etcd_site.open()) as store:
        return str(store.position().revision)


def test_each_write_names_what_it_was_made_for(procedure: MoveProcedure) -> None:
    """By a resourceVersion, a test or a UID, also those to the datastore.

    A write that another program was faster than is refused, and read again."""
    with watched_writes() as found, raced_writes(procedure.kube) as races:
        procedure.move()
    require_guards(found)
    races.require_conflicts()
    assert any("/pods/" in path for _, path, _ in found)


def test_plan_says_what_cannot_be_undone(procedure: MoveProcedure) -> None:
    (plan,) = json.loads(procedure.succeeds("plan", "-o", "json").stdout)
    assert [each["name"] for each in plan["steps"] if not each["can be undone"]] == ["switch-over", "moved-nodes"]
    assert procedure.succeeds("plan").stdout.count("cannot be undone") == 2


def test_plan_writes_nothing(procedure: MoveProcedure) -> None:
    """Neither to etcd, whose revision stays, nor to the Kubernetes API."""
    before, kube = revision(procedure), contents(procedure.sites.kube)
    planned = procedure.succeeds("plan")
    assert revision(procedure) == before
    assert contents(procedure.sites.kube) == kube
    assert procedure.record() is None
    assert "lock-source: to do" in planned.output
    assert "switch-over: unverified" in planned.output
    assert "cannot be undone" in planned.output


def test_wrong_inputs_are_refused(procedure: MoveProcedure) -> None:
    files = procedure.files
    for given, told in (
        (("--source", str(files["etcd"]), "--target", str(files["etcd"])), "etcdv3 and etcdv3"),
        (("--source", str(files["etcd"])), "--target is missing"),
        (("--source", str(files["etcd"]), "--target", str(files["kube"]), "--to", "v1.2.3"), "takes no --to"),
    ):
        words = ["upgrade", "plan", "--kubeconfig", str(procedure.kubeconfig), "--procedure", "datastore", *given]
        refused = CliRunner().invoke(main, words)
        assert refused.exit_code == 2, refused.output
        assert told in refused.output


def test_findings_need_consent(procedure: MoveProcedure) -> None:
    """The check of the source has one. With consent, the move has the same contradiction in the target."""
    store = procedure.sites.etcd.backend
    put_endpoint(procedure.etcd_site, store, "web", "c-web", "10.65.0.200", ifname="net1", node=ETCD_NODE)
    waits = procedure.run("apply")
    assert waits.exit_code == 4, waits.output
    assert "--ack lock-source" in waits.output
    assert "[ipam-check]" in waits.output
    assert not is_locked(procedure.sites.etcd)
    assert procedure.run("apply", "--ack", "lock-source", "--timeout", "0s").exit_code == 5
    procedure.roll()
    procedure.succeeds("apply")


def test_target_that_is_not_empty_blocks(procedure: MoveProcedure) -> None:
    put(procedure.sites.kube.backend, HandleKey("net.other"), Handle({}))
    blocked = procedure.run("apply")
    assert blocked.exit_code == 3
    assert "is not empty" in blocked.output
    assert not is_locked(procedure.sites.etcd)
    assert procedure.record() is None


def is_locked(place: Place) -> bool:
    info = marks.present(place)
    return info is not None and marks.is_locked(info)


STOPS = [*STEPS[1:-1]]


@pytest.mark.parametrize("stop", STOPS)
def test_undo_before_the_switch_over(procedure: MoveProcedure, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
    """It empties the target and unlocks the source, from another machine, without the inputs."""
    before, empty = contents(procedure.sites.etcd), contents(procedure.sites.kube)
    stop_at(monkeypatch, stop)
    assert procedure.run("apply").exit_code == 3
    assert is_locked(procedure.sites.etcd)
    monkeypatch.undo()
    procedure.state_dir = procedure.folder / "another"
    procedure.succeeds("undo")
    assert (contents(procedure.sites.etcd), contents(procedure.sites.kube)) == (before, empty)
    assert marks.present(procedure.sites.kube) is None
    assert not is_locked(procedure.sites.etcd)
    assert procedure.run("undo").stdout == "nothing to undo\n"


def stop_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Let a run stop before a step."""
    look = StepRunner.carry_out

    def carry_out(self: StepRunner, each: Step) -> None:
        if each.name == step:
            raise Blocked(["by the test"])
        look(self, each)

    monkeypatch.setattr(StepRunner, "carry_out", carry_out)


def test_undo_restores_a_predecessor_on_another_machine(procedure: MoveProcedure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content is in the backup of the run."""
    before = contents(procedure.sites.etcd)
    procedure.move()
    IpamService(procedure.sites.kube.backend, "node1").release(Release("net.c-web"))
    after = contents(procedure.sites.kube)
    with monkeypatch.context() as patch:
        stop_at(patch, "compare-datastores")
        assert procedure.run("apply", back=True).exit_code == 3
    assert contents(procedure.sites.etcd) != before
    procedure.state_dir = procedure.folder / "another"
    procedure.succeeds("undo")
    assert (contents(procedure.sites.etcd), contents(procedure.sites.kube)) == (before, after)
    assert is_locked(procedure.sites.etcd)
    assert not is_locked(procedure.sites.kube)


def test_undo_after_the_switch_over_names_the_reverse_move(procedure: MoveProcedure) -> None:
    """Also while nodes have not moved: the reverse move then begins at once, and keeps what was assigned since."""
    assert procedure.run("apply", "--timeout", "0s").exit_code == 5
    refused = procedure.run("undo")
    assert refused.exit_code == 3
    assert "going back is the reverse move" in refused.output
    assert "--procedure datastore --source NEW --target OLD" in refused.output
    IpamService(procedure.sites.kube.backend, "node1").assign(Assign("net.c-late", {"node": "node1"}))
    assert procedure.run("apply", "--ack", "lock-source", "--timeout", "0s", back=True).exit_code == 5
    assert procedure.sites.etcd.backend.find(HandleKey("net.c-late")) is not None


def test_program_that_does_not_read_the_lock(procedure: MoveProcedure, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison finds it and imports it, and the run says so."""
    carry_out = StepRunner.carry_out

    def writing(self: StepRunner, step: Step) -> None:
        if step.name == "compare-datastores":
            IpamService(procedure.sites.etcd.backend, ETCD_NODE).assign(Assign("net.c-stray", {"node": ETCD_NODE}))
        carry_out(self, step)

    monkeypatch.setattr(StepRunner, "carry_out", writing)
    done = procedure.run("apply", "--timeout", "0s")
    assert done.exit_code == 5, done.output
    assert "a program has written although the datastores are locked" in done.output
    assert holdings(procedure.sites.kube.backend)["net.c-stray"] == holdings(procedure.sites.etcd.backend)["net.c-stray"]


@pytest.mark.parametrize("change", ["deleted", "created again", "moved"])
@pytest.mark.parametrize("step", ["pod-endpoints", "compare-datastores"])
def test_pod_changes_during_the_move(procedure: MoveProcedure, monkeypatch: pytest.MonkeyPatch, step: str, change: str) -> None:
    """Its endpoint is left out, and its address stays allocated until the check finds it."""
    carry_out = StepRunner.carry_out

    def changing(self: StepRunner, each: Step) -> None:
        if each.name == step:
            procedure.kube.uproot("pods/default/web")
            if change != "deleted":
                procedure.orch_site.add_pod("web", "node2" if change == "moved" else "node1")
                status = {"status": {"podIP": "10.65.0.99", "podIPs": [{"ip": "10.65.0.99"}]}}
                path = "/api/v1/namespaces/default/pods/web/status"
                procedure.kube.call("PATCH", path, status, "application/merge-patch+json")
        carry_out(self, each)

    monkeypatch.setattr(StepRunner, "carry_out", changing)
    done = procedure.run("apply", "--timeout", "0s")
    assert done.exit_code == 5, (done.output, done.exception)
    pods = [entry.value.spec["pod"] for entry in procedure.sites.kube.backend.list(ResourceQuery(ENDPOINT))]
    assert sorted(pods) == ["api", "db-0"]
    assert "net.c-web" in holdings(procedure.sites.kube.backend)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give nodes no time to get their agents again."""
    monkeypatch.setattr(stalled_nodes, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(stalled_nodes, "LOOK_SECONDS", 0.0)


def claim(procedure: MoveProcedure, node: str) -> None:
    """Move a node, as its agent does."""
    put(procedure.sites.kube.backend, NodeClaimKey(node), NodeClaim(Claimant("machine", "boot", f"state of {node}"), 1))


UNKNOWN = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
CHANGES = {
    "it is cordoned": ("", {"spec": {"unschedulable": True}}),
    "its kubelet does not report that it is ready": (
        "/status",
        {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
    ),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("reason", CHANGES)
def test_node_that_does_not_move_is_left_out_with_consent(procedure: MoveProcedure, reason: str) -> None:
    """The others are waited for. The next run and the verification know it, and still name it."""
    part, change = CHANGES[reason]
    procedure.kube.call("PATCH", f"/api/v1/nodes/node2{part}", change, "application/merge-patch+json")
    late = procedure.run("apply", "--timeout", "0s")
    assert late.exit_code == 5, late.output
    assert f"node node2: {reason}" in late.output
    claim(procedure, "node1")
    waits = procedure.run("apply")
    assert waits.exit_code == 4, waits.output
    assert f"node node2 has not moved: {reason}" in waits.output
    assert "--ack moved-nodes" in waits.output
    sampled: list[Any] = []

    def check_nodes(*given: Any) -> list[str]:
        sampled.append(given[-1])
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("svc.upgrade.datastore_procedure.check_nodes", check_nodes)
        procedure.succeeds("apply", "--ack", "moved-nodes")
    assert sampled == [{"node2"}], "its agent uses the former datastore, and is not asked"
    assert procedure.run("apply").stdout == "nothing to do\n"
    assert f"note: node node2 was left out, because {reason}" in procedure.succeeds("plan").output
    procedure.succeeds("verify")


@pytest.mark.usefixtures("impatient")
def test_node_that_is_gone_is_not_waited_for(procedure: MoveProcedure) -> None:
    assert procedure.run("apply", "--timeout", "0s").exit_code == 5
    procedure.kube.call("DELETE", "/api/v1/nodes/node2")
    claim(procedure, "node1")
    done = procedure.succeeds("apply")
    assert "note: node node2 is gone, and not waited for" in done.output


CONFIG = "/api/v1/namespaces/kube-system/configmaps"


def config(text: str) -> dict[str, Any]:
    metadata = {"name": "svc-settings", "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"network": text}}


def test_manifest_brings_the_new_configuration_to_the_nodes(procedure: MoveProcedure) -> None:
    """It is applied after the switch-over. An undo then stops before it, so that no node gets its former configuration."""
    procedure.kube.call("POST", f"{CONFIG}?fieldManager={MANAGER}", config("etcd"))
    procedure.manifest = procedure.folder / "new.json"
    procedure.manifest.write_text(json.dumps(config("kube")))
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, "switch-over")
        assert procedure.run("apply").exit_code == 3
    assert procedure.kube.call("GET", f"{CONFIG}/svc-settings")["data"] == {"network": "etcd"}
    procedure.move()
    assert procedure.kube.call("GET", f"{CONFIG}/svc-settings")["data"] == {"network": "kube"}
    record = procedure.record()
    assert record
    assert [*record["steps"]][-4:] == ["switch-over", "ConfigMap/kube-system/svc-settings", "moved-nodes", "restore-references"]
    assert procedure.run("undo").exit_code == 3
    assert procedure.kube.call("GET", f"{CONFIG}/svc-settings")["data"] == {"network": "kube"}

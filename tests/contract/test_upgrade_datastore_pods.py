"""svcctl moves a datastore whose agents run in pods: they start again with the new network list."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import EtcdSite, OrchSite
from harness.move_procedure import SYSTEM, MoveProcedure, furnished
from harness.svcctl import Cli
from harness.upgrade_site import DAEMON_SET, DAEMON_SET_STEP, LAST_APPLIED, config, daemon_set, path_of
from svc.admin.installation_resource.wanted import mark_of
from svc.move import marks
from svc.names import DEFAULT
from svc.upgrade.writer import MANAGER

pytestmark = pytest.mark.server

Json = dict[str, Any]

KEY = f"{DEFAULT.label_prefix}/cni-config"
LIST = f"/api/v1/namespaces/{SYSTEM}/configmaps/cni-config"


@pytest.fixture
def procedure(
    etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MoveProcedure]:
    """Yield a move from a deployment in pods, whose manifest is also that of the other datastore."""
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    with furnished(etcd_site, orch_site, tmp_path) as made:
        for document in documents("etcd"):
            body = document | {"metadata": document["metadata"] | {"annotations": {LAST_APPLIED: json.dumps(document)}}}
            made.kube.call("POST", f"{path_of(document)}?fieldManager=kubectl-client-side-apply", body)
        made.manifest = made.folder / "new.yaml"
        write(made, documents("kube"))
        yield made
        made.kube.forget(f"daemonsets/{SYSTEM}/")
        made.kube.uproot(f"configmaps/{SYSTEM}/cni-config")


def documents(network: str, image: str = "svc:0.1.0") -> list[Json]:
    """Return the list and the DaemonSet of a manifest. Those of two datastores have the same DaemonSet."""
    found = config(config=network)
    found["metadata"]["name"] = "cni-config"
    return [found, daemon_set(image)]


def write(procedure: MoveProcedure, manifest: list[Json]) -> None:
    assert procedure.manifest
    procedure.manifest.write_text("\n---\n".join(json.dumps(each) for each in manifest))


def template(procedure: MoveProcedure) -> Json:
    found: Json = procedure.kube.call("GET", DAEMON_SET)["spec"]["template"]
    return found


def mark(procedure: MoveProcedure) -> str | None:
    notes: dict[str, str] = template(procedure)["metadata"].get("annotations") or {}
    return notes.get(KEY)


def follow(procedure: MoveProcedure) -> None:
    """Say that the DaemonSet has rolled out on no node, as its controller does."""
    generation = procedure.kube.call("GET", DAEMON_SET)["metadata"]["generation"]
    numbers = dict.fromkeys(("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"), 0)
    status = {"status": {"observedGeneration": generation, **numbers}}
    procedure.kube.call("PATCH", f"{DAEMON_SET}/status", status, "application/merge-patch+json")


def digest(network: str) -> str:
    return mark_of(network, DEFAULT)[1]


@pytest.mark.parametrize("image", ["svc:0.1.0", "svc:0.1.1"])
def test_list_of_the_new_datastore_starts_the_pods_again(procedure: MoveProcedure, image: str) -> None:
    """Also if the manifest has the DaemonSet of before. The next run has nothing to do."""
    write(procedure, documents("kube", image))
    planned = procedure.succeeds("plan")
    assert f"{DAEMON_SET_STEP}: spec.template.metadata.annotations[{KEY}]: none -> " in planned.output
    assert mark(procedure) is None
    procedure.move()
    assert mark(procedure) == digest("kube")
    assert template(procedure)["spec"]["containers"][0]["image"] == image
    generation = procedure.kube.call("GET", DAEMON_SET)["metadata"]["generation"]
    assert procedure.run("apply").stdout == "nothing to do\n"
    procedure.succeeds("verify")
    assert procedure.kube.call("GET", DAEMON_SET)["metadata"]["generation"] == generation
    write(procedure, documents("etcd", image))
    procedure.move(back=True)
    assert mark(procedure) == digest("etcd")


def test_mark_comes_with_the_nodes(procedure: MoveProcedure) -> None:
    """Neither a DaemonSet that the run creates, nor a manifest without one needs another run. A later manifest keeps it."""
    procedure.kube.call("DELETE", DAEMON_SET)
    procedure.move()
    assert mark(procedure) == digest("kube")
    write(procedure, documents("kube")[:1])
    assert procedure.run("apply", "--timeout", "0s").stdout == "nothing to do\n"
    body = documents("kube", "svc:0.1.1")[1]
    applied = procedure.kube.call(
        "PATCH", f"{DAEMON_SET}?fieldManager={MANAGER}&force=true", body, "application/apply-patch+yaml"
    )
    assert applied["spec"]["template"]["metadata"]["annotations"] == {KEY: digest("kube")}


def test_undo_starts_the_pods_with_the_list_of_before(procedure: MoveProcedure) -> None:
    """It is possible once the administrator has unlocked the source. The mark is then that of the list which is there again."""
    procedure.move()
    Cli(procedure.folder, "--netconf", str(procedure.files["etcd"])).prints("clusterinfo", "unlock", "--although-moved")
    late = procedure.run("undo", "--timeout", "0s")
    assert late.exit_code == 5, (late.output, late.exception)
    assert "its controller has not seen generation" in late.output
    follow(procedure)
    procedure.succeeds("undo")
    assert procedure.kube.call("GET", LIST)["data"] == {"config": "etcd"}
    assert mark(procedure) == digest("etcd")
    assert procedure.run("undo").stdout == "nothing to undo\n"

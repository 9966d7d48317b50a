"""Sidecars of a service mesh: its template is changed, and each workload with an old sidecar is restarted once."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from harness.api_proxy import ApiProxy
from harness.fake_kubelets import FakeKubelets
from harness.guarded_writes import nothing_written, raced_writes, require_guards, watched_writes
from harness.kube import Kube
from harness.mesh_site import APPS, CONFIG_MAP, MeshSite, image, manifest, template
from harness.polling import eventually
from harness.upgrade_faults import FAULTS, Killer, fail_writes, kill_at_writes, killing, turn_round
from harness.upgrade_fixtures import kubelets, server_with
from harness.upgrade_site import DAEMON_SET, UpgradeSite, running_site
from svc.names import DEFAULT

__all__ = ["kubelets"]  # a fixture

pytestmark = [pytest.mark.server, pytest.mark.slow]
server = server_with("daemonset", "deployment", "replicaset", "statefulset", "disruption", "garbagecollector")

Json = dict[str, Any]

PROCEDURE = ("--procedure", "sidecars")


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpgradeSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    kubelets.stuck.clear()
    yield from running_site(server, tmp_path)


@pytest.fixture
def mesh(site: UpgradeSite, kubelets: FakeKubelets) -> Iterator[MeshSite]:
    made = MeshSite(site, kubelets)
    made.furnish()
    yield made
    kubelets.stuck.clear()
    made.clear()
    kubelets.injected = dict


def run(mesh: MeshSite, verb: str, *arguments: str, version: str = "0.1.1", server: str = "") -> Result:
    given = () if verb in ("undo", "status") else PROCEDURE
    return mesh.site.run(verb, *given, *arguments, documents=[manifest(version)], server=server)


def test_plan_apply_and_undo(mesh: MeshSite) -> None:
    """Each workload is restarted once, with one time, and no old sidecar is left. Undoing brings old sidecars back."""
    assert mesh.images() == {image("0.1.0")}
    before = mesh.generations()
    planned = run(mesh, "plan", "-o", "json")
    assert planned.exit_code == 0, planned.output
    (plan,) = json.loads(planned.stdout)
    assert [each["name"] for each in plan["steps"]][1:-1] == [
        "sidecar-template", "restart/DaemonSet/apps/each", "restart/Deployment/apps/web", "restart/StatefulSet/apps/base",
        "former-sidecar-template",
    ]  # fmt: skip
    assert mesh.generations() == before
    done = run(mesh, "apply")
    assert done.exit_code == 0, done.output
    assert mesh.images() == {image("0.1.1")}
    assert mesh.config() == template("0.1.1")
    assert "values" in mesh.kube.call("GET", CONFIG_MAP)["data"]
    assert len(set(mesh.restarts().values())) == 1
    assert mesh.generations() == {name: number + 1 for name, number in before.items()}
    with nothing_written():
        assert run(mesh, "apply").stdout == "nothing to do\n"
    assert mesh.generations() == {name: number + 1 for name, number in before.items()}
    assert run(mesh, "verify").exit_code == 0
    undone = run(mesh, "undo")
    assert undone.exit_code == 0, undone.output
    assert mesh.config() == template("0.1.0")
    assert mesh.images() == {image("0.1.0")}
    assert set(mesh.restarts().values()) == {""}
    again = run(mesh, "apply")
    assert again.exit_code == 0, again.output
    assert mesh.images() == {image("0.1.1")}


def test_each_write_names_what_it_was_made_for(mesh: MeshSite) -> None:
    """By a resourceVersion, a test or a UID. A write that another program was faster than is refused, and read again."""
    for verb in ("apply", "undo"):
        with watched_writes() as found, raced_writes(mesh.kube) as races:
            done = run(mesh, verb)
        assert done.exit_code == 0, done.output
        require_guards(found)
        races.require_conflicts()


def test_undo_gives_fields_back_to_their_managers(mesh: MeshSite) -> None:
    """Their next server-side apply meets no conflict: of the template, and of a workload that was restarted before."""
    web = f"{APPS}/deployments/web"
    notes = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-02T03:04:05Z"}}}
    bodies: dict[str, Json] = {
        CONFIG_MAP: {"apiVersion": "v1", "kind": "ConfigMap", "data": {"config": mesh.config()}},
        web: {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": notes}},
    }

    def apply() -> None:
        for path, body in bodies.items():
            mesh.kube.call("PATCH", f"{path}?fieldManager=gitops", body, "application/apply-patch+yaml")

    apply()
    eventually(lambda: mesh.is_running() and mesh.images() == {image("0.1.0")}, bool)
    before = [managers(mesh, path) for path in bodies]
    assert run(mesh, "apply").exit_code == 0
    assert "gitops" not in managers(mesh, CONFIG_MAP)
    undone = run(mesh, "undo")
    assert undone.exit_code == 0, undone.output
    assert [managers(mesh, path) for path in bodies] == before
    apply()
    assert mesh.restarts()["web"] == "2026-01-02T03:04:05Z"


def managers(mesh: MeshSite, path: str) -> Json:
    """Return the fields of each manager, without those of the status."""
    found = mesh.kube.call("GET", path)["metadata"]["managedFields"]
    return {each["manager"]: each["fieldsV1"] for each in found if "f:status" not in each["fieldsV1"]}


def test_bare_pod_is_reported(mesh: MeshSite) -> None:
    """No workload would make it again."""
    containers = [{"name": DEFAULT.sidecar, "image": image("0.1.0")}]
    body = {"metadata": {"name": "alone"}, "spec": {"containers": containers, "nodeName": "node1"}}
    mesh.kube.call("POST", "/api/v1/namespaces/apps/pods", body)
    done = run(mesh, "apply")
    assert done.exit_code == 0, done.output
    assert "Pod/apps/alone has no workload: delete it, and create it again" in done.stderr
    assert "apps/alone" in run(mesh, "verify", "-o", "json").stdout


def test_cluster_without_a_mesh(site: UpgradeSite) -> None:
    done = site.run("apply", *PROCEDURE, documents=[manifest("0.1.1")])
    assert (done.exit_code, done.stdout) == (0, "nothing to do\n"), done.output
    assert "mesh: not enabled" in site.run("plan", *PROCEDURE, documents=[manifest("0.1.1")]).stdout
    assert site.record() is None


def test_older_svcctl_on_the_path(site: UpgradeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts with each procedure, also if nothing else is to be done."""
    program = tmp_path / "bin" / "svcctl"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho svcctl 0.0.9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    failed = site.run("apply", *PROCEDURE, documents=[manifest("0.1.1")])
    assert failed.exit_code == 6, failed.output
    assert f"{program} is svcctl 0.0.9" in failed.stderr


def _blocked(mesh: MeshSite, *arguments: str, version: str = "0.1.1") -> str:
    before = mesh.site.everything() | mesh.restarts()
    refused = run(mesh, "apply", *arguments, version=version)
    assert refused.exit_code == 3, refused.output
    assert mesh.site.everything() | mesh.restarts() == before
    return refused.stderr


def test_unknown_mesh(mesh: MeshSite) -> None:
    values = json.dumps({"global": {"tag": "1.5.0"}})
    mesh.site.edit(CONFIG_MAP, {"data": {"values": values}})
    reason = _blocked(mesh)
    assert "the mesh is of version 1.5.0" in reason
    assert "1.4.2, 1.6, 1.7, 1.9, 1.10, 1.15" in reason


def test_agents_come_first(mesh: MeshSite) -> None:
    """The DaemonSet is at the version of the sidecar, and its pods are not yet."""
    template = {"spec": {"containers": [{"name": "agent", "image": "svc:0.1.2"}]}}
    mesh.site.edit(DAEMON_SET, {"spec": {"updateStrategy": {"type": "OnDelete"}, "template": template}})
    assert "is of version 0.1.1, older than 0.1.2: upgrade the agents first" in _blocked(mesh, version="0.1.2")


def test_template_without_the_sidecar(mesh: MeshSite) -> None:
    documents = [{"data": {"config": "template: none"}}]
    refused = mesh.site.run("apply", *PROCEDURE, documents=documents)
    assert refused.exit_code == 3
    assert f"the template has no image of a container {DEFAULT.sidecar}" in refused.stderr


def test_template_of_another_release(mesh: MeshSite) -> None:
    assert "give its version with --to" in _blocked(mesh, version="0.2.0")


def test_stuck_restart_is_resumed_without_a_second_one(mesh: MeshSite, kubelets: FakeKubelets) -> None:
    """A budget that allows no disruption is named when the time is over."""
    spec = {"minAvailable": 5, "selector": {"matchLabels": {"app": "each"}}}
    mesh.kube.call(
        "POST", "/apis/policy/v1beta1/namespaces/apps/poddisruptionbudgets", {"metadata": {"name": "strict"}, "spec": spec}
    )
    kubelets.stuck["node2"] = ("ImagePullBackOff", "no such image")
    late = run(mesh, "apply", "--timeout", "4s")
    assert late.exit_code == 5, late.output
    assert "ImagePullBackOff" in late.stderr
    assert "PodDisruptionBudget/apps/strict allows no disruption" in late.stderr
    restarted = mesh.restarts()
    assert (restarted["each"], restarted["web"]) != ("", restarted["each"])
    kubelets.stuck.clear()
    done = run(mesh, "apply")
    assert done.exit_code == 0, done.output
    assert mesh.restarts()["each"] == restarted["each"]
    assert mesh.images() == {image("0.1.1")}


def test_template_that_was_changed_since(mesh: MeshSite) -> None:
    assert run(mesh, "apply").exit_code == 0
    mesh.site.edit(CONFIG_MAP, {"data": {"config": template("0.1.1") + "# by hand\n"}})
    refused = run(mesh, "undo")
    assert refused.exit_code == 3, refused.output
    assert "was changed since" in refused.stderr
    mesh.site.edit(CONFIG_MAP, {"data": {"config": template("0.1.1")}})
    assert run(mesh, "undo").exit_code == 0


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


def _prepare(mesh: MeshSite) -> None:
    mesh.clear()
    mesh.furnish()


def _check(mesh: MeshSite) -> None:
    assert mesh.images() == {image("0.1.1")}
    assert mesh.generations() == {"web": 2, "base": 2, "each": 2}
    record = mesh.site.record()
    assert record
    assert record["state"] == "done"


def _ways(mesh: MeshSite, verb: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what makes the cluster as it is before a run, and what checks its end."""
    if verb == "apply":
        return lambda: _prepare(mesh), lambda: _check(mesh)

    def applied() -> None:
        _prepare(mesh)
        done = run(mesh, "apply")
        assert done.exit_code == 0, done.output

    def undone() -> None:
        assert (mesh.images(), mesh.config()) == ({image("0.1.0")}, template("0.1.0"))
        assert mesh.generations() == {"web": 3, "base": 3, "each": 3}
        assert set(mesh.restarts().values()) == {""}
        record = mesh.site.record()
        assert record
        assert record["state"] == "undone"

    return applied, undone


@pytest.mark.long
@pytest.mark.parametrize(("verb", "step"), [("apply", 9), ("undo", 9), ("apply", 1), ("undo", 1)])
def test_kill_at_each_write(mesh: MeshSite, killer: Killer, verb: str, step: int) -> None:
    """No kill makes a workload restart twice."""
    words = mesh.site.words(verb, *(PROCEDURE if verb == "apply" else ()), documents=[manifest("0.1.1")])
    print(verb, kill_at_writes(killer, words, *_ways(mesh, verb), step))


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_kill_and_turn_round(mesh: MeshSite, killer: Killer, verb: str) -> None:
    """Of a run that was killed, undo brings back what was there, and apply what an undone one has taken back."""

    def words(verb: str) -> list[str]:
        return mesh.site.words(verb, *(PROCEDURE if verb == "apply" else ()), documents=[manifest("0.1.1")])

    def state() -> Any:
        return mesh.config(), mesh.images(), [bool(each) for each in mesh.restarts().values()]

    assert turn_round(killer, words, verb, state, lambda: None) > 10


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("name", ["each in turn", *FAULTS])
def test_every_fault_at_each_write(mesh: MeshSite, server: Kube, verb: str, name: str) -> None:
    with ApiProxy(server) as proxy:

        def through_proxy() -> Result:
            return run(mesh, verb, server=proxy.url)

        faults = itertools.repeat(name) if name in FAULTS else itertools.cycle(FAULTS)
        print(verb, name, fail_writes(proxy, through_proxy, *_ways(mesh, verb), faults))

"""Steps and scans with a cluster in memory."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.upgrade_site import daemon_set
from svc.deploy.discovery import ServedKind
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import load_profile
from svc.upgrade.agent_pods import agent_versions
from svc.upgrade.backup import Backup, Entry
from svc.upgrade.engine import _require_backup
from svc.upgrade.former_host_endpoints import FormerEndpoints
from svc.upgrade.host_endpoint_procedure import HostEndpointProcedure
from svc.upgrade.host_endpoint_view import HostEndpointView
from svc.upgrade.manifest_procedure import ManifestProcedure
from svc.upgrade.outcomes import Blocked
from svc.upgrade.owner_references import RestoreReferences, _kinds, end_of
from svc.upgrade.places import Place, place_of
from svc.upgrade.run_record import Run
from svc.upgrade.saved_steps import _is_on_etcd, _names
from svc.upgrade.sidecar_steps import FormerTemplate, Restart, Template, injector_place
from svc.upgrade.step import REACHED, Between, Look, Progress
from svc.upgrade.writer import Writer

Json = dict[str, Any]

WEB = Place("apps/v1", "Deployment", "apps", "web")
RESTARTED = "kubectl.kubernetes.io/restartedAt"


class MemoryWriter(Writer):
    """A cluster with some objects, and with what lists and discovery answer by path."""

    def __init__(self, objects: dict[Place, Json] | None = None, answers: Json | None = None, names: Names = DEFAULT) -> None:
        self.names = names
        self.objects = objects or {}
        self.answers = answers or {}
        self.client: Any = self
        self.kinds: dict[tuple[str, str], ServedKind] = {}
        self.discovery: Any = SimpleNamespace(
            find=lambda version, kind: self.kinds.get((version, kind)), forget=lambda version: None
        )

    def served(self, place: Place) -> Any:
        return place

    def find(self, place: Place) -> Json | None:
        return self.objects.get(place)

    def items(self, path: str, *, metadata_only: bool = False, **params: str) -> Iterator[Json]:
        yield from self.answers[path]

    def get(self, path: str) -> Any:
        return self.answers[path]

    get_if_served = get

    def patch(self, place: Place, live: Json, operations: Sequence[Json], manager: str = "") -> Json:
        (operation,) = operations
        live["spec"]["template"]["metadata"] = {"annotations": operation.get("value") or {}}
        return live


class SecretWriter(MemoryWriter):
    """A cluster that keeps Secrets, and that fails after some."""

    def __init__(self, remaining: int = 100) -> None:
        super().__init__()
        self.remaining = remaining

    def folder(self, place: Place) -> str:
        return place.kind

    def create(self, document: Json) -> Json:
        if not self.remaining:
            raise Blocked(["killed"])
        self.remaining -= 1
        self.objects[place_of(document)] = document
        return document

    def items(self, path: str, *, metadata_only: bool = False, **params: str) -> Iterator[Json]:
        yield from self.objects.values()


def resource(name: str, kind: str) -> Json:
    return {"name": name, "kind": kind, "verbs": ["get", "list"]}


def test_kinds_of_versions_that_are_not_preferred() -> None:
    """CronJob of a server 1.20 is in batch/v1beta1 alone. A kind of both versions is listed once."""
    versions = [{"groupVersion": "batch/v1"}, {"groupVersion": "batch/v1beta1"}]
    answers = {
        "/apis": {"groups": [{"preferredVersion": versions[0], "versions": versions}]},
        "/api/v1": {"resources": [resource("pods", "Pod"), resource("pods/log", "Pod")]},
        "/apis/batch/v1": {"resources": [resource("jobs", "Job")]},
        "/apis/batch/v1beta1": {"resources": [resource("jobs", "Job"), resource("cronjobs", "CronJob")]},
    }
    assert list(_kinds(MemoryWriter(answers=answers))) == [
        ("v1", "Pod", "pods"), ("batch/v1", "Job", "jobs"), ("batch/v1beta1", "CronJob", "cronjobs"),
    ]  # fmt: skip


def test_reference_to_a_kind_that_is_not_served_is_kept_for_later() -> None:
    """An API server of the group may be started after the upgrade. What was restored is not restored again."""
    owner = {"apiVersion": DEFAULT.api_version, "kind": "IPPool", "name": "pool", "uid": "1"}
    place = Place("v1", "ConfigMap", "default", "dependent")
    references = [{"place": ["v1", "ConfigMap", "default", name], "uid": "2", "owner": owner} for name in ("dependent", "gone")]
    pool = Place(DEFAULT.api_version, "IPPool", "", "pool")
    writer = MemoryWriter({place: {"metadata": {"uid": "2"}}, pool: {"metadata": {"uid": "3"}}})
    step, saved = RestoreReferences(writer, Between()), [{"references": references}]
    found = step.look(saved)
    assert (found.is_done, len([note for note in found.notes if "is not restored yet" in note])) == (True, 1)
    assert end_of(writer, saved) is None
    writer.kinds = {(DEFAULT.api_version, "IPPool"): ServedKind("ippools", is_namespaced=False)}
    assert step.look(saved).content["references"] == [references[0] | {"new": "3"}]
    ended = end_of(writer, saved)
    assert ended == {"references": [], "ended": True}
    assert step.look([*saved, ended]).is_done
    other = references[0] | {"owner": owner | {"kind": "Other"}}
    mixed = [{"references": [*references, other]}]
    assert end_of(writer, mixed) == {"references": [other], "ended": True}
    assert end_of(writer, [*mixed, {"references": [other], "ended": True}]) is None


def agent(name: str, namespace: str, image: str) -> tuple[Json, Json]:
    """Return a DaemonSet and its pod."""
    daemon_set = {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": {"matchLabels": {"app": name}}}}
    return daemon_set, {"spec": {"nodeName": "node1", "containers": [{"name": name, "image": image}]}}


@pytest.mark.parametrize(
    ("profile", "name", "found"),
    [
        ("default", "svc-node", [("node1", "0.1.0")]),
        ("calico", "svc-node", []),  # the version of svc says nothing about the policy agent
        ("calico", "calico-node", [("node1", "v3.29.1")]),
        ("default", "other", []),
    ],
)
def test_versions_of_agents_in_any_namespace(profile: str, name: str, found: list[tuple[str, str]]) -> None:
    daemon_set, pod = agent(name, "svc-system", f"registry:5000/x:{'v3.29.1' if name == 'calico-node' else '0.1.0'}")
    answers = {"/apis/apps/v1/daemonsets": [daemon_set], "/api/v1/namespaces/svc-system/pods": [pod]}
    assert list(agent_versions(MemoryWriter(answers=answers, names=load_profile(profile)))) == found


def template(text: str) -> dict[Place, Json]:
    return {injector_place(DEFAULT): {"metadata": {}, "data": {"config": text}}}


def test_former_template_is_that_before_the_last_write() -> None:
    """The template was changed by hand between two writes of the run."""
    step, saved = Template(MemoryWriter(template("by hand")), "new"), [{"before": "old", "after": "new"}]
    entry = step.unsaved(step.look(saved), saved)
    assert entry == {"before": "by hand", "after": "new", "managers": []}
    back = FormerTemplate(MemoryWriter(template("new"))).look_back([*saved, entry])
    assert back.content["former"] == "by hand"


def test_lost_record_does_not_lose_the_former_template() -> None:
    run = Run("r", "", "", "", {}, "running", {"sidecar-template": "pending", "restart/Deployment/apps/web": "pending"})
    assert _names(run)[-1] == "former-sidecar-template"


def workload(at: str) -> Json:
    return {"metadata": {}, "spec": {"template": {"metadata": {"annotations": {RESTARTED: at} if at else {}}}}}


@pytest.mark.parametrize(("has_followed", "is_done"), [(False, True), (True, False)])
def test_workload_is_restarted_again_if_the_mesh_was_late(
    monkeypatch: pytest.MonkeyPatch, *, has_followed: bool, is_done: bool
) -> None:
    """While its pods follow, the first restart counts."""
    monkeypatch.setattr("svc.upgrade.sidecar_steps.outdated_pods", lambda *_: ["web-1"])
    progress = REACHED if has_followed else Progress(False, ("one of two",))
    monkeypatch.setattr("svc.upgrade.sidecar_steps.rollout_of", lambda *_, **__: progress)
    writer, saved = MemoryWriter({WEB: workload("t1")}), [{"before": "t0", "at": "t1"}]
    step = Restart(writer, WEB, "sidecar:2", "t2")
    look = step.look(saved)
    assert look.is_done == is_done
    if is_done:
        assert step.unsaved(look, saved) is None
        return
    entry = step.unsaved(look, saved)
    assert entry == {"before": "t0", "at": "t2"}
    step.act(look)
    assert step.look([*saved, entry]).is_done, "the same run restarts once"


@pytest.mark.parametrize(
    ("procedure", "text", "is_etcd"),
    [("", '{"type": "etcdv3"}', True), ("", "{}", False), ("manifests-etcd", "{}", True), ("manifests", '"etcdv3"', False)],
)
def test_datastore_of_a_run_without_a_record(tmp_path: Path, procedure: str, text: str, *, is_etcd: bool) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"config": text}}
    backup = Backup(SecretWriter(), tmp_path, "r")
    backup.add([Entry("a", {"before": "text", "after": daemon_set("svc:1")}), Entry("b", {"before": config, "after": None})])
    assert _is_on_etcd(Run("r", procedure, "", "", {}, "running", {}), backup) == is_etcd


@pytest.mark.parametrize(("now", "is_done"), [("t0", True), ("t1", False), ("by hand", False)])
def test_undo_restarts_pods_of_any_later_restart(now: str, *, is_done: bool) -> None:
    look = Restart(MemoryWriter({WEB: workload(now)}), WEB, "", "").look_back([{"before": "t0", "at": "t1"}])
    assert (look.is_done, look.content["before"]) == (is_done, "t0")


def test_host_endpoint_that_was_changed_is_saved_again() -> None:
    first, second = ({"metadata": {"name": "eth"}, "spec": {"node": node}} for node in ("node1", "node2"))
    writer = MemoryWriter()
    step, saved = FormerEndpoints(writer, HostEndpointView(writer)), [{"documents": {"eth": first}}]
    assert step.unsaved(Look(False, content={"documents": {"eth": first}}), saved) is None
    assert step.unsaved(Look(False, content={"documents": {"eth": second}}), saved) == {"documents": {"eth": second}}


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({}, 0),
        ({"AUTO_HOST_ENDPOINTS": "true", "ENABLED_CONTROLLERS": "policy, node"}, 0),
        ({"AUTO_HOST_ENDPOINTS": "Enabled"}, 0),
        ({"AUTO_HOST_ENDPOINTS": "false", "ENABLED_CONTROLLERS": "policy"}, 2),
    ],
)
def test_variables_of_the_controllers(variables: dict[str, str], number: int) -> None:
    """They are read as the controllers read them."""
    env = [{"name": name, "value": value} for name, value in variables.items()]
    containers = [{"name": DEFAULT.controllers, "image": "svc:1", "env": env}]
    metadata = {"name": DEFAULT.controllers, "namespace": "kube-system"}
    document = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
    document["spec"] = {"template": {"spec": {"containers": containers}}}
    procedure = HostEndpointProcedure(MemoryWriter({place_of(document): document}))
    assert len(list(procedure._environment_problems())) == number


@pytest.mark.parametrize(("image", "is_wrong"), [("svc:0.1.1", False), ("mirror:5000/svc:0.1.1", False), ("svc:0.1.0", True)])
def test_edit_keeps_the_agent_at_another_version(image: str, *, is_wrong: bool) -> None:
    """Such an edit is carried over, because the manifest has what it had."""
    live, document = daemon_set(image), daemon_set("svc:0.1.1")
    procedure = ManifestProcedure(MemoryWriter({place_of(live): live}), [document], {})
    assert len(list(procedure._other_versions())) == is_wrong


@pytest.mark.parametrize("remaining", [0, 1])
def test_backup_of_a_killed_run_reaches_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remaining: int) -> None:
    """It had written the file, and not all Secrets. The next run creates them before it writes anything else."""
    monkeypatch.setattr("svc.upgrade.backup.PART_BYTES", 8)
    writer, entries = SecretWriter(remaining), [Entry("step", {"before": "something"})]
    with pytest.raises(Blocked):
        Backup(writer, tmp_path / "one", "r").add(entries)
    writer.remaining = 100
    resumed, other = Backup(writer, tmp_path / "one", "r"), Backup(writer, tmp_path / "another", "r")
    resumed.load()
    resumed.publish()
    resumed.publish()
    other.load()
    assert (resumed.entries, other.entries) == (entries, entries)
    number = len(writer.objects)
    again = Backup(writer, tmp_path / "one", "r")
    again.load()
    again.publish()
    again.add([Entry("step", {"before": "more"})])
    other = Backup(writer, tmp_path / "another", "r")
    other.load()
    assert [each.saved["before"] for each in other.entries] == ["something", "more"]
    assert len(writer.objects) > number


@pytest.mark.parametrize(("state", "is_lost"), [("done", True), ("skipped", False), ("pending", False)])
def test_undo_without_any_backup(tmp_path: Path, state: str, *, is_lost: bool) -> None:
    """It would restore nothing, and record that it has."""
    run = Run("r", "", "", "", {}, "running", {"step": state})
    with pytest.raises(Blocked, match="the backup of run r is gone") if is_lost else nullcontext():
        _require_backup(run, Backup(SecretWriter(), tmp_path, "r"))


@pytest.mark.parametrize("name", ["allow-all-upgrade", "default.allow-all-upgrade"])
def test_temporary_policy_may_have_a_tier(name: str) -> None:
    place = Place(DEFAULT.crd_api_version, "GlobalNetworkPolicy", "", name)
    assert HostEndpointView(MemoryWriter({place: {"kind": "GlobalNetworkPolicy"}}))._has_temporary_policy()

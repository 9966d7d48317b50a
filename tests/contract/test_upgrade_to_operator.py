"""svcctl upgrade --procedure to-operator, with the controllers of Kubernetes, fake nodes, and svc-controllers as a process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy
from harness.controllers import cluster
from harness.fake_kubelets import FakeKubelets
from harness.guarded_writes import nothing_written, raced_writes, require_guards, watched_writes
from harness.installations import MERGE
from harness.kube import Kube
from harness.move_faults import fault_each, kill_each, kill_on_and_on, turn_move_round
from harness.operator_move_site import NEW, NODES, POOL, OperatorMoveSite, agents, controllers
from harness.polling import SERVED_SECONDS, wait_until
from harness.upgrade_faults import PARTS, Killer, killing
from harness.upgrade_fixtures import server_with
from harness.upgrade_site import SYSTEM
from svc.deploy.manifests.settings import OVERLAY
from svc.upgrade.step import Step
from svc.upgrade.step_runner import StepRunner
from svc.upgrade.writer import MANAGER

pytestmark = pytest.mark.server

server = server_with("daemonset", "deployment", "replicaset", "disruption", "garbagecollector")
_ENVIRONMENT = {"ENABLED_CONTROLLERS": "operator", "DATASTORE_TYPE": "orch", "OPERATOR_NAMESPACE": NEW}


@pytest.fixture(scope="module")
def kubelets(server: Kube) -> Iterator[FakeKubelets]:
    with FakeKubelets(server, NODES).running() as made:
        yield made


@pytest.fixture(scope="module")
def base(server: Kube, kubelets: FakeKubelets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorMoveSite]:
    """Yield the site, whose controllers run all the time: they do nothing without an Installation."""
    folder = tmp_path_factory.mktemp("site")
    made = OperatorMoveSite(server, folder)
    (folder / "controllers").mkdir()
    with cluster(server, folder / "controllers", _ENVIRONMENT) as processes:
        processes.start().await_lead()
        yield made


@pytest.fixture
def site(
    base: OperatorMoveSite, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OperatorMoveSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    kubelets.stuck.clear()
    base.upgrades.state_dir = tmp_path / "state"
    try:
        yield base
    finally:
        base.clear()


@pytest.fixture
def installed(site: OperatorMoveSite) -> OperatorMoveSite:
    site.install()
    wait_for_agents(site)
    return site


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


@pytest.fixture
def proxy(server: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(server) as made:
        yield made


def wait_for_agents(site: OperatorMoveSite) -> None:
    wait_until(lambda: site.agents_of_nodes() == dict.fromkeys(NODES, 1), SERVED_SECONDS)


def test_move_and_undo(installed: OperatorMoveSite) -> None:
    """No node is without an agent, or has two, but at its own turn."""
    site, before = installed, installed.state()
    planned = site.run("plan", "-o", "json")
    assert planned.exit_code == 0, planned.output
    assert site.state() == before
    (plan,) = json.loads(planned.stdout)
    assert {f"node/{name}" for name in NODES} < {each["name"] for each in plan["steps"]}
    differences = "\n".join(plan["found"]["differences"])
    assert "variable CLUSTER_TYPE: 'k8s' -> 'k8s,operator,bgp'" in differences
    with site.watched() as wrong:
        site.succeeds("apply")
        assert site.labels() == dict.fromkeys(NODES)
        (installation,) = site.kube.call("GET", "/apis/operator.svc.internal/v1/installations")["items"]
        (pool,) = installation["spec"]["svcNetwork"]["ipPools"]
        assert (pool["name"], pool["cidr"], pool["encapsulation"]) == ("pool-v4", POOL, "IPIP")
        assert site.upgrades.get(agents(SYSTEM)) is None
        assert site.upgrades.get(controllers(SYSTEM)) is None
        assert site.kube.call("GET", agents(NEW))["status"]["numberReady"] == len(NODES)
        with nothing_written():
            again = site.succeeds("apply")
        assert again.stdout == "nothing to do\n", again.output
        site.succeeds("verify")
        site.succeeds("undo")
    for counts, labels in wrong:  # the label of a node says that its turn has begun, until its agent is there
        assert all(labels[name] is not None for name in counts), (counts, labels)
    wait_for_agents(site)
    after = site.state()
    assert {name: after[name] for name in before} == before
    assert site.upgrades.get("/apis/operator.svc.internal/v1/installations/default") is None


def test_address_of_the_api_server_goes_along(installed: OperatorMoveSite) -> None:
    """Pods read it in their own namespace. That of the users stays where it is."""
    name, data = "kubernetes-services-endpoint", {"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBERNETES_SERVICE_PORT": "6443"}
    paths = {namespace: f"/api/v1/namespaces/{namespace}/configmaps" for namespace in (SYSTEM, NEW)}
    installed.kube.call("POST", paths[SYSTEM], {"metadata": {"name": name}, "data": data})
    try:
        installed.succeeds("apply")
        assert [installed.kube.call("GET", f"{path}/{name}")["data"] for path in paths.values()] == [data, data]
        assert installed.succeeds("apply").stdout == "nothing to do\n"
        installed.succeeds("undo")
        assert installed.upgrades.get(f"{paths[NEW]}/{name}") is None
        assert installed.kube.call("GET", f"{paths[SYSTEM]}/{name}")["data"] == data
    finally:
        installed.kube.uproot(f"configmaps/{SYSTEM}/{name}")


def test_undo_gives_fields_back_to_their_managers(installed: OperatorMoveSite) -> None:
    """Their next server-side apply meets no conflict."""
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    for path, kind, spec in (
        (agents(SYSTEM), "DaemonSet", {"updateStrategy": strategy}),
        (controllers(SYSTEM), "Deployment", {"replicas": 1}),
    ):
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": path.rpartition("/")[2]}, "spec": spec}
        installed.kube.call("PATCH", f"{path}?fieldManager=gitops", body, "application/apply-patch+yaml")
    pool = "/apis/crd.svc.internal/v1/ippools/pool-v4"
    head = {"apiVersion": "crd.svc.internal/v1", "kind": "IPPool", "metadata": {"name": "pool-v4", "labels": {"mine": "x"}}}
    installed.kube.call("PATCH", f"{pool}?fieldManager=gitops", head, "application/apply-patch+yaml")
    paths = (agents(SYSTEM), controllers(SYSTEM), pool)
    before, content = [managers(installed, path) for path in paths], substance(installed, pool)
    installed.succeeds("apply")
    installed.succeeds("undo")
    wait_for_agents(installed)
    assert [managers(installed, path) for path in paths] == before
    assert substance(installed, pool) == content
    assert all(("gitops", "Apply") in each for each in before)


def substance(site: OperatorMoveSite, path: str) -> list[Any]:
    """Return the labels and the spec of an object."""
    found = site.kube.call("GET", path)
    return [found["metadata"].get("labels"), found["spec"]]


def managers(site: OperatorMoveSite, path: str) -> dict[tuple[str, str], Any]:
    """Return the fields of each manager but svcctl, which has created the object again; without those of the status."""
    found = site.kube.call("GET", path)["metadata"]["managedFields"]
    others = (each for each in found if each["manager"] != MANAGER and "f:status" not in each["fieldsV1"])
    return {(each["manager"], each["operation"]): each["fieldsV1"] for each in others}


def test_undo_stops_at_a_pool_that_was_changed_since(installed: OperatorMoveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user changes it when the operator does not write it any more."""
    installed.succeeds("apply")
    pool, undo = "/apis/crd.svc.internal/v1/ippools/pool-v4", StepRunner.undo

    def set_masquerade(*, value: bool) -> None:
        installed.kube.call("PATCH", pool, {"spec": {"natOutgoing": value}}, MERGE)

    def undo_after_an_edit(self: StepRunner, step: Step) -> None:
        if step.name == "pool-labels":
            set_masquerade(value=False)
        undo(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(StepRunner, "undo", undo_after_an_edit)
        refused = installed.run("undo")
    assert refused.exit_code == 3, refused.output
    assert "IPPool/pool-v4 was changed since" in refused.stderr
    assert "IPPool/pool-v4: spec.natOutgoing: True -> None" in refused.stderr
    assert not installed.kube.call("GET", pool)["spec"]["natOutgoing"]
    set_masquerade(value=True)
    installed.succeeds("undo")


@pytest.mark.parametrize("change", ["variable", "argument", "network list", "controllers", "container"])
def test_what_the_installation_has_no_field_for_is_named(installed: OperatorMoveSite, change: str) -> None:
    """Nothing is written then."""
    site = installed
    agent = {"spec": {"template": {"spec": {"containers": [{"name": "agent", "env": [{"name": "MINE", "value": "1"}]}]}}}}
    if change == "variable":
        site.upgrades.edit(agents(SYSTEM), agent)
        wanted = "spec.template.spec.containers[agent].env[MINE]"
    elif change == "argument":
        body: Any = {"name": "agent", "args": ["run", "--other"]}
        site.upgrades.edit(agents(SYSTEM), {"spec": {"template": {"spec": {"containers": [body]}}}})
        wanted = "spec.template.spec.containers[agent].args"
    elif change == "container":
        body = {"name": "mine", "image": "x"}
        site.upgrades.edit(agents(SYSTEM), {"spec": {"template": {"spec": {"containers": [body]}}}})
        wanted = "spec.template.spec.containers[mine]"
    elif change == "controllers":
        body = {"name": "controllers", "env": [{"name": "COMPACTION_PERIOD", "value": "1h"}]}
        site.upgrades.edit(controllers(SYSTEM), {"spec": {"template": {"spec": {"containers": [body]}}}})
        wanted = f"Deployment/{SYSTEM}/svc-controllers: spec.template.spec.containers[controllers].env[COMPACTION_PERIOD]"
    else:
        path = f"/api/v1/namespaces/{SYSTEM}/configmaps/cni-config"
        network = json.loads(site.kube.call("GET", path)["data"]["config"])
        network["plugins"][0]["feature_control"] = {"floating_ips": True}
        site.upgrades.edit(path, {"data": {"config": json.dumps(network)}})
        wanted = "feature_control = {'floating_ips': True}"
    refused = site.run("apply")
    assert refused.exit_code == 3, refused.output
    assert wanted in refused.stderr
    assert site.upgrades.record() is None
    assert site.labels() == dict.fromkeys(NODES)


def test_network_settings_become_fields(site: OperatorMoveSite) -> None:
    """MTU and log level are those of the network list, and addresses of pod CIDRs stay so."""
    site.install(OVERLAY)
    path = f"/api/v1/namespaces/{SYSTEM}/configmaps/cni-config"
    network = json.loads(site.kube.call("GET", path)["data"]["config"])
    network["plugins"][0] |= {"mtu": 1400, "log_level": "DEBUG"}
    site.upgrades.edit(path, {"data": {"config": json.dumps(network)}})
    planned = site.succeeds("plan", "-o", "json")
    (plan,) = json.loads(planned.stdout)
    assert plan["blockers"] == []
    assert any("ipam.ranges" not in each for each in plan["found"]["differences"])
    site.succeeds("apply")
    spec = site.kube.call("GET", "/apis/operator.svc.internal/v1/installations/default")["spec"]
    assert spec["cni"]["ipam"] == {"type": "HostLocal"}
    assert (spec["svcNetwork"]["mtu"], spec["logging"]["cni"]["logSeverity"]) == (1400, "Debug")


def test_stuck_node_stops_the_move_before_the_next_one(installed: OperatorMoveSite, kubelets: FakeKubelets) -> None:
    kubelets.stuck["node1"] = ("ImagePullBackOff", "no such image")
    late = installed.run("apply", "--timeout", "20s")
    assert late.exit_code == 5, late.output
    assert "node node1" in late.stderr
    assert installed.labels()["node2"] == "pre-operator"
    kubelets.stuck.clear()
    installed.succeeds("apply")


def test_each_write_names_what_it_was_made_for(installed: OperatorMoveSite) -> None:
    """By a resourceVersion, a test or a UID. A write that another program was faster than is refused, and read again."""
    for verb in ("apply", "undo"):
        with watched_writes() as found, raced_writes(installed.kube) as races:
            installed.succeeds(verb)
        require_guards(found)
        races.require_conflicts()


@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.long
@pytest.mark.parametrize("stride", [5, 8, 25])
def test_killed_again_and_again(installed: OperatorMoveSite, killer: Killer, verb: str, stride: int) -> None:
    """Each run goes on where the one before was killed, and no node is without an agent, or has two, but at its turn."""
    before = installed.state()
    if verb == "undo":
        installed.succeeds("apply")
    with installed.watched() as wrong:
        assert kill_on_and_on(installed, killer, verb, stride) > 1
    assert all(labels[name] is not None for counts, labels in wrong for name in counts)
    if verb == "apply":
        installed.succeeds("undo")
    after = installed.state()
    assert {name: after[name] for name in before} == before


def prepare(site: OperatorMoveSite) -> None:
    site.clear()
    site.install()
    wait_for_agents(site)


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_kill_at_each_write(site: OperatorMoveSite, killer: Killer, verb: str, first: int) -> None:
    def ready() -> None:
        prepare(site)
        if verb == "undo":
            assert killer.run(*site.words("apply")).returncode == 0

    assert kill_each(site, killer, verb, ready, first) > 3


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_kill_and_turn_round(site: OperatorMoveSite, killer: Killer, verb: str, first: int) -> None:
    """Of a move that was killed, undo brings back what was there, and apply what an undone one has taken back."""
    assert turn_move_round(site, killer, verb, lambda: prepare(site), first) > 3


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_fault_at_each_write(site: OperatorMoveSite, proxy: ApiProxy, verb: str, first: int) -> None:
    """Each write gets one of the faults."""
    assert fault_each(site, proxy, verb, lambda: prepare(site), first) > 1

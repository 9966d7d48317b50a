"""svcctl upgrade --procedure to-operator, with the controllers of Kubernetes, fake nodes, and svc-controllers as a process."""

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.api_proxy import ApiProxy
from harness.controllers import cluster
from harness.fake_kubelets import FakeKubelets
from harness.kube import Kube, running
from harness.operator_site import KEY, NEW, NODES, POOL, OperatorSite, agents, controllers
from harness.polling import wait_until
from harness.upgrade_faults import FAULTS, Killer, fault_at, killing
from harness.upgrade_site import SYSTEM
from svc.deploy.manifests.settings import OVERLAY

pytestmark = pytest.mark.server

_CONTROLLERS = ("daemonset", "deployment", "replicaset", "disruption")
_ENVIRONMENT = {"ENABLED_CONTROLLERS": "operator", "DATASTORE_TYPE": "orch", "OPERATOR_NAMESPACE": NEW}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with running(tmp_path_factory.mktemp("server"), has_workloads=True) as kube, kube.controllers(*_CONTROLLERS):
        yield kube


@pytest.fixture(scope="module")
def kubelets(server: Kube) -> Iterator[FakeKubelets]:
    with FakeKubelets(server, NODES).running() as made:
        yield made


@pytest.fixture(scope="module")
def base(server: Kube, kubelets: FakeKubelets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorSite]:
    """Yield the site, whose controllers run all the time: they do nothing without an Installation."""
    folder = tmp_path_factory.mktemp("site")
    made = OperatorSite(server, folder)
    (folder / "controllers").mkdir()
    with cluster(server, folder / "controllers", _ENVIRONMENT) as processes:
        processes.start().await_lead()
        yield made


@pytest.fixture
def site(base: OperatorSite, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatorSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    kubelets.stuck.clear()
    base.upgrades.state_dir = tmp_path / "state"
    try:
        yield base
    finally:
        base.clear()


@pytest.fixture
def installed(site: OperatorSite) -> OperatorSite:
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


def wait_for_agents(site: OperatorSite) -> None:
    wait_until(lambda: site.agents_of_nodes() == dict.fromkeys(NODES, 1))


def test_move_and_undo(installed: OperatorSite) -> None:
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

"""svcctl upgrade --procedure takeover: svc takes the place of another product's plugin, with fake nodes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy
from harness.fake_kubelets import FakeKubelets
from harness.guarded_writes import nothing_written, raced_writes, require_guards, watched_writes
from harness.kube import Kube
from harness.move_faults import fault_each, kill_each, kill_on_and_on, turn_move_round
from harness.operator_move_site import NODES
from harness.polling import SERVED_SECONDS, wait_until
from harness.takeover_site import CALICO, CONTROLLERS, POLICY_AGENT, TakeoverSite, manifest
from harness.upgrade_faults import PARTS, Killer, killing
from harness.upgrade_fixtures import server_with
from harness.upgrade_site import SYSTEM
from svc.upgrade.places import Place
from svc.upgrade.takeover_steps import restorer, turn_of

pytestmark = pytest.mark.server
server = server_with("daemonset", "deployment", "replicaset", "disruption", "garbagecollector")

_SVC = f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/svc-node"


@pytest.fixture(scope="module")
def kubelets(server: Kube) -> Iterator[FakeKubelets]:
    with FakeKubelets(server, NODES).running() as made:
        yield made


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TakeoverSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    kubelets.stuck.clear()
    made = TakeoverSite(server, tmp_path)
    try:
        yield made
    finally:
        made.clear()


@pytest.fixture
def installed(site: TakeoverSite) -> TakeoverSite:
    site.install()
    wait_for_product(site)
    return site


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


@pytest.fixture
def proxy(server: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(server) as made:
        yield made


def wait_for_product(site: TakeoverSite) -> None:
    wait_until(lambda: site.kube.call("GET", POLICY_AGENT)["status"].get("numberAvailable") == len(NODES), SERVED_SECONDS)
    wait_until(lambda: site.kube.call("GET", CONTROLLERS)["status"].get("availableReplicas") == 1, SERVED_SECONDS)


def prepare(site: TakeoverSite) -> None:
    site.clear()
    site.install()
    wait_for_product(site)


def test_takeover_and_undo(installed: TakeoverSite) -> None:
    """The policy agent leaves CNI alone, svc is on each node, the controllers are those of svc; and all of it goes back."""
    site, before, owners = installed, installed.state(), managers(installed)
    planned = site.succeeds("plan", "-o", "json")
    (plan,) = json.loads(planned.stdout)
    assert {"policy-agent", "former-controllers", *(f"node/{name}" for name in NODES)} < {
        each["name"] for each in plan["steps"]
    }
    assert site.state() == before
    site.succeeds("apply")
    spec = site.kube.call("GET", POLICY_AGENT)["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["upgrade-ipam"]
    assert {"name": "CALICO_MANAGE_CNI", "value": "false"} in spec["containers"][0]["env"]
    (install, watch) = (each for each in _installers(site) if each["name"].startswith("install"))
    assert install["args"][-2:] == ["--names", "calico"]
    assert watch["args"][-1] == "--watch"
    assert site.kube.call("GET", CONTROLLERS)["spec"]["template"]["spec"]["containers"][0]["command"] == ["svc-controllers"]
    assert site.labels() == dict.fromkeys(NODES)
    assert site.kube.call("GET", _SVC)["status"]["numberReady"] == len(NODES)
    with nothing_written():
        assert site.succeeds("apply").stdout == "nothing to do\n"
    site.succeeds("undo")
    after = site.state()
    assert {name: after[name] for name in before} == before
    assert managers(site) == owners
    assert site.upgrades.get(_SVC) is None
    assert site.upgrades.get(f"{_SVC}-restore") is None


def managers(site: TakeoverSite) -> dict[tuple[str, str], Any]:
    """Return the fields of the policy agent by manager, without those of the status."""
    found = site.kube.call("GET", POLICY_AGENT)["metadata"]["managedFields"]
    return {(each["manager"], each["operation"]): each["fieldsV1"] for each in found if "f:status" not in each["fieldsV1"]}


def _installers(site: TakeoverSite) -> list[dict[str, Any]]:
    spec = site.kube.call("GET", _SVC)["spec"]["template"]["spec"]
    found: list[dict[str, Any]] = [*spec["initContainers"], *spec["containers"]]
    return found


def test_undo_restores_the_files_of_a_node_before_the_next_one(installed: TakeoverSite, kubelets: FakeKubelets) -> None:
    """It waits for the pod that uninstalls svc."""
    installed.succeeds("apply")
    kubelets.stuck["node2"] = ("CrashLoopBackOff", "uninstall failed")
    late = installed.run("undo", "--timeout", "4s")
    assert late.exit_code == 5, late.output
    assert "node node2" in late.stderr
    assert installed.labels() == {"node1": "migrated", "node2": "waiting"}
    kubelets.stuck.clear()
    installed.succeeds("undo")


def test_pods_that_restore_run_the_uninstallation() -> None:
    agent = next(each for each in manifest() if each["kind"] == "DaemonSet")
    made = restorer(agent, turn_of(CALICO, Place("apps/v1", "DaemonSet", SYSTEM, "svc-node")), CALICO)
    (container,) = made["spec"]["template"]["spec"]["initContainers"]
    assert container["args"] == [
        "svcctl --state-dir /var/lib/svc --run-dir /var/run/svc uninstall --bin-dir /opt/cni/bin --names calico"
        " || test ! -e /opt/cni/bin/calico.install"
    ]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ('"name": "k8s-pod-network"', '"name": "other"', "name 'other', and the manifest 'k8s-pod-network'"),
        ('"type": "calico-ipam"', '"type": "host-local"', "ipam.type 'host-local'"),
    ],
)
def test_another_network_is_refused(installed: TakeoverSite, field: str, value: str, reason: str) -> None:
    """The handles of running pods have its name."""
    path = f"/api/v1/namespaces/{SYSTEM}/configmaps/calico-config"
    text = installed.kube.call("GET", path)["data"]["cni_network_config"].replace(field, value)
    installed.upgrades.edit(path, {"data": {"cni_network_config": text}})
    refused = installed.run("apply")
    assert refused.exit_code == 3, refused.output
    assert reason in refused.stderr
    assert installed.upgrades.record() is None


def test_agent_of_an_operator_is_refused(installed: TakeoverSite) -> None:
    owner = {"apiVersion": "operator.tigera.io/v1", "kind": "Installation", "name": "default", "uid": "1"}
    installed.kube.call("PATCH", POLICY_AGENT, {"metadata": {"ownerReferences": [owner]}}, "application/merge-patch+json")
    refused = installed.run("plan")
    assert refused.exit_code == 3, refused.output
    assert "belongs to Installation" in refused.stdout


def test_each_write_names_what_it_was_made_for(installed: TakeoverSite) -> None:
    """By a resourceVersion, a test or a UID. A write that another program was faster than is refused, and read again."""
    for verb in ("apply", "undo"):
        with watched_writes() as found, raced_writes(installed.kube) as races:
            installed.succeeds(verb)
        require_guards(found)
        races.require_conflicts()


@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.long
@pytest.mark.parametrize("stride", [5, 8, 20])
def test_killed_again_and_again(installed: TakeoverSite, killer: Killer, verb: str, stride: int) -> None:
    """Each run goes on where the one before was killed."""
    before = installed.state()
    if verb == "undo":
        installed.succeeds("apply")
    assert kill_on_and_on(installed, killer, verb, stride) > 1
    if verb == "apply":
        installed.succeeds("undo")
    after = installed.state()
    assert {name: after[name] for name in before} == before


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_kill_at_each_write(site: TakeoverSite, killer: Killer, verb: str, first: int) -> None:
    def ready() -> None:
        prepare(site)
        if verb == "undo":
            assert killer.run(*site.words("apply")).returncode == 0

    assert kill_each(site, killer, verb, ready, first) > 3


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_kill_and_turn_round(site: TakeoverSite, killer: Killer, verb: str, first: int) -> None:
    """Of a move that was killed, undo brings back what was there, and apply what an undone one has taken back."""
    assert turn_move_round(site, killer, verb, lambda: prepare(site), first) > 3


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_fault_at_each_write(site: TakeoverSite, proxy: ApiProxy, verb: str, first: int) -> None:
    """Each write gets one of the faults."""
    assert fault_each(site, proxy, verb, lambda: prepare(site), first) > 1

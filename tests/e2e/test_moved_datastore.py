"""A datastore that is reached by other settings than before: older attachments are verified and released there."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, audit, remains
from harness.datastores import EtcdSite, OrchSite, Site, furnish, session
from harness.etcd import Cluster, cluster, free_ports
from harness.ipam import blocks, put, wipe
from harness.netns import Netns
from harness.node import agent_with
from harness.pod import Pod
from harness.polling import wait_until
from harness.port_forward import PortForward
from svc.agent import maintenance, server
from svc.attach import store_identity, teardown
from svc.attach.datastore_ready import KEY as READY
from svc.attach.journal import Journal
from svc.datastore.api import Backend
from svc.ipam.blocks import allocations
from svc.model.keys import AffinityQuery, BlockQuery, HandleQuery
from svc.model.resource import Resource
from svc.netconf.installed import Installed, add_installed

pytestmark = pytest.mark.root

# An agent that retries several times a second, and waits less for a datastore that does not answer.
AGENT = agent_with(
    {
        f"{server.__name__}.PERIOD_SECONDS": 0.5,
        f"{server.__name__}.LOOK_SECONDS": 0.5,
        f"{maintenance.__name__}.RETRY_SECONDS": 0.5,
        f"{teardown.__name__}.ANSWER_SECONDS": 2.0,
        f"{store_identity.__name__}.HOLD_SECONDS": 2.0,
    }
)
SECONDS = 3.0  # in which such an agent looks several times
WITH_OR_WITHOUT = pytest.mark.parametrize("agent", [True, False], ids=["agent", "oneshot"])


@dataclass
class Moving:
    """A node whose datastore gets another address: `old` and `new` are the parts of the network configuration."""

    node: ClusterNode
    old: dict[str, Any]
    new: dict[str, Any]
    inside: int
    _undo: ExitStack = field(default_factory=ExitStack)

    def open_new(self) -> None:
        """Make the datastore reachable by the new settings."""
        if isinstance(self.node.site, OrchSite):
            Path(self.new["orch"]["kubeconfig"]).write_bytes(self.node.site.kubeconfig.read_bytes())
        else:
            self._undo.callback(PortForward(self.node.netns, self.node.site.port, self.inside).close)

    def reach(self, port: int) -> None:
        """Let the node reach this port of the test's loopback."""
        self._undo.callback(PortForward(self.node.netns, port).close)

    def close_old(self) -> None:
        """Make it unreachable by the old settings. Restart a running agent that has read the old kubeconfig."""
        if not isinstance(self.node.site, OrchSite):
            self._undo.enter_context(self.node.cut_off())
            return
        Path(self.old["orch"]["kubeconfig"]).unlink()
        if self.node.has_agent:
            self.node.stop_agent()
            self.node.start_agent(recovered=False)

    def install_new(self) -> None:
        """Record the network with the new settings."""
        self.install(self.new)

    def install(self, settings: dict[str, Any]) -> None:
        """Record the network with these settings as `svcctl install` does: only the agent uses it."""
        path = self.node.directory / "net.conflist"
        plugin = self.node.netconf(**settings)
        path.write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]}))
        add_installed(self.node.state_dir, Installed("", str(self.node.bin_dir), (), str(path)))

    def settings(self) -> list[str]:
        """Return the location of the datastore in each row."""
        with closing(Journal(self.node.state_dir / "journal.db")) as journal:
            return [record.settings.get("etcd_endpoints") or record.settings["kubeconfig"] for record in journal.all()]

    def close(self) -> None:
        self._undo.close()


MakePod = Callable[..., Pod]


@pytest.fixture
def moving(site: Site, tmp_path: Path) -> Iterator[Moving]:
    furnish(site, "node1")
    with session(site) as store:
        _identify(store, "the-guid")
    (inside,) = free_ports(1)
    old: dict[str, Any]
    new: dict[str, Any]
    if isinstance(site, OrchSite):
        old, new = ({"orch": {"kubeconfig": str(tmp_path / name)}} for name in ("old", "new"))
        (tmp_path / "old").write_bytes(site.kubeconfig.read_bytes())
    else:
        old, new = dict(site.config), {"etcd_endpoints": f"http://127.0.0.1:{inside}"}
    try:
        with ClusterNode(tmp_path / "node", "node1", site, agent_program=AGENT) as node:
            made = Moving(node, old, new, inside)
            yield made
            made.close()
            assert "Traceback" not in node.log.read_text()
            assert remains([node]) == []
    finally:
        site.clear()


def _identify(store: Backend, guid: str) -> None:
    put(store, READY, Resource(READY.kind, {"name": READY.name}, {"datastoreReady": True, "clusterGUID": guid}))


@pytest.fixture
def pod_on(moving: Moving, sandbox: Callable[[], Netns]) -> MakePod:
    """Make a pod with the old settings."""

    def make(pod: str = "web", **config: Any) -> Pod:
        moving.node.site.add_pod(pod)
        args = f"K8S_POD_NAME={pod};K8S_POD_NAMESPACE=default"
        return moving.node.pod(sandbox(), f"container-{pod}", args=args, **{**moving.old, **config})

    return make


def by(pod: Pod, settings: dict[str, Any]) -> Pod:
    """Return the same attachment, for calls with these settings."""
    return pod.copy(config=pod.config | settings)


def attach_and_move(moving: Moving, pod_on: MakePod, *, agent: bool) -> Pod:
    """Attach a pod by the old settings. Afterwards, only the new ones reach the datastore."""
    pod = pod_on()
    pod.add()
    if not agent:
        moving.node.stop_agent()
    moving.open_new()
    moving.close_old()
    return pod


@WITH_OR_WITHOUT
def test_del_by_the_new_settings_releases_everything(moving: Moving, pod_on: MakePod, *, agent: bool) -> None:
    pod = attach_and_move(moving, pod_on, agent=agent)
    by(pod, moving.new).delete()
    assert remains([moving.node]) == []
    assert moving.settings() == []


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_del_succeeds_while_the_former_server_is_silent(moving: Moving, pod_on: MakePod) -> None:
    pods = [pod_on(f"web-{number}") for number in range(3)]
    for pod in pods:
        pod.add()
    moving.open_new()
    with moving.node.silenced(moving.node.site):
        for pod in pods:
            by(pod, moving.new).delete()
    assert remains([moving.node]) == []


def test_agent_retries_pending_releases_by_the_new_settings(moving: Moving, pod_on: MakePod) -> None:
    """The agent reads them from the installed network list, without another call."""
    pod = pod_on()
    pod.add()
    moving.close_old()
    pod.delete()
    assert len(moving.settings()) == 1
    moving.open_new()
    moving.install_new()
    wait_until(lambda: remains([moving.node]) == [])
    assert "is reached as" in moving.node.log.read_text()


def test_live_attachments_are_verified_by_the_new_settings(moving: Moving, pod_on: MakePod) -> None:
    """Their allocations are lost, and the agent claims them again."""
    pods = [pod_on(f"web-{number}") for number in range(3)]
    for pod in pods:
        pod.add()
    moving.open_new()
    moving.close_old()
    with session(moving.node.site) as store:
        wipe(store, HandleQuery(), AffinityQuery(), BlockQuery())
    moving.install_new()
    wait_until(lambda: set(audit([moving.node]).allocations) == {pod.addresses[0] for pod in pods})
    for pod in pods:
        assert by(pod, moving.new).copy(result=pod.result).check().status == 0
        by(pod, moving.new).delete()


@WITH_OR_WITHOUT
def test_gc_releases_older_attachments_and_pending_releases(moving: Moving, pod_on: MakePod, *, agent: bool) -> None:
    pending, unknown = pod_on("pending"), pod_on("unknown")
    pending.add()
    unknown.add()
    if not agent:
        moving.node.stop_agent()
    moving.close_old()
    pending.delete()
    moving.open_new()
    collected = by(unknown, moving.new | {"cni.dev/valid-attachments": []}).call("GC")
    assert collected.status == 0, collected
    assert remains([moving.node]) == []


def test_add_completes_a_pending_release_by_the_new_settings(moving: Moving, pod_on: MakePod) -> None:
    pod = pod_on()
    pod.add()
    moving.node.stop_agent()
    moving.close_old()
    pod.delete()
    moving.open_new()
    again = by(pod, moving.new)
    again.add()
    assert list(audit([moving.node]).allocations) == again.addresses
    again.delete()


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_networks_with_different_endpoints_of_one_etcd_keep_them(moving: Moving, pod_on: MakePod) -> None:
    moving.open_new()
    first, second = pod_on("first"), pod_on("second", name="second", **moving.new)
    first.add()
    second.add()
    endpoints = [moving.old["etcd_endpoints"], moving.new["etcd_endpoints"]]
    assert sorted(moving.settings()) == sorted(endpoints)
    time.sleep(SECONDS)
    assert sorted(moving.settings()) == sorted(endpoints)
    first.delete()
    second.delete()


@WITH_OR_WITHOUT
def test_check_by_the_new_settings(moving: Moving, pod_on: MakePod, *, agent: bool) -> None:
    pod = attach_and_move(moving, pod_on, agent=agent)
    moved = by(pod, moving.new).copy(result=pod.result)
    assert moved.check().status == 0
    moved.delete()


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_release_that_is_pending_at_a_mistyped_address_is_completed(moving: Moving, sandbox: Callable[[], Netns]) -> None:
    """A lost row was restored with the settings of the DEL."""
    pod, typo = moving.node.pod(sandbox(), "bare", **moving.old), {"etcd_endpoints": "http://127.0.0.1:1"}
    pod.add()
    moving.node.stop_agent()
    for file in moving.node.state_dir.glob("journal.db*"):
        file.unlink()
    by(pod, typo).delete()
    assert moving.settings() == [typo["etcd_endpoints"]]
    pod.delete()
    assert remains([moving.node]) == []


@pytest.fixture
def other_etcd(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "other"
    folder.mkdir()
    with cluster(folder) as running:
        yield running


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@WITH_OR_WITHOUT
def test_release_is_not_sent_to_another_datastore(moving: Moving, other_etcd: Cluster, pod_on: MakePod, *, agent: bool) -> None:
    """The network is moved to another etcd. The addresses of older pods are released in their own one."""
    node = moving.node
    other = {"etcd_endpoints": other_etcd.endpoints}
    with session(EtcdSite(other_etcd)) as store:
        _identify(store, "another-guid")
    moving.reach(other_etcd.members[0].ports[0])
    pod = pod_on()
    pod.add()
    if not agent:
        node.stop_agent()
    node.ctl("clusterinfo", "lock")
    assert by(pod, other).failed("DEL").output["code"] == 105
    node.ctl("clusterinfo", "unlock")
    with node.cut_off():
        by(pod, other).delete()
        if agent:
            by(pod, other).call("STATUS")
            time.sleep(SECONDS)
        by(pod, other).delete()
        assert moving.settings() == [moving.old["etcd_endpoints"]]
        assert remains([node]) != []
    by(pod, other).delete()
    assert remains([node]) == []


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@WITH_OR_WITHOUT
def test_release_is_not_sent_to_another_datastore_after_damage(
    moving: Moving, other_etcd: Cluster, pod_on: MakePod, *, agent: bool
) -> None:
    """The journal has lost which datastores this node has reached."""
    node, other = moving.node, {"etcd_endpoints": other_etcd.endpoints}
    with session(EtcdSite(other_etcd)) as store:
        _identify(store, "another-guid")
    moving.reach(other_etcd.members[0].ports[0])
    pod = pod_on()
    pod.add()
    node.stop_agent()
    with node.cut_off():
        with closing(sqlite3.connect(node.state_dir / "journal.db")) as journal:
            journal.execute("DELETE FROM about WHERE name GLOB 'datastore *'")
            journal.commit()
        if agent:
            node.start_agent(recovered=False)
        by(pod, other).delete()
        assert moving.settings() == [moving.old["etcd_endpoints"]]
    by(pod, other).delete()
    assert remains([node]) == []


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_gc_succeeds_while_the_former_server_is_silent(moving: Moving, pod_on: MakePod) -> None:
    pods = [pod_on(f"web-{number}") for number in range(6)]
    for pod in pods:
        pod.add()
    moving.open_new()
    with moving.node.silenced(moving.node.site):
        since = time.monotonic()
        collected = by(pods[0], moving.new | {"cni.dev/valid-attachments": []}).call("GC")
        assert collected.status == 0, collected
        assert time.monotonic() - since < 8.0, "it has waited for the former server once, for 2 s"
    assert remains([moving.node]) == []


@pytest.fixture
def copy(moving: Moving, other_etcd: Cluster) -> EtcdSite:
    """Return another etcd with the same clusterGUID that has none of the allocations, as after a restored snapshot."""
    made = EtcdSite(other_etcd)
    furnish(made, "node1")
    with session(made) as store:
        _identify(store, "the-guid")
    moving.reach(other_etcd.members[0].ports[0])
    return made


def allocated(site: Site) -> set[str]:
    """Return the allocated addresses. An agent may be writing them, so that handles and blocks differ for a moment."""
    with session(site) as store:
        return {str(address) for block in blocks(store).values() for _, address in allocations(block)}


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@pytest.mark.parametrize("old_answers", [True, False], ids=["old answers", "old is gone"])
def test_network_that_moves_to_a_copy_claims_its_addresses_there(
    moving: Moving, copy: EtcdSite, pod_on: MakePod, *, old_answers: bool
) -> None:
    """A STATUS call by the new settings is enough. Otherwise, another node would assign them to its pods.

    The agent has verified the attachment of another network there shortly before.
    """
    neighbour = pod_on("neighbour", name="second", **copy.config)
    neighbour.add()
    time.sleep(SECONDS)
    pods = [pod_on(f"web-{number}") for number in range(3)]
    for pod in pods:
        pod.add()
    with nullcontext() if old_answers else moving.node.cut_off():
        by(pods[0], copy.config).call("STATUS")
        wait_until(lambda: allocated(copy) == {address for pod in (neighbour, *pods) for address in pod.addresses})
        for pod in pods:
            by(pod, copy.config).delete()
        neighbour.delete()
        assert (allocated(copy), moving.settings()) == (set(), [])
    nothing: dict[str, Any] = {"cni.dev/valid-attachments": []}
    assert by(pods[0], moving.old | nothing).call("GC").status == 0  # the old etcd keeps what it has


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_rows_do_not_follow_another_network(moving: Moving, copy: EtcdSite, pod_on: MakePod) -> None:
    """While their own datastore does not answer or is locked, the network of another datastore with this clusterGUID works."""
    first, second = pod_on("first"), pod_on("second", name="second", **copy.config)
    first.add()
    second.add()
    settings = sorted(moving.settings())
    with moving.node.cut_off():
        time.sleep(SECONDS)
    moving.node.ctl("clusterinfo", "lock")
    time.sleep(SECONDS)
    moving.node.ctl("clusterinfo", "unlock")
    assert sorted(moving.settings()) == settings
    first.delete()
    second.delete()
    assert allocated(copy) == set()


def migrate(moving: Moving, new: EtcdSite) -> None:
    """Copy the content of the node's etcd."""
    old = moving.node.site
    assert isinstance(old, EtcdSite)
    for key, document in old.running.stored(f"{old.names.key_root}/"):
        new.running.put(key, json.dumps(document))


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@pytest.mark.parametrize("is_wiped", [False, True], ids=["locked", "wiped"])
@WITH_OR_WITHOUT
def test_former_datastore_stays_locked_after_a_migration(
    moving: Moving, copy: EtcdSite, pod_on: MakePod, *, agent: bool, is_wiped: bool
) -> None:
    """DEL, CHECK and GC by the new settings are the first calls after the migration."""
    node, pods = moving.node, [pod_on(f"web-{number}") for number in range(3)]
    for pod in pods:
        pod.add()
    if not agent:
        node.stop_agent()
    migrate(moving, copy)
    node.ctl("clusterinfo", "lock")
    if is_wiped:
        node.site.clear()
    checked, deleted, unknown = (by(pod, copy.config).copy(result=pod.result) for pod in pods)
    deleted.delete()
    assert checked.check().status == 0
    valid = {"cni.dev/valid-attachments": [{"containerID": checked.container, "ifname": checked.ifname}]}
    collected = by(unknown, valid).call("GC")
    assert collected.status == 0, collected
    assert allocated(copy) == set(checked.addresses)
    checked.delete()
    assert (allocated(copy), moving.settings()) == (set(), [])
    if not is_wiped:
        node.ctl("clusterinfo", "unlock")
        assert by(unknown, moving.old | {"cni.dev/valid-attachments": []}).call("GC").status == 0


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@WITH_OR_WITHOUT
def test_networks_move_to_a_copy_one_after_the_other(moving: Moving, copy: EtcdSite, pod_on: MakePod, *, agent: bool) -> None:
    """The ADDs assign no address of a pod whose row still names the former datastore.

    The pods have interfaces of another main plugin, so that no route of the host prevents it.
    """
    pods: list[Pod] = []

    def add(network: str, settings: dict[str, Any]) -> None:
        pod = pod_on(f"pod-{len(pods)}", name=network, **settings)
        pods.append(pod.copy(plugin="svc-ipam", config=pod.config | {"type": "bridge"}))
        pods[-1].add()

    for network in ("net", "second"):
        add(network, moving.old)
    if not agent:
        moving.node.stop_agent()
    for network in ("net", "net", "second") if agent else ("net", "net"):
        add(network, copy.config)
    held = {address for pod in pods for address in pod.addresses}
    assert len(held) == sum(len(pod.addresses) for pod in pods)
    if agent:
        wait_until(lambda: allocated(copy) == held)
    for pod in pods:
        by(pod, copy.config).delete()
    assert allocated(copy) == set()
    for pod in pods[:2]:  # the former datastore keeps what it has
        assert by(pod, moving.old | {"cni.dev/valid-attachments": []}).call("GC").status == 0


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_restarted_agent_follows_calls_before_an_older_list(moving: Moving, copy: EtcdSite, pod_on: MakePod) -> None:
    moving.install(moving.old)
    time.sleep(SECONDS)
    pod = pod_on(**copy.config)
    pod.add()
    moving.node.kill_agent()
    moving.node.start_agent()
    time.sleep(SECONDS)
    assert moving.settings() == [copy.config["etcd_endpoints"]]
    pod.delete()
    assert allocated(copy) == set()

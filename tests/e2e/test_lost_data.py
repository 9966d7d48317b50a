"""A datastore that lost its data: live attachments get their records back before new pods can get their addresses."""

import json
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode, audit, faults, remains
from harness.datastores import EtcdSite, OrchSite, Site, session
from harness.etcd import Cluster, cluster, free_ports
from harness.ipam import put, put_pool, wipe
from harness.netns import Netns
from harness.node import Node, agent_with, netconf
from harness.orch import PODS
from harness.pod import Pod
from harness.polling import wait_until
from harness.port_forward import PortForward
from harness.state import audit as node_books
from harness.state import faults as node_faults
from harness.state import remains as node_remains
from harness.state import store_of
from svc._core.cidr import Address
from svc.agent.restoring import LOOK_SECONDS
from svc.attach import store_identity
from svc.attach.datastore_ready import KEY as READY
from svc.attach.datastore_ready import DatastoreReadiness
from svc.attach.store_identity import StoreIdentity
from svc.datastore.api import Backend
from svc.datastore.open import EMBEDDED_FILE
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.keys import AffinityQuery, BlockQuery, HandleQuery, ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

POOL = "10.77.0.0/29"
HELD_SECONDS = 10.0  # by agents that need half of the usual time
LIVE, NEW = 5, 3  # pods of the two nodes: as many as the pool has addresses
AGENT = agent_with({f"{store_identity.__name__}.HOLD_SECONDS": HELD_SECONDS})
HARDLY_HOLDING = agent_with({f"{store_identity.__name__}.HOLD_SECONDS": 1.0})
OURS = (HandleQuery(), AffinityQuery(), BlockQuery())  # a node claims its addresses again as soon as a block vanishes

MakePod = Callable[[ClusterNode, str], Pod]


@pytest.fixture
def pod_on(sandbox: Callable[[], Netns]) -> MakePod:
    def make(node: ClusterNode, name: str) -> Pod:
        node.site.add_pod(name, node.name)
        return node.pod(sandbox(), f"container-{name}", args=f"K8S_POD_NAME={name};K8S_POD_NAMESPACE=default")

    return make


@pytest.fixture
def nodes(site: Site, tmp_path: Path) -> Iterator[tuple[ClusterNode, ClusterNode]]:
    yield from _nodes(site, tmp_path)


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    with cluster(folder) as running:
        yield running


@pytest.fixture
def etcd_nodes(own_etcd: Cluster, tmp_path: Path) -> Iterator[tuple[ClusterNode, ClusterNode]]:
    yield from _nodes(EtcdSite(own_etcd), tmp_path)


def _nodes(site: Site, folder: Path) -> Iterator[tuple[ClusterNode, ClusterNode]]:
    with ExitStack() as stack:
        stack.callback(site.clear)
        initialise(site)
        first, second = (
            stack.enter_context(ClusterNode(folder / name, name, site, agent_program=AGENT)) for name in ("node1", "node2")
        )
        yield first, second
        assert remains([first, second]) == []


def initialise(site: Site, *, nodes: bool = True) -> None:
    """Make a new datastore as `svcctl clusterinfo init` does, with one pool."""
    with session(site) as store:
        put_information(store)
        put_pool(store, "pool", POOL, blockSize=31)
    for name in ("node1", "node2") if nodes else ():
        site.add_node(name)


def put_information(store: Backend) -> None:
    put(store, READY, _information(uuid.uuid4().hex))


def _information(guid: str) -> Resource:
    spec = {"datastoreReady": True, "clusterGUID": guid}
    return Resource(READY.kind, {"name": READY.name, "uid": READY.name}, spec)


def lose(site: Site) -> None:
    """Delete what the plugin has written, and initialise the datastore again; pods and nodes of the API server stay."""
    if not isinstance(site, OrchSite):
        site.clear()
        initialise(site)
        return
    with session(site) as store:
        wipe(store, *OURS, ResourceQuery("IPPool"), ResourceQuery(READY.kind))
    initialise(site, nodes=False)


def demand_kept(nodes: tuple[ClusterNode, ClusterNode], live: Sequence[Pod], pod_on: MakePod) -> None:
    """Let the second node fill the pool: it gets none of the first one's addresses."""
    first, second = nodes
    new = [pod_on(second, f"new-{number}") for number in range(NEW)]
    began = time.monotonic()
    for pod in new:
        pod.add()
    assert time.monotonic() - began > HELD_SECONDS - 5, "ADDs are held"
    further = pod_on(second, "further")
    further.failed("ADD", ipam={})
    kept, given = ({address for pod in pods for address in pod.addresses} for pods in (live, new))
    assert not kept & given, first.log.read_text()
    assert len(kept | given) == LIVE + NEW
    assert set(audit([first, second]).allocations) == kept | given
    assert faults([first, second]) == []
    assert [pod.check().status for pod in live] == [0] * LIVE
    for pod in (*live, *new):
        pod.delete()


def attach_live(node: ClusterNode, pod_on: MakePod) -> list[Pod]:
    live = [pod_on(node, f"live-{number}") for number in range(LIVE)]
    for pod in live:
        pod.add()
    return live


def test_wiped_and_initialised_again(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    live = attach_live(nodes[0], pod_on)
    known = pod_on(nodes[1], "known")
    known.add()
    known.delete()
    lose(nodes[0].site)
    demand_kept(nodes, live, pod_on)


def test_clock_set_back_after_a_loss(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """ADDs are held no longer than usual."""
    node, _ = nodes
    first, *live = attach_live(node, pod_on)
    first.delete()
    node.stop_agent()
    with closing(sqlite3.connect(node.state_dir / "journal.db", isolation_level=None)) as journal:
        ((name, text),) = journal.execute("SELECT name, value FROM about WHERE name LIKE 'datastore %'").fetchall()
        identity = json.loads(text) | {"changed": time.time() + 3600}
        journal.execute("UPDATE about SET value = ? WHERE name = ?", (json.dumps(identity), name))
    node.start_agent()
    held = pod_on(node, "held")
    adding = held.begin("ADD")
    try:
        wait_until(lambda: adding.is_over)
    finally:
        adding.kill()
    for pod in (*live, held):
        pod.delete()


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_wiped_and_made_ready_without_an_identity(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """The clusterGUID that the nodes know is gone, which is a change, too."""
    live = attach_live(nodes[0], pod_on)
    known = pod_on(nodes[1], "known")
    known.add()
    known.delete()
    with session(nodes[0].site) as store:
        wipe(store, *OURS)
        put(store, READY, Resource(READY.kind, {"name": READY.name}, {"datastoreReady": True}))
    demand_kept(nodes, live, pod_on)


@pytest.mark.parametrize("site", ["etcdv3", "orch"], indirect=True)
def test_blocks_deleted_under_a_running_agent(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """Its own ADDs find out, and get other addresses: the live ones are claimed again within seconds."""
    live = attach_live(nodes[0], pod_on)
    with session(nodes[0].site) as store:
        wipe(store, *OURS)
    new = [pod_on(nodes[0], f"new-{number}") for number in range(NEW)]
    for pod in new:
        pod.add()
    assert len({pod.addresses[0] for pod in (*live, *new)}) == LIVE + NEW
    wait_until(lambda: set(audit([nodes[0]]).allocations) == {pod.addresses[0] for pod in (*live, *new)})
    wait_until(lambda: faults([nodes[0]]) == [])
    for pod in (*live, *new):
        pod.delete()


def test_store_restored_from_an_older_copy(node: Node, sandbox: Callable[[], Netns], tmp_path: Path) -> None:
    """Pods that came since get their records back, also where a pod that went since had the address."""
    pods = [Pod(node, sandbox(), f"c{number}", netconf()) for number in range(12)]
    for pod in pods[:3]:
        pod.add()
    copy = str(tmp_path / "copy.db")
    node.svcctl("store", "backup", copy)
    pods[0].delete()
    heir = pods[0].copy(container="heir", args=f"IP={pods[0].addresses[0]}")
    heir.add()
    assert heir.addresses == pods[0].addresses
    for pod in pods[3:6]:
        pod.add()
    node.stop_agent()
    node.svcctl("store", "restore", copy)
    node.start_agent()
    for pod in pods[6:]:
        pod.add()
    wait_until(lambda: node_faults(node) == [])
    assert [pod.check().status for pod in (heir, *pods[1:])] == [0] * 12
    for pod in (heir, *pods[1:]):
        pod.delete()
    assert node_remains(node) == []


@pytest.mark.parametrize("by_hand", [False, True], ids=["svcctl", "copy"])
@pytest.mark.parametrize("has_agent", [True, False], ids=["agent", "oneshot"])
def test_older_store_of_another_main_plugin(
    sandbox: Callable[[], Netns], tmp_path: Path, *, has_agent: bool, by_hand: bool
) -> None:
    """No route of the host shows that the addresses are assigned; only the allocations do."""
    node = Node(tmp_path / "node", agent=has_agent, agent_program=AGENT)
    try:
        node.apply_pool("small", "10.90.0.0/28", blockSize=28)
        pods = [Pod(node, sandbox(), f"c{number}", netconf(type="bridge"), plugin="svc-ipam") for number in range(10)]
        node.svcctl("store", "backup", str(tmp_path / "copy.db"))
        live, new = pods[:6], pods[6:]
        for pod in live:
            pod.add()
        if has_agent:
            node.stop_agent()
        if by_hand:
            for suffix in ("-wal", "-shm"):
                (node.state_dir / f"{EMBEDDED_FILE}{suffix}").unlink(missing_ok=True)
            shutil.copy(tmp_path / "copy.db", node.state_dir / EMBEDDED_FILE)
        else:
            node.svcctl("store", "restore", str(tmp_path / "copy.db"))
        if has_agent:
            node.start_agent(recovered=False)
        for pod in new:
            pod.add()
        assert len({pod.addresses[0] for pod in pods}) == len(pods)
        wait_until(lambda: node_faults(node) == [])
        for pod in pods:
            pod.delete()
        assert node_remains(node) == []
    finally:
        node.close()


def test_etcd_with_an_empty_data_directory(
    etcd_nodes: tuple[ClusterNode, ClusterNode], own_etcd: Cluster, pod_on: MakePod
) -> None:
    live = attach_live(etcd_nodes[0], pod_on)
    known = pod_on(etcd_nodes[1], "known")
    known.add()
    known.delete()
    (member,) = own_etcd.members
    member.kill()
    shutil.rmtree(member.folder / member.name)
    own_etcd.start()
    initialise(etcd_nodes[0].site)
    demand_kept(etcd_nodes, live, pod_on)


def test_etcd_restored_from_an_older_snapshot(
    etcd_nodes: tuple[ClusterNode, ClusterNode], own_etcd: Cluster, pod_on: MakePod, tmp_path: Path
) -> None:
    """Its revisions run backwards; clusterGUID and cluster id are the same."""
    node = etcd_nodes[0]
    before, after = pod_on(node, "before"), pod_on(node, "after")
    before.add()
    snapshot = str(tmp_path / "snapshot.db")
    own_etcd.ctl("snapshot", "save", snapshot)
    after.add()
    restore_snapshot(own_etcd, snapshot)
    wait_until(lambda: set(audit([node]).allocations) == {*before.addresses, *after.addresses})
    assert "revisions ran backwards" in node.log.read_text()
    assert faults([node]) == []
    for pod in (before, after):
        pod.delete()


def test_etcd_restored_while_no_agent_ran(
    etcd_nodes: tuple[ClusterNode, ClusterNode], own_etcd: Cluster, pod_on: MakePod, tmp_path: Path
) -> None:
    """The agents record the last revision that they saw when they end, not only when they compare attachments and blocks."""
    snapshot = str(tmp_path / "snapshot.db")
    live = [pod_on(etcd_nodes[0], f"live-{number}") for number in range(LIVE)]
    known = pod_on(etcd_nodes[1], "known")
    for pod in (live[0], known):
        pod.add()
    time.sleep(LOOK_SECONDS + 1)  # for the first comparison of each agent
    known.delete()
    own_etcd.ctl("snapshot", "save", snapshot)
    for number in range(50):  # more revisions than the start of the agents makes
        own_etcd.ctl("put", "/other", str(number))
    for pod in (*live[1:], known):
        pod.add()
    known.delete()
    for node in etcd_nodes:
        node.stop_agent()
    restore_snapshot(own_etcd, snapshot)
    for node in etcd_nodes:
        node.start_agent(recovered=False)
    demand_kept(etcd_nodes, live, pod_on)


def test_etcd_restored_under_other_endpoints(
    etcd_nodes: tuple[ClusterNode, ClusterNode], own_etcd: Cluster, pod_on: MakePod, tmp_path: Path
) -> None:
    """The nodes recognise it by its clusterGUID, and know from its cluster id that data was lost."""
    snapshot = str(tmp_path / "snapshot.db")
    live = [pod_on(etcd_nodes[0], f"live-{number}") for number in range(LIVE)]
    known = pod_on(etcd_nodes[1], "known")
    live[0].add()
    own_etcd.ctl("snapshot", "save", snapshot)
    for pod in (*live[1:], known):
        pod.add()
    known.delete()
    restore_snapshot(own_etcd, snapshot, "--initial-cluster-token=another")
    site, (port,) = etcd_nodes[0].site, free_ports(1)
    site.config["etcd_endpoints"] = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        for node in etcd_nodes:
            stack.enter_context(node.cut_off())
            stack.callback(PortForward(node.netns, site.port, port).close)
            node.call("STATUS", node.netconf())
        for pod in live:
            pod.config |= site.config
        demand_kept(etcd_nodes, live, pod_on)


def test_etcd_restored_under_other_endpoints_without_an_agent(own_etcd: Cluster, pod_on: MakePod, tmp_path: Path) -> None:
    """The first ADD claims what the older pods have."""
    snapshot, site, (port,) = str(tmp_path / "snapshot.db"), EtcdSite(own_etcd), free_ports(1)
    initialise(site)
    with ClusterNode(tmp_path / "node", "node1", site, agent=False) as node:
        own_etcd.ctl("snapshot", "save", snapshot)
        live = pod_on(node, "live")
        live.add()
        restore_snapshot(own_etcd, snapshot, "--initial-cluster-token=another")
        site.config["etcd_endpoints"] = f"http://127.0.0.1:{port}"
        with node.cut_off(), closing(PortForward(node.netns, site.port, port)):
            new = pod_on(node, "new")
            new.add()
            assert set(audit([node]).allocations) == {*live.addresses, *new.addresses}
            for pod in (live, new):
                pod.delete(**site.config)
        assert remains([node]) == []


def restore_snapshot(etcd: Cluster, snapshot: str, *flags: str) -> None:
    (member,) = etcd.members
    member.kill()
    shutil.rmtree(member.folder / member.name)
    etcd.ctl(
        "snapshot", "restore", snapshot, f"--data-dir={member.folder / member.name}", f"--name={member.name}",
        f"--initial-cluster={member.peer}", f"--initial-advertise-peer-urls={member.peer.partition('=')[2]}", *flags,
    )  # fmt: skip
    etcd.start()


def test_etcd_is_known_by_its_cluster_id(own_etcd: Cluster) -> None:
    """Another one with the clusterGUID of before, whose revisions have come further."""
    identity = StoreIdentity("datastore etcdv3")
    with session(EtcdSite(own_etcd)) as store:
        put(store, READY, _information("guid"))
        DatastoreReadiness(store, identity).require()
        before = store.position()
    (member,) = own_etcd.members
    member.kill()
    shutil.rmtree(member.folder / member.name)
    member.flags = [*member.flags, "--initial-cluster-token=another"]
    own_etcd.start()
    with session(EtcdSite(own_etcd)) as store:
        for _ in range(before.revision + 1):
            put(store, READY, _information("guid"))
        DatastoreReadiness(store, identity).require()
        assert store.position().revision > before.revision
    assert identity.changes == 1


@pytest.mark.parametrize("site", ["orch"], indirect=True)
def test_endpoint_on_a_pod_is_written_again(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """Where an older state of the API server's objects has lost it; not on a pod that is gone."""
    node = nodes[0]
    pod, gone = pod_on(node, "web"), pod_on(node, "gone")
    pod.add()
    gone.add()
    node.stop_agent()
    assert isinstance(node.site, OrchSite)
    node.site.kube.call("DELETE", f"{PODS}/gone?gracePeriodSeconds=0")
    notes = dict.fromkeys(f"{node.site.names.annotation_prefix}/{note}" for note in ("podIP", "podIPs", "containerID"))
    node.site.kube.call("PATCH", f"{PODS}/web", {"metadata": {"annotations": notes}}, "application/merge-patch+json")
    with session(node.site) as store:
        wipe(store, *OURS)
    node.start_agent()
    wait_until(lambda: set(audit([node]).allocations) == {*pod.addresses, *gone.addresses})
    wait_until(lambda: pod.check().status == 0)
    pod.delete()
    gone.delete()


def test_endpoint_gets_the_profiles_of_all_networks_again(node: Node, sandbox: Callable[[], Netns]) -> None:
    """Of those that share the interface."""
    first = Pod(node, sandbox(), "live", netconf())
    second = first.copy(config={**first.config, "name": "second"})
    first.add()
    second.add()
    node.stop_agent()
    with store_of(node) as store:
        wipe(store, *OURS, ResourceQuery(ENDPOINT))
    node.start_agent()
    wait_until(lambda: _profiles(node) == [["net", "second"]])
    assert second.check().status == 0
    second.delete()
    first.delete()


def _profiles(node: Node) -> list[list[str]]:
    with store_of(node) as store:
        found = [entry.value for entry in store.list(ResourceQuery(ENDPOINT))]
    return [each.spec["profiles"] for each in found if isinstance(each, Resource)]


def test_block_deleted_by_hand_comes_back(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """After the next comparison, which a start of the agent begins with; nothing is held for it."""
    node = nodes[0]
    pod = pod_on(node, "web")
    pod.add()
    node.stop_agent()
    with session(node.site) as store:
        wipe(store, *OURS)
    node.start_agent()
    wait_until(lambda: set(audit([node]).allocations) == set(pod.addresses))
    assert faults([node]) == []
    other = pod_on(node, "other")
    began = time.monotonic()
    other.add()
    assert time.monotonic() - began < HELD_SECONDS / 2
    other.delete()
    pod.delete()


def test_foreign_holder_is_told_and_not_replaced(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    node = nodes[0]
    pod, other = pod_on(node, "web"), pod_on(node, "other")
    pod.add()
    node.stop_agent()
    with session(node.site) as store:
        wipe(store, *OURS)
        ipam = IpamService(store, "node2")
        ipam.assign(Assign("net.stranger", {}, addresses=(Address(pod.addresses[0]),)))
        node.start_agent()
        wait_until(lambda: "net.stranger" in pod.call("STATUS").stderr)
        other.add()
        assert ipam.holds("net.stranger", [Address(pod.addresses[0])])
        other.delete()
        pod.delete()
        assert ipam.holds("net.stranger", [Address(pod.addresses[0])])
        wipe(store, *OURS)


def test_replaced_file_of_a_single_node(node: Node, sandbox: Callable[[], Netns]) -> None:
    """Its pods get their records back in the new one."""
    node.stop_agent()
    node.start_agent(*HARDLY_HOLDING)
    pod = Pod(node, sandbox(), "live", netconf())
    pod.add()
    for file in node.state_dir.glob(f"{EMBEDDED_FILE}*"):
        file.unlink()
    node.apply_pools()
    wait_until(lambda: set(node_books(node).allocations) == set(pod.addresses))
    wait_until(lambda: _profiles(node) == [["net"]])
    other = Pod(node, sandbox(), "new", netconf())
    other.add()
    assert other.addresses != pod.addresses
    other.delete()
    pod.delete()

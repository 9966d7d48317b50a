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

from harness.cluster_node import ClusterNode, audit, disagreements, remains
from harness.datastores import EtcdSite, OrchSite, Site, session
from harness.etcd import Cluster, cluster, free_ports
from harness.host_local import offer, section
from harness.ipam import put, put_pool, wipe
from harness.netns import Netns
from harness.node import Node, agent_with, netconf
from harness.orch import PODS
from harness.pod import Pod
from harness.polling import wait_until
from harness.port_forward import PortForward
from harness.state import audit as node_audit
from harness.state import disagreements as node_disagreements
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
HELD_SECONDS = 10.0  # for agents with half of the usual time
LIVE, NEW = 5, 3  # pods of the two nodes: as many as the pool has addresses
AGENT = agent_with({f"{store_identity.__name__}.HOLD_SECONDS": HELD_SECONDS})
SHORT_HOLD_AGENT = agent_with({f"{store_identity.__name__}.HOLD_SECONDS": 1.0})
IPAM_QUERIES = (HandleQuery(), AffinityQuery(), BlockQuery())  # blocks last, because nodes restore when one vanishes

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


def wipe_and_initialise(site: Site) -> None:
    """Delete what the plugin has written, and initialise the datastore again; pods and nodes of the API server stay."""
    if not isinstance(site, OrchSite):
        site.clear()
        initialise(site)
        return
    with session(site) as store:
        wipe(store, *IPAM_QUERIES, ResourceQuery("IPPool"), ResourceQuery(READY.kind))
    initialise(site, nodes=False)


def require_kept_addresses(nodes: tuple[ClusterNode, ClusterNode], live: Sequence[Pod], pod_on: MakePod) -> None:
    """Fill the pool from the second node, and require that it gets no address of the first one."""
    first, second = nodes
    new = [pod_on(second, f"new-{number}") for number in range(NEW)]
    began = time.monotonic()
    for pod in new:
        pod.add()
    assert time.monotonic() - began > HELD_SECONDS - 5, "the ADDs were not held"
    further = pod_on(second, "further")
    further.failed("ADD", ipam={})
    kept, assigned = ({address for pod in pods for address in pod.addresses} for pods in (live, new))
    assert not kept & assigned, first.log.read_text()
    assert len(kept | assigned) == LIVE + NEW
    assert set(audit([first, second]).allocations) == kept | assigned
    assert disagreements([first, second]) == []
    assert [pod.check().status for pod in live] == [0] * LIVE
    for pod in (*live, *new):
        pod.delete()


def attach_live(node: ClusterNode, pod_on: MakePod) -> list[Pod]:
    live = [pod_on(node, f"live-{number}") for number in range(LIVE)]
    for pod in live:
        pod.add()
    return live


def test_attachments_survive_a_wipe_and_a_new_initialisation(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    live = attach_live(nodes[0], pod_on)
    known = pod_on(nodes[1], "known")
    known.add()
    known.delete()
    wipe_and_initialise(nodes[0].site)
    require_kept_addresses(nodes, live, pod_on)


def test_clock_that_is_set_back_does_not_prolong_the_hold(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
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
def test_attachments_survive_a_wipe_that_removes_the_identity(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """A missing clusterGUID counts as a changed one."""
    live = attach_live(nodes[0], pod_on)
    known = pod_on(nodes[1], "known")
    known.add()
    known.delete()
    with session(nodes[0].site) as store:
        wipe(store, *IPAM_QUERIES)
        put(store, READY, Resource(READY.kind, {"name": READY.name}, {"datastoreReady": True}))
    require_kept_addresses(nodes, live, pod_on)


@pytest.mark.parametrize("site", ["etcdv3", "orch"], indirect=True)
def test_running_agent_restores_deleted_blocks(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """ADDs of the agent get other addresses. It assigns the live addresses again within seconds."""
    live = attach_live(nodes[0], pod_on)
    with session(nodes[0].site) as store:
        wipe(store, *IPAM_QUERIES)
    new = [pod_on(nodes[0], f"new-{number}") for number in range(NEW)]
    for pod in new:
        pod.add()
    assert len({pod.addresses[0] for pod in (*live, *new)}) == LIVE + NEW
    wait_until(lambda: set(audit([nodes[0]]).allocations) == {pod.addresses[0] for pod in (*live, *new)})
    wait_until(lambda: disagreements([nodes[0]]) == [])
    for pod in (*live, *new):
        pod.delete()


def test_attachments_survive_a_restored_older_store(node: Node, sandbox: Callable[[], Netns], tmp_path: Path) -> None:
    """Newer pods get their records back, even if the copy assigns the address to a pod that was deleted since."""
    pods = [Pod(node, sandbox(), f"c{number}", netconf()) for number in range(12)]
    for pod in pods[:3]:
        pod.add()
    copy = str(tmp_path / "copy.db")
    node.svcctl("store", "backup", copy)
    pods[0].delete()
    successor = pods[0].copy(container="successor", args=f"IP={pods[0].addresses[0]}")
    successor.add()
    assert successor.addresses == pods[0].addresses
    for pod in pods[3:6]:
        pod.add()
    node.stop_agent()
    node.svcctl("store", "restore", copy)
    node.start_agent()
    for pod in pods[6:]:
        pod.add()
    wait_until(lambda: node_disagreements(node) == [])
    assert [pod.check().status for pod in (successor, *pods[1:])] == [0] * 12
    for pod in (successor, *pods[1:]):
        pod.delete()
    assert node_remains(node) == []


@pytest.mark.parametrize("by_hand", [False, True], ids=["svcctl", "copy"])
@pytest.mark.parametrize("has_agent", [True, False], ids=["agent", "oneshot"])
def test_addresses_stay_unique_with_an_older_store_below_another_plugin(
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
        wait_until(lambda: node_disagreements(node) == [])
        for pod in pods:
            pod.delete()
        assert node_remains(node) == []
    finally:
        node.close()


def test_attachments_survive_an_empty_data_directory_of_etcd(
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
    require_kept_addresses(etcd_nodes, live, pod_on)


def test_attachments_survive_an_older_snapshot_of_etcd(
    etcd_nodes: tuple[ClusterNode, ClusterNode], own_etcd: Cluster, pod_on: MakePod, tmp_path: Path
) -> None:
    """The revisions of etcd run backwards, and its clusterGUID and cluster ID stay the same."""
    node = etcd_nodes[0]
    before, after = pod_on(node, "before"), pod_on(node, "after")
    before.add()
    snapshot = tmp_path / "snapshot.db"
    own_etcd.save(snapshot)
    after.add()
    own_etcd.restore(snapshot)
    wait_until(lambda: set(audit([node]).allocations) == {*before.addresses, *after.addresses} and not disagreements([node]))
    assert "revisions ran backwards" in node.log.read_text()
    for pod in (before, after):
        pod.delete()


def test_attachments_survive_a_restored_etcd_while_no_agent_runs(
    etcd_nodes: tuple[ClusterNode, ClusterNode], own_etcd: Cluster, pod_on: MakePod, tmp_path: Path
) -> None:
    """An agent records the last revision that it saw after each comparison, and also when it ends."""
    snapshot = tmp_path / "snapshot.db"
    live = [pod_on(etcd_nodes[0], f"live-{number}") for number in range(LIVE)]
    known = pod_on(etcd_nodes[1], "known")
    for pod in (live[0], known):
        pod.add()
    time.sleep(LOOK_SECONDS + 1)  # for the first comparison of each agent
    known.delete()
    own_etcd.save(snapshot)
    for number in range(50):  # more revisions than the start of the agents makes
        own_etcd.ctl("put", "/other", str(number))
    for pod in (*live[1:], known):
        pod.add()
    known.delete()
    for node in etcd_nodes:
        node.stop_agent()
    own_etcd.restore(snapshot)
    for node in etcd_nodes:
        node.start_agent(recovered=False)
    require_kept_addresses(etcd_nodes, live, pod_on)


def test_attachments_survive_an_etcd_restored_under_other_endpoints(
    etcd_nodes: tuple[ClusterNode, ClusterNode], own_etcd: Cluster, pod_on: MakePod, tmp_path: Path
) -> None:
    """The nodes recognise it by its clusterGUID, and know from its cluster id that data was lost."""
    snapshot = tmp_path / "snapshot.db"
    live = [pod_on(etcd_nodes[0], f"live-{number}") for number in range(LIVE)]
    known = pod_on(etcd_nodes[1], "known")
    live[0].add()
    own_etcd.save(snapshot)
    for pod in (*live[1:], known):
        pod.add()
    known.delete()
    own_etcd.restore(snapshot, "--initial-cluster-token=another")
    site, (port,) = etcd_nodes[0].site, free_ports(1)
    site.config["etcd_endpoints"] = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        for node in etcd_nodes:
            stack.enter_context(node.cut_off())
            stack.callback(PortForward(node.netns, site.port, port).close)
            node.call("STATUS", node.netconf())
        for pod in live:
            pod.config |= site.config
        require_kept_addresses(etcd_nodes, live, pod_on)


def test_add_claims_for_older_pods_in_an_etcd_under_other_endpoints(own_etcd: Cluster, pod_on: MakePod, tmp_path: Path) -> None:
    """The first ADD claims what the older pods have."""
    snapshot, site, (port,) = tmp_path / "snapshot.db", EtcdSite(own_etcd), free_ports(1)
    initialise(site)
    with ClusterNode(tmp_path / "node", "node1", site, agent=False) as node:
        own_etcd.save(snapshot)
        live = pod_on(node, "live")
        live.add()
        own_etcd.restore(snapshot, "--initial-cluster-token=another")
        site.config["etcd_endpoints"] = f"http://127.0.0.1:{port}"
        with node.cut_off(), closing(PortForward(node.netns, site.port, port)):
            new = pod_on(node, "new")
            new.add()
            assert set(audit([node]).allocations) == {*live.addresses, *new.addresses}
            for pod in (live, new):
                pod.delete(**site.config)
        assert remains([node]) == []


def test_etcd_is_identified_by_its_cluster_id(own_etcd: Cluster) -> None:
    """Another etcd has the same clusterGUID and higher revisions."""
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
def test_lost_endpoint_of_a_pod_is_written_again(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """The agent restores the annotations of the pod, and ignores a deleted pod."""
    node = nodes[0]
    pod, deleted = pod_on(node, "web"), pod_on(node, "deleted")
    pod.add()
    deleted.add()
    node.stop_agent()
    assert isinstance(node.site, OrchSite)
    node.site.kube.call("DELETE", f"{PODS}/deleted?gracePeriodSeconds=0")
    annotations = dict.fromkeys(f"{node.site.names.annotation_prefix}/{name}" for name in ("podIP", "podIPs", "containerID"))
    node.site.kube.call("PATCH", f"{PODS}/web", {"metadata": {"annotations": annotations}}, "application/merge-patch+json")
    with session(node.site) as store:
        wipe(store, *IPAM_QUERIES)
    node.start_agent()
    wait_until(lambda: set(audit([node]).allocations) == {*pod.addresses, *deleted.addresses})
    wait_until(lambda: pod.check().status == 0)
    pod.delete()
    deleted.delete()


def test_endpoint_gets_the_profiles_of_all_networks_again(node: Node, sandbox: Callable[[], Netns]) -> None:
    """Both networks share one interface."""
    first = Pod(node, sandbox(), "live", netconf())
    second = first.copy(config={**first.config, "name": "second"})
    first.add()
    second.add()
    node.stop_agent()
    with store_of(node) as store:
        wipe(store, *IPAM_QUERIES, ResourceQuery(ENDPOINT))
    node.start_agent()
    wait_until(lambda: _profiles(node) == [["net", "second"]])
    assert second.check().status == 0
    second.delete()
    first.delete()


def _profiles(node: Node) -> list[list[str]]:
    with store_of(node) as store:
        found = [entry.value for entry in store.list(ResourceQuery(ENDPOINT))]
    return [each.spec["profiles"] for each in found if isinstance(each, Resource)]


def test_deleted_block_is_restored_without_a_hold(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """The agent restores the block in the comparison after its start, and holds no ADD for that."""
    node = nodes[0]
    pod = pod_on(node, "web")
    pod.add()
    node.stop_agent()
    with session(node.site) as store:
        wipe(store, *IPAM_QUERIES)
    node.start_agent()
    wait_until(lambda: set(audit([node]).allocations) == set(pod.addresses))
    assert disagreements([node]) == []
    other = pod_on(node, "other")
    began = time.monotonic()
    other.add()
    assert time.monotonic() - began < HELD_SECONDS / 2
    other.delete()
    pod.delete()


def test_foreign_handle_is_reported_and_not_replaced(nodes: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    node = nodes[0]
    pod, other = pod_on(node, "web"), pod_on(node, "other")
    pod.add()
    node.stop_agent()
    with session(node.site) as store:
        wipe(store, *IPAM_QUERIES)
        ipam = IpamService(store, "node2")
        ipam.assign(Assign("net.foreign", {}, addresses=(Address(pod.addresses[0]),)))
        node.start_agent()
        wait_until(lambda: "net.foreign" in pod.call("STATUS").stderr)
        other.add()
        assert ipam.holds("net.foreign", [Address(pod.addresses[0])])
        other.delete()
        pod.delete()
        assert ipam.holds("net.foreign", [Address(pod.addresses[0])])
        wipe(store, *IPAM_QUERIES)


def test_attachments_survive_a_replaced_store_file(node: Node, sandbox: Callable[[], Netns]) -> None:
    """The pods of the node get their records back in the new file. That with addresses of host-local has only an endpoint."""
    node.stop_agent()
    node.start_agent(*SHORT_HOLD_AGENT)
    offer(node)
    pod = Pod(node, sandbox(), "live", netconf())
    local = Pod(node, sandbox(), "local", netconf(ipam=section(node, "10.71.0.0/24")))
    pod.add()
    local.add()
    for file in node.state_dir.glob(f"{EMBEDDED_FILE}*"):
        file.unlink()
    node.apply_pools()
    wait_until(lambda: set(node_audit(node).allocations) == set(pod.addresses))
    wait_until(lambda: _profiles(node) == [["net"], ["net"]])
    assert local.check().status == 0
    other = Pod(node, sandbox(), "new", netconf())
    other.add()
    assert other.addresses != pod.addresses
    for each in (other, local, pod):
        each.delete()

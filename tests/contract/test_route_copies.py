"""The copies from which routes are planned, and what a node writes about itself, on real datastores."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from contract.test_watch import eventually
from harness.datastores import OrchSite, Site, session
from harness.ipam import put, put_affinity, put_block, put_pool, put_settings, remove
from harness.skips import OTHER_STORES
from svc._core.bitmap import Ordinals
from svc._core.cidr import Address, Cidr
from svc.attach import store_identity
from svc.attach.datastore_ready import KEY as CLUSTER
from svc.attach.store_identity import Known
from svc.datastore.api import Backend, StoreError
from svc.datastore.open import open_backend
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.errors import PeerError
from svc.model.ipam import PENDING, Attribute, Block
from svc.model.keys import AffinityKey, BlockKey, IpamConfigKey, ResourceKey
from svc.model.resource import Resource
from svc.routes import copies as copying
from svc.routes.copies import Copies
from svc.routes.inputs import HANDLES, Inputs, NodeFacts
from svc.routes.own_node import OwnNode
from svc.routes.planning import tunnel_mac
from svc.routes.settings import Settings
from svc.routes.store_notes import FileNotes
from svc.routes.tunnel_addresses import node_maker
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6
from svc.values import asdict

pytestmark = pytest.mark.server

NODES = "/api/v1/nodes"
BLOCK = Cidr("10.0.0.64/26")


@pytest.fixture
def clean_site(site: Site) -> Iterator[Site]:
    yield site
    site.clear()


@contextmanager
def copied(site: Site, **options: Any) -> Iterator[Copies]:
    """Yield copies that were read completely."""
    with session(site) as store:
        copies = Copies(store, site.names, lambda: None, **options)
        copies.start()
        copies.read_blocks()
        try:
            assert eventually(lambda: copies.is_complete)
            yield copies
        finally:
            copies.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("copies-")]


def add_node(site: Site, name: str, *addresses: str) -> None:
    """Add a node with InternalIPs."""
    site.add_node(name)
    given = [{"type": "InternalIP", "address": address} for address in addresses]
    if isinstance(site, OrchSite):
        patch = {"status": {"addresses": given}}
        site.kube.call("PATCH", f"{NODES}/{name}/status", patch, "application/merge-patch+json")
        return
    with session(site) as store:
        put(store, ResourceKey("Node", name), Resource("Node", {"name": name}, {"addresses": given}))


def put_allocation(store: Backend, cidr: str, owner: str, node: str) -> None:
    """Write a block whose first address a node has."""
    block = Block(Cidr(cidr), f"host:{owner}", Ordinals(6), 1000, "2026-11-20T18:03:21Z")
    block.attributes = [Attribute("net.c1", {"node": node})]
    block.ordinal_sequences[block.ordinals.allocate(0)] = 999
    put(store, BlockKey(block.cidr), block)


def plugin_store(site: Site) -> Backend:
    """Open a session with the code of the program, without the writes that only an administrator of the tests may do."""
    if isinstance(site, OrchSite):
        return open_backend({"kind": "orch", "kubeconfig": str(site.administrator)}, site.kubeconfig.parent, site.names)
    return site.open()


def sees(copies: Copies, condition: Callable[[Inputs], bool]) -> bool:
    return eventually(lambda: condition(copies.inputs()))


def test_copies_follow_the_datastore(clean_site: Site) -> None:
    add_node(clean_site, "node1", "192.168.0.1", "fd01::1")
    with session(clean_site) as store, copied(clean_site) as copies:
        assert copies.inputs().nodes == {"node1": NodeFacts("node1", {4: Address("192.168.0.1"), 6: Address("fd01::1")})}
        put_pool(store, "pool", "10.0.0.0/16", vxlanMode="Always", natOutgoing=True)
        put_affinity(store, str(BLOCK), PENDING)
        assert sees(copies, lambda inputs: inputs.claims == {BLOCK: {"node1": False}} and len(inputs.pools) == 1)
        (pool,) = copies.inputs().pools
        assert (pool.kind, pool.mode, pool.masquerades) == (VXLAN_V4, "Always", True)
        put_affinity(store, str(BLOCK))
        assert sees(copies, lambda inputs: inputs.claims == {BLOCK: {"node1": True}})
        put_affinity(store, str(BLOCK), node="node2")
        assert sees(copies, lambda inputs: inputs.claims == {BLOCK: {"node1": True, "node2": True}})
        remove(store, AffinityKey("node1", BLOCK))
        assert sees(copies, lambda inputs: inputs.claims == {BLOCK: {"node2": True}})
        remove(store, AffinityKey("node2", BLOCK))
        remove(store, ResourceKey("IPPool", "pool"))
        assert sees(copies, lambda inputs: inputs.pools == ())


def test_a_disputed_block_is_read(clean_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own document decides, also while blocks are not watched."""
    monkeypatch.setattr(copying, "SETTINGS_SECONDS", 0.1)
    with session(clean_site) as store:
        put_settings(store, strict_affinity=True)
        put_block(store, str(BLOCK), "host:node2")
        for node in ("node1", "node2"):
            put_affinity(store, str(BLOCK), node=node)
        with copied(clean_site) as copies:
            assert eventually(lambda: not copies.watches_blocks)
            assert copies.inputs().owners == {BLOCK: "node2"}


def test_blocks_are_watched_only_while_addresses_may_be_borrowed(clean_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SETTINGS_SECONDS", 0.1)
    borrowed = {BLOCK.first: "node2"}
    with session(clean_site) as store, copied(clean_site) as copies:
        put_allocation(store, str(BLOCK), "node1", "node2")
        assert sees(copies, lambda inputs: inputs.borrowed == borrowed)
        put_settings(store, strict_affinity=True)
        time.sleep(0.5)
        assert copies.watches_blocks
        assert copies.inputs().borrowed == borrowed
        put_allocation(store, str(BLOCK), "node1", "node1")
        assert eventually(lambda: not copies.watches_blocks)
        assert copies.inputs().borrowed == {}
        put_settings(store, strict_affinity=False)
        assert eventually(lambda: copies.watches_blocks)
        put_allocation(store, str(BLOCK), "node1", "node2")
        assert sees(copies, lambda inputs: inputs.borrowed == borrowed)
        remove(store, IpamConfigKey())


def test_pod_cidrs_need_no_blocks(clean_site: Site) -> None:
    with session(clean_site) as store:
        put_affinity(store, str(BLOCK))
        with copied(clean_site, use_pod_cidr=True) as copies:
            assert copies.inputs().claims == {}
            assert not copies.watches_blocks


def test_a_pool_that_becomes_unreadable_keeps_its_routes(clean_site: Site) -> None:
    if isinstance(clean_site, OrchSite):
        pytest.skip(OTHER_STORES + "the API server refuses such a pool")
    with session(clean_site) as store:
        put_pool(store, "pool", "10.0.0.0/16", vxlanMode="Always")
        with copied(clean_site) as copies:
            put_pool(store, "pool", "10.0.0.0/16", blockSize=99, nodeSelector="(")
            assert eventually(lambda: ResourceKey("IPPool", "pool") in copies.unreadable)
            assert [pool.kind for pool in copies.inputs().pools] == [VXLAN_V4]


@pytest.mark.parametrize("kind", [VXLAN_V4, VXLAN_V6, IPIP])
def test_the_address_of_a_tunnel(clean_site: Site, kind: str) -> None:
    """It comes from the pool of the tunnel, is announced, assigned once, and released in the end."""
    add_node(clean_site, "node1", "192.168.0.1")
    cidr = "fd00::/64" if kind == VXLAN_V6 else "10.0.0.0/16"
    mode = "ipipMode" if kind == IPIP else "vxlanMode"
    with session(clean_site) as store:
        put_pool(store, "pool", cidr, **{mode: "Always"})
        put_pool(store, "other", "10.9.0.0/16")
        put_pool(store, "other6", "fd09::/64")
    with closing(plugin_store(clean_site)) as store, copied(clean_site, own="node1") as copies:
        node, ipam, handle = OwnNode(store, clean_site.names, "node1"), IpamService(store, "node1"), f"{HANDLES[kind]}node1"
        address = node.assign(kind, ["pool"])
        assert address in Cidr(cidr)
        assert node.assign(kind, ["pool"]) == address
        assert ipam.addresses_of(handle) == (address,)
        (attributes,) = ipam.owners_of(handle).values()
        assert (attributes["node"], attributes["type"][:4]) == ("node1", kind[:4].replace("-", ""))
        assert sees(copies, lambda inputs: inputs.nodes["node1"].tunnels == {kind: address})
        macs = {} if kind == IPIP else {kind: tunnel_mac("node1", kind)}
        assert copies.inputs().nodes["node1"].macs == macs
        assert copies.inputs().nodes["node1"].addresses == {4: Address("192.168.0.1")}
        node.release(kind)
        assert sees(copies, lambda inputs: inputs.nodes["node1"].tunnels == {})
        assert ipam.addresses_of(handle) == ()
        node.release(kind)


def test_a_tunnel_moves_to_another_pool(clean_site: Site) -> None:
    """An address outside of the pools of the tunnel is released."""
    add_node(clean_site, "node1")
    with session(clean_site) as store:
        put_pool(store, "a", "10.1.0.0/16", vxlanMode="Always")
        put_pool(store, "b", "10.2.0.0/16", vxlanMode="Always")
    with closing(plugin_store(clean_site)) as store:
        node = OwnNode(store, clean_site.names, "node1")
        assert node.assign(VXLAN_V4, ["a"]) in Cidr("10.1.0.0/16")
        moved = node.assign(VXLAN_V4, ["b"])
        assert moved in Cidr("10.2.0.0/16")
        assert IpamService(store, "node1").addresses_of(f"{HANDLES[VXLAN_V4]}node1") == (moved,)


@pytest.mark.parametrize(
    ("spec", "problem"), [({"allowedUses": ["Workload"]}, "no pool gives"), ({"disabled": True}, "no pool gives")]
)
def test_a_pool_without_addresses_for_tunnels(clean_site: Site, spec: dict[str, Any], problem: str) -> None:
    add_node(clean_site, "node1")
    with session(clean_site) as store:
        put_pool(store, "pool", "10.0.0.0/16", vxlanMode="Always", **spec)
    with closing(plugin_store(clean_site)) as store, pytest.raises(PeerError, match=problem):
        OwnNode(store, clean_site.names, "node1").assign(VXLAN_V4, ["pool"])


def test_a_full_pool_gives_no_tunnel(clean_site: Site) -> None:
    add_node(clean_site, "node1")
    add_node(clean_site, "node2")
    with session(clean_site) as store:
        put_pool(store, "pool", "10.0.0.0/32", vxlanMode="Always", blockSize=32)
    with closing(plugin_store(clean_site)) as store:
        OwnNode(store, clean_site.names, "node1").assign(VXLAN_V4, ["pool"])
        with pytest.raises(PeerError):
            OwnNode(store, clean_site.names, "node2").assign(VXLAN_V4, ["pool"])


def test_a_locked_datastore_gets_no_write(clean_site: Site) -> None:
    add_node(clean_site, "node1")
    with session(clean_site) as store:
        put_pool(store, "pool", "10.0.0.0/16", vxlanMode="Always")
        cluster = {"name": "default", "uid": "default"}
        locked = Resource("ClusterInformation", cluster, {"datastoreReady": False})
        put(store, ResourceKey("ClusterInformation", "default"), locked)
    with closing(plugin_store(clean_site)) as store, pytest.raises(StoreError, match="locked for a migration"):
        OwnNode(store, clean_site.names, "node1").assign(VXLAN_V4, ["pool"])


def test_after_a_loss_of_data_a_tunnel_takes_no_address_of_a_live_pod(
    clean_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its former address comes back at once, also in a new process. Another one waits until nodes have claimed theirs."""

    def filled(guid: str) -> None:
        add_node(clean_site, "node1")
        with session(clean_site) as store:
            given = {"datastoreReady": True, "clusterGUID": guid}
            put(store, CLUSTER, Resource(CLUSTER.kind, {"name": CLUSTER.name, "uid": guid}, given))
            put_pool(store, "pool", "10.0.0.0/16", vxlanMode="Always")
            put_pool(store, "pool6", "fd00::/64", vxlanMode="Always")

    def node_of(store: Backend) -> OwnNode:
        return node_maker(store, Settings({"kind": clean_site.config["datastore_type"]}, "node1", state_dir=tmp_path))()

    filled("first")
    with closing(plugin_store(clean_site)) as store:
        former = node_of(store).assign(VXLAN_V4, ["pool"])
    clean_site.clear()
    filled("second")
    with closing(plugin_store(clean_site)) as store:
        node = node_of(store)
        assert node.assign(VXLAN_V4, ["pool"], former) == former
        with pytest.raises(StoreError, match="has lost data, and nodes claim the addresses of live pods again"):
            node.assign(VXLAN_V6, ["pool6"])
        monkeypatch.setattr(store_identity, "HOLD_SECONDS", 0.0)
        assert node.assign(VXLAN_V6, ["pool6"]) in Cidr("fd00::/64")
        node.release(VXLAN_V4)
        IpamService(store, "node1").assign(Assign("net.pod", {"node": "node1"}, addresses=(former,), restores=True))
        other = node.assign(VXLAN_V4, ["pool"], former)
        assert other not in (None, former)
        node.release(VXLAN_V4)
        with session(clean_site) as administrator:
            put_pool(administrator, "pool", "10.0.0.0/16", vxlanMode="Always", allowedUses=["Workload"])
        with pytest.raises(PeerError, match="no pool gives"):
            node.assign(VXLAN_V4, ["pool"], other)


def test_a_datastore_of_another_kind_has_lost_nothing(clean_site: Site, tmp_path: Path) -> None:
    """After a move the content is that of the former one, and the revisions are others."""
    notes, known = FileNotes(tmp_path), Known("moved", "another", 1 << 40)
    notes.put_note("datastore svc kind=other", json.dumps(asdict(known)))
    add_node(clean_site, "node1")
    with session(clean_site) as store:
        given = {"datastoreReady": True, "clusterGUID": "moved"}
        put(store, CLUSTER, Resource(CLUSTER.kind, {"name": CLUSTER.name, "uid": "moved"}, given))
        put_pool(store, "pool", "10.0.0.0/16", vxlanMode="Always")
    settings = Settings({"kind": clean_site.config["datastore_type"]}, "node1", state_dir=tmp_path)
    with closing(plugin_store(clean_site)) as store:
        assert node_maker(store, settings)().assign(VXLAN_V4, ["pool"]) in Cidr("10.0.0.0/16")


def test_an_own_address_is_registered_once(clean_site: Site) -> None:
    """Only on etcd: nodes of Kubernetes have their addresses."""
    if isinstance(clean_site, OrchSite):
        pytest.skip(OTHER_STORES + "the kubelet writes them")
    with session(clean_site) as store:
        node = OwnNode(store, clean_site.names, "node1")
        assert node.register({4: Address("192.168.0.1")})
        assert node.register({4: Address("192.168.0.9"), 6: Address("fd01::1")})
        assert not node.register({4: Address("192.168.0.9"), 6: Address("fd01::9")})
        given = store.get(ResourceKey("Node", "node1")).value.spec["addresses"]
        assert given == [{"address": text, "type": "InternalIP"} for text in ("192.168.0.1", "fd01::1")]


def test_a_registered_address_is_corrected(clean_site: Site) -> None:
    """Only the one that this program has written. What is about to be written is noted before."""
    if isinstance(clean_site, OrchSite):
        pytest.skip(OTHER_STORES + "the kubelet writes them")
    first, second, third = (Address(f"192.168.0.{number}") for number in (1, 2, 3))
    noted: list[list[Address]] = []
    with session(clean_site) as store:
        node = OwnNode(store, clean_site.names, "node1")

        def addresses() -> list[str]:
            return [item["address"] for item in store.get(ResourceKey("Node", "node1")).value.spec["addresses"]]

        node.register({4: first, 6: Address("fd01::1")}, (), lambda found: noted.append(list(found)))
        assert not node.register({4: second}, [third])
        assert addresses() == ["192.168.0.1", "fd01::1"]
        assert node.register({4: second}, [first], lambda found: noted.append(list(found)))
        assert addresses() == ["fd01::1", "192.168.0.2"]
        assert noted == [[first, Address("fd01::1")], [second]]


def test_other_changes_of_a_kubernetes_node_are_refused(clean_site: Site) -> None:
    if not isinstance(clean_site, OrchSite):
        pytest.skip(OTHER_STORES + "etcd keeps nodes itself")
    add_node(clean_site, "node1")
    key = ResourceKey("Node", "node1")
    with closing(plugin_store(clean_site)) as store, pytest.raises(StoreError, match="belongs to Kubernetes"):
        store.update(key, lambda node: Resource("Node", node.metadata if node else {}, {"addresses": []}))

"""Everything that the agent caches of a datastore is changed by another client between two calls: the next call is right."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, faults, remains
from harness.datastores import Site, furnish, session
from harness.ipam import IPAM_QUERIES, blocks, put_pool, wipe
from harness.netns import Netns
from harness.pod import Pod
from harness.state import pod_links
from svc.datastore.api import Backend, Delete
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.keys import ResourceKey, ResourceQuery

pytestmark = pytest.mark.root

MakeSandbox = Callable[[], Netns]

KERNEL = 106

Change = Callable[[Backend], object]


def change(node: ClusterNode, *steps: Change) -> None:
    with session(node.site) as store:
        for step in steps:
            step(store)


def pool(name: str, cidr: str, **spec: Any) -> Change:
    return lambda store: put_pool(store, name, cidr, **spec)


def without(*pools: str) -> Change:
    return lambda store: [store.write([Delete(ResourceKey("IPPool", name))]) for name in pools]


def forget_addresses(store: Backend) -> None:
    wipe(store, *IPAM_QUERIES)


@pytest.fixture
def warm(web: Pod) -> Pod:
    """Its agent has served it before, and remembers all there is to remember."""
    web.add()
    web.delete()
    return web


def test_new_pools_take_the_place_of_old_ones(warm: Pod, cluster_node: ClusterNode) -> None:
    change(cluster_node, without("pool4", "pool6"))
    assert warm.failed("ADD").output["code"] == 102
    change(cluster_node, pool("new4", "10.81.0.0/24"), pool("new6", "fd81::/112"))
    warm.add()
    v4, v6 = warm.addresses
    assert (v4.startswith("10.81.0."), v6.startswith("fd81::")) == (True, True)
    assert faults([cluster_node]) == []
    warm.delete()


def test_pool_of_the_same_name_with_another_cidr(warm: Pod, cluster_node: ClusterNode) -> None:
    """Deleted and created again; earlier blocks are not used for assignment."""
    change(cluster_node, without("pool4"), pool("pool4", "10.82.0.0/24", blockSize=28))
    warm.add()
    assert warm.addresses[0].startswith("10.82.0.")
    with session(cluster_node.site) as store:
        (block,) = [block for block in blocks(store).values() if str(block.cidr).startswith("10.82.")]
    assert block.cidr.length == 28
    warm.delete()


def test_pool_is_disabled_and_enabled(warm: Pod, cluster_node: ClusterNode) -> None:
    change(cluster_node, pool("pool4", "10.65.0.0/16", disabled=True))
    assert warm.failed("ADD").output["code"] in (101, 102)
    change(cluster_node, pool("pool4", "10.65.0.0/16"))
    warm.add()
    warm.delete()


def test_node_is_deleted_and_registered_again(warm: Pod, cluster_node: ClusterNode) -> None:
    change(cluster_node, lambda store: store.write([Delete(ResourceKey("Node", "node1"))]))
    error = warm.failed("ADD").output
    assert "node1" in error["msg"] + error["details"]
    assert remains([cluster_node]) == []
    cluster_node.site.add_node("node1")
    warm.add()
    assert faults([cluster_node]) == []
    warm.delete()


def test_labels_of_the_node_choose_the_pool(warm: Pod, cluster_node: ClusterNode) -> None:
    change(cluster_node, pool("pool4", "10.65.0.0/16", nodeSelector="zone == 'a'"))
    assert warm.failed("ADD").output["code"] in (101, 102)
    change(cluster_node, lambda store: store.write([Delete(ResourceKey("Node", "node1"))]))
    cluster_node.site.add_node("node1", zone="a")
    warm.add()
    warm.delete()


def test_endpoint_is_deleted(web: Pod, cluster_node: ClusterNode) -> None:
    """CHECK sees it, the next ADD makes it whole again."""
    web.add()
    before = web.addresses
    with session(cluster_node.site) as store:
        for entry in store.list(ResourceQuery(ENDPOINT)):
            store.write([Delete(entry.key)])
    called = web.failed("CHECK", prevResult=web.result)
    assert (called.output["code"], "node1-k8s-web--0-eth0" in called.output["details"]) == (107, True)
    web.add()
    assert web.check().status == 0
    assert faults([cluster_node]) == []
    assert len(web.addresses) == len(before)
    web.delete()


def test_all_addresses_are_forgotten(web: Pod, cluster_node: ClusterNode) -> None:
    """Blocks, affinities and handles, while a pod has some: its recorded result is not true any more."""
    web.add()
    change(cluster_node, forget_addresses)
    assert web.failed("CHECK", prevResult=web.result).output["code"] == 107
    web.add()
    assert web.check().status == 0
    assert faults([cluster_node]) == []
    change(cluster_node, forget_addresses)
    web.delete()


def test_everything_is_deleted_and_created_again(web: Pod, cluster_node: ClusterNode) -> None:
    """As when a cluster is set up again under a node that goes on: twice, so that no cache of the first time is left."""
    for _ in range(2):
        web.add()
        renew(cluster_node.site)
        web.delete()
        assert remains([cluster_node]) == []
        web.add()
        assert web.check().status == 0
        assert faults([cluster_node]) == []
        renew(cluster_node.site)
        web.add()
        assert web.check().status == 0
        assert faults([cluster_node]) == []
        web.delete()


def test_address_of_a_living_interface_is_not_given_twice(web: Pod, cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """A datastore that was created again has no record of it, but the kernel has."""
    web.add()
    renew(cluster_node.site)
    cluster_node.site.add_pod("db-0")
    other = web.copy(container="c2", netns=sandbox(), args=f"{web.args.replace('web-0', 'db-0')};IP={web.addresses[0]}")
    assert other.failed("ADD").output["code"] == KERNEL
    assert list(pod_links(cluster_node)) == [web.host_name]
    web.delete()
    other.add()
    assert faults([cluster_node]) == []
    other.delete()


def renew(site: Site) -> None:
    site.clear()
    furnish(site, "node1")
    site.add_pod("web-0")

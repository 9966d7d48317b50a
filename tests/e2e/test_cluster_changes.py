"""Changes of cached objects by another client between two calls. The next call must use the new objects."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, disagreements, remains
from harness.datastores import Site, furnish, session
from harness.ipam import IPAM_QUERIES, blocks, put_pool, wipe
from harness.netns import Netns
from harness.node import Called
from harness.pod import Pod
from harness.polling import wait_until
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


def wipe_addresses(store: Backend) -> None:
    wipe(store, *IPAM_QUERIES)


@pytest.fixture
def cached_pod(web: Pod) -> Pod:
    """Return a pod of an earlier ADD and DEL, after which the agent has cached the objects."""
    web.add()
    web.delete()
    return web


def refused(pod: Pod) -> Called:
    """Return the first ADD that fails. The agent notices a change by its watch, a moment later."""
    calls = [pod.call("ADD")]

    def is_refused() -> bool:
        if calls[-1].status == 0:
            pod.delete()
            calls.append(pod.call("ADD"))
        return calls[-1].status != 0

    wait_until(is_refused)
    return calls[-1]


def add_from(pod: Pod, prefix: str) -> None:
    """Add the pod until its first address begins so. The agent notices a change by its watch, a moment later."""
    pod.add()

    def is_from_it() -> bool:
        if not pod.addresses[0].startswith(prefix):
            pod.delete()
            pod.add()
        return pod.addresses[0].startswith(prefix)

    wait_until(is_from_it)


def test_new_pools_replace_old_ones(cached_pod: Pod, cluster_node: ClusterNode) -> None:
    change(cluster_node, without("pool4", "pool6"))
    assert refused(cached_pod).output["code"] == 102
    change(cluster_node, pool("new4", "10.81.0.0/24"), pool("new6", "fd81::/112"))
    cached_pod.add()
    v4, v6 = cached_pod.addresses
    assert (v4.startswith("10.81.0."), v6.startswith("fd81::")) == (True, True)
    assert disagreements([cluster_node]) == []
    cached_pod.delete()


def test_recreated_pool_with_another_cidr_is_used(cached_pod: Pod, cluster_node: ClusterNode) -> None:
    """svc does not assign from blocks of the deleted pool."""
    change(cluster_node, without("pool4"), pool("pool4", "10.82.0.0/24", blockSize=28))
    add_from(cached_pod, "10.82.0.")
    with session(cluster_node.site) as store:
        (block,) = [block for block in blocks(store).values() if str(block.cidr).startswith("10.82.")]
    assert block.cidr.length == 28
    cached_pod.delete()


def test_pool_can_be_disabled_and_enabled(cached_pod: Pod, cluster_node: ClusterNode) -> None:
    change(cluster_node, pool("pool4", "10.65.0.0/16", disabled=True))
    assert refused(cached_pod).output["code"] in (101, 102)
    change(cluster_node, pool("pool4", "10.65.0.0/16"))
    cached_pod.add()
    cached_pod.delete()


def test_node_can_be_deleted_and_registered_again(cached_pod: Pod, cluster_node: ClusterNode) -> None:
    change(cluster_node, lambda store: store.write([Delete(ResourceKey("Node", "node1"))]))
    error = refused(cached_pod).output
    assert "node1" in error["msg"] + error["details"]
    assert remains([cluster_node]) == []
    cluster_node.site.add_node("node1")
    cached_pod.add()
    assert disagreements([cluster_node]) == []
    cached_pod.delete()


def test_changed_node_labels_choose_the_pool(cached_pod: Pod, cluster_node: ClusterNode) -> None:
    change(cluster_node, pool("pool4", "10.65.0.0/16", nodeSelector="zone == 'a'"))
    assert refused(cached_pod).output["code"] in (101, 102)
    change(cluster_node, lambda store: store.write([Delete(ResourceKey("Node", "node1"))]))
    cluster_node.site.add_node("node1", zone="a")
    cached_pod.add()
    cached_pod.delete()


def test_add_recreates_a_deleted_endpoint(web: Pod, cluster_node: ClusterNode) -> None:
    """CHECK reports the missing endpoint before the ADD."""
    web.add()
    before = web.addresses
    with session(cluster_node.site) as store:
        for entry in store.list(ResourceQuery(ENDPOINT)):
            store.write([Delete(entry.key)])
    called = web.failed("CHECK", prevResult=web.result)
    assert (called.output["code"], "node1-k8s-web--0-eth0" in called.output["details"]) == (107, True)
    web.add()
    assert web.check().status == 0
    assert disagreements([cluster_node]) == []
    assert len(web.addresses) == len(before)
    web.delete()


def test_add_repeats_assignments_that_were_deleted(web: Pod, cluster_node: ClusterNode) -> None:
    """Another client deletes blocks, affinities and handles, so the recorded result is no longer correct."""
    web.add()
    change(cluster_node, wipe_addresses)
    assert web.failed("CHECK", prevResult=web.result).output["code"] == 107
    web.add()
    assert web.check().status == 0
    assert disagreements([cluster_node]) == []
    change(cluster_node, wipe_addresses)
    web.delete()


def test_calls_work_after_the_cluster_is_set_up_again(web: Pod, cluster_node: ClusterNode) -> None:
    """The agent keeps running while the cluster is set up again. The second round finds caches that the first one filled."""
    for _ in range(2):
        web.add()
        set_up_again(cluster_node.site)
        web.delete()
        assert remains([cluster_node]) == []
        web.add()
        assert web.check().status == 0
        assert disagreements([cluster_node]) == []
        set_up_again(cluster_node.site)
        web.add()
        assert web.check().status == 0
        assert disagreements([cluster_node]) == []
        web.delete()


def test_address_of_an_existing_interface_is_not_assigned_twice(
    web: Pod, cluster_node: ClusterNode, sandbox: MakeSandbox
) -> None:
    """A datastore that was set up again has no record of the address, but the kernel has a route to it."""
    web.add()
    set_up_again(cluster_node.site)
    cluster_node.site.add_pod("db-0")
    other = web.copy(container="c2", netns=sandbox(), args=f"{web.args.replace('web-0', 'db-0')};IP={web.addresses[0]}")
    assert other.failed("ADD").output["code"] == KERNEL
    assert list(pod_links(cluster_node)) == [web.host_name]
    web.delete()
    other.add()
    assert disagreements([cluster_node]) == []
    other.delete()


def set_up_again(site: Site) -> None:
    site.clear()
    furnish(site, "node1")
    site.add_pod("web-0")

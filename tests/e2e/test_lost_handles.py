"""Handles that the datastore has lost: DEL and GC release the addresses in the journal and in the blocks."""

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from harness.cluster_node import ClusterNode, remains
from harness.datastores import session
from harness.netns import Netns
from svc.datastore.api import Create, Delete
from svc.model.ipam import Block, Handle
from svc.model.keys import BlockKey, BlockQuery, HandleKey, HandleQuery

pytestmark = pytest.mark.root


def lose_handles(node: ClusterNode) -> None:
    with session(node.site) as store:
        for entry in store.list(HandleQuery()):
            store.write([Delete(entry.key, entry.revision)])


def test_del_releases_the_addresses_in_journal_and_block(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
    pod.add()
    lose_handles(cluster_node)
    pod.delete()
    assert remains([cluster_node]) == []


def test_del_releases_the_addresses_of_the_endpoint(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """The journal has no row, and the interface is gone with its sandbox, as after a start of the node."""
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
    pod.add()
    lose_handles(cluster_node)
    cluster_node.netns.ip("link", "delete", pod.host_name)
    with closing(sqlite3.connect(cluster_node.state_dir / "journal.db")) as journal:
        journal.execute("DELETE FROM attachments")
        journal.commit()
    pod.delete()
    assert remains([cluster_node]) == []


def test_gc_releases_the_addresses_in_blocks(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
    pod.add()
    lose_handles(cluster_node)
    config = cluster_node.netconf(**{"cni.dev/valid-attachments": []})
    called = cluster_node.call("GC", config, container="", ifname="")
    assert called.status == 0, called
    assert remains([cluster_node]) == []


@pytest.mark.parametrize("site", ["orch"], indirect=True)
def test_gc_removes_handles_without_addresses(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """Such handles exist if an ADD writes after the release. Handles of other networks and of valid containers stay."""
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
    pod.add()
    with session(cluster_node.site) as store:
        (block,) = (entry for entry in store.list(BlockQuery()) if isinstance(entry.value, Block))
        assert isinstance(block.key, BlockKey)
        counts, kept = {str(block.key.cidr): 1}, ("net.valid", "other.late")
        store.write([Create(HandleKey(handle), Handle(counts)) for handle in ("net.late", *kept)])
        store.write([Create(HandleKey("net.lost"), Handle({"10.250.0.0/26": 1}))])
        before = {entry.key for entry in store.list(HandleQuery())}
        valid = [{"containerID": container, "ifname": pod.ifname} for container in (pod.container, "valid")]
        config = cluster_node.netconf(**{"cni.dev/valid-attachments": valid})
        called = cluster_node.call("GC", config, container="", ifname="")
        assert called.status == 0, called
        assert before - {entry.key for entry in store.list(HandleQuery())} == {HandleKey("net.late"), HandleKey("net.lost")}
        assert pod.check().status == 0
        store.write([Delete(HandleKey(handle)) for handle in kept])
    pod.delete()
    assert remains([cluster_node]) == []

"""A handle that the datastore has lost: DEL and GC free what the journal and the blocks show."""

from collections.abc import Callable

import pytest

from harness.cluster_node import ClusterNode, remains
from harness.netns import Netns
from harness.site import session
from svc.datastore.api import Delete
from svc.model.keys import HandleQuery

pytestmark = pytest.mark.root


def lose_handles(node: ClusterNode) -> None:
    with session(node.site) as store:
        for entry in store.list(HandleQuery()):
            store.write([Delete(entry.key, entry.revision)])


def test_a_del_frees_what_journal_and_block_show(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
    pod.add()
    lose_handles(cluster_node)
    pod.delete()
    assert remains([cluster_node]) == []


def test_gc_frees_what_blocks_show(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
    pod.add()
    lose_handles(cluster_node)
    config = cluster_node.netconf(**{"cni.dev/valid-attachments": []})
    called = cluster_node.call("GC", config, container="", ifname="")
    assert called.status == 0, called
    assert remains([cluster_node]) == []

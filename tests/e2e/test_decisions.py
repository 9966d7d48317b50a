"""The log of a call: each decision with level DEBUG, and the request ID in the lines of every module."""

import re
from collections.abc import Callable

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import EtcdSite, session
from harness.ipam import put_pool
from harness.netns import Netns
from harness.node import POOL4
from harness.pod import Pod

pytestmark = pytest.mark.root


def pod_of(node: ClusterNode, netns: Netns, **config: str) -> Pod:
    node.site.add_pod("web-0")
    return node.pod(netns, args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", **config)


def test_debug_log_has_pools_blocks_and_requests(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "elsewhere", "10.99.0.0/24", nodeSelector="zone == 'b'")
    pod = pod_of(cluster_node, sandbox(), log_level="DEBUG")
    called = pod.call("ADD")
    assert called.status == 0, called
    logged = called.stderr
    assert "pools: pool4; dropped: elsewhere selects nodes by zone" in logged, logged
    assert re.search(rf"IPv4: {POOL4[:5]}\S+ of block {POOL4[:5]}\S+ \(host:node1\)", logged), logged
    assert re.search(r"(etcd at|API server:) .* ms", logged), logged
    pod.delete()


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_lines_of_other_modules_have_the_request_id(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """The line of this test is about an undecodable pool. The threads of watches, which serve no call, may write it too."""
    site = cluster_node.site
    assert isinstance(site, EtcdSite)
    group = site.names.api_version.partition("/")[0]
    site.running.put(f"{site.names.key_root}/resources/v3/{group}/ippools/broken", "{")
    pod = pod_of(cluster_node, sandbox())
    called = pod.call("ADD")
    pod.delete()
    (request,) = set(re.findall(r"\[[0-9a-f]{8}\]", called.stderr))
    lines = [line for line in cluster_node.log.read_text().splitlines() if "left out" in line]
    assert any(request in line for line in lines), (request, lines)

"""The number of requests that a call sends to etcd, as the server counts them."""

import http.client
import re
from collections.abc import Callable

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import EtcdSite
from harness.netns import Netns

pytestmark = pytest.mark.root

PODS = 4
_HANDLED = re.compile(r'^grpc_server_handled_total\{.*grpc_service="etcdserverpb.KV".*\} (\S+)$', re.MULTILINE)


def handled(site: EtcdSite) -> int:
    """Return the requests for keys that the server has answered."""
    connection = http.client.HTTPConnection("127.0.0.1", site.running.members[0].ports[2])
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return round(sum(map(float, _HANDLED.findall(text))))


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_del_sends_two_requests(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """One request reads and one writes. The renewal of the node claim may add one."""
    site = cluster_node.site
    assert isinstance(site, EtcdSite)
    pods = [cluster_node.pod(sandbox(), f"c{number}") for number in range(PODS)]
    for pod in pods:
        pod.add()
    counts = []
    for pod in pods:
        before = handled(site)
        pod.delete()
        counts.append(handled(site) - before)
    assert min(counts) <= 2, counts
    assert sum(counts) <= 2 * PODS + 2, counts

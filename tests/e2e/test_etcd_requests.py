"""The number of requests that a call sends to etcd, as the server counts them."""

import http.client
import re
from collections.abc import Callable

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import EtcdSite
from harness.netns import Netns
from harness.polling import wait_until

pytestmark = pytest.mark.root

_HANDLED = re.compile(r'^grpc_server_handled_total\{.*grpc_service="etcdserverpb.KV".*\} (\S+)$', re.MULTILINE)


def handled(site: EtcdSite) -> int:
    """Return the requests for keys that the server has answered."""
    connection = http.client.HTTPConnection("127.0.0.1", site.running.members[0].ports[2])
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return round(sum(map(float, _HANDLED.findall(text))))


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_add_sends_one_request(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """It lists nothing: watches keep pools and settings, and the node's block is known."""
    site, pod = cluster_node.site, cluster_node.pod(sandbox())
    assert isinstance(site, EtcdSite)

    def requests_of_an_add() -> int:
        pod.delete()
        before = handled(site)
        pod.add()
        return handled(site) - before

    wait_until(lambda: requests_of_an_add() == 1)
    pod.delete()


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_del_sends_two_requests(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """One request reads and one writes. The agent sends others besides, such as for the node claim, so one DEL must show it."""
    site, pod = cluster_node.site, cluster_node.pod(sandbox())
    assert isinstance(site, EtcdSite)

    def requests_of_a_del() -> int:
        pod.add()
        before = handled(site)
        pod.delete()
        return handled(site) - before

    wait_until(lambda: requests_of_a_del() <= 2)

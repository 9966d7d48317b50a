"""Pools that svc cannot read, on every datastore: svc skips them, and every answer says so."""

from collections.abc import Callable

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import session
from harness.ipam import put_pool
from harness.netns import Netns
from harness.spec_rows import EVERYWHERE
from svc.model.errors import Code

pytestmark = [pytest.mark.root, pytest.mark.parametrize("site", EVERYWHERE, indirect=True, scope="module")]

ERROR = "IP pool 'odd': spec.nodeSelector = \"rack = 'a'\" is not a selector"


@pytest.fixture
def odd(cluster_node: ClusterNode) -> None:
    """Create a pool with an invalid selector, as another program may do."""
    with session(cluster_node.site) as store:
        put_pool(store, "odd", "10.99.0.0/24", nodeSelector="rack = 'a'")


@pytest.mark.usefixtures("odd")
def test_every_add_and_status_names_the_pool(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """An ADD that requests other pools does not name it."""
    for number in range(2):
        cluster_node.site.add_pod(f"web-{number}")
        args = f"K8S_POD_NAME=web-{number};K8S_POD_NAMESPACE=default"
        pod = cluster_node.pod(sandbox(), f"container-{number}", args=args)
        called = pod.call("ADD")
        assert called.status == 0
        assert called.stderr.count(ERROR) == 1
        pod.delete()
        assert ERROR not in pod.call("ADD", ipam={"type": "svc-ipam", "ipv4_pools": ["pool4"]}).stderr
        pod.delete()
    status = pod.call("STATUS")
    assert status.status == 0
    assert ERROR in status.stderr


@pytest.mark.usefixtures("odd")
def test_requested_pool_is_not_reported_as_missing(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """The request has its name, or its CIDR, which may have host bits."""
    cluster_node.site.add_pod("web-3")
    pod = cluster_node.pod(sandbox(), "container-3", args="K8S_POD_NAME=web-3;K8S_POD_NAMESPACE=default")
    for asked in ("odd", "10.99.0.0/24", "10.99.0.7/24"):
        called = pod.call("ADD", ipam={"type": "svc-ipam", "ipv4_pools": [asked]})
        assert (called.status, called.output["code"]) == (1, Code.POOL)
        assert called.output["msg"].startswith(f"a pool that is asked for cannot be used: {ERROR}")
    other = pod.call("ADD", ipam={"type": "svc-ipam", "ipv4_pools": ["10.98.0.0/24"]})
    assert "IP pool (10.98.0.0/24) does not exist" in other.output["msg"]
    assert ERROR not in other.output["details"]


@pytest.mark.usefixtures("odd")
def test_svcctl_lists_the_pool_with_its_error(cluster_node: ClusterNode) -> None:
    """Every output format includes it."""
    heading, *rows = cluster_node.ctl("pool", "get").stdout.splitlines()
    assert heading.endswith("ERROR")
    assert [ERROR in row for row in sorted(rows)] == [row.startswith("odd") for row in sorted(rows)]
    assert ERROR in cluster_node.ctl("pool", "get", "odd", "-o", "json").stderr
    assert f"Not counted: {ERROR}" in cluster_node.ctl("ipam", "show").stdout
    assert '"name": "odd"' in cluster_node.ctl("ipam", "show", "-o", "json").stdout

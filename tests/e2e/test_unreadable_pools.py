"""Pools and reservations that cannot be read, on every datastore: they are passed, and every answer says so."""

from collections.abc import Callable

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import session
from harness.ipam import put_pool
from harness.netns import Netns
from harness.spec_rows import EVERYWHERE
from svc.model.errors import Code

pytestmark = [pytest.mark.root, pytest.mark.parametrize("site", EVERYWHERE, indirect=True, scope="module")]

FAULT = "IP pool 'odd': spec.nodeSelector = \"rack = 'a'\" is not a selector"


@pytest.fixture
def odd(cluster_node: ClusterNode) -> None:
    """A pool beside those of the node, as another program may have written it."""
    with session(cluster_node.site) as store:
        put_pool(store, "odd", "10.99.0.0/24", nodeSelector="rack = 'a'")


@pytest.mark.usefixtures("odd")
def test_every_add_and_status_names_the_pool(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """An ADD that names its pools does not pass it."""
    for number in range(2):
        cluster_node.site.add_pod(f"web-{number}")
        args = f"K8S_POD_NAME=web-{number};K8S_POD_NAMESPACE=default"
        pod = cluster_node.pod(sandbox(), f"container-{number}", args=args)
        called = pod.call("ADD")
        assert called.status == 0
        assert called.stderr.count(FAULT) == 1
        pod.delete()
        assert FAULT not in pod.call("ADD", ipam={"type": "svc-ipam", "ipv4_pools": ["pool4"]}).stderr
        pod.delete()
    status = pod.call("STATUS")
    assert status.status == 0
    assert FAULT in status.stderr


@pytest.mark.usefixtures("odd")
def test_pool_that_is_asked_for_is_never_missing(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """By its name, or by its CIDR, which may have host bits."""
    cluster_node.site.add_pod("web-3")
    pod = cluster_node.pod(sandbox(), "container-3", args="K8S_POD_NAME=web-3;K8S_POD_NAMESPACE=default")
    for asked in ("odd", "10.99.0.0/24", "10.99.0.7/24"):
        called = pod.call("ADD", ipam={"type": "svc-ipam", "ipv4_pools": [asked]})
        assert (called.status, called.output["code"]) == (1, Code.POOL)
        assert called.output["msg"].startswith(f"a pool that is asked for cannot be used: {FAULT}")
    other = pod.call("ADD", ipam={"type": "svc-ipam", "ipv4_pools": ["10.98.0.0/24"]})
    assert "IP pool (10.98.0.0/24) does not exist" in other.output["msg"]
    assert FAULT not in other.output["details"]


@pytest.mark.usefixtures("odd")
def test_svcctl_lists_the_pool_with_its_fault(cluster_node: ClusterNode) -> None:
    """Beside the others, in every form."""
    heading, *rows = cluster_node.ctl("pool", "get").stdout.splitlines()
    assert heading.endswith("ERROR")
    assert [FAULT in row for row in sorted(rows)] == [row.startswith("odd") for row in sorted(rows)]
    assert FAULT in cluster_node.ctl("pool", "get", "odd", "-o", "json").stderr
    assert f"Not counted: {FAULT}" in cluster_node.ctl("ipam", "show").stdout
    assert '"name": "odd"' in cluster_node.ctl("ipam", "show", "-o", "json").stdout

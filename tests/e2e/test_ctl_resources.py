"""svcctl reservation and node on every datastore, errors about unknown nodes, and lines of the agent's log."""

import re
from collections.abc import Callable

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import session
from harness.ipam import put_pool
from harness.netns import Netns
from harness.spec_rows import EVERYWHERE

pytestmark = [pytest.mark.root, pytest.mark.parametrize("site", EVERYWHERE, indirect=True, scope="module")]

RESERVATION = """
{"apiVersion": "svc.internal/v3", "kind": "IPReservation", "metadata": {"name": "first"},
 "spec": {"reservedCIDRs": ["10.99.0.0/31"]}}
"""


def test_reservation_keeps_addresses_from_pods(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "small", "10.99.0.0/30", blockSize=30)
    printed = cluster_node.ctl("reservation", "apply", "-f", "-", stdin=RESERVATION).stdout
    assert printed.startswith("first created\ndatastore: ")
    assert cluster_node.ctl("reservation", "get").stdout.split() == ["NAME", "CIDRS", "first", "10.99.0.0/31"]
    cluster_node.site.add_pod("web-0")
    args = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"
    pod = cluster_node.pod(sandbox(), args=args, ipam={"type": "svc-ipam", "ipv4_pools": ["small"]})
    pod.add()
    assert pod.addresses[0] in ("10.99.0.2", "10.99.0.3")
    pod.delete()
    assert cluster_node.ctl("reservation", "delete", "first").stdout.startswith("first deleted\n")
    assert cluster_node.ctl("reservation", "get").stdout.split() == ["NAME", "CIDRS"]


def test_node_get_lists_a_node_and_shows_it(cluster_node: ClusterNode) -> None:
    assert "node1" in cluster_node.ctl("node", "get").stdout.split()
    assert cluster_node.ctl("node", "get", "node1").stdout.split()[2] == "node1"


def test_error_about_an_unknown_node_names_the_fix(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """The fix is `svcctl node apply` on etcd, where svcctl registers nodes, but not in a Kubernetes cluster."""
    kind = cluster_node.site.config["datastore_type"]
    if kind == "embedded":
        return
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", nodename="stranger")
    error = pod.call("ADD").output
    assert "node 'stranger' does not exist" in error["msg"]
    assert ("svcctl node apply" in error["details"]) == (kind == "etcdv3")
    assert ("kubectl get nodes" in error["details"]) == (kind == "orch")
    pod.call("DEL")


def test_log_lines_of_the_agent_have_one_time_and_level(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """This holds for lines about failed calls as well."""
    cluster_node.site.add_pod("web-0")
    args = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"
    pod = cluster_node.pod(sandbox(), args=args, ipam={"type": "svc-ipam", "ipv4_pools": ["missing"]})
    before = len(cluster_node.log.read_text())
    assert pod.call("ADD").status == 1
    lines = cluster_node.log.read_text()[before:].splitlines()
    (line,) = [line for line in lines if "missing" in line]
    assert re.match(r"[\d-]+ [\d:,]+ ERROR svc\.agent\S* \[[0-9a-f]{8}\] verb=ADD ", line), line
    assert len(re.findall(r"\d\d:\d\d:\d\d", line)) == 1

"""svcctl get, apply, delete and convert with pods, on every datastore."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from harness.cluster_node import ClusterNode
from harness.documents import document, pool, text
from harness.netns import Netns
from harness.spec_rows import EVERYWHERE

pytestmark = [pytest.mark.root, pytest.mark.parametrize("site", EVERYWHERE, indirect=True, scope="module")]

ARGS = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"
IPAM = {"type": "svc-ipam", "ipv4_pools": ["small"]}
DOCUMENTS = text(
    pool("small", "10.99.0.0/29", blockSize=29), document("IPReservation", "first", {"reservedCIDRs": ["10.99.0.0/30"]})
)


def shown(node: ClusterNode, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(node.ctl("get", *arguments, "-o", "json").stdout)
    return found


def test_applied_objects_are_used_shown_and_deleted(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """Objects in use are kept, together with the others of the same call."""
    assert cluster_node.ctl("apply", "-f", "-", stdin=DOCUMENTS).stdout.startswith("ippool/small created\nipreservation/first")
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args=ARGS, ipam=IPAM)
    pod.add()
    assert pod.addresses[0] in {f"10.99.0.{number}" for number in range(4, 8)}
    (endpoint,) = (each for each in shown(cluster_node, "wep", "-A") if each["spec"]["pod"] == "web-0")
    assert endpoint["spec"]["ipNetworks"] == [f"{pod.addresses[0]}/32"]
    (block,) = shown(cluster_node, "block", pod.addresses[0])
    assert block["spec"]["affinity"] == "host:node1"
    refused = cluster_node.ctl("delete", "-f", "-", "--yes", stdin=DOCUMENTS, check=False)
    assert refused.returncode == 1
    assert "IP pool 'small' is in use: 1 address is taken" in refused.stderr
    assert [each["metadata"]["name"] for each in shown(cluster_node, "reservations")] == ["first"]
    pod.delete()
    deleted = cluster_node.ctl("delete", "-f", "-", "--yes", stdin=DOCUMENTS).stdout
    assert deleted.startswith("ippool/small deleted\nipreservation/first deleted\n")
    assert [each for each in shown(cluster_node, "blocks") if each["spec"]["cidr"].startswith("10.99.")] == []


def test_converted_pools_are_used(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """They come from another deployment, and have a legacy field."""
    spec = {"cidr": "10.98.0.0/29", "blockSize": 29, "nat-outgoing": True}
    foreign = yaml.safe_dump(
        {"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "small"}, "spec": spec}
    )
    converted = cluster_node.svcctl("convert", "-f", "-", "--to", "default", stdin=foreign).stdout
    assert cluster_node.ctl("apply", "-f", "-", stdin=converted).stdout.startswith("ippool/small created\n")
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args=ARGS, ipam=IPAM)
    pod.add()
    assert pod.addresses[0].startswith("10.98.0.")
    pod.delete()
    assert cluster_node.ctl("delete", "pool", "small").stdout.startswith("ippool/small deleted\n")


def test_changed_pool_counts_for_the_next_pod(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """What `get` prints is changed, and applied again."""
    cluster_node.ctl("apply", "-f", "-", stdin=DOCUMENTS)
    printed = cluster_node.ctl("get", "pool", "small", "-o", "yaml").stdout
    disabled = printed.replace("spec:\n", "spec:\n  disabled: true\n")
    assert cluster_node.ctl("apply", "-f", "-", stdin=disabled).stdout.startswith("ippool/small updated\n")
    assert "is not current" in cluster_node.ctl("apply", "-f", "-", stdin=printed, check=False).stderr
    cluster_node.site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args=ARGS, ipam=IPAM)
    assert pod.call("ADD").status == 1
    pod.call("DEL")
    cluster_node.ctl("delete", "-f", "-", "--yes", stdin=DOCUMENTS)

"""The result that ADD prints in every version of the specification, and the names that svc chooses."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from harness.node import Node
from harness.pod import Pod
from harness.state import disagreements, store_of
from svc.model.ipam import Block
from svc.model.keys import BlockQuery, ResourceKey, ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

DUAL = {"assign_ipv6": "true"}
ONLY_IPV6 = {"assign_ipv4": "false", "assign_ipv6": "true"}
POD_ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=17"


def block_of(address: str) -> str:
    return f"{address}/{122 if ':' in address else 26}"


def expected_lists(pod: Pod, *, tagged: bool, rich: bool) -> dict[str, Any]:
    """Return the result of 0.3.0 and later: `tagged` includes the families, `rich` the MTU."""
    addresses = pod.netns.addresses("eth0")
    (link,) = pod.netns.ip("link", "show", "dev", "eth0")
    inside: dict[str, Any] = {"name": "eth0", "mac": link["address"], "sandbox": pod.netns.path}
    if rich:
        inside["mtu"] = 1500
    ips: list[dict[str, Any]] = [{"address": address, "interface": 1} for address in addresses]
    if tagged:
        ips = [ip | {"version": "6" if ":" in ip["address"] else "4"} for ip in ips]
    (name,) = (name for name in pod.node.netns.links() if name.startswith("svc"))
    routes = [{"dst": block_of(address.split("/")[0])} for address in addresses]
    return {"interfaces": [{"name": name}, inside], "ips": ips, "routes": routes}


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0"])
def test_result_has_lists_with_families_from_0_3_0(pods: MakePod, version: str) -> None:
    pod = pods(cniVersion=version, ipam=DUAL)
    assert pod.add() == {"cniVersion": version, **expected_lists(pod, tagged=True, rich=False)}


def test_result_has_lists_without_families_in_1_0_0(pods: MakePod) -> None:
    pod = pods(cniVersion="1.0.0", ipam=DUAL)
    assert pod.add() == {"cniVersion": "1.0.0", **expected_lists(pod, tagged=False, rich=False)}


def test_result_has_the_mtu_in_1_1_0(pods: MakePod) -> None:
    pod = pods(cniVersion="1.1.0", ipam=DUAL)
    assert pod.add() == {"cniVersion": "1.1.0", **expected_lists(pod, tagged=False, rich=True)}


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_result_has_one_address_of_each_family_before_0_3_0(pods: MakePod, version: str) -> None:
    pod = pods(cniVersion=version, ipam=DUAL)
    result = pod.add()
    v4, v6 = pod.netns.addresses("eth0")
    assert result == {
        "cniVersion": version,
        "ip4": {"ip": v4, "routes": [{"dst": block_of(v4[:-3])}]},
        "ip6": {"ip": v6, "routes": [{"dst": block_of(v6[:-4])}]},
    }


def test_absent_version_means_0_1_0(pods: MakePod) -> None:
    pod = pods()
    del pod.config["cniVersion"]
    result = pod.add()
    assert (result["cniVersion"], list(result)) == ("0.1.0", ["cniVersion", "ip4"])


def test_result_has_the_mtu_of_the_netconf(pods: MakePod) -> None:
    assert pods(mtu=1400).add()["interfaces"][1]["mtu"] == 1400


@pytest.mark.parametrize("version", ["0.2.0", "0.3.1", "1.1.0"])
def test_result_with_ipv6_only_does_not_mention_ipv4(pods: MakePod, version: str) -> None:
    result = json.dumps(pods(cniVersion=version, ipam=ONLY_IPV6).add())
    assert "10.65" not in result
    assert "ip4" not in result
    assert "fd65::" in result


def test_ipv4_comes_before_ipv6(pods: MakePod) -> None:
    pod = pods(ipam=DUAL)
    pod.add()
    assert [":" in address for address in pod.addresses] == [False, True]


def test_only_ipv4_is_assigned_by_default(pods: MakePod) -> None:
    pod = pods()
    pod.add()
    assert [":" in address for address in pod.addresses] == [False]


def test_result_has_the_sandbox_path_as_given(pods: MakePod) -> None:
    """Runtimes compare it with the path that they passed."""
    pod = pods()
    path = f"/var/run/netns/../netns/{pod.netns.name}"
    called = pod.call("ADD", netns=path)
    assert called.output["interfaces"][1]["sandbox"] == path


def test_standard_output_has_only_the_result(pods: MakePod) -> None:
    """The log goes to standard error, in whole lines."""
    called = pods().call("ADD")
    assert set(called.output) == {"cniVersion", "interfaces", "ips", "routes"}
    assert "INFO" in called.stderr
    assert called.stderr.endswith("\n")


# names


def endpoint_of(node: Node) -> Resource:
    with store_of(node) as store:
        (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
    assert isinstance(entry.value, Resource)
    return entry.value


def owners(node: Node, handle: str) -> list[dict[str, str]]:
    """Return the owner attributes of a handle's allocations."""
    with store_of(node) as store:
        blocks = [entry.value for entry in store.list(BlockQuery())]
    return [
        item.secondary or {}
        for block in blocks
        for item in (isinstance(block, Block) and block.attributes) or ()
        if item.handle_id == handle
    ]


def name_for(owner: str) -> str:
    return "svc" + hashlib.sha1(owner.encode(), usedforsecurity=False).hexdigest()[:11]


def test_names_derive_from_a_container_that_is_not_a_pod(pods: MakePod, shared_node: Node) -> None:
    pod = pods(container="c-1", nodename="node-a")
    pod.add()
    resource = endpoint_of(shared_node)
    assert pod.host_name == name_for("c-1.eth0")
    assert (resource.namespace, resource.name) == ("default", "node--a-cni-c--1-eth0")
    assert resource.spec == {
        "orchestrator": "cni",
        "node": "node-a",
        "containerID": "c-1",
        "endpoint": "eth0",
        "ipNetworks": [f"{pod.addresses[0]}/32"],
        "profiles": ["net"],
        "interfaceName": pod.host_name,
        "mac": pod.result["interfaces"][1]["mac"],
    }


def test_names_derive_from_the_pod_arguments(pods: MakePod, shared_node: Node) -> None:
    pod = pods(container="c2", nodename="node1", args=POD_ARGS)
    pod.add()
    resource = endpoint_of(shared_node)
    assert pod.host_name == name_for("shop.web-0")
    assert (resource.namespace, resource.name) == ("shop", "node1-k8s-web--0-eth0")
    assert (resource.spec["orchestrator"], resource.spec["pod"], resource.spec["containerID"]) == ("k8s", "web-0", "c2")
    assert resource.metadata["labels"] == {"svc.internal/namespace": "shop", "svc.internal/orchestrator": "k8s"}
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", resource.metadata["uid"])


def test_pod_name_without_a_namespace_does_not_identify_a_pod(pods: MakePod, shared_node: Node) -> None:
    pod = pods(container="c3", args="K8S_POD_NAME=web-0")
    pod.add()
    assert pod.host_name == name_for("c3.eth0")
    assert endpoint_of(shared_node).spec["orchestrator"] == "cni"


def test_second_interface_of_a_pod_has_different_names(pods: MakePod, shared_node: Node) -> None:
    first = pods(container="c4", args=POD_ARGS, nodename="node1")
    first.add()
    second = first.copy(ifname="eth1")
    second.add()
    assert second.host_name == name_for("shop.web-0.eth1")
    with store_of(shared_node) as store:
        assert store.get(ResourceKey("WorkloadEndpoint", "node1-k8s-web--0-eth1", "shop"))
    assert disagreements(shared_node) == []
    second.delete()


def test_allocation_records_the_pod_and_its_node(pods: MakePod, shared_node: Node) -> None:
    pod = pods(args=POD_ARGS, nodename="node1")
    pod.add()
    (owner,) = owners(shared_node, f"net.{pod.container}")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000 UTC", owner.pop("timestamp"))
    assert owner == {"node": "node1", "pod": "web-0", "namespace": "shop"}


def test_node_name_is_the_host_name_in_lower_case_by_default(pods: MakePod, shared_node: Node) -> None:
    pods().add()
    hostname = shared_node.netns.run("uname", "-n").stdout.strip()
    assert endpoint_of(shared_node).spec["node"] == hostname.lower()

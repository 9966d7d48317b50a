"""What fails in networks of host-local: the error names it, and no address is lost."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.host_local import held, offer, withdraw
from harness.node import Node
from harness.pod import Pod
from harness.state import audit, pod_links, remains

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

V4, V6 = "10.71.0.0/24", "fd71::/112"


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"ipv4_pools": ["pool4"]}, "ipam.ipv4_pools"),
        ({"assign_ipv6": "true"}, "ipam.assign_ipv6"),
        ({"rangeStart": "usePodCidr"}, "ipam.rangeStart = 'usePodCidr' is not an address"),
        ({"subnet": "usePodCidr"}, "orch.kubeconfig is missing"),
    ],
)
def test_fault_of_the_network_is_told_before_anything_is_done(local: MakePod, local_node: Node, more: Any, fault: str) -> None:
    pod = local(more=more)
    error = pod.failed("ADD").output
    assert (error["code"], fault in error["msg"]) == (7, True)
    assert remains(local_node) == []
    pod.delete()


def test_status_tells_a_full_range_before_an_add_fails(local: MakePod) -> None:
    """Its /30 has one address beside the gateway's; the other family has room."""
    pod = local("10.71.0.0/30", V6)
    assert pod.call("STATUS").status == 0
    pod.add()
    error = pod.failed("STATUS").output
    assert (error["code"], "no address is free in 10.71.0.0/30" in error["msg"]) == (50, True)
    assert local([{"subnet": "10.71.0.0/30"}, {"subnet": "10.72.0.0/30"}]).call("STATUS").status == 0
    pod.delete()
    assert pod.call("STATUS").status == 0


def test_exhausted_range_is_told_as_by_status(local: MakePod, local_node: Node) -> None:
    group = [{"subnet": V4, "rangeStart": "10.71.0.9", "rangeEnd": "10.71.0.9"}]
    first, second = local(group), local(group, V6)
    first.add()
    error = second.failed("ADD").output
    assert (error["code"], error["msg"]) == (114, "host-local: no address is free in 10.71.0.9-10.71.0.9")
    asked = second.failed("STATUS").output
    assert (asked["code"], asked["msg"]) == (50, f"not ready: {error['msg']}")
    assert error["details"].partition(" [")[0] == asked["details"].partition(" [")[0]
    assert error["details"].startswith("delete pods, enlarge the ranges, or remove what deleted containers have left")
    assert held(local_node) == {"10.71.0.9": first.container}
    assert list(pod_links(local_node)) == [first.host_name]
    assert [record.id.container_id for record in audit(local_node).records] == [first.container]
    assert second.netns.links() == []


def test_address_is_freed_when_the_wiring_fails(local: MakePod, local_node: Node) -> None:
    pod = local()
    pod.netns.run("ip", "link", "add", "eth0", "type", "bridge")
    assert pod.failed("ADD").output["code"] == 108
    assert held(local_node) == {}
    assert remains(local_node) == []


def test_missing_plugin_is_told_and_nothing_is_owed(own_local: MakePod, node: Node) -> None:
    withdraw(node)
    pod = own_local()
    for verb, code in (("ADD", 114), ("STATUS", 50)):
        error = pod.failed(verb).output
        assert (error["code"], f"plugin 'host-local' is not in CNI_PATH ({node.bin_dir})" in error["msg"]) == (code, True)
    assert remains(node) == []
    called = pod.call("DEL")
    assert (called.status, "plugin 'host-local' is not in CNI_PATH" in called.stderr) == (0, True)
    assert remains(node) == []


def test_directory_that_is_a_file_is_told_and_nothing_is_owed(local: MakePod, local_node: Node) -> None:
    """Each try of a pod would leave a release that can never be paid."""
    file = local_node.directory / "no-directory"
    file.touch()
    pod = local(more={"dataDir": str(file)})
    assert f"host-local: mkdir {file}: not a directory" in pod.failed("ADD").output["msg"]
    assert remains(local_node) == []
    pod.delete()
    assert remains(local_node) == []


def test_release_is_owed_while_the_plugin_is_missing(own_local: MakePod, node: Node) -> None:
    """As with a datastore that is gone: the DEL is answered, the interface goes, the address stays held until it is freed."""
    pod, other = own_local(), own_local(ipam={"type": "svc-ipam"}, name="other")
    pod.add()
    other.add()
    withdraw(node)
    pod.delete()
    assert pod.netns.links() == []
    assert list(held(node).values()) == [pod.container]
    assert {record.id.container_id: record.state for record in audit(node).records} == {
        pod.container: "deleting",
        other.container: "added",
    }
    assert node.stop_agent() == 0
    node.start_agent()
    assert list(held(node).values()) == [pod.container], "still owed after a start without it"
    assert node.stop_agent() == 0
    offer(node)
    node.start_agent()
    assert held(node) == {}
    assert [record.id.container_id for record in audit(node).records] == [other.container]


def test_status_hears_of_the_plugin(local: MakePod) -> None:
    assert local().call("STATUS").status == 0


def test_locked_store_takes_no_endpoint_either(own_local: MakePod, node: Node) -> None:
    """No write of an address tells of it here."""
    pod, other = own_local(), own_local()
    pod.add()
    node.svcctl("clusterinfo", "lock")
    assert other.failed("ADD").output["code"] == 105
    assert list(held(node).values()) == [pod.container]
    node.svcctl("clusterinfo", "unlock")
    other.add()

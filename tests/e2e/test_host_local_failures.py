"""Failures in networks of host-local. The error names the cause, and no address is lost."""

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
    ("more", "problem"),
    [
        ({"ipv4_pools": ["pool4"]}, "ipam.ipv4_pools"),
        ({"assign_ipv6": "true"}, "ipam.assign_ipv6"),
        ({"rangeStart": "usePodCidr"}, "ipam.rangeStart = 'usePodCidr' is not an address"),
        ({"subnet": "usePodCidr"}, "orch.kubeconfig is missing"),
    ],
)
def test_error_of_the_network_comes_before_any_side_effect(local: MakePod, local_node: Node, more: Any, problem: str) -> None:
    pod = local(more=more)
    error = pod.failed("ADD").output
    assert (error["code"], problem in error["msg"]) == (7, True)
    assert remains(local_node) == []
    pod.delete()


def test_status_reports_a_full_range_before_an_add_fails(local: MakePod) -> None:
    """The /30 has one address besides that of the gateway. The other family has free addresses."""
    pod = local("10.71.0.0/30", V6)
    assert pod.call("STATUS").status == 0
    pod.add()
    error = pod.failed("STATUS").output
    assert (error["code"], "no address is free in 10.71.0.0/30" in error["msg"]) == (50, True)
    assert local([{"subnet": "10.71.0.0/30"}, {"subnet": "10.72.0.0/30"}]).call("STATUS").status == 0
    pod.delete()
    assert pod.call("STATUS").status == 0


def test_add_and_status_report_an_exhausted_range_alike(local: MakePod, local_node: Node) -> None:
    group = [{"subnet": V4, "rangeStart": "10.71.0.9", "rangeEnd": "10.71.0.9"}]
    first, second = local(group), local(group, V6)
    first.add()
    error = second.failed("ADD").output
    assert (error["code"], error["msg"]) == (114, "host-local: no address is free in 10.71.0.9-10.71.0.9")
    status = second.failed("STATUS").output
    assert (status["code"], status["msg"]) == (50, f"not ready: {error['msg']}")
    assert error["details"].partition(" [")[0] == status["details"].partition(" [")[0]
    assert error["details"].startswith("delete pods, enlarge the ranges, or remove what deleted containers have left")
    assert held(local_node) == {"10.71.0.9": first.container}
    assert list(pod_links(local_node)) == [first.host_name]
    assert [record.id.container_id for record in audit(local_node).records] == [first.container]
    assert second.netns.links() == []


def test_address_is_released_if_the_wiring_fails(local: MakePod, local_node: Node) -> None:
    pod = local()
    pod.netns.run("ip", "link", "add", "eth0", "type", "bridge")
    assert pod.failed("ADD").output["code"] == 108
    assert held(local_node) == {}
    assert remains(local_node) == []


def test_failed_add_with_a_missing_plugin_leaves_no_pending_release(own_local: MakePod, node: Node) -> None:
    withdraw(node)
    pod = own_local()
    for verb, code in (("ADD", 114), ("STATUS", 50)):
        error = pod.failed(verb).output
        assert (error["code"], f"plugin 'host-local' is not in CNI_PATH ({node.bin_dir})" in error["msg"]) == (code, True)
    assert remains(node) == []
    called = pod.call("DEL")
    assert (called.status, "plugin 'host-local' is not in CNI_PATH" in called.stderr) == (0, True)
    assert remains(node) == []


def test_failed_add_with_a_file_as_directory_leaves_no_pending_release(local: MakePod, local_node: Node) -> None:
    """Otherwise, each attempt would leave a pending release that cannot succeed."""
    file = local_node.directory / "no-directory"
    file.touch()
    pod = local(more={"dataDir": str(file)})
    assert f"host-local: mkdir {file}: not a directory" in pod.failed("ADD").output["msg"]
    assert remains(local_node) == []
    pod.delete()
    assert remains(local_node) == []


def test_release_is_pending_while_the_plugin_is_missing(own_local: MakePod, node: Node) -> None:
    """DEL succeeds and removes the interface. The address stays assigned until the plugin is back."""
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
    assert list(held(node).values()) == [pod.container], "the release must still be pending after a start without the plugin"
    assert node.stop_agent() == 0
    offer(node)
    node.start_agent()
    assert held(node) == {}
    assert [record.id.container_id for record in audit(node).records] == [other.container]


def test_status_succeeds_with_the_plugin(local: MakePod) -> None:
    assert local().call("STATUS").status == 0


def test_locked_datastore_refuses_add_with_host_local(own_local: MakePod, node: Node) -> None:
    """svc writes no address to the datastore here, so it must check the lock before it writes the endpoint."""
    pod, other = own_local(), own_local()
    pod.add()
    node.svcctl("clusterinfo", "lock")
    assert other.failed("ADD").output["code"] == 105
    assert list(held(node).values()) == [pod.container]
    node.svcctl("clusterinfo", "unlock")
    other.add()

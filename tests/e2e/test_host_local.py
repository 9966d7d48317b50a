"""svc with Debian's host-local, which assigns the addresses."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness.host_local import data_dir, held
from harness.node import Node
from harness.pod import Pod
from harness.state import audit, disagreements, remains, store_of
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

V4, V6 = "10.71.0.0/24", "fd71::/112"
LINK = "169.254.1.1"


def routes(pod: Pod, family: str = "-4") -> list[tuple[str, str]]:
    """Return destination and next hop of the container's routes, without those that the kernel adds."""
    found = pod.netns.ip(family, "route")
    return [(route["dst"], route.get("gateway", "")) for route in found if route.get("protocol") != "kernel"]


def pings(pod: Pod, address: str) -> bool:
    return pod.netns.run("ping", "-c", "1", "-W", "2", address, check=False).returncode == 0


# an attachment


def test_result_has_the_address_but_no_routes(local: MakePod, local_node: Node) -> None:
    pod = local(cniVersion="1.0.0")
    pod.add()
    assert pod.result == {
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": pod.host_name},
            {"name": "eth0", "mac": pod.result["interfaces"][1]["mac"], "sandbox": pod.netns.path},
        ],
        "ips": [{"interface": 1, "address": "10.71.0.2/32"}],
    }
    assert held(local_node) == {"10.71.0.2": pod.container}
    assert audit(local_node).allocations == {}


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_every_version_is_supported(local: MakePod, local_node: Node, version: str) -> None:
    """Debian's host-local supports versions up to 1.0.0, so svc calls it with a version that it supports."""
    pod = local(V4, V6, cniVersion=version)
    first = pod.call("ADD")
    assert (first.status, first.output["cniVersion"]) == (0, version)
    assert pod.call("ADD").stdout == first.stdout, "an identical ADD must return the recorded result"
    assert sorted(held(local_node).values()) == [pod.container, pod.container]
    pod.delete()
    assert held(local_node) == {}


def test_containers_reach_each_other_in_both_families(local: MakePod) -> None:
    first, second = local(V4, V6), local(V4, V6)
    first.add()
    second.add()
    assert all(pings(first, address) for address in second.addresses)
    assert all(pings(second, address) for address in first.addresses)


def test_endpoint_and_journal_have_the_addresses(local: MakePod, local_node: Node) -> None:
    pod = local(V4, V6)
    pod.add()
    assert disagreements(local_node) == []
    with store_of(local_node) as store:
        (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
    assert isinstance(entry.value, Resource)
    assert entry.value.spec["ipNetworks"] == [f"{pod.addresses[0]}/32", f"{pod.addresses[1]}/128"]


def test_every_group_of_ranges_assigns_an_address(local: MakePod) -> None:
    pod = local(V4, "10.72.0.0/24", V6)
    pod.add()
    assert pod.addresses == ["10.71.0.2", "10.72.0.2", "fd71::2"]
    assert pod.check().status == 0


def test_ranges_of_a_group_are_used_in_their_order(local: MakePod) -> None:
    group = [{"subnet": V4, "rangeStart": "10.71.0.9", "rangeEnd": "10.71.0.9"}, {"subnet": "10.72.0.0/24"}]
    first, second = local(group), local(group)
    first.add()
    second.add()
    assert [*first.addresses, *second.addresses] == ["10.71.0.9", "10.72.0.2"]


def test_subnet_can_replace_ranges(local: MakePod) -> None:
    pod = local(more={"ranges": [], "subnet": V4, "gateway": "10.71.0.99"})
    pod.add()
    assert pod.addresses == ["10.71.0.1"], "host-local must not assign the gateway's address"
    assert routes(pod) == [("default", LINK), (LINK, "")]


def test_host_local_handles_a_requested_address(local: MakePod) -> None:
    pod = local(args="IP=10.71.0.77;K8S_POD_NAME=web;K8S_POD_NAMESPACE=default")
    pod.add()
    assert pod.addresses == ["10.71.0.77"]
    assert "10.99.0.1" in str(local(args="IP=10.99.0.1").failed("ADD").output)


def test_result_has_the_resolver_settings(local: MakePod, local_node: Node) -> None:
    file = local_node.directory / "resolv.conf"
    file.write_text("nameserver 192.0.2.53\nsearch example.org\n")
    pod = local(more={"resolvConf": str(file)})
    pod.add()
    assert pod.result["dns"] == {"nameservers": ["192.0.2.53"], "search": ["example.org"]}


# routes


def test_configured_routes_replace_the_default_route(local: MakePod) -> None:
    custom = [{"dst": "10.9.8.7/16", "gw": "10.71.0.1"}, {"gw": "10.71.0.1"}, {"dst": "fd09::/64"}]
    pod = local(V4, more={"routes": custom})
    pod.add()
    assert sorted(routes(pod)) == [("10.9.0.0/16", LINK), (LINK, "")]
    assert routes(pod, "-6") == []
    assert pod.check().status == 0


def test_default_routes_can_be_added_to_configured_routes(local: MakePod) -> None:
    custom = [{"dst": "10.9.0.0/16"}, {"dst": "fd09::/64"}, {"dst": "0.0.0.0/0"}]
    pod = local(V4, V6, more={"routes": custom}, include_default_routes=True)
    pod.add()
    assert sorted(routes(pod)) == [("10.9.0.0/16", LINK), (LINK, ""), ("default", LINK)]
    assert sorted(dst for dst, _ in routes(pod, "-6")) == ["default", "fd09::/64"]


@pytest.mark.parametrize("routes_given", [None, [], [{"gw": "10.71.0.1"}]])
def test_each_family_has_a_default_route_without_configured_routes(local: MakePod, routes_given: Any) -> None:
    pod = local(V4, V6, more={"routes": routes_given})
    pod.add()
    assert routes(pod) == [("default", LINK), (LINK, "")]
    assert [dst for dst, _ in routes(pod, "-6")] == ["default"]


def test_check_reports_a_missing_route_of_the_network(local: MakePod) -> None:
    pod = local(more={"routes": [{"dst": "10.9.0.0/16"}]})
    pod.add()
    pod.netns.run("ip", "route", "delete", "10.9.0.0/16")
    error = pod.failed("CHECK", prevResult=pod.result).output
    assert (error["code"], "no route to 10.9.0.0/16" in error["details"]) == (107, True)


# repeated calls and lost records


def test_repeated_add_replaces_an_address_that_host_local_has_lost(local: MakePod, local_node: Node) -> None:
    pod = local()
    pod.add()
    (data_dir(local_node) / "net" / pod.addresses[0]).unlink()
    error = pod.failed("CHECK", prevResult=pod.result).output
    assert (error["code"], "host-local: Failed to find address" in error["details"]) == (107, True)
    first = pod.addresses
    pod.add()
    assert pod.addresses != first
    assert held(local_node) == {pod.addresses[0]: pod.container}


def test_del_can_come_first_and_twice(local: MakePod, local_node: Node) -> None:
    pod = local()
    pod.delete()
    pod.add()
    pod.delete()
    pod.delete()
    assert held(local_node) == {}
    assert remains(local_node) == []


def test_interfaces_of_one_container_have_different_addresses(local: MakePod, local_node: Node) -> None:
    first = local()
    first.add()
    second = first.copy(ifname="eth1")
    second.add()
    second.delete()
    assert held(local_node) == {first.addresses[0]: first.container}
    assert first.check().status == 0


def test_gc_releases_addresses_of_attachments_that_are_not_valid(local: MakePod, local_node: Node) -> None:
    known, unknown = local(), local()
    known.add()
    unknown.add()
    keep: dict[str, Any] = {"cni.dev/valid-attachments": [{"containerID": known.container, "ifname": "eth0"}]}
    assert known.call("GC", **keep).status == 0
    assert held(local_node) == {known.addresses[0]: known.container}
    assert disagreements(local_node) == []
    assert known.check().status == 0


def test_calls_work_without_an_agent(own_local: MakePod, node: Node) -> None:
    node.stop_agent()
    pod = own_local(V4, V6)
    pod.add()
    assert pod.call("ADD").output == pod.result
    assert pod.check().status == 0
    assert len(held(node)) == 2
    pod.delete()
    assert held(node) == {}
    assert remains(node) == []


def test_del_works_after_the_agent_was_killed_and_the_interface_deleted(own_local: MakePod, node: Node) -> None:
    pod = own_local()
    pod.add()
    node.kill_agent()
    pod.netns.run("ip", "link", "delete", "eth0")
    node.start_agent()
    pod.delete()
    assert held(node) == {}


def test_del_works_without_the_journal(own_local: MakePod, node: Node) -> None:
    pod = own_local()
    pod.add()
    node.stop_agent()
    (node.state_dir / "journal.db").unlink()
    node.start_agent()
    pod.delete()
    assert held(node) == {}
    assert remains(node) == []


# together with the IPAM of svc


def test_one_agent_works_for_networks_with_either_ipam(local: MakePod, pods: MakePod, local_node: Node) -> None:
    svc_pod, local_pod = pods(name="own"), local()
    svc_pod.add()
    local_pod.add()
    assert pings(svc_pod, local_pod.addresses[0])
    assert pings(local_pod, svc_pod.addresses[0])
    assert disagreements(local_node) == []
    svc_pod.delete()
    assert local_pod.check().status == 0
    local_pod.delete()


def test_del_releases_addresses_after_a_change_of_the_ipam(local: MakePod, pods: MakePod, local_node: Node) -> None:
    """The IPAM of the ADD releases the address. The configuration of the DEL does not matter."""
    local_pod, svc_pod = local(), pods()
    local_pod.add()
    svc_pod.add()
    local_pod.config, svc_pod.config = svc_pod.config, local_pod.config
    local_pod.delete()
    assert held(local_node) == {}
    svc_pod.delete()
    assert remains(local_node) == []


def test_svc_ipam_plugin_refuses_a_host_local_network(local: MakePod) -> None:
    pod = local()
    pod.plugin = "svc-ipam"
    assert "but the IPAM plugin of svc was called" in pod.failed("ADD").output["msg"]
    pod.delete()


def test_parallel_adds_get_different_addresses(local: MakePod, local_node: Node) -> None:
    made = [local(V4, V6) for _ in range(12)]
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(Pod.add, made))
        assert len({address for pod in made for address in pod.addresses}) == 24
        assert len(held(local_node)) == 24
        assert disagreements(local_node) == []
        list(threads.map(Pod.delete, made))
    assert held(local_node) == {}

"""The IPAM plugin alone, and as the IPAM of other main plugins."""

import ipaddress
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.node import Node
from harness.pod import Pod
from harness.reference_plugins import Attached, require_plugin
from harness.state import audit, disagreements, given_away, pod_links, remains, store_of
from svc.model.keys import ResourceQuery

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

DUAL = {"assign_ipv6": "true"}


@pytest.fixture
def attach(pods: MakePod) -> Callable[..., Pod]:
    """Make containers whose interface another plugin would make."""

    def make(**options: Any) -> Pod:
        return pods(**{"plugin": "svc-ipam", "type": "bridge", **options})

    return make


def block(address: str) -> str:
    return f"{address}/{122 if ':' in address else 26}"


def network(address: str) -> str:
    """Return the block without host bits, because the kernel refuses a route with host bits."""
    return str(ipaddress.ip_interface(block(address)).network)


# alone


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0"])
def test_addresses_have_the_prefix_length_of_their_block(attach: MakePod, version: str) -> None:
    pod = attach(cniVersion=version, ipam=DUAL)
    pod.add()
    v4, v6 = pod.addresses
    assert pod.result == {
        "cniVersion": version,
        "ips": [{"version": "4", "address": block(v4)}, {"version": "6", "address": block(v6)}],
        "routes": [{"dst": network(v4)}, {"dst": network(v6)}],
    }


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_results_of_newer_versions_lack_the_family(attach: MakePod, version: str) -> None:
    pod = attach(cniVersion=version)
    pod.add()
    (v4,) = pod.addresses
    assert pod.result == {"cniVersion": version, "ips": [{"address": block(v4)}], "routes": [{"dst": network(v4)}]}


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_results_of_older_versions_have_one_address_per_family(attach: MakePod, version: str) -> None:
    called = attach(cniVersion=version, ipam=DUAL).call("ADD")
    assert set(called.output) == {"cniVersion", "ip4", "ip6"}
    assert ipaddress.ip_interface(called.output["ip4"]["ip"]).network.prefixlen == 26
    assert ipaddress.ip_interface(called.output["ip6"]["ip"]).network.prefixlen == 122


@pytest.mark.parametrize(("address", "length"), [("10.65.3.4", 32), ("fd65::304", 128)])
def test_requested_address_is_the_only_one(attach: MakePod, address: str, length: int) -> None:
    pod = attach(ipam=DUAL, args=f"IP={address}")
    pod.add()
    assert [ip["address"] for ip in pod.result["ips"]] == [f"{address}/{length}"]


def test_add_makes_neither_an_interface_nor_an_endpoint(attach: MakePod, shared_node: Node) -> None:
    pod = attach()
    pod.add()
    assert pod.netns.links() == []
    assert pod_links(shared_node) == {}
    with store_of(shared_node) as store:
        assert store.list(ResourceQuery("WorkloadEndpoint")) == []


@pytest.mark.parametrize("path", ["/run/netns/none", "/etc/hostname", "/proc/self/ns/net", "vm-7", "../relative", "\udcff"])
def test_path_of_the_sandbox_is_not_checked(attach: MakePod, shared_node: Node, path: str) -> None:
    """Some main plugins call the IPAM plugin before the sandbox exists."""
    pod = attach()
    for verb in ("ADD", "CHECK", "DEL"):
        called = pod.call(verb, netns=path, prevResult=pod.result)
        assert called.status == 0, called
        pod.result = called.output or pod.result
    assert remains(shared_node) == []


def test_identical_add_returns_the_same_addresses(attach: MakePod) -> None:
    pod = attach(ipam=DUAL)
    assert pod.call("ADD").stdout == pod.call("ADD").stdout


def test_interfaces_of_one_container_have_different_addresses(attach: MakePod, shared_node: Node) -> None:
    first = attach()
    first.add()
    second = first.copy(ifname="eth1")
    second.add()
    assert first.addresses != second.addresses
    second.delete()
    assert list(audit(shared_node).allocations) == first.addresses


def test_unknown_arguments_are_refused_without_ignore_unknown(attach: MakePod) -> None:
    assert attach(args="FOO=bar").failed("ADD").output["code"] == 4
    attach(args="IgnoreUnknown=true;FOO=bar").add()


def test_check_fails_if_another_container_has_the_address(attach: MakePod, shared_node: Node) -> None:
    pod = attach()
    pod.add()
    assert pod.check().status == 0
    with given_away(shared_node, pod.addresses[0].partition("/")[0]):
        error = pod.failed("CHECK", prevResult=pod.result).output
    assert (error["code"], pod.addresses[0] in error["details"]) == (107, True)


def test_check_accepts_the_main_plugins_result(attach: MakePod) -> None:
    """That result also has interfaces and what later plugins added."""
    pod = attach()
    pod.add()
    whole = {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": pod.netns.path}],
        "ips": [{**pod.result["ips"][0], "interface": 1}],
        "dns": {},
    }
    assert pod.check(prevResult=whole).status == 0


def test_del_succeeds_before_the_add_and_when_repeated(attach: MakePod, shared_node: Node) -> None:
    pod = attach()
    pod.delete()
    pod.add()
    pod.delete()
    pod.delete()
    assert remains(shared_node) == []


def test_gc_releases_addresses_of_invalid_attachments(attach: MakePod, shared_node: Node) -> None:
    known, unknown = attach(), attach()
    known.add()
    unknown.add()
    keep: dict[str, Any] = {"cni.dev/valid-attachments": [{"containerID": known.container, "ifname": "eth0"}]}
    assert known.call("GC", **keep).status == 0
    assert list(audit(shared_node).allocations) == known.addresses
    assert disagreements(shared_node) == []


def test_status_fails_if_a_pool_does_not_exist(attach: MakePod) -> None:
    assert attach().call("STATUS").status == 0
    assert attach(ipam={"ipv4_pools": ["nowhere"]}).failed("STATUS").output["code"] == 50


def test_plugin_works_without_an_agent(own_pods: MakePod, node: Node) -> None:
    node.stop_agent()
    pod = own_pods(plugin="svc-ipam", type="bridge")
    pod.add()
    assert pod.result["ips"][0]["address"] == block(pod.addresses[0])
    assert pod.check().status == 0
    pod.delete()
    assert remains(node) == []


# below other main plugins


@pytest.fixture
def below(pods: MakePod) -> Callable[..., Attached]:
    """Make containers on a reference plugin. Reference plugins support CNI 1.0.0 at most."""

    def make(kind: str, **config: Any) -> Attached:
        require_plugin(kind)
        return Attached(pods(plugin="svc-ipam", cniVersion="1.0.0", type=kind, **config), kind)

    return make


@pytest.fixture
def bridge(below: Callable[..., Attached], shared_node: Node) -> Any:
    """Make containers on one bridge, and delete the bridge after the test."""
    yield lambda: below("bridge", bridge="br0")
    shared_node.netns.run("ip", "link", "delete", "br0")


def test_bridge_uses_the_assigned_address(bridge: Callable[[], Attached], shared_node: Node) -> None:
    bridge().add()
    first = bridge().add()
    assert first.pod.netns.addresses("eth0") == [block(first.address)]
    assert first.address in audit(shared_node).allocations
    assert first.call("CHECK", prevResult=first.result).status == 0
    assert first.call("DEL").status == 0
    assert first.address not in audit(shared_node).allocations


def test_containers_on_a_bridge_reach_each_other(bridge: Callable[[], Attached]) -> None:
    first, second = bridge().add(), bridge().add()
    assert first.pod.netns.run("ping", "-c", "1", "-w", "5", second.address, check=False).returncode == 0


def test_failed_add_of_bridge_releases_the_address(bridge: Callable[[], Attached], shared_node: Node) -> None:
    """The bridge plugin calls DEL of svc-ipam without a result."""
    first = bridge()
    first.pod.netns.run("ip", "link", "add", "eth0", "type", "bridge")
    assert first.call("ADD").status == 1
    assert remains(shared_node) == []


def test_bridge_passes_on_the_error(bridge: Callable[[], Attached]) -> None:
    attached = bridge()
    attached.pod.config["ipam"]["ipv4_pools"] = ["nowhere"]
    assert "(nowhere) does not exist" in json.dumps(attached.call("ADD").output)


def on_ptp(address: str) -> dict[str, str]:
    """Return the address as ptp needs it: with the pool's prefix length and a gateway for the host's side."""
    length, gateway = (112, "fe80::ecee:eeff:feee:eeee") if ":" in address else (16, "169.254.1.1")
    return {"address": f"{address}/{length}", "gateway": gateway}


@pytest.mark.parametrize(("ipam", "args"), [({}, ""), ({}, "IP=10.65.3.4"), (DUAL, "")])
def test_result_for_ptp_has_gateways_and_no_route_to_the_pool(attach: MakePod, ipam: dict[str, str], args: str) -> None:
    """ptp adds the route to the pool itself, and fails if the route exists."""
    pod = attach(type="ptp", ipam=ipam, args=args)
    pod.add()
    beyond = {"routes": [{"dst": "::/0"}]} if ipam else {}
    assert pod.result == {"cniVersion": "1.1.0", "ips": [on_ptp(address) for address in pod.addresses], **beyond}
    assert pod.call("ADD").output == pod.result


def reach(source: Attached, address: str) -> bool:
    """Ping the address for up to 5 s: the kernel first checks the gateway's IPv6 address for duplicates."""
    return source.pod.netns.run("ping", "-c", "1", "-w", "5", address, check=False).returncode == 0


def test_ptp_uses_the_assigned_addresses(below: Callable[..., Attached], shared_node: Node) -> None:
    first, second = below("ptp", ipam=DUAL).add(), below("ptp", ipam=DUAL).add()
    for one, other in ((first, second), (second, first)):
        assert one.pod.netns.addresses("eth0") == [on_ptp(address)["address"] for address in one.addresses]
        assert all(reach(one, address) for address in other.addresses)
        assert one.call("CHECK", prevResult=one.result).status == 0
        assert set(one.addresses) <= set(audit(shared_node).allocations)
        for address in one.addresses:
            assert shared_node.netns.run("ping", "-c", "1", "-w", "5", address, check=False).returncode == 0
    assert first.call("DEL").status == 0
    assert set(audit(shared_node).allocations) == set(second.addresses)


def test_containers_of_several_blocks_reach_each_other_through_ptp(below: Callable[..., Attached]) -> None:
    first, second = below("ptp").add(), below("ptp")
    second.pod.args = "IP=10.65.200.1"
    second.add()
    assert reach(first, second.address)
    assert reach(second, first.address)


def test_containers_on_ptp_and_on_svc_reach_each_other(below: Callable[..., Attached], pods: MakePod) -> None:
    other, pod = below("ptp").add(), pods(name="own")
    pod.add()
    assert reach(other, pod.addresses[0])
    assert pod.netns.run("ping", "-c", "1", "-w", "5", other.address, check=False).returncode == 0


def test_failed_add_of_ptp_releases_the_address(below: Callable[..., Attached], shared_node: Node) -> None:
    first = below("ptp")
    first.pod.netns.run("ip", "link", "add", "eth0", "type", "bridge")
    assert first.call("ADD").status == 1
    assert remains(shared_node) == []


@pytest.mark.parametrize("kind", ["ptp", "bridge"])
def test_gc_releases_addresses_below_another_plugin(below: Callable[..., Attached], shared_node: Node, kind: str) -> None:
    """The reference plugins do not forward GC, so the runtime calls svc-ipam."""
    known, unknown = below(kind, **BRIDGE[kind]).add(), below(kind, **BRIDGE[kind]).add()
    keep: dict[str, Any] = {
        "cniVersion": "1.1.0",
        "cni.dev/valid-attachments": [{"containerID": known.pod.container, "ifname": "eth0"}],
    }
    assert known.pod.call("GC", **keep).status == 0
    assert list(audit(shared_node).allocations) == [known.address]
    for attached in (known, unknown):
        assert attached.call("DEL").status == 0
    if kind == "bridge":
        shared_node.netns.run("ip", "link", "delete", "br0")


BRIDGE: dict[str, dict[str, str]] = {"ptp": {}, "bridge": {"bridge": "br0"}}

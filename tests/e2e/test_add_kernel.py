"""Kernel state after ADD, on both sides of the pair. The expected values are those of plugins that users migrate from."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from harness.netns import Netns
from harness.node import Node
from harness.pod import Pod
from harness.polling import eventually

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

DUAL = {"ipam": {"assign_ipv6": "true"}, "mtu": 1450, "num_queues": 2}
ONLY_IPV6 = {"ipam": {"assign_ipv4": "false", "assign_ipv6": "true"}}

LINK = {
    "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
    "mtu": 1450,
    "qdisc": "noqueue",
    "operstate": "UP",
    "linkmode": "DEFAULT",
    "group": "default",
    "link_type": "ether",
    "broadcast": "ff:ff:ff:ff:ff:ff",
    "promiscuity": 0,
    "allmulti": 0,
    "min_mtu": 68,
    "max_mtu": 65535,
    "linkinfo": {"info_kind": "veth"},
    "num_tx_queues": 2,
    "num_rx_queues": 2,
}
FOREVER = {"valid_life_time": 4294967295, "preferred_life_time": 4294967295}
HOST_SYSCTLS = {
    "ipv4/conf/IF/forwarding": "1",
    "ipv4/conf/IF/proxy_arp": "1",
    "ipv4/conf/IF/route_localnet": "1",
    "ipv4/conf/IF/rp_filter": "0",
    "ipv4/neigh/IF/proxy_delay": "0",
    "ipv6/conf/IF/forwarding": "1",
    "ipv6/conf/IF/proxy_ndp": "1",
    "ipv6/conf/IF/accept_ra": "0",
    "ipv6/conf/IF/accept_dad": "0",
    "ipv6/conf/IF/disable_ipv6": "0",
}
SANDBOX_SYSCTLS = {
    "ipv4/conf/IF/forwarding": "0",
    "ipv4/conf/IF/proxy_arp": "0",
    "ipv4/conf/IF/route_localnet": "0",
    "ipv4/conf/IF/rp_filter": "0",
    "ipv4/neigh/IF/proxy_delay": "80",
    "ipv6/conf/IF/forwarding": "0",
    "ipv6/conf/IF/proxy_ndp": "0",
    "ipv6/conf/IF/accept_ra": "1",
    "ipv6/conf/IF/accept_dad": "0",
    "ipv6/conf/IF/disable_ipv6": "0",
    "ipv4/ip_forward": "0",
    "ipv6/conf/all/forwarding": "0",
    "ipv6/conf/all/disable_ipv6": "0",
    "ipv6/conf/default/disable_ipv6": "0",
    "ipv6/conf/lo/disable_ipv6": "0",
}


@pytest.fixture
def dual(pods: MakePod) -> Pod:
    pod = pods(**DUAL)
    pod.add()
    return pod


def test_host_link_is_as_expected(dual: Pod) -> None:
    link = dual.host_link
    assert {key: link[key] for key in LINK} == LINK
    assert re.fullmatch(r"svc[0-9a-f]{11}", link["ifname"])
    assert link["address"] == "ee:ee:ee:ee:ee:ee"


def test_sandbox_link_is_the_peer_of_the_host_link(dual: Pod) -> None:
    (link,) = dual.netns.ip("-d", "link", "show", "dev", "eth0")
    assert {key: link[key] for key in LINK} == LINK
    assert link["link_index"] == dual.host_link["ifindex"]
    assert dual.host_link["link_index"] == link["ifindex"]


def test_result_has_the_mac_of_the_sandbox_link(dual: Pod) -> None:
    (link,) = dual.netns.ip("link", "show", "dev", "eth0")
    assert link["address"] == dual.result["interfaces"][1]["mac"]
    assert int(link["address"][:2], 16) & 0b11 == 0b10  # unicast, locally administered


def test_host_side_has_only_the_fixed_link_local_address(dual: Pod) -> None:
    (link,) = dual.node.netns.ip("address", "show", "dev", dual.host_name)
    expected = {"family": "inet6", "local": "fe80::ecee:eeff:feee:eeee", "prefixlen": 64, "scope": "link", **FOREVER}
    assert [without(item, "protocol", "nodad") for item in link["addr_info"]] == [expected]


def test_sandbox_has_its_addresses_with_full_prefixes(dual: Pod) -> None:
    v4, v6 = dual.addresses
    (link,) = dual.netns.ip("address", "show", "dev", "eth0")
    inet, inet6, link_local = (without(item, "protocol", "dynamic") for item in link["addr_info"])
    assert inet == {"family": "inet", "local": v4, "prefixlen": 32, "scope": "global", "label": "eth0", **FOREVER}
    assert without(inet6, "nodad") == {"family": "inet6", "local": v6, "prefixlen": 128, "scope": "global", **FOREVER}
    assert (link_local["local"][:6], link_local["prefixlen"], link_local["scope"]) == ("fe80::", 64, "link")


def test_addresses_are_usable_at_once(dual: Pod) -> None:
    """Duplicate address detection would leave them tentative for a second."""
    (link,) = dual.netns.ip("address", "show", "dev", "eth0")
    assert not any(item.get("tentative") for item in link["addr_info"] if item["scope"] == "global")


def test_host_has_a_route_to_each_address(dual: Pod) -> None:
    v4, v6 = dual.addresses
    host = dual.node.netns
    assert host.ip("route", "show", "dev", dual.host_name) == [{"dst": v4, "scope": "link", "flags": []}]
    assert by_destination(host.ip("-6", "route", "show", "dev", dual.host_name)) == {
        v6: {"dst": v6, "metric": 1024, "flags": [], "pref": "medium"},
        "fe80::/64": {"dst": "fe80::/64", "protocol": "kernel", "metric": 256, "flags": [], "pref": "medium"},
    }


def test_sandbox_routes_lead_to_the_link_local_next_hop(dual: Pod) -> None:
    v6 = dual.addresses[1]
    assert by_destination(dual.netns.ip("route", "show")) == {
        "default": {"dst": "default", "gateway": "169.254.1.1", "dev": "eth0", "flags": []},
        "169.254.1.1": {"dst": "169.254.1.1", "dev": "eth0", "scope": "link", "flags": []},
    }
    connected = {"dev": "eth0", "protocol": "kernel", "metric": 256, "flags": [], "pref": "medium"}
    assert by_destination(dual.netns.ip("-6", "route", "show")) == {
        v6: {"dst": v6, **connected},
        "fe80::/64": {"dst": "fe80::/64", **connected},
        "default": {
            "dst": "default",
            "gateway": "fe80::ecee:eeff:feee:eeee",
            "dev": "eth0",
            "metric": 1024,
            "flags": [],
            "pref": "medium",
        },
    }


def test_sandbox_has_no_permanent_neighbours(dual: Pod) -> None:
    assert dual.netns.ip("neighbour", "show", "nud", "permanent") == []


def test_host_sysctls_are_as_expected(dual: Pod) -> None:
    assert sysctls(dual.node.netns, dual.host_name, HOST_SYSCTLS) == HOST_SYSCTLS


def test_sandbox_sysctls_are_as_expected(dual: Pod) -> None:
    assert sysctls(dual.netns, "eth0", SANDBOX_SYSCTLS) == SANDBOX_SYSCTLS


@pytest.mark.parametrize(("allowed", "value"), [(True, "1"), (False, "0")])
def test_container_forwards_only_if_allowed(pods: MakePod, allowed: bool, value: str) -> None:
    """The previous setting of the sandbox does not matter. The kernel may copy the host's setting into a new namespace."""
    pod = pods(container_settings={"allow_ip_forwarding": allowed}, **DUAL)
    for path in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
        pod.netns.run("sh", "-c", f"echo {1 - int(value)} > /proc/sys/{path}")
    pod.add()
    assert pod.netns.sysctl("net/ipv4/ip_forward") == value
    assert pod.netns.sysctl("net/ipv6/conf/all/forwarding") == value


def test_add_enables_ipv6_in_a_sandbox_that_has_it_disabled(pods: MakePod) -> None:
    pod = pods(**DUAL)
    for conf in ("all", "default", "lo"):
        pod.netns.run("sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{conf}/disable_ipv6")
    pod.add()
    assert [pod.netns.sysctl(f"net/ipv6/conf/{conf}/disable_ipv6") for conf in ("all", "default", "lo", "eth0")] == ["0"] * 4
    assert pings(pod.netns, pod.node.netns.addresses("uplink")[1].split("/")[0])


def test_add_enables_forwarding_on_the_host(pods: MakePod, shared_node: Node) -> None:
    paths = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    for path in paths:
        shared_node.netns.run("sh", "-c", f"echo 0 > /proc/sys/{path}")
    pods(**DUAL).add()
    assert [shared_node.netns.sysctl(path) for path in paths] == ["1", "1"]


def test_ipv4_pod_has_no_ipv6_routes_on_the_host(pods: MakePod) -> None:
    pod = pods()
    pod.add()
    host = pod.node.netns
    assert sysctls(host, pod.host_name, HOST_SYSCTLS)["ipv6/conf/IF/accept_ra"] == "0"
    assert [route["dst"] for route in host.ip("-6", "route", "show", "dev", pod.host_name)] in ([], ["fe80::/64"])
    assert pod.netns.addresses("eth0") == [f"{pod.addresses[0]}/32"]


def test_ipv6_pod_has_no_ipv4_addresses_and_routes(pods: MakePod) -> None:
    pod = pods(**ONLY_IPV6)
    pod.add()
    host = pod.node.netns
    assert host.ip("route", "show", "dev", pod.host_name) == []
    assert pod.netns.ip("route", "show") == []
    assert pod.netns.addresses("eth0") == [f"{pod.addresses[0]}/128"]
    ipv6 = {path: value for path, value in HOST_SYSCTLS.items() if path.startswith("ipv6/")}
    assert sysctls(host, pod.host_name, ipv6) == ipv6


def test_mtu_and_queues_have_defaults(pods: MakePod) -> None:
    pod = pods()
    pod.add()
    for link in (pod.host_link, pod.netns.ip("-d", "link", "show", "dev", "eth0")[0]):
        assert (link["mtu"], link["num_tx_queues"], link["num_rx_queues"]) == (1500, 1, 1)


@pytest.mark.parametrize("mtu", [68, 1279, 1280, 65535])
def test_ipv4_pod_may_have_any_mtu(pods: MakePod, mtu: int) -> None:
    """With an MTU below 1280, the kernel disables IPv6 on an interface and rejects IPv6 settings for it."""
    pod = pods(mtu=mtu)
    pod.add()
    assert [link["mtu"] for link in (pod.host_link, *pod.netns.ip("link", "show", "dev", "eth0"))] == [mtu, mtu]
    assert pings(pod.node.netns, pod.addresses[0], size=0)
    assert pod.check().status == 0


def test_pods_reach_each_other_at_once(pods: MakePod) -> None:
    """The first packet after the result must arrive, because a workload may send at once."""
    first, second = pods(**DUAL), pods(**DUAL)
    first.add()
    second.add()
    for address in second.addresses:
        assert pings(first.netns, address), address


def test_pod_and_host_reach_each_other_at_once(pods: MakePod) -> None:
    pod = pods(**DUAL)
    pod.add()
    for address in pod.addresses:
        assert pings(pod.node.netns, address), address
    for address in ("192.0.2.1", "2001:db8::1"):
        assert pings(pod.netns, address), address


def test_ipv6_pods_reach_each_other_without_ipv4(pods: MakePod) -> None:
    first, second = pods(**ONLY_IPV6), pods(**ONLY_IPV6)
    first.add()
    second.add()
    assert pings(first.netns, second.addresses[0])


def routes(netns: Netns) -> list[Any]:
    return [netns.ip(family, "route", "show", "table", "all") for family in ("-4", "-6")]


def has_link_local_address(found: list[Any]) -> bool:
    """Return whether the kernel has ended the duplicate address detection of the uplink, which adds two routes."""
    return any(route.get("type") == "local" and route["dst"].startswith("fe80::") for route in found[1])


def test_del_leaves_no_link_and_no_route(pods: MakePod) -> None:
    pod = pods(**DUAL)
    before = eventually(lambda: routes(pod.node.netns), has_link_local_address)
    pod.add()
    pod.delete()
    assert pod.netns.links() == []
    assert routes(pod.node.netns) == before


def sysctls(netns: Netns, ifname: str, paths: dict[str, str]) -> dict[str, str]:
    files = [f"/proc/sys/net/{path.replace('IF', ifname)}" for path in paths]
    return dict(zip(paths, netns.run("cat", *files).stdout.split(), strict=True))


def by_destination(routes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {route["dst"]: route for route in routes}
    assert len(found) == len(routes)
    return found


def without(item: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Remove keys that older versions of `ip` do not print."""
    return {key: value for key, value in item.items() if key not in keys}


def pings(source: Netns, address: str, size: int = 56) -> bool:
    """Send one packet with `size` bytes of data, and return whether the reply arrives within a second."""
    return source.run("ping", "-c", "1", "-W", "1", "-s", str(size), address, check=False).returncode == 0

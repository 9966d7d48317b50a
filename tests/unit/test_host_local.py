"""The `ipam` section for host-local: the fields that svc reads, refuses and replaces."""

import copy
from typing import Any

import orjson
import pytest

from svc._core.cidr import Cidr
from svc.model.errors import CallerError, Code
from svc.names import DEFAULT
from svc.netconf import host_local
from svc.netconf.netconf import NetConf, parse

V4, V6 = "10.1.0.0/24", "fd01::/64"
KUBECONFIG: dict[str, Any] = {"orch": {"kubeconfig": "/k"}}


def network(ipam: Any, **changes: Any) -> dict[str, Any]:
    return {"name": "net", "type": "svc", "datastore_type": "embedded", "ipam": {"type": "host-local", **ipam}, **changes}


def parsed(ipam: Any, *, lenient: bool = False, **changes: Any) -> NetConf:
    return parse(orjson.dumps(network(ipam, **changes)), DEFAULT, lenient=lenient)


def refused(ipam: Any, **changes: Any) -> str:
    """Return the text of the error."""
    with pytest.raises(CallerError) as caught:
        parsed(ipam, **changes)
    assert caught.value.code == Code.INVALID_NETCONF
    assert parsed(ipam, lenient=True, **changes).ipam.is_delegated, "a DEL accepts the section"
    return str(caught.value)


# errors


@pytest.mark.parametrize(
    ("key", "value"),
    [("assign_ipv4", "true"), ("assign_ipv4", "false"), ("assign_ipv6", "true"), ("ipv4_pools", ["a"]), ("ipv6_pools", [])],
)
def test_settings_of_the_ipam_of_svc_are_refused(key: str, value: Any) -> None:
    assert f"ipam.{key} = " in refused({"subnet": V4, key: value})
    assert "needs the IPAM of svc, which host-local replaces" in refused({"subnet": V4, key: value})


@pytest.mark.parametrize(
    ("ipam", "error"),
    [
        ({}, "ipam.ranges is missing"),
        ({"ranges": []}, "ipam.ranges is missing"),
        ({"ranges": "10.0.0.0/8"}, "ipam.ranges = '10.0.0.0/8' is a string"),
        ({"ranges": [[]]}, "ipam.ranges[0] = [] is empty"),
        ({"ranges": [{"subnet": V4}]}, "ipam.ranges[0] = {'subnet': '10.1.0.0/24'} is an object"),
        ({"ranges": [[{"subnet": V4}, V6]]}, "ipam.ranges[0][1] = 'fd01::/64' is a string"),
        ({"ranges": [[{"subnet": V4}], [{}]]}, "ipam.ranges[1][0].subnet is missing"),
        ({"ranges": [[{"subnet": 4}]]}, "ipam.ranges[0][0].subnet = 4 is a number"),
        ({"ranges": [[{"subnet": "usePodCIDRv6"}]]}, "ipam.ranges[0][0].subnet = 'usePodCIDRv6' is not a CIDR"),
        ({"subnet": "10.1.0.0/33"}, "ipam.subnet = '10.1.0.0/33' is not a CIDR"),
        ({"subnet": V4, "rangeStart": "usePodCidr"}, "ipam.rangeStart = 'usePodCidr' is not an address"),
        ({"ranges": [[{"subnet": V6, "rangeEnd": "USEPODCIDRIPV6"}]]}, "ipam.ranges[0][0].rangeEnd = 'USEPODCIDRIPV6' is not"),
        ({"subnet": V4, "routes": {}}, "ipam.routes = {} is an object"),
        ({"subnet": V4, "routes": ["0.0.0.0/0"]}, "ipam.routes[0] = '0.0.0.0/0' is a string"),
        ({"subnet": V4, "routes": [{"dst": "::/0"}, {"dst": "10.0.0.0"}]}, "ipam.routes[1].dst = '10.0.0.0' is not a CIDR"),
        ({"subnet": V4, "routes": [{"dst": 5}]}, "ipam.routes[0].dst = 5 is not a CIDR"),
        ({"subnet": V4, "dataDir": 1}, "ipam.dataDir = 1 is a number"),
    ],
)
def test_error_names_the_field_of_the_section(ipam: Any, error: str) -> None:
    assert error in refused(ipam)


@pytest.mark.parametrize("word", ["usePodCidr", "usepodcidripv6"])
def test_pod_cidrs_need_access_to_the_kubernetes_api(word: str) -> None:
    error = refused({"subnet": word})
    assert "orch.kubeconfig is missing" in error
    assert f'"{word}" needs it' in error
    assert parsed({"subnet": word}, orch={"orch_api_root": "http://a"}).ipam.is_delegated
    assert parsed({"subnet": word}, **KUBECONFIG).ipam.is_delegated


@pytest.mark.parametrize("subnet", [V6, "usePodCidrIPv6"])
def test_small_mtu_is_refused_if_addresses_may_be_ipv6(subnet: str) -> None:
    assert "mtu = 1000 is too small for IPv6" in refused({"ranges": [[{"subnet": subnet}]]}, mtu=1000, **KUBECONFIG)
    assert parsed({"subnet": V4}, mtu=1000).mtu == 1000


def test_all_errors_are_reported_in_one() -> None:
    error = refused({"ranges": [[{"subnet": 1}], 2], "assign_ipv6": "true", "routes": [3]}, mtu=1)
    assert "5 errors" in error


# fields that svc reads


def test_ranges_can_come_from_the_runtime() -> None:
    """The runtime passes them with the capability ipRanges."""
    assert parsed({}, runtimeConfig={"ipRanges": [[{"subnet": V4}]]}).ipam.is_delegated


def test_unknown_fields_are_passed_on() -> None:
    ipam = {"ranges": [[{"subnet": V4, "x": 1}]], "resolvConf": "/etc/resolv.conf", "y": [2]}
    raw = parsed(ipam).raw
    assert raw == network(ipam)
    assert host_local.resolved(raw, {}) == raw


def test_node_of_the_pod_cidrs_can_be_set() -> None:
    assert parsed({"subnet": V4}).pod_cidr_node is None
    assert parsed({"subnet": V4}, orch={"node_name": " other "}).pod_cidr_node == "other"
    assert parsed({"subnet": V4}, kubernetes={"node_name": "other"}).pod_cidr_node == "other"


@pytest.mark.parametrize(
    ("routes", "with_defaults", "expected"),
    [
        (None, False, None),
        (None, True, None),
        ([], True, None),
        ([{"gw": "10.0.0.1"}], True, None),
        ([{"dst": "10.9.8.7/16", "gw": "10.0.0.1"}, {"dst": ""}], False, ["10.9.0.0/16"]),
        ([{"dst": "10.9.0.0/16"}, {"dst": "fd09::/64"}], True, ["0.0.0.0/0", "::/0", "10.9.0.0/16", "fd09::/64"]),
        ([{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16"}], True, ["0.0.0.0/0", "::/0", "10.9.0.0/16"]),
    ],
)
def test_routes_are_read_without_gateways(routes: Any, with_defaults: bool, expected: list[str] | None) -> None:
    netconf = parsed({"subnet": V4, "routes": routes}, include_default_routes=with_defaults)
    assert netconf.routes == (None if expected is None else tuple(map(Cidr, expected)))


def test_routes_are_read_only_for_host_local() -> None:
    data = network({"type": "svc-ipam", "routes": [{"dst": "10.9.0.0/16"}]}, include_default_routes=True)
    assert parse(orjson.dumps(data), DEFAULT).routes is None


# fields that svc replaces


def test_keywords_become_the_ranges_of_the_node() -> None:
    ipam = {
        "subnet": "USEPODCIDR",
        "ranges": [[{"subnet": "usePodCidr", "rangeStart": "10.1.0.9"}, {"subnet": V4}], [{"subnet": "usePodCidrIPv6"}]],
        "routes": [{"gw": "10.0.0.1"}, {"dst": "10.9.0.0/16", "gw": "10.0.0.1"}],
    }
    raw = parsed(ipam, **KUBECONFIG).raw
    before = copy.deepcopy(raw)
    assert host_local.families(raw) == {4, 6}
    assert host_local.resolved(raw, {4: "10.2.0.0/24", 6: "fd02::/64"})["ipam"] == {
        "type": "host-local",
        "subnet": "10.2.0.0/24",
        "ranges": [[{"subnet": "10.2.0.0/24", "rangeStart": "10.1.0.9"}, {"subnet": V4}], [{"subnet": "fd02::/64"}]],
        "routes": [{"dst": "10.9.0.0/16"}],
    }
    assert raw == before, "all calls of the network share the configuration"


def test_ranges_without_keywords_need_no_pod_cidr() -> None:
    assert host_local.families(parsed({"ranges": [[{"subnet": V4}], [{"subnet": V6}]]}).raw) == frozenset()


def test_release_does_not_need_the_ranges() -> None:
    """It needs neither the Kubernetes API nor the current network configuration."""
    assert host_local.for_release("net", "/data") == {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": "/data", "ranges": [[{"subnet": "0.0.0.0/0"}], [{"subnet": "::/0"}]]},
    }
    assert "dataDir" not in host_local.for_release("net", "")["ipam"]

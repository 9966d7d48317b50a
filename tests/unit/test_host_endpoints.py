"""The host endpoints that follow from a node, compared with obvious twins."""

import base64
import hashlib
import ipaddress
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.controllers.configuration import Configuration, HostEndpointTemplate
from svc.controllers.node.host_endpoint_names import HostEndpointNames
from svc.controllers.node.host_endpoints import Translation, Wanted, differs, expected_addresses
from svc.model.host_endpoint import endpoint_name
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

CREATED_BY = {"svc.internal/created-by": "svc-controllers"}
FULL = {
    "bgp": {"ipv4Address": "10.0.0.1/24", "ipv6Address": "fd00::1/64", "ipv4IPIPTunnelAddr": "10.1.0.1"},
    "ipv4VXLANTunnelAddr": "10.1.0.2",
    "ipv6VXLANTunnelAddr": "fd01::2",
    "wireguard": {"interfaceIPv4Address": "10.1.0.3", "interfaceIPv6Address": "fd01::3"},
    "addresses": [
        {"address": "10.0.0.1/24", "type": "SvcNodeIP"},
        {"address": "192.168.0.9", "type": "ExternalIP"},
        {"address": "172.16.0.1", "type": "InternalIP"},
        {"address": "10.0.0.1", "type": "InternalIP"},
    ],
    "interfaces": [
        {"name": "eth0", "addresses": ["10.0.0.1", "10.0.0.7"]},
        {"name": "eth1", "addresses": ["10.9.0.1/16", "no address"]},
    ],
}
ALL = ["10.0.0.1", "fd00::1", "10.1.0.1", "10.1.0.2", "fd01::2", "10.1.0.3", "fd01::3", "172.16.0.1", "10.0.0.7", "10.9.0.1"]


def node(name: str = "n1", spec: Any = None, **labels: str) -> Resource:
    return Resource("Node", {"name": name, "labels": labels}, FULL if spec is None else spec)


def translated(*templates: HostEndpointTemplate, **changes: Any) -> Translation:
    settings: Any = {"creates_host_endpoints": True, "host_endpoint_templates": templates} | changes
    return Translation(DEFAULT, Configuration(**settings))


def test_default_endpoint_is_for_all_interfaces() -> None:
    made = translated().endpoints_of(node(rack="a"))
    spec = {"node": "n1", "interfaceName": "*", "expectedIPs": ALL, "profiles": ["svc-default-allow"]}
    assert made == {"n1-auto-hep": Wanted("n1-auto-hep", {"rack": "a", **CREATED_BY}, {}, spec)}


def test_words_are_those_of_the_names_profile() -> None:
    made = Translation(load_profile("calico"), Configuration(creates_host_endpoints=True)).endpoints_of(node())["n1-auto-hep"]
    assert made.labels == {"projectcalico.org/created-by": "calico-kube-controllers"}
    assert made.spec["profiles"] == ["projectcalico-default-allow"]


def test_nothing_is_wanted_unless_enabled() -> None:
    template = HostEndpointTemplate("t", ("0.0.0.0/0",))
    assert translated(template, creates_host_endpoints=False).endpoints_of(node()) == {}
    assert list(translated(template, creates_default_host_endpoint=False).endpoints_of(node())) == ["n1-t-auto-hep"]


def test_template_without_pattern_has_addresses_and_no_interface() -> None:
    template = HostEndpointTemplate(
        "t", ("10.1.0.0/16", "172.16.0.0/12"), labels={"rack": "b", "x": "y"}, annotations={"a": "b"}
    )
    made = translated(template).endpoints_of(node(rack="a"))["n1-t-auto-hep"]
    assert "interfaceName" not in made.spec
    assert made.spec["expectedIPs"] == ["10.1.0.1", "10.1.0.2", "10.1.0.3", "172.16.0.1"]
    assert (made.labels, made.annotations) == ({"rack": "b", "x": "y", **CREATED_BY}, {"a": "b"})


def test_label_of_the_owner_cannot_be_replaced() -> None:
    template = HostEndpointTemplate("t", ("0.0.0.0/0",), labels={"svc.internal/created-by": "me"})
    translation = translated(template)
    for made in translation.endpoints_of(node(**{"svc.internal/created-by": "me"})).values():
        assert translation.owns(Resource("HostEndpoint", {"labels": made.labels}))
    assert not translation.owns(Resource("HostEndpoint", {"labels": {"svc.internal/created-by": "me"}}))


@pytest.mark.parametrize("cidrs", [(), ("1.0.0.0/8",)])
def test_template_without_addresses_makes_nothing(cidrs: tuple[str, ...]) -> None:
    assert list(translated(HostEndpointTemplate("t", cidrs)).endpoints_of(node())) == ["n1-auto-hep"]


def test_template_with_pattern_makes_one_for_each_interface() -> None:
    template = HostEndpointTemplate("t", ("172.16.0.0/12",), "^eth")
    made = translated(template, creates_default_host_endpoint=False).endpoints_of(node())
    found = {name: (each.spec["interfaceName"], each.spec["expectedIPs"]) for name, each in made.items()}
    assert found == {
        "n1-t-eth0-auto-hep": ("eth0", ["172.16.0.1", "10.0.0.1", "10.0.0.7"]),
        "n1-t-eth1-auto-hep": ("eth1", ["172.16.0.1", "10.9.0.1"]),
    }


@pytest.mark.parametrize(("pattern", "names"), [("1$", ["eth1"]), ("th", ["eth0", "eth1"]), ("^th", [])])
def test_pattern_may_match_anywhere_in_the_name(pattern: str, names: list[str]) -> None:
    made = translated(HostEndpointTemplate("t", (), pattern), creates_default_host_endpoint=False).endpoints_of(node())
    assert [each.spec["interfaceName"] for each in made.values()] == names


def test_template_applies_to_selected_nodes() -> None:
    translation = translated(HostEndpointTemplate("t", ("0.0.0.0/0",), node_selector="rack == 'a'"))
    assert "n1-t-auto-hep" in translation.endpoints_of(node(rack="a"))
    assert "n1-t-auto-hep" not in translation.endpoints_of(node(rack="b"))


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (HostEndpointTemplate("t", node_selector="rack =="), "nodeSelector: selector 'rack ==' is wrong"),
        (HostEndpointTemplate("t", interface_pattern="("), "interfacePattern = '(' is not a regular expression"),
        (HostEndpointTemplate("t", ("10.0.0.1/8",)), "interfaceCIDRs: '10.0.0.1/8' has bits right of its length"),
        (HostEndpointTemplate(""), "generateName is missing"),
        (HostEndpointTemplate("t", labels={"-": "x"}), "metadata.labels key = '-' is not a label key"),
    ],
)
def test_invalid_template_is_left_out(template: HostEndpointTemplate, problem: str) -> None:
    translation = translated(template, HostEndpointTemplate("u", ("0.0.0.0/0",)))
    assert list(translation.endpoints_of(node())) == ["n1-auto-hep", "n1-u-auto-hep"]
    assert [problem in error for error in translation.errors] == [True], translation.errors


def test_invalid_template_does_not_matter_while_disabled() -> None:
    assert translated(HostEndpointTemplate(""), creates_host_endpoints=False).errors == []


# names


@pytest.mark.parametrize("length", [244, 245, 400])
def test_long_names_are_hashed(length: int) -> None:
    """253 characters are the longest name of an object."""
    whole = "n" * length + "-auto-hep"
    digest = base64.b64encode(hashlib.sha256(whole.encode()).digest(), altchars=b"-_").decode()
    hashed = "".join(each for each in digest if each.isalnum()).lower() + "-auto-hep"
    assert endpoint_name(["n" * length]) == (whole if length <= 244 else hashed)


@pytest.mark.parametrize("interface", ["eth_0", "Eth0", "eth0."])
def test_name_that_no_object_can_have_is_hashed(interface: str) -> None:
    name = endpoint_name(["n1", "t", interface])
    assert re.fullmatch("[a-z0-9]+-auto-hep", name)
    assert name != endpoint_name(["n1", "t", "eth-0"])


# addresses


@pytest.mark.parametrize(
    "wrong", [None, 1, "x", ["x"], [None], {"x": 1}, [{"name": 1, "address": 2, "addresses": 3, "type": 4}]]
)
@pytest.mark.parametrize("field", ["bgp", "wireguard", "addresses", "interfaces", "ipv4VXLANTunnelAddr"])
def test_malformed_fields_count_as_missing(field: str, wrong: Any) -> None:
    assert expected_addresses({field: wrong}) == []
    assert translated(HostEndpointTemplate("t", (), ".")).endpoints_of(node(spec={field: wrong})).keys() == {"n1-auto-hep"}


_ADDRESS = st.one_of(
    st.ip_addresses().map(str),
    st.sampled_from(["10.0.0.1", "10.0.0.1/24", "fd00::1", "FD00::0001", "", "10.0.0.256", "x"]),
)


@st.composite
def _specs(draw: Any) -> dict[str, Any]:
    def some(*names: str) -> dict[str, Any]:
        return {name: draw(_ADDRESS) for name in names if draw(st.booleans())}

    kinds = st.sampled_from(["InternalIP", "ExternalIP"])
    addresses = st.lists(st.fixed_dictionaries({"address": _ADDRESS, "type": kinds}), max_size=4)
    interfaces = st.lists(
        st.fixed_dictionaries({"name": st.just("eth0"), "addresses": st.lists(_ADDRESS, max_size=3)}), max_size=3
    )
    return {
        "bgp": some("ipv4Address", "ipv6Address", "ipv4IPIPTunnelAddr"),
        **some("ipv4VXLANTunnelAddr", "ipv6VXLANTunnelAddr"),
        "wireguard": some("interfaceIPv4Address", "interfaceIPv6Address"),
        "addresses": draw(addresses),
        "interfaces": draw(interfaces),
    }


def _twin(spec: dict[str, Any]) -> list[str]:
    """Return the expected addresses, by the words of the specification."""
    bgp, wireguard = spec["bgp"], spec["wireguard"]
    given = [bgp.get("ipv4Address"), bgp.get("ipv6Address"), bgp.get("ipv4IPIPTunnelAddr")]
    given += [spec.get("ipv4VXLANTunnelAddr"), spec.get("ipv6VXLANTunnelAddr")]
    given += [wireguard.get("interfaceIPv4Address"), wireguard.get("interfaceIPv6Address")]
    given += [each["address"] for each in spec["addresses"] if each["type"] == "InternalIP"]
    given += [address for each in spec["interfaces"] for address in each["addresses"]]
    found: list[str] = []
    for text in filter(None, given):
        try:
            address = str(ipaddress.ip_interface(text).ip)
        except ValueError:
            continue
        if address not in found:
            found.append(address)
    return found


@given(_specs())
def test_addresses_are_in_order_without_duplicates(spec: dict[str, Any]) -> None:
    assert [ipaddress.ip_address(each) for each in expected_addresses(spec)] == [
        ipaddress.ip_address(each) for each in _twin(spec)
    ]


# differences


def stored(wanted: Wanted, **changes: Any) -> Resource:
    metadata = {"name": wanted.name, "uid": "u", "labels": dict(wanted.labels), "annotations": dict(wanted.annotations)}
    return Resource("HostEndpoint", metadata, {**wanted.spec, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "n2"},
        {"interfaceName": "eth0"},
        {"expectedIPs": []},
        {"expectedIPs": ALL[::-1]},
        {"profiles": []},
        {"ports": [1]},
    ],
)
def test_each_edit_of_the_spec_is_a_difference(changes: dict[str, Any]) -> None:
    wanted = translated().endpoints_of(node())["n1-auto-hep"]
    assert not differs(stored(wanted), wanted)
    assert not differs(stored(wanted, ports=[], others=None), wanted)
    assert differs(stored(wanted, **changes), wanted)


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_each_edit_of_labels_and_annotations_is_a_difference(field: str) -> None:
    wanted = translated().endpoints_of(node())["n1-auto-hep"]
    found = stored(wanted)
    found.metadata[field]["x"] = "y"
    assert differs(found, wanted)


# names by node


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.frozensets(st.sampled_from("xyz")))), st.frozensets(st.sampled_from("abc"))
)
def test_one_node_has_a_name_that_several_make(steps: list[tuple[str, frozenset[str]]], kept: frozenset[str]) -> None:
    """It is the one that makes the name without templates, or else the first one in the alphabet."""
    defaults = {"a": "w", "b": "x", "c": "y"}
    names, twin = HostEndpointNames(defaults.__getitem__), dict[str, frozenset[str]]()
    for node_name, wanted in steps:
        assert names.note(node_name, wanted) == twin.get(node_name, frozenset()) | wanted
        twin[node_name] = wanted
    names.keep(kept)
    twin = {each: wanted for each, wanted in twin.items() if each in kept}
    makers = {
        name: sorted((each for each, wanted in twin.items() if name in wanted), key=lambda each: (defaults[each] != name, each))
        for name in "xyz"
    }
    assert {name: names.node(name) for name in "xyz"} == {name: (each or [""])[0] for name, each in makers.items()}
    assert names.shared() == {name: each for name, each in makers.items() if len(each) > 1}
    assert names.all() == {name for name, each in makers.items() if each}

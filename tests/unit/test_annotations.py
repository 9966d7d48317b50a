"""Parsing of annotations: which ones apply, which are refused, and what the error says."""

import itertools
import random
import string
from typing import Any

import orjson
import pytest

from svc._core.cidr import Address, Cidr
from svc.model.annotations import NO_SETTINGS, AnnotationSettings, Features
from svc.model.errors import CallerError, Code
from svc.model.field_errors import display
from svc.names import DEFAULT
from svc.netconf.annotations import ObjectAnnotations, parse_annotations, require_svc_ipam

PREFIX = DEFAULT.annotation_prefix
ALL = Features(ip_addrs_no_ipam=True, floating_ips=True)
LISTS = ("ipv4pools", "ipv6pools", "ipFamilies", "ipAddrs", "ipAddrsNoIpam", "floatingIPs", "allowedSourcePrefixes")
CAN_BE_EMPTY = ("floatingIPs", "allowedSourcePrefixes")


def encode(values: dict[str, Any]) -> dict[str, str]:
    """Return annotations with the prefix. Values that are not strings become JSON."""
    return {f"{PREFIX}/{name}": text if isinstance(text, str) else orjson.dumps(text).decode() for name, text in values.items()}


def parse(pod: dict[str, Any], namespace: dict[str, Any] | None = None, features: Features = ALL) -> AnnotationSettings:
    return parse_annotations(
        DEFAULT,
        ObjectAnnotations("pod ns/p", encode(pod)),
        ObjectAnnotations("namespace ns", encode(namespace or {})),
        features,
    )


def refused(pod: dict[str, Any], namespace: dict[str, Any] | None = None, features: Features = ALL) -> CallerError:
    with pytest.raises(CallerError) as caught:
        parse(pod, namespace, features)
    assert caught.value.code is Code.ANNOTATION
    assert len(str(caught.value)) < 8000, "errors are copied into events, whose size is limited"
    return caught.value


def addresses(*texts: str) -> tuple[Address, ...]:
    return tuple(map(Address, texts))


def test_pod_without_annotations_has_no_settings() -> None:
    assert parse({}) is NO_SETTINGS
    assert (
        parse_annotations(DEFAULT, ObjectAnnotations("pod", {"other/ipAddrs": "x"}), ObjectAnnotations("ns", {"a": "b"}), ALL)
        is NO_SETTINGS
    )


def test_every_annotation_is_parsed() -> None:
    found = parse({
        "ipv4pools": ["blue", "10.0.0.0/16"], "ipv6pools": ["fd00::/64"], "ipFamilies": ["IPv6", "IPv4"],
        "ipAddrs": ["fd00::7", "10.0.0.7"], "floatingIPs": ["192.0.2.1"], "hwAddr": "0A-00-5E-00-53-01",
        "allowedSourcePrefixes": ["192.0.2.0/24"],
    })  # fmt: skip
    assert found.pools == {4: ("blue", "10.0.0.0/16"), 6: ("fd00::/64",)}
    assert found.versions == (4, 6)
    assert found.addresses == addresses("fd00::7", "10.0.0.7"), "in the order of the annotation"
    assert not found.unmanaged
    assert found.floating == addresses("192.0.2.1")
    assert found.mac == "0a:00:5e:00:53:01"
    assert found.warnings == ()
    assert found.sources["ipAddrs"] == f'{PREFIX}/ipAddrs of pod ns/p = \'["fd00::7","10.0.0.7"]\''


@pytest.mark.parametrize("name", ["ipv4pools", "ipv6pools", "ipFamilies"])
def test_annotation_of_the_pod_overrides_that_of_the_namespace(name: str) -> None:
    """R3: the namespace supplies the other annotations. Overridden annotations of the namespace are not checked."""
    text = {"ipv4pools": ["a"], "ipv6pools": ["a"], "ipFamilies": ["IPv4"]}
    both = parse({name: text[name]}, dict.fromkeys(text, "[") | {other: text[other] for other in text if other != name})
    assert both.sources[name].startswith(f"{PREFIX}/{name} of pod ns/p = ")
    assert all("namespace ns" in both.sources[other] for other in text if other != name)


def test_address_annotation_of_the_pod_overrides_both_of_the_namespace() -> None:
    namespace = {"ipAddrs": ["10.0.0.1"]}
    assert parse({}, namespace).addresses == addresses("10.0.0.1")
    own = parse({"ipAddrsNoIpam": ["10.0.0.2"]}, namespace)
    assert (own.addresses, own.unmanaged) == (addresses("10.0.0.2"), True)
    assert parse({"ipAddrs": ["10.0.0.3"]}, {"ipAddrs": "[", "ipAddrsNoIpam": "["}).addresses == addresses("10.0.0.3")


@pytest.mark.parametrize("name", ["hwAddr", "allowedSourcePrefixes"])
def test_annotation_for_a_single_pod_is_ignored_on_namespaces(name: str) -> None:
    assert parse({}, {name: "["}) == NO_SETTINGS


def test_floating_addresses_of_the_pod_override_those_of_the_namespace() -> None:
    assert parse({}, {"floatingIPs": ["192.0.2.1"]}).floating == addresses("192.0.2.1")
    assert parse({"floatingIPs": ["192.0.2.2"]}, {"floatingIPs": "["}).floating == addresses("192.0.2.2")


def test_both_address_annotations_are_refused() -> None:
    """R4 applies to pods and to namespaces."""
    both = {"ipAddrs": ["10.0.0.1"], "ipAddrsNoIpam": ["10.0.0.1"]}
    for error in (refused(both), refused({}, both)):
        assert f"{PREFIX}/ipAddrs of " in error.msg
        assert "cannot be used together with ipAddrsNoIpam" in error.msg
        assert "remove one of the two" in error.details


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON"), ("[", "is not JSON"), ("10.0.0.1", "is not JSON"), ("['x']", "is not JSON"),
        ("[" * 5000, "is not JSON"), ("x" * 262144, "is not JSON"),
        ('"x"', "is a string, not a list"), ("{}", "is an object, not a list"), ("7", "is a number, not a list"),
        ("null", "is null, not a list"), ("true", "is a boolean, not a list"),
        ("[1]", "entry 1 = 1 is a number"), ("[null]", "entry 1 = null is null"), ("[[]]", "entry 1 = [] is an array"),
    ],
)  # fmt: skip
def test_value_that_is_not_a_list_of_strings_is_refused(name: str, text: str, problem: str) -> None:
    error = refused({name: text})
    assert f"invalid annotations: {PREFIX}/{name} of pod ns/p" in error.msg
    assert problem in error.msg
    assert "write a" in error.details


@pytest.mark.parametrize("name", LISTS)
def test_only_some_lists_can_be_empty(name: str) -> None:
    if name in CAN_BE_EMPTY:
        assert parse({name: []}, features=Features()).floating == ()
    else:
        assert "is an empty list" in refused({name: []}).msg


MALFORMED = [
    "10.0.0.1/32", "fd00::1/128", "10.0.0.01", "10.0.0", "10.0.0.256", "", " 10.0.0.1", "10.0.0.1 ", "fd00::1%eth0", "x",
    "10.0.0.1\0",
]  # fmt: skip
UNUSABLE = [
    "0.0.0.0", "0.1.2.3", "127.0.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "ff02::1",
    "::ffff:10.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [
    *itertools.product(("ipAddrs", "ipAddrsNoIpam", "floatingIPs"), MALFORMED),
    *itertools.product(("ipAddrs", "ipAddrsNoIpam"), UNUSABLE),
])  # fmt: skip
def test_address_that_a_pod_cannot_have_is_refused(name: str, text: str) -> None:
    error = refused({name: [text]})
    assert f"{PREFIX}/{name} of pod ns/p, entry 1 = {text!r} " in error.msg
    assert "give an IPv4 or IPv6 address without a prefix length" in error.details


@pytest.mark.parametrize("name", ["ipAddrs", "ipAddrsNoIpam"])
def test_at_most_one_address_of_a_family(name: str) -> None:
    assert "has two IPv4 addresses" in refused({name: ["10.0.0.1", "10.0.0.2"]}).msg
    assert "has two IPv6 addresses" in refused({name: ["fd00::1", "fd00::1"]}).msg
    error = refused({name: ["10.0.0.1", "fd00::1", "10.0.0.2"]})
    assert "has 3 addresses" in error.msg
    assert "give at most one IPv4 and one IPv6 address" in error.details
    assert "has 20000 addresses" in refused({name: ["10.0.0.1"] * 20000}).msg


@pytest.mark.parametrize(("name", "feature"), [("ipAddrsNoIpam", "ip_addrs_no_ipam"), ("floatingIPs", "floating_ips")])
def test_annotation_needs_its_feature(name: str, feature: str) -> None:
    for features in (Features(), Features(**{other: other != feature for other in ("ip_addrs_no_ipam", "floating_ips")})):
        error = refused({name: ["10.0.0.1"]}, features=features)
        assert f"needs feature_control.{feature}" in error.msg
        assert "set that to true in the network configuration, or remove the annotation" in error.details
    assert parse({name: ["10.0.0.1"]}, features=Features(**{feature: True})).sources


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("ipv4pools", "fd00::/64", "is not IPv4"), ("ipv6pools", "10.0.0.0/8", "is not IPv6"),
        ("ipv4pools", "", "is not a pool"), ("ipv4pools", "a b", "is not a pool"),
        ("ipv4pools", "a" * 254, "has 254 characters"), ("ipv6pools", "1" * 200_000 + "/64", "has 200003 characters"),
        ("ipv4pools", "10.0.0.1/33", "is not a CIDR"), ("ipv6pools", "fd00::/129", "is not a CIDR"),
        ("ipFamilies", "ipv4", "is not an address family"), ("ipFamilies", "", "is not an address family"),
        ("allowedSourcePrefixes", "x", "is not a CIDR"), ("allowedSourcePrefixes", "10.0.0.0/33", "is not a CIDR"),
    ],
)  # fmt: skip
def test_error_names_the_invalid_entry(name: str, text: str, problem: str) -> None:
    error = refused({name: ["blue" if name.endswith("pools") else {"ipFamilies": "IPv4"}.get(name, "10.0.0.0/8"), text]})
    assert f"{PREFIX}/{name} of pod ns/p, entry 2 = {display(text)} {problem}" in error.msg


@pytest.mark.parametrize("text", ["0a:00:5e:00:53:01", "0a-00-5e-00-53-01", "0a00.5e00.5301", "0A:00:5E:00:53:01"])
def test_hardware_address_has_three_notations(text: str) -> None:
    assert parse({"hwAddr": text}).mac == "0a:00:5e:00:53:01"


@pytest.mark.parametrize(
    "text",
    ["", "x", "0a:00:5e:00:53", "0a:00:5e:00:53:01:02:03", "0a-00:5e-00:53-01", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff",
     "00:00:00:00:00:00", "ee:ee:ee:ee:ee:ee", "0g:00:5e:00:53:01", "0a005e005301", "\u0660a:00:5e:00:53:01"],
)  # fmt: skip
def test_invalid_hardware_address_is_refused(text: str) -> None:
    error = refused({"hwAddr": text})
    assert f"{PREFIX}/hwAddr of pod ns/p = {text!r} is " in error.msg
    assert "give a unicast address of 6 octets" in error.details


def test_several_errors_are_reported_in_one() -> None:
    error = refused({"ipv4pools": "[", "ipAddrs": ["x", "10.0.0.1/32"], "hwAddr": "x"}, {"ipFamilies": ["IPv5"]})
    assert error.msg == "invalid annotations: 5 errors"
    for text in (
        "ipv4pools of pod",
        "ipAddrs of pod ns/p, entry 1",
        "entry 2",
        "hwAddr of pod",
        "ipFamilies of namespace ns, entry 1",
    ):
        assert text in error.details


def test_invalid_bandwidth_annotations_are_only_warnings() -> None:
    own = ObjectAnnotations(
        "pod ns/p", {f"{DEFAULT.qos_prefix}/ingressBandwidth": "x", f"{DEFAULT.orch_domain}/egress-bandwidth": "1"}
    )
    (first, second) = parse_annotations(DEFAULT, own, ObjectAnnotations("namespace ns", {}), ALL).warnings
    assert "ingressBandwidth = 'x' is not a quantity: it is left out" in first
    assert "egress-bandwidth = '1' is out of range" in second


def test_random_values_are_accepted_or_refused() -> None:
    """Parsing raises no other exception. Accepted addresses are addresses that a pod can have."""
    generator = random.Random(5)
    pieces = ["[", "]", '"', ",", "10.0.0.1", "fd00::1", "/24", "blue", "null", "1", " ", "{", "}", ":", "IPv4", "\\u0000"]
    for _ in range(3000):
        text = "".join(generator.choice([*pieces, generator.choice(string.printable)]) for _ in range(generator.randrange(8)))
        if generator.random() < 0.7:
            text = f'["{text}"]'
        for name in (*LISTS, "hwAddr"):
            try:
                found = parse({name: text})
            except CallerError:
                continue
            assert all(address not in Cidr("127.0.0.0/8") for address in found.addresses)
            assert len(found.addresses) <= 2


def test_address_annotations_need_the_ipam_of_svc() -> None:
    require_svc_ipam("host-local", DEFAULT, [])
    require_svc_ipam(DEFAULT.ipam_plugin, DEFAULT, ["x"])
    with pytest.raises(CallerError, match=r"ipam\.type 'host-local' gives no pod an address or pool of its own") as caught:
        require_svc_ipam("host-local", DEFAULT, ["cni.x/ipAddrs of pod a/b = '[]'"])
    assert "cni.x/ipAddrs of pod a/b" in caught.value.details

"""Results in the format of each version, parsed results, and errors in the format of the runtime."""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.cni.results import render, render_error, render_version
from svc.model import cni_versions
from svc.model.errors import CallerError, Code, InternalError, PeerError
from svc.model.prev_result import parse_prev_result
from svc.model.result import Dns, Interface, IpConfig, Result, Route

FULL = Result(
    (
        Interface("svc0a", "ee:ee:ee:ee:ee:ee", 1500),
        Interface("eth0", "0a:00:00:00:00:01", 1450, "/var/run/netns/a", "/run/s.sock", "0000:00:1f.6"),
    ),
    (IpConfig("10.0.0.1/32", 1, "169.254.1.1"), IpConfig("fd00::1/128", 1), IpConfig("10.0.0.2/32", 0)),
    (Route("0.0.0.0/0", "169.254.1.1", 1400, 1360, 0, 254, 253), Route("::/0"), Route("10.1.0.0/16")),
    Dns(("10.96.0.10",), "cluster.local", ("svc.cluster.local",), ("ndots:5",)),
)
DNS = {"nameservers": ["10.96.0.10"], "domain": "cluster.local", "search": ["svc.cluster.local"], "options": ["ndots:5"]}

SINGLE = {
    "ip4": {
        "ip": "10.0.0.1/32",
        "gateway": "169.254.1.1",
        "routes": [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}, {"dst": "10.1.0.0/16"}],
    },
    "ip6": {"ip": "fd00::1/128", "routes": [{"dst": "::/0"}]},
    "dns": DNS,
}
LISTS = {
    "interfaces": [
        {"name": "svc0a", "mac": "ee:ee:ee:ee:ee:ee"},
        {"name": "eth0", "mac": "0a:00:00:00:00:01", "sandbox": "/var/run/netns/a"},
    ],
    "ips": [
        {"version": "4", "interface": 1, "address": "10.0.0.1/32", "gateway": "169.254.1.1"},
        {"version": "6", "interface": 1, "address": "fd00::1/128"},
        {"version": "4", "interface": 0, "address": "10.0.0.2/32"},
    ],
    "routes": [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}, {"dst": "::/0"}, {"dst": "10.1.0.0/16"}],
    "dns": DNS,
}
UNTAGGED = LISTS | {
    "ips": [
        {"interface": 1, "address": "10.0.0.1/32", "gateway": "169.254.1.1"},
        {"interface": 1, "address": "fd00::1/128"},
        {"interface": 0, "address": "10.0.0.2/32"},
    ]
}
RICH = UNTAGGED | {
    "interfaces": [
        {"name": "svc0a", "mac": "ee:ee:ee:ee:ee:ee", "mtu": 1500},
        {
            "name": "eth0",
            "mac": "0a:00:00:00:00:01",
            "mtu": 1450,
            "sandbox": "/var/run/netns/a",
            "socketPath": "/run/s.sock",
            "pciID": "0000:00:1f.6",
        },
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0",
            "gw": "169.254.1.1",
            "mtu": 1400,
            "advmss": 1360,
            "priority": 0,
            "table": 254,
            "scope": 253,
        },
        {"dst": "::/0"},
        {"dst": "10.1.0.0/16"},
    ],
}
GOLDEN = {
    "0.1.0": SINGLE,
    "0.2.0": SINGLE,
    "0.3.0": LISTS,
    "0.3.1": LISTS,
    "0.4.0": LISTS,
    "1.0.0": UNTAGGED,
    "1.1.0": RICH,
}


def refused(data: object, version: str = "1.1.0", code: Code = Code.INVALID_NETCONF) -> CallerError:
    with pytest.raises(CallerError) as caught:
        parse_prev_result(data, version)
    assert caught.value.code is code
    return caught.value


# rendering


def test_every_supported_version_has_an_expected_result() -> None:
    assert tuple(GOLDEN) == cni_versions.SUPPORTED


@pytest.mark.parametrize("version", cni_versions.SUPPORTED)
def test_full_result_has_the_format_of_its_version(version: str) -> None:
    assert render(FULL, version) == {"cniVersion": version} | GOLDEN[version]


@pytest.mark.parametrize("version", cni_versions.SUPPORTED)
def test_empty_members_are_left_out(version: str) -> None:
    assert render(Result(), version) == {"cniVersion": version}


@pytest.mark.parametrize("version", cni_versions.SUPPORTED)
def test_rendered_result_is_json(version: str) -> None:
    assert orjson.loads(orjson.dumps(render(FULL, version)))["cniVersion"] == version


def test_old_version_keeps_routes_with_their_family() -> None:
    """A family without an address has no field for its routes."""
    only_ipv6 = replace(FULL, ips=FULL.ips[1:2])
    assert render(only_ipv6, "0.2.0") == {"cniVersion": "0.2.0", "ip6": SINGLE["ip6"], "dns": DNS}


def test_result_of_ipam_has_no_interfaces() -> None:
    result = Result(ips=(IpConfig("10.0.0.1/26"),), routes=(Route("10.0.0.0/26"),))
    assert render(result, "1.0.0") == {
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.0.0.1/26"}],
        "routes": [{"dst": "10.0.0.0/26"}],
    }


def test_journal_stores_the_format_of_the_latest_version() -> None:
    assert FULL.to_json() == render(FULL, "1.1.0")


# parsing


def limited_to(result: Result, version: str) -> Result:
    """Return the part of a result that a version can express."""
    if cni_versions.at_least(version, "1.1.0"):
        return result
    routes = tuple(Route(item.dst, item.gw) for item in result.routes)
    if cni_versions.at_least(version, "0.3.0"):
        interfaces = tuple(Interface(item.name, item.mac, sandbox=item.sandbox) for item in result.interfaces)
        return replace(result, interfaces=interfaces, routes=routes)
    firsts = [next((ip for ip in result.ips if ip.family == family), None) for family in (4, 6)]
    ips = tuple(replace(ip, interface=None) for ip in firsts if ip)
    return Result((), ips, tuple(route for ip in ips for route in routes if route.family == ip.family), result.dns)


@pytest.mark.parametrize("version", cni_versions.SUPPORTED)
def test_rendered_result_can_be_parsed(version: str) -> None:
    assert parse_prev_result(render(FULL, version), version) == limited_to(FULL, version)


def test_version_of_the_result_overrides_the_given_one() -> None:
    assert parse_prev_result(render(FULL, "0.2.0"), "1.1.0") == limited_to(FULL, "0.2.0")


def test_result_without_a_version_has_the_given_one() -> None:
    assert parse_prev_result(LISTS, "0.4.0") == limited_to(FULL, "0.4.0")


def test_bytes_are_decoded() -> None:
    assert parse_prev_result(orjson.dumps(RICH), "1.1.0") == FULL


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 5000])
def test_bytes_that_are_not_json_cannot_be_decoded(text: bytes) -> None:
    error = refused(text, code=Code.DECODING_FAILURE)
    assert "prevResult is not JSON" in error.msg
    assert "give one JSON object" in error.details


@pytest.mark.parametrize("version", cni_versions.SUPPORTED)
def test_nulls_and_unknown_members_are_ignored(version: str) -> None:
    data = {"interfaces": None, "ips": None, "routes": None, "dns": None, "ip4": None, "ip6": None, "more": [1]}
    assert parse_prev_result(data, version) == Result()


def test_addresses_are_normalised() -> None:
    data = {"ips": [{"address": "FD00:0::1/64", "gateway": "FE80::0"}], "routes": [{"dst": "0:0::/0"}]}
    assert parse_prev_result(data, "1.1.0") == Result(ips=(IpConfig("fd00::1/64", None, "fe80::"),), routes=(Route("::/0"),))


@pytest.mark.parametrize("data", [None, 1, 1.5, True, "x", [], [{}]])
def test_anything_but_an_object_is_refused(data: object) -> None:
    error = refused(data)
    assert "invalid prevResult: prevResult = " in error.msg
    assert "give an object, {...}" in error.details


@pytest.mark.parametrize(
    ("version", "data", "problem", "fix"),
    [
        ("1.1.0", {"cniVersion": "9.0.0"}, "cniVersion = '9.0.0' is not a supported version", "give one of 0.1.0"),
        ("1.1.0", {"cniVersion": 1}, "cniVersion = 1 is a number", "give a string"),
        ("1.1.0", {"interfaces": {}}, "interfaces = {} is an object", "give an array"),
        ("1.1.0", {"interfaces": [1]}, "interfaces[0] = 1 is a number", "give an object"),
        ("1.1.0", {"interfaces": [{}]}, "interfaces[0].name is missing", "give a string that is not empty"),
        ("1.1.0", {"interfaces": [{"name": ""}]}, "interfaces[0].name = '' is empty", "give a string that is not empty"),
        ("1.1.0", {"interfaces": [{"name": None}]}, "interfaces[0].name = null is null", "give a string that is not empty"),
        ("1.1.0", {"interfaces": [{"name": "a", "mac": 1}]}, "interfaces[0].mac = 1 is a number", "give a string"),
        ("0.4.0", {"interfaces": [{"name": "a", "sandbox": []}]}, "interfaces[0].sandbox = [] is an array", "give a string"),
        ("1.1.0", {"interfaces": [{"name": "a", "mtu": "1"}]}, "interfaces[0].mtu = '1' is a string", "give a whole number"),
        ("1.1.0", {"interfaces": [{"name": "a", "mtu": True}]}, "interfaces[0].mtu = true is a boolean", "give a whole number"),
        ("1.1.0", {"interfaces": [{"name": "a", "mtu": -1}]}, "interfaces[0].mtu = -1 is out of range", "give 0 to 4294967295"),
        ("1.1.0", {"interfaces": [{"name": "a", "pciID": 1}]}, "interfaces[0].pciID = 1 is a number", "give a string"),
        ("1.1.0", {"ips": "x"}, "ips = 'x' is a string", "give an array"),
        ("1.1.0", {"ips": [{}]}, "ips[0].address is missing", "give a string that is not empty"),
        ("1.1.0", {"ips": [{"address": "10.0.0.1"}]}, "ips[0].address = '10.0.0.1' is wrong", "give ADDRESS/LENGTH"),
        ("1.1.0", {"ips": [{"address": "10.0.0.1/33"}]}, "ips[0].address = '10.0.0.1/33' is wrong", "give ADDRESS/LENGTH"),
        ("1.1.0", {"ips": [{"address": "a/8"}]}, "ips[0].address = 'a/8' is wrong", "give ADDRESS/LENGTH"),
        (
            "1.1.0",
            {"ips": [{"address": "::/0", "gateway": "x"}]},
            "ips[0].gateway = 'x' is wrong",
            "give an IPv4 or IPv6 address",
        ),
        ("1.1.0", {"ips": [{"address": "::/0", "gateway": 1}]}, "ips[0].gateway = 1 is a number", "give a string"),
        ("1.1.0", {"ips": [{"address": "::/0", "interface": 0}]}, "ips[0].interface = 0 names no interface", "there are 0"),
        ("1.1.0", {"ips": [{"address": "::/0", "interface": -1}]}, "ips[0].interface = -1 is out of range", "give 0 to"),
        (
            "1.1.0",
            {"ips": [{"address": "::/0", "interface": 0.5}]},
            "ips[0].interface = 0.5 is a decimal number",
            "give a whole number",
        ),
        ("0.4.0", {"ips": [{"address": "::/0", "version": "4"}]}, "ips[0].version = '4' does not fit '::/0'", 'give "6"'),
        ("0.4.0", {"ips": [{"address": "::/0", "version": 6}]}, "ips[0].version = 6 is a number", "give a string"),
        ("1.1.0", {"routes": [{"gw": "::1"}]}, "routes[0].dst is missing", "give a string that is not empty"),
        ("1.1.0", {"routes": [{"dst": "default"}]}, "routes[0].dst = 'default' is wrong", "give ADDRESS/LENGTH"),
        (
            "1.1.0",
            {"routes": [{"dst": "::/0", "gw": "::/0"}]},
            "routes[0].gw = '::/0' is wrong",
            "give an IPv4 or IPv6 address",
        ),
        ("1.1.0", {"routes": [{"dst": "::/0", "table": 2**32}]}, "routes[0].table = 4294967296 is out of range", "give 0 to"),
        ("1.1.0", {"dns": []}, "dns = [] is an array", "give an object"),
        ("1.1.0", {"dns": {"domain": 1}}, "dns.domain = 1 is a number", "give a string"),
        ("1.1.0", {"dns": {"search": "a"}}, "dns.search = 'a' is a string", "give an array"),
        ("1.1.0", {"dns": {"nameservers": ["a", 1]}}, "dns.nameservers[1] = 1 is a number", "give a string"),
        ("0.2.0", {"ip4": []}, "ip4 = [] is an array", "give an object"),
        ("0.2.0", {"ip4": {"gateway": "10.0.0.1"}}, "ip4.ip is missing", "give a string that is not empty"),
        ("0.2.0", {"ip4": {"ip": "::/0"}}, "ip4.ip = '::/0' is IPv6", "give an IPv4 address"),
        ("0.2.0", {"ip6": {"ip": "10.0.0.1/8"}}, "ip6.ip = '10.0.0.1/8' is IPv4", "give an IPv6 address"),
        ("0.2.0", {"ip4": {"ip": "10.0.0.1/8", "routes": [1]}}, "ip4.routes[0] = 1 is a number", "give an object"),
    ],
)
def test_error_names_an_invalid_member_and_its_fix(version: str, data: dict[str, Any], problem: str, fix: str) -> None:
    error = refused(data, version)
    assert f"invalid prevResult: prevResult.{problem}" in error.msg
    assert fix in error.details


def test_one_error_lists_all_invalid_members() -> None:
    error = refused({"interfaces": [{}], "ips": [{"address": "x", "interface": 3}, 7], "routes": {}, "dns": 1})
    assert error.msg == "invalid prevResult: 6 errors"
    for path in ("interfaces[0].name", "ips[0].address", "ips[0].interface", "ips[1]", "routes", "dns"):
        assert f"prevResult.{path}" in error.details


def test_invalid_interface_does_not_change_the_index_of_others() -> None:
    data = {"interfaces": [1, {"name": "eth0"}], "ips": [{"address": "10.0.0.1/32", "interface": 1}]}
    assert "interfaces[0]" in refused(data).msg


# errors and versions


def test_error_has_code_message_and_details() -> None:
    error = PeerError("no route", details="try again", code=Code.KERNEL)
    assert render_error(error, "1.0.0") == {"cniVersion": "1.0.0", "code": 106, "msg": "no route", "details": "try again"}


def test_error_without_details_has_none() -> None:
    assert render_error(InternalError("oops"), "0.1.0") == {"cniVersion": "0.1.0", "code": 100, "msg": "oops"}


def test_error_is_always_json() -> None:
    """An error that quotes a variable with arbitrary bytes is JSON too."""
    data = render_error(CallerError("bad \udc80", details="\ud800"), "1.0.0")
    assert orjson.loads(orjson.dumps(data))["msg"] == "bad \\udc80"


def test_every_code_is_documented_once() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/errors.md").read_text()
    listed = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert sorted(map(int, listed)) == sorted(Code)


def test_version_reply_lists_every_version() -> None:
    assert render_version("1.0.0") == {"cniVersion": "1.0.0", "supportedVersions": list(cni_versions.SUPPORTED)}


# any input

ADDRESSES = st.ip_addresses().map(str)
NETWORKS = st.ip_addresses().flatmap(lambda ip: st.integers(0, ip.max_prefixlen).map(lambda length: f"{ip}/{length}"))
NUMBERS = st.integers(0, 2**32 - 1)
MAYBE = st.none() | NUMBERS
TEXTS = st.lists(st.text(), max_size=2).map(tuple)
INTERFACES = st.builds(
    Interface, st.text(min_size=1), mac=st.text(), mtu=NUMBERS, sandbox=st.text(), socket_path=st.text(), pci_id=st.text()
)
ROUTES = st.builds(
    Route, NETWORKS, gw=st.just("") | ADDRESSES, mtu=NUMBERS, advmss=NUMBERS, priority=MAYBE, table=MAYBE, scope=MAYBE
)
RESULTS = st.lists(INTERFACES, min_size=1, max_size=3).flatmap(
    lambda interfaces: st.builds(
        Result,
        st.just(tuple(interfaces)),
        st.lists(
            st.builds(
                IpConfig,
                NETWORKS,
                interface=st.none() | st.integers(0, len(interfaces) - 1),
                gateway=st.just("") | ADDRESSES,
            ),
            max_size=3,
        ).map(tuple),
        st.lists(ROUTES, max_size=3).map(tuple),
        st.builds(Dns, TEXTS, st.text(), TEXTS, TEXTS),
    )
)


@settings(deadline=None)
@given(RESULTS)
def test_any_result_is_stored_without_loss(result: Result) -> None:
    assert Result.from_json(orjson.loads(orjson.dumps(result.to_json()))) == result


@settings(deadline=None)
@given(RESULTS, st.sampled_from(cni_versions.SUPPORTED))
def test_any_rendered_result_can_be_parsed(result: Result, version: str) -> None:
    """The parser normalises addresses, so the result is parsed once before the comparison."""
    rendered = render(parse_prev_result(result.to_json(), "1.1.0"), version)
    assert render(parse_prev_result(orjson.loads(orjson.dumps(rendered)), version), version) == rendered


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("name", "address", "interface", "gateway", "version", "dst", "mtu", "ip", "routes", "search")
MEMBERS = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, JSON))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["cniVersion", "interfaces", "ips", "routes", "dns", "ip4", "ip6"]),
        JSON | MEMBERS | st.lists(MEMBERS, max_size=3),
    ),
    st.sampled_from(cni_versions.SUPPORTED),
)
def test_any_json_is_read_or_refused(data: dict[str, Any], version: str) -> None:
    with suppress(CallerError):
        render(parse_prev_result(data, version), version)

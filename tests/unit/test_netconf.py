"""Network configuration: parsing, errors, and lenient parsing."""

import copy
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.model.annotations import Features
from svc.model.errors import CallerError, Code
from svc.model.field_errors import FieldErrors
from svc.model.waits import GateSettings, PolicySettings, TlsTrust
from svc.names import DEFAULT, Names
from svc.netconf.decoding import MAX_BYTES, declared_version, split_result
from svc.netconf.fields import FIELDS, keys_of
from svc.netconf.netconf import DatastoreSettings, IpamConf, NetConf, parse

GOOD: dict[str, Any] = {"name": "net", "type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}


def config(**changes: Any) -> dict[str, Any]:
    """Return a valid configuration with changes: `a__b=1` sets `b` in the section `a`."""
    data = copy.deepcopy(GOOD)
    for path, value in changes.items():
        put(data, tuple(path.split("__")), value)
    return data


def put(data: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        section = data.get(key)
        data[key] = data = section if isinstance(section, dict) else {}
    data[keys[-1]] = value


def parsed(data: dict[str, Any], *, lenient: bool = False) -> NetConf:
    return parse(orjson.dumps(data), DEFAULT, lenient=lenient)


def refused(data: dict[str, Any] | bytes, code: Code = Code.INVALID_NETCONF, *, lenient: bool = False) -> CallerError:
    with pytest.raises(CallerError) as caught:
        parse(data if isinstance(data, bytes) else orjson.dumps(data), DEFAULT, lenient=lenient)
    assert caught.value.code is code
    return caught.value


# what is read


def test_smallest_configuration_has_every_default() -> None:
    assert parsed(GOOD) == NetConf(
        name="net",
        cni_version=None,
        type="svc",
        nodename=None,
        nodename_file=None,
        nodename_file_optional=False,
        hostname=None,
        datastore=DatastoreSettings("embedded"),
        policy=False,
        orchestrator=(),
        log_level="INFO",
        log_file_path=None,
        log_file_max_size=100,
        log_file_max_age=30,
        log_file_max_count=10,
        ipam=IpamConf("svc-ipam", assign_ipv4=True, assign_ipv6=False),
        routes=None,
        pod_cidr_node=None,
        features=Features(),
        allow_ip_forwarding=False,
        num_queues=1,
        mtu=0,
        require_mtu_file=False,
        namespace="",
        labels=(),
        gates=GateSettings((), 30, TlsTrust()),
        policy_setup=PolicySettings(0, ""),
        prev_result=None,
        valid_attachments=None,
        location_errors=FieldErrors("invalid network configuration", Code.INVALID_NETCONF),
        raw=GOOD,
    )


def test_all_fields_are_read() -> None:
    data = config(
        cniVersion="1.1.0",
        nodename=" node-1 ",
        log_level="debug",
        log_file_path="/var/log/x.log",
        log_file_max_size=1,
        log_file_max_age=2,
        log_file_max_count=3,
        ipam__assign_ipv6="true",
        ipam__ipv4_pools=["10.0.0.0/16", "blue"],
        ipam__ipv6_pools=["fd00::/64"],
        container_settings__allow_ip_forwarding=True,
        num_queues=4,
        mtu=9000,
        readiness_gates=["http://a", "https://b/ready", "http://a"],
        readiness_gates_timeout_seconds=10,
        readiness_gates_tls_verify=False,
        readiness_gates_ca_file="/ca.pem",
        policy_setup_timeout_seconds=20,
        endpoint_status_dir="/status",
        prevResult={"ips": []},
    )
    netconf = parsed(data)
    assert netconf.gates == GateSettings(("http://a", "https://b/ready"), 10, TlsTrust(False, "/ca.pem"))
    assert netconf.policy_setup == PolicySettings(20, "/status")
    assert netconf.cni_version == "1.1.0"
    assert netconf.nodename == "node-1"
    assert (netconf.log_level, netconf.log_file_path) == ("DEBUG", "/var/log/x.log")
    assert (netconf.log_file_max_size, netconf.log_file_max_age, netconf.log_file_max_count) == (1, 2, 3)
    assert netconf.ipam == IpamConf("svc-ipam", True, True, ("10.0.0.0/16", "blue"), ("fd00::/64",))
    assert (netconf.allow_ip_forwarding, netconf.num_queues, netconf.mtu) == (True, 4, 9000)
    assert netconf.prev_result == {"ips": []}
    assert netconf.raw == data


def test_unknown_fields_are_kept_and_ignored() -> None:
    data = config(capabilities={"portMappings": True}, ipam__subnet="usePodCidr", zzz=[1, None, {"a": 2.5}])
    assert parsed(data).raw == data


@pytest.mark.parametrize("kind", ["bridge", "ptp", "x"])
def test_another_main_plugin_may_delegate_to_svc(kind: str) -> None:
    assert parsed(config(type=kind)).type == kind


def test_names_of_the_deployment_decide_the_plugins() -> None:
    names = Names(plugin="other", ipam_plugin="other-ipam")
    data = config(type="other", ipam__type="other-ipam")
    assert parse(orjson.dumps(data), names).ipam.type == "other-ipam"
    with pytest.raises(CallerError, match=r"ipam\.type = 'svc-ipam'") as caught:
        parse(orjson.dumps(GOOD), names)
    assert 'set "type": "other-ipam"' in caught.value.details


def test_last_of_repeated_keys_counts() -> None:
    text = b'{"name":"a","name":"b","type":"svc","datastore_type":"embedded","ipam":{"type":"svc-ipam"}}'
    assert parse(text, DEFAULT).name == "b"


def test_datastore_settings_are_hashable() -> None:
    assert {parsed(GOOD).datastore, DatastoreSettings("embedded")} == {DatastoreSettings("embedded")}


# what the runtime adds

ATTACHMENT = {"containerID": "a", "ifname": "eth0"}


@pytest.mark.parametrize(
    ("keys", "pairs"),
    [
        ({}, None),
        ({"cni.dev/valid-attachments": None}, ()),
        ({"cni.dev/valid-attachments": []}, ()),
        ({"cni.dev/valid-attachments": [ATTACHMENT]}, (("a", "eth0"),)),
        ({"cni.dev/valid-attachments": [ATTACHMENT | {"more": 1}]}, (("a", "eth0"),)),
        ({"cni.dev/attachments": [ATTACHMENT]}, (("a", "eth0"),)),
        ({"cni.dev/attachments": None}, ()),
        ({"cni.dev/valid-attachments": [], "cni.dev/attachments": [ATTACHMENT]}, ()),
    ],
)
def test_missing_and_empty_valid_attachments_differ(keys: dict[str, Any], pairs: Any) -> None:
    assert parsed(GOOD | keys).valid_attachments == pairs


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
@pytest.mark.parametrize(
    ("item", "errors"),
    [
        (3, ["[1] = 3 is a number"]),
        (None, ["[1] = null is null"]),
        ({}, ["[1].containerID is missing", "[1].ifname is missing"]),
        ({"containerID": "", "ifname": 1}, ["[1].containerID = '' is not a name", "[1].ifname = 1 is not a name"]),
    ],
)
def test_invalid_attachment_is_refused(key: str, item: Any, errors: list[str]) -> None:
    """If GC ignored it, it would remove the attachment."""
    refusal = refused(GOOD | {key: [ATTACHMENT, item]})
    assert all(key + error in str(refusal) for error in errors)


# bytes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"{", "is not JSON"),
        (b"{}x", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (b'{"name":"\xff"}', "is not JSON"),
        (b'{"name":"\\ud800"}', "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b"NaN", "is not JSON"),
        (b'{"mtu":1e999}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "is not JSON"),
        (b"[]", "is an array, not an object"),
        (b"null", "is null, not an object"),
        (b"1", "is a number, not an object"),
        (b'"x"', "is a string, not an object"),
        (b"true", "is a boolean, not an object"),
    ],
    ids=range(17),
)
@pytest.mark.parametrize("lenient", [False, True])
def test_anything_but_an_object_cannot_be_decoded(text: bytes, problem: str, lenient: bool) -> None:
    error = refused(text, Code.DECODING_FAILURE, lenient=lenient)
    assert error.msg.startswith(f"network configuration {problem}")
    assert "one JSON object" in error.details


def test_deep_nesting_is_shortened_in_the_error() -> None:
    deep = orjson.loads(b"[" * 1000 + b"]" * 1000)
    text = b'{"name":' + b"[" * 1000 + b"]" * 1000 + b"}"
    assert isinstance(deep, list)
    error = refused(text)
    assert "name = [[[...]]] is an array" in error.details


def test_error_of_a_too_large_configuration_has_the_limit() -> None:
    error = refused(b" " * (2 << 20))
    assert "2097152 bytes" in error.msg
    assert f"at most {MAX_BYTES} bytes" in error.details


def test_largest_configuration_is_read() -> None:
    text = orjson.dumps(GOOD)
    assert parse(text + b" " * (MAX_BYTES - len(text)), DEFAULT).name == "net"
    assert "bytes" in refused(text + b" " * (MAX_BYTES - len(text) + 1)).msg


# errors


def test_all_invalid_fields_are_in_one_error() -> None:
    data = config(name="a/b", mtu="1500", log_level=5, ipam__type="dhcp", ipam__assign_ipv4=True, policy={"type": "orch"})
    error = refused(data)
    assert error.msg == "invalid network configuration: 6 errors"
    for part in (
        "name = 'a/b' is not a network name: start",
        "mtu = '1500' is a string: write a whole number",
        "log_level = 5 is a number: write one of",
        "ipam.type = 'dhcp' is not known: set",
        "ipam.assign_ipv4 = true is a boolean: write",
        'orch.kubeconfig is missing: policy.type "orch" needs it: give the path',
    ):
        assert part in error.details


def test_empty_object_names_every_required_field() -> None:
    error = refused(b"{}")
    assert error.msg == "invalid network configuration: 3 errors"
    for part in ("name is missing", "type is missing", "ipam is missing"):
        assert part in error.details


def test_invalid_family_is_reported_once() -> None:
    """The missing addresses follow from it and are not reported as well."""
    assert "ipam.assign_ipv6 = true" in refused(config(ipam__assign_ipv4="false", ipam__assign_ipv6=True)).msg


def test_length_of_errors_is_limited() -> None:
    error = refused(config(ipam__ipv4_pools=[1] * 100_000))
    assert error.msg.endswith("100000 errors")
    assert "and 99980 more" in error.details
    assert len(error.details) < 3000
    assert len(str(refused(config(log_level="x" * 100_000)))) < 400


# lenient


def test_lenient_parsing_needs_only_the_name() -> None:
    netconf = parsed({"name": "net"}, lenient=True)
    assert netconf.name == "net"
    assert netconf.datastore == DatastoreSettings("etcdv3")
    assert (netconf.type, netconf.ipam) == ("", IpamConf(""))


def test_lenient_parsing_replaces_only_invalid_fields() -> None:
    data = config(mtu="x", log_level=1, nodename="a", ipam__assign_ipv4=1, ipam__ipv4_pools=["x/y"], policy={"type": "orch"})
    netconf = parsed(data, lenient=True)
    assert (netconf.mtu, netconf.log_level, netconf.nodename) == (0, "INFO", "a")
    assert netconf.ipam == IpamConf("svc-ipam")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({}, "name is missing"),
        ({"name": 1}, "name = 1"),
        ({"name": "a/b"}, "name = 'a/b'"),
        ({"name": "a", "cniVersion": 1}, "cniVersion = 1"),
    ],
)
def test_lenient_parsing_refuses_invalid_names_and_versions(data: dict[str, Any], part: str) -> None:
    assert part in refused(data, lenient=True).msg


# any input

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PATHS = st.sampled_from([path for field in FIELDS for path in field.paths])


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(PATHS, JSON, max_size=6))
def test_any_json_in_any_field_is_read_or_refused(changes: dict[str, Any]) -> None:
    data = copy.deepcopy(GOOD)
    for path, value in changes.items():
        put(data, keys_of(path), value)
    with suppress(CallerError):
        parsed(data)
    with suppress(CallerError):
        parsed(data, lenient=True)


@given(st.binary() | JSON.map(orjson.dumps))
def test_any_bytes_are_read_or_refused(stdin: bytes) -> None:
    with suppress(CallerError):
        parse(stdin, DEFAULT)


@pytest.mark.parametrize("number", ["99999999999999999999999999", "-18446744073709551616", "65536"])
def test_numbers_beyond_the_range_are_shown_as_written(number: str) -> None:
    """The error has the range."""
    text = f'{{"name": "net", "type": "svc", "mtu": {number}, "ipam": {{"type": "svc-ipam"}}}}'
    error = refused(text.encode())
    assert f"mtu = {number} is out of range" in error.msg
    assert "give 68 to 65535" in error.details


# a DEL leaves the result of its ADD out


def outcome(stdin: bytes) -> NetConf | str:
    """Return what a DEL gets, without the result of the ADD and the raw object, or the error."""
    try:
        return replace(parse(stdin, DEFAULT, lenient=True), prev_result=None, raw={})
    except CallerError as error:
        return str(error)


@settings(deadline=None)
@given(st.dictionaries(PATHS, JSON, max_size=6), JSON)
def test_configuration_without_the_result_is_parsed_as_with_it(changes: dict[str, Any], result: Any) -> None:
    data = copy.deepcopy(GOOD)
    for path, value in changes.items():
        put(data, keys_of(path), value)
    whole = orjson.dumps({**data, "prevResult": result})
    short, split = split_result(whole)
    assert split == result if split is not None else short == whole
    assert split is not None or not isinstance(result, dict) or re.search(rb"\d{19}", whole)
    assert declared_version(short) == declared_version(whole)
    assert outcome(short) == outcome(whole)


@pytest.mark.parametrize(
    "text",
    [
        b'{"name": "net", "mtu": 1234567890123456789012, "prevResult": {}}',  # orjson does not keep such numbers exactly
        b'{"name": "net", "args": ' + b"[" * 300 + b"]" * 300 + b', "prevResult": {}}',
        b'{"prevResult": {}',
        b'["prevResult"]',
        b'{"name": "net"}',
    ],
)
def test_result_stays_in_what_cannot_be_written_again(text: bytes) -> None:
    assert split_result(text) == (text, None)

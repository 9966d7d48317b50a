"""Network configurations that are wrong: refused with every fault named, and nothing is changed."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.node import Called, Node, netconf
from harness.pod import Pod
from harness.state import State, pod_links
from svc.netconf import fields
from svc.netconf.fields import FIELDS, Field, keys_of

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

VERSIONS = "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"
LIMIT = 1 << 20  # bytes
WRONG: dict[str, Any] = {
    fields.STRING: 7,
    fields.INTEGER: "7",
    fields.BOOLEAN: "true",
    fields.OBJECT: [],
    fields.STRINGS: ["a", 7],
    fields.ATTACHMENTS: {},
    fields.RANGES: {},
    fields.ROUTES: {},
}


@pytest.fixture
def unchanged(shared_node: Node) -> Iterator[None]:
    """Fails a test after which store, journal or kernel are not as before."""
    before = State.read(shared_node)
    yield
    assert State.read(shared_node) == before


def add(node: Node, netns: str, stdin: bytes) -> Called:
    return node.call("ADD", stdin, container="c1", netns=netns)


def refused(called: Called) -> dict[str, Any]:
    """The error object, which has all that the specification asks for, and the request's id."""
    assert called.status == 1, called
    assert set(called.output) == {"cniVersion", "code", "msg", "details"}
    return dict(called.output)


# bytes


BYTES = {
    "nothing": b"",
    "white space": b" \n\t ",
    "text": b"not json",
    "half an object": b'{"name": "net", ',
    "two objects": b"{}{}",
    "array": b"[]",
    "number": b"7",
    "string": b'"net"',
    "null": b"null",
    "not UTF-8": b'{"name": "\xff\xfe"}',
    "NUL": b'{"name": "net"}\0',
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep inside": b'{"name":"net","x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "NaN": b'{"mtu": NaN}',
    "comment": b'{"name": "net"} // mine',
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("stdin", BYTES.values(), ids=BYTES.keys())
def test_what_is_no_json_object_is_refused(pods: MakePod, shared_node: Node, stdin: bytes) -> None:
    error = refused(add(shared_node, pods().netns.path, stdin))
    assert error["code"] == 6
    assert error["cniVersion"] == "1.1.0", "the newest, as none was understood"
    assert "network configuration" in error["msg"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_every_verb_refuses_what_is_no_json(pods: MakePod, shared_node: Node, verb: str) -> None:
    """A DEL cannot know of which network the container is to leave."""
    called = shared_node.call(verb, b"{", container="c1", netns=pods().netns.path)
    assert refused(called)["code"] == 6


def padded(size: int) -> bytes:
    """A good network configuration of this many bytes."""
    empty = json.dumps(netconf(padding="")).encode()
    return json.dumps(netconf(padding="x" * (size - len(empty)))).encode()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("size", [LIMIT + 1, 2 * LIMIT])
def test_netconf_of_more_than_a_mebibyte_is_refused(pods: MakePod, shared_node: Node, size: int) -> None:
    stdin = padded(size)
    assert len(stdin) == size
    error = refused(add(shared_node, pods().netns.path, stdin))
    assert error["code"] == 7
    assert "larger than 1 MiB" in error["msg"]
    assert "make it smaller" in error["details"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ["cniVersion", "log_file_path", "nodename_file", "endpoint_status_dir", "etcd_endpoints"])
def test_value_of_any_length_makes_a_short_error(pods: MakePod, name: str) -> None:
    """It travels into events and logs."""
    called = pods().failed("ADD", **{name: "/" + "x" * 300_000})
    assert len(called.stdout) < 4000
    assert len(called.stderr) < 4000


def test_netconf_of_a_mebibyte_is_served(pods: MakePod, shared_node: Node) -> None:
    pod = pods(container="c1")
    assert add(shared_node, pod.netns.path, padded(LIMIT)).status == 0


def test_last_of_equal_keys_counts(pods: MakePod, shared_node: Node) -> None:
    pod = pods(container="c1")
    stdin = json.dumps(netconf(mtu=1400)).encode().replace(b'"mtu": 1400', b'"mtu": 1300, "mtu": 1400')
    assert add(shared_node, pod.netns.path, stdin).output["interfaces"][1]["mtu"] == 1400


# fields


def with_value(path: str, value: Any) -> dict[str, Any]:
    """A good network configuration but for the value at this path."""
    config = netconf()
    *parents, last = keys_of(path)
    place: dict[str, Any] = config
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = value
    return config


TYPED = [field for field in FIELDS if field.path != "cniVersion"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("field", TYPED, ids=lambda field: field.path)
def test_value_of_the_wrong_type_is_refused_by_its_name(pods: MakePod, shared_node: Node, field: Field) -> None:
    stdin = json.dumps(with_value(field.path, WRONG[field.type])).encode()
    error = refused(add(shared_node, pods().netns.path, stdin))
    assert error["code"] == 7
    assert field.path in error["details"]


@pytest.mark.usefixtures("unchanged")
def test_all_faults_come_in_one_error(pods: MakePod) -> None:
    error = refused(pods(mtu="big", num_queues=[], log_level="LOUD", ipam={"assign_ipv6": True}).call("ADD"))
    assert "4 errors" in error["msg"]
    for field in ("mtu", "num_queues", "log_level", "ipam.assign_ipv6"):
        assert field in error["details"]


VALUES: dict[str, dict[str, Any]] = {
    "mtu too small": {"mtu": 67},
    "mtu too large": {"mtu": 65536},
    "mtu too small for IPv6": {"mtu": 1279, "ipam": {"assign_ipv6": "true"}},
    "too many queues": {"num_queues": 4097},
    "name with a slash": {"name": "a/b"},
    "empty name": {"name": ""},
    "long name": {"name": "n" * 125},
    "node name with a slash": {"nodename": "a/b"},
    "no family": {"ipam": {"assign_ipv4": "false"}},
    "truth without quotes": {"ipam": {"assign_ipv4": True}},
    "pool of the other family": {"ipam": {"ipv4_pools": ["fd65::/112"]}},
    "pool that is not a range": {"ipam": {"ipv4_pools": ["10.65.0.0/33"]}},
    "pool of an endless name": {"ipam": {"ipv4_pools": ["p" * 254]}},
    "another IPAM": {"ipam": {"type": "dhcp"}},
    "another store": {"datastore_type": "consul"},
    "two ways to find etcd": {"etcd_discovery_srv": "example.org", "etcd_endpoints": "http://127.0.0.1:1"},
    "store without its access": {"orch": {}, "datastore_type": "orch"},
    "gate that is not a URL": {"readiness_gates": ["localhost"]},
    "policy of another kind": {"policy": {"type": "iptables"}},
    "relative log path": {"log_file_path": "cni.log"},
    "huge number": {"mtu": 10**30},
    "fraction": {"mtu": 1400.5},
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("change", VALUES.values(), ids=VALUES.keys())
def test_value_that_cannot_be_is_refused(pods: MakePod, change: dict[str, Any]) -> None:
    pod = pods(**change)
    error = refused(pod.call("ADD"))
    assert error["code"] == 7
    assert next(iter(change)) in error["details"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("field", ["name", "type", "ipam"])
def test_required_field_is_missed(pods: MakePod, field: str) -> None:
    pod = pods()
    del pod.config[field]
    error = refused(pod.call("ADD"))
    assert (error["code"], f"{field} is missing" in error["msg"]) == (7, True)


def test_store_that_is_not_named_is_etcd_on_this_node(own_pods: MakePod, node: Node) -> None:
    """None exists here: nothing is attached, and the release of what may exist there is pending."""
    pod = own_pods()
    del pod.config["datastore_type"]
    error = refused(pod.call("ADD"))
    assert (error["code"], "etcd" in error["msg"]) == (104, True)
    assert pod_links(node) == {}
    assert pod.call("DEL").status == 0


def test_unknown_fields_are_ignored(pods: MakePod) -> None:
    """Other plugins of the chain, and newer versions, have fields of their own."""
    pod = pods(
        runtimeConfig={"portMappings": [{"hostPort": 80}]},
        capabilities={"portMappings": True},
        zzz=[1, {"deep": None}],
        dns={},
        ipMasq=True,
        **{"cni.dev/other": 1},
    )
    pod.add(ipam=pod.config["ipam"] | {"gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0"}]})
    assert pod.netns.links() == ["eth0"]


@pytest.mark.usefixtures("unchanged")
def test_addresses_that_bypass_ipam_are_for_pods_alone(pods: MakePod) -> None:
    """A container that is not a pod has no annotations: the configuration is not for it."""
    pod = pods(feature_control={"ip_addrs_no_ipam": True})
    error = refused(pod.call("ADD"))
    assert error["code"] == 7
    assert error["msg"].startswith("feature_control.ip_addrs_no_ipam = true, but the container is not a pod")
    pod.delete()


# versions


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize("version", ["9.9.9", "1.1", "1.1.0 ", "v1.0.0", "0.0.0"])
def test_unknown_version_is_refused_with_the_known_ones(pods: MakePod, verb: str, version: str) -> None:
    error = refused(pods(cniVersion=version).call(verb))
    assert (error["code"], error["cniVersion"]) == (1, "1.1.0")
    assert repr(version) in error["msg"]
    assert VERSIONS in error["details"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("version", [1.1, 7, ["1.1.0"], {"a": 1}, True])
def test_version_that_is_no_string_is_refused(pods: MakePod, version: object) -> None:
    assert refused(pods(cniVersion=version).call("ADD"))["code"] in (1, 7)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("version", VERSIONS.split(", "))
def test_error_comes_in_the_version_of_the_netconf(pods: MakePod, version: str) -> None:
    assert refused(pods(cniVersion=version, mtu=-1).call("ADD"))["cniVersion"] == version


@pytest.mark.parametrize(
    "value", [["http://127.0.0.1:2379"], 2379, {"a": "b"}, True], ids=["array", "number", "object", "boolean"]
)
@pytest.mark.parametrize("verb", ["ADD", "DEL", "STATUS"])
def test_servers_that_cannot_be_read_send_no_call_elsewhere(pods: MakePod, verb: str, value: Any) -> None:
    """Neither to the default server nor to another datastore: each call is refused, and names the field."""
    error = refused(pods(datastore_type="etcdv3", etcd_endpoints=value).call(verb))
    assert error["code"] == 7
    assert "etcd_endpoints = " in error["msg"]
    assert "write a string in quotes" in error["details"]

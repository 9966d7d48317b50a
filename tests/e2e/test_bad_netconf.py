"""Invalid network configurations: the error names every invalid field, and svc changes nothing."""

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
LIMIT_BYTES = 1 << 20
WRONG_VALUES: dict[str, Any] = {
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
    """Fail the test if it changes the store, the journal or the kernel."""
    before = State.read(shared_node)
    yield
    assert State.read(shared_node) == before


def add(node: Node, netns: str, stdin: bytes) -> Called:
    return node.call("ADD", stdin, container="c1", netns=netns)


def refused(called: Called) -> dict[str, Any]:
    """Return the error object of a failed call. It must have the keys that the CNI specification requires."""
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
def test_input_that_is_not_a_json_object_is_refused(pods: MakePod, shared_node: Node, stdin: bytes) -> None:
    error = refused(add(shared_node, pods().netns.path, stdin))
    assert error["code"] == 6
    assert error["cniVersion"] == "1.1.0", "the newest version, because svc cannot read the requested one"
    assert "network configuration" in error["msg"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_every_verb_refuses_invalid_json(pods: MakePod, shared_node: Node, verb: str) -> None:
    """Without a configuration, a DEL does not know the network."""
    called = shared_node.call(verb, b"{", container="c1", netns=pods().netns.path)
    assert refused(called)["code"] == 6


def padded(size: int) -> bytes:
    """Return a valid network configuration of this many bytes."""
    empty = json.dumps(netconf(padding="")).encode()
    return json.dumps(netconf(padding="x" * (size - len(empty)))).encode()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("size", [LIMIT_BYTES + 1, 2 * LIMIT_BYTES])
def test_netconf_of_more_than_a_mebibyte_is_refused(pods: MakePod, shared_node: Node, size: int) -> None:
    stdin = padded(size)
    assert len(stdin) == size
    error = refused(add(shared_node, pods().netns.path, stdin))
    assert error["code"] == 7
    assert "larger than 1 MiB" in error["msg"]
    assert "make it smaller" in error["details"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ["cniVersion", "log_file_path", "nodename_file", "endpoint_status_dir", "etcd_endpoints"])
def test_error_about_a_long_value_is_short(pods: MakePod, name: str) -> None:
    """Runtimes copy the error into events and logs."""
    called = pods().failed("ADD", **{name: "/" + "x" * 300_000})
    assert len(called.stdout) < 4000
    assert len(called.stderr) < 4000


def test_netconf_of_a_mebibyte_is_accepted(pods: MakePod, shared_node: Node) -> None:
    pod = pods(container="c1")
    assert add(shared_node, pod.netns.path, padded(LIMIT_BYTES)).status == 0


def test_last_of_equal_keys_is_used(pods: MakePod, shared_node: Node) -> None:
    pod = pods(container="c1")
    stdin = json.dumps(netconf(mtu=1400)).encode().replace(b'"mtu": 1400', b'"mtu": 1300, "mtu": 1400')
    assert add(shared_node, pod.netns.path, stdin).output["interfaces"][1]["mtu"] == 1400


# fields


def with_value(path: str, value: Any) -> dict[str, Any]:
    """Return a network configuration that is valid except for the value at this path."""
    config = netconf()
    *parents, last = keys_of(path)
    parent: dict[str, Any] = config
    for key in parents:
        parent = parent.setdefault(key, {})
    parent[last] = value
    return config


TYPED = [field for field in FIELDS if field.path != "cniVersion"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("field", TYPED, ids=lambda field: field.path)
def test_error_names_the_field_with_a_value_of_the_wrong_type(pods: MakePod, shared_node: Node, field: Field) -> None:
    stdin = json.dumps(with_value(field.path, WRONG_VALUES[field.type])).encode()
    error = refused(add(shared_node, pods().netns.path, stdin))
    assert error["code"] == 7
    assert field.path in error["details"]


@pytest.mark.usefixtures("unchanged")
def test_one_error_names_all_invalid_fields(pods: MakePod) -> None:
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
def test_invalid_value_is_refused(pods: MakePod, change: dict[str, Any]) -> None:
    pod = pods(**change)
    error = refused(pod.call("ADD"))
    assert error["code"] == 7
    assert next(iter(change)) in error["details"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("field", ["name", "type", "ipam"])
def test_error_names_a_missing_required_field(pods: MakePod, field: str) -> None:
    pod = pods()
    del pod.config[field]
    error = refused(pod.call("ADD"))
    assert (error["code"], f"{field} is missing" in error["msg"]) == (7, True)


def test_default_datastore_is_etcd_on_this_node(own_pods: MakePod, node: Node) -> None:
    """No etcd server runs here: ADD attaches nothing, and DEL leaves a pending release."""
    pod = own_pods()
    del pod.config["datastore_type"]
    error = refused(pod.call("ADD"))
    assert (error["code"], "etcd" in error["msg"]) == (104, True)
    assert pod_links(node) == {}
    assert pod.call("DEL").status == 0


def test_unknown_fields_are_ignored(pods: MakePod) -> None:
    """Other plugins of the chain and newer versions of svc may have further fields."""
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
def test_only_pods_can_have_addresses_that_bypass_ipam(pods: MakePod) -> None:
    """A container that is not a pod has no annotations, so it cannot use this configuration."""
    pod = pods(feature_control={"ip_addrs_no_ipam": True})
    error = refused(pod.call("ADD"))
    assert error["code"] == 7
    assert error["msg"].startswith("feature_control.ip_addrs_no_ipam = true, but the container is not a pod")
    pod.delete()


# versions


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize("version", ["9.9.9", "1.1", "1.1.0 ", "v1.0.0", "0.0.0"])
def test_error_about_an_unknown_version_lists_the_known_ones(pods: MakePod, verb: str, version: str) -> None:
    error = refused(pods(cniVersion=version).call(verb))
    assert (error["code"], error["cniVersion"]) == (1, "1.1.0")
    assert repr(version) in error["msg"]
    assert VERSIONS in error["details"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("version", [1.1, 7, ["1.1.0"], {"a": 1}, True])
def test_version_that_is_not_a_string_is_refused(pods: MakePod, version: object) -> None:
    assert refused(pods(cniVersion=version).call("ADD"))["code"] in (1, 7)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("version", VERSIONS.split(", "))
def test_error_has_the_version_of_the_netconf(pods: MakePod, version: str) -> None:
    assert refused(pods(cniVersion=version, mtu=-1).call("ADD"))["cniVersion"] == version


@pytest.mark.parametrize(
    "value", [["http://127.0.0.1:2379"], 2379, {"a": "b"}, True], ids=["array", "number", "object", "boolean"]
)
@pytest.mark.parametrize("verb", ["ADD", "DEL", "STATUS"])
def test_call_with_invalid_servers_does_not_use_another_server(pods: MakePod, verb: str, value: Any) -> None:
    """svc uses neither the default server nor another datastore. It refuses the call and names the field."""
    error = refused(pods(datastore_type="etcdv3", etcd_endpoints=value).call(verb))
    assert error["code"] == 7
    assert "etcd_endpoints = " in error["msg"]
    assert "write a string in quotes" in error["details"]

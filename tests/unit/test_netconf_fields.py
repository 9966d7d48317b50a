"""Fields of the network configuration: null, valid and invalid values, and the table of fields."""

import copy
from typing import Any

import pytest

from harness.netconfs import GOOD, SHOWN, config, parsed, refused, with_field
from svc.model.annotations import Features
from svc.netconf import fields
from svc.netconf.fields import FIELDS, Field
from svc.netconf.netconf import DatastoreSettings, IpamConf, NetConf

# null


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.path)
def test_null_is_absent(field: Field) -> None:
    """Templates write null for fields without a value."""
    data = with_field(field.path, None)
    if field.path == "datastore_type":
        assert parsed(data).datastore.kind == "etcdv3"
    elif field.required:
        assert field.path in refused(data).details
    elif field.type == fields.ATTACHMENTS:
        assert parsed(data).valid_attachments == ()
    else:
        values = parsed(data)
        assert values == NetConf(**{name: getattr(parsed(GOOD), name) for name in NetConf.__slots__} | {"raw": data})


# values


@pytest.mark.parametrize(
    ("path", "value", "problem", "fix"),
    [
        ("name", "", "is not a network name", "start with a letter or digit"),
        ("name", "-a", "is not a network name", "start with a letter or digit"),
        ("name", "a/b", "is not a network name", "letters, digits, '_', '.' and '-'"),
        ("name", "a b", "is not a network name", "letters, digits, '_', '.' and '-'"),
        ("name", "a\n", "is not a network name", "letters, digits, '_', '.' and '-'"),
        ("type", "", "is empty", "name the plugin"),
        ("nodename", "a/b", "is not a node name", "without '/', white space and control characters"),
        ("nodename", "a b", "is not a node name", "without '/', white space and control characters"),
        ("nodename", "a\0", "is not a node name", "without '/', white space and control characters"),
        ("datastore_type", "", "is not known", 'write one of "etcdv3", "orch", "embedded"'),
        ("datastore_type", "Embedded", "is not known", 'write one of "etcdv3", "orch", "embedded"'),
        ("log_level", "", "is not known", '"ERROR", "WARNING", "INFO", "DEBUG"'),
        ("log_level", "WARN", "is not known", '"ERROR", "WARNING", "INFO", "DEBUG"'),
        ("log_file_path", "cni.log", "is not an absolute path", "start it with '/'"),
        ("log_file_path", "/a\0", "is not an absolute path", "start it with '/'"),
        ("endpoint_status_dir", "status", "is not an absolute path", "start it with '/'"),
        ("log_file_max_size", -1, "is out of range", "give 0 to 2147483647; 0 means the default"),
        ("log_file_max_age", 2**31, "is out of range", "give 0 to 2147483647; 0 means the default"),
        ("log_file_max_count", 2**64 - 1, "is out of range", "give 0 to 2147483647; 0 means the default"),
        ("mtu", -1, "is out of range", "give 68 to 65535, or 0 for the kernel's default"),
        ("mtu", 67, "is out of range", "give 68 to 65535, or 0 for the kernel's default"),
        ("mtu", 65536, "is out of range", "give 68 to 65535, or 0 for the kernel's default"),
        ("num_queues", 4097, "is out of range", "give 0 to 4096; 0 means 1"),
        ("num_queues", -1, "is out of range", "give 0 to 4096; 0 means 1"),
        ("nodename_file", "nodename", "is not an absolute path", "start it with '/'"),
        ("hostname", "a b", "is not a node name", "without '/', white space and control characters"),
        ("device_type", "netkit", "is not served", 'leave it out, or write "veth"'),
        ("device_type", "ipvlan", "is not known", 'leave it out, or write "veth"'),
        ("dataplane_options.type", "grpc", "is not served", 'leave it out, or write "linux"'),
        ("ipam.type", "", "is not known", 'set "type": "svc-ipam"'),
        ("ipam.type", "dhcp", "is not known", 'set "type": "svc-ipam"'),
        ("ipam.dataDir", "networks", "is not an absolute path", "start it with '/'"),
        ("ipam.assign_ipv4", "True", "is not known", 'write one of "true", "false", in quotes'),
        ("ipam.assign_ipv4", "", "is not known", 'write one of "true", "false", in quotes'),
        ("ipam.assign_ipv4", "false", "leaves no address to assign", 'set it or ipam.assign_ipv6 to "true"'),
        ("ipam.assign_ipv6", "yes", "is not known", 'write one of "true", "false", in quotes'),
        ("readiness_gates_timeout_seconds", 0, "is out of range", "give 1 to 3600"),
        ("readiness_gates_timeout_seconds", 3601, "is out of range", "give 1 to 3600"),
        ("readiness_gates_ca_file", "ca.pem", "is not an absolute path", "start it with '/'"),
        ("orch.kubeconfig", "k", "is not an absolute path", "start it with '/'"),
        ("kubernetes.kubeconfig", "k", "is not an absolute path", "start it with '/'"),
        ("orch.orch_api_root", "a:6443", "is not a URL", "write http://HOST:PORT or https://HOST:PORT"),
        ("orch.orch_api_root", "ftp://a", "is not a URL", "write http://HOST:PORT or https://HOST:PORT"),
        ("policy.k8s_client_key", "key.pem", "is not an absolute path", "start it with '/'"),
        ("etcd_cert_file", "cert.pem", "is not an absolute path", "start it with '/'"),
        ("orch.node_name", "a/b", "is not a node name", "give 1 to 253 characters"),
        ("kubernetes.node_name", "a b", "is not a node name", "give 1 to 253 characters"),
        ("policy.type", "other", "is not known", 'write one of "orch", "k8s"'),
        ("policy_setup_timeout_seconds", -1, "is out of range", "give 0 to 2147483647; 0 means off"),
        ("policy_setup_timeout_seconds", 2**31, "is out of range", "give 0 to 2147483647; 0 means off"),
    ],
)
def test_error_names_an_invalid_value_and_its_fix(path: str, value: Any, problem: str, fix: str) -> None:
    error = refused(with_field(path, value))
    shown = SHOWN[value] if isinstance(value, bool) else repr(value)
    assert error.msg == f"invalid network configuration: {path} = {shown} {problem}"
    assert error.details.startswith(f"{path} = {shown}: ")
    assert fix in error.details


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "0.A_b-c"),
        ("name", "a" * 124),
        ("cniVersion", ""),
        ("cniVersion", "9.9.9"),
        ("nodename", "  "),
        ("nodename", "n" * 253),
        ("log_level", "Warning"),
        ("log_file_path", ""),
        ("mtu", 0),
        ("mtu", 68),
        ("mtu", 65535),
        ("device_type", "veth"),
        ("dataplane_options", {"type": "Linux", "socket": "/s"}),
        ("mode", "vxlan"),
        ("qps", 100),
        ("ipam_lock_file", "/run/lock"),
        ("windows_loopback_DSR", True),
        ("args", {"cni": {"ips": ["10.0.0.1"]}, "org.apache.mesos": None}),
        ("num_queues", 4096),
        ("etcd_endpoints", "http://127.0.0.1:2379"),
        ("readiness_gates", []),
        ("orch", {}),
        ("kubernetes", {"kubeconfig": "", "other": 1}),
        ("policy", {"type": ""}),
        ("policy_setup_timeout_seconds", 0),
        ("feature_control", {"ip_addrs_no_ipam": False, "floating_ips": False}),
        ("ipam.ipv6_pools", ["10.0.0.0/8", ""]),
    ],
)
def test_valid_and_unused_values_are_accepted(path: str, value: Any) -> None:
    assert parsed(with_field(path, value)).raw == with_field(path, value)


@pytest.mark.parametrize(("given_queues", "queues"), [(0, 1), (1, 1), (8, 8)])
def test_queues_are_at_least_one(given_queues: int, queues: int) -> None:
    assert parsed(config(num_queues=given_queues)).num_queues == queues


@pytest.mark.parametrize(("key", "default"), [("log_file_max_size", 100), ("log_file_max_age", 30), ("log_file_max_count", 10)])
def test_zero_means_the_default_of_log_fields(key: str, default: int) -> None:
    assert getattr(parsed(with_field(key, 0)), key) == default


def test_error_of_a_too_long_name_has_the_limit() -> None:
    error = refused(config(name="a" * 125))
    assert "has 125 characters" in error.msg
    assert "give at most 124" in error.details


@pytest.mark.parametrize("value", ["", "  "])
def test_blank_node_name_is_absent(value: str) -> None:
    assert parsed(config(nodename=value)).nodename is None


def test_negative_policy_wait_is_refused() -> None:
    assert "policy_setup_timeout_seconds = -1" in refused(config(policy_setup_timeout_seconds=-1)).msg


def test_absent_datastore_is_etcd() -> None:
    data = copy.deepcopy(GOOD)
    del data["datastore_type"]
    assert parsed(data).datastore == DatastoreSettings("etcdv3")


def test_options_of_etcd_are_its_settings() -> None:
    """Options of another kind of datastore, and omitted ones, are not part of a session's key."""
    options = {"etcd_endpoints": "http://127.0.0.1:1", "etcd_cert_file": "/c", "etcd_key_file": "/k", "etcd_ca_cert_file": "/a"}
    assert parsed(config(**options)).datastore.to_json() == {"kind": "embedded"}
    assert parsed(config(datastore_type="etcdv3", **options)).datastore.to_json() == {"kind": "etcdv3", **options}


def test_options_of_the_orchestrator_are_its_settings() -> None:
    settings = {"kubeconfig": "/k", "k8s_auth_token": "t"}
    data = config(datastore_type="kubernetes", kubernetes={"kubeconfig": "/k"}, policy={"k8s_auth_token": "t"})
    assert parsed(data).datastore.to_json() == {"kind": "orch", **settings}
    assert dict(parsed(data | {"datastore_type": "embedded"}).orchestrator) == settings


@pytest.mark.parametrize("data", [{"datastore_type": "orch"}, {"policy": {"type": "orch"}}])
def test_use_of_the_orchestrator_requires_its_location(data: dict[str, Any]) -> None:
    error = refused(config(**data))
    assert "orch.kubeconfig is missing" in error.msg
    assert "needs it: give the path of a kubeconfig, or orch.orch_api_root" in error.details
    assert parsed(config(orch={"k8s_api_root": "https://10.0.0.1:6443"}, **data)).policy == ("policy" in data)


def test_invalid_access_to_the_orchestrator_is_reported_once() -> None:
    assert "orch.kubeconfig = 'k'" in refused(config(datastore_type="orch", orch={"kubeconfig": "k"})).msg


@pytest.mark.parametrize(
    ("data", "given", "other"),
    [
        ({"datastore_type": "etcdv3", "etcd_cert_file": "/c"}, "etcd_cert_file", "etcd_key_file"),
        ({"datastore_type": "etcdv3", "etcd_key_file": "/k"}, "etcd_key_file", "etcd_cert_file"),
        (
            {"policy": {"type": "orch", "k8s_client_key": "/k"}, "orch": {"kubeconfig": "/k"}},
            "policy.k8s_client_key",
            "policy.k8s_client_certificate",
        ),
    ],
)
def test_certificate_and_key_require_each_other(data: dict[str, Any], given: str, other: str) -> None:
    error = refused(config(**data))
    assert f"{given} = " in error.msg
    assert f"is of no use without {other}" in error.msg


def test_two_ways_to_find_etcd_exclude_each_other() -> None:
    error = refused(config(etcd_endpoints="http://a", etcd_discovery_srv="example.org"))
    assert "etcd_discovery_srv = 'example.org' excludes etcd_endpoints" in error.msg
    assert "remove one of the two" in error.details


@pytest.mark.parametrize("path", ["name", "type", "ipam", "ipam.type"])
def test_error_of_a_missing_field_says_what_to_add(path: str) -> None:
    data = copy.deepcopy(GOOD)
    *sections, key = path.split(".")
    del (data[sections[0]] if sections else data)[key]
    error = refused(data)
    assert error.msg == f"invalid network configuration: {path} is missing"
    assert error.details.startswith(f'{path}: add "{key}" (')


# addresses


@pytest.mark.parametrize(
    ("path", "value", "problem", "fix"),
    [
        ("ipam.ipv4_pools", "10.0.0.0/33", "is not a CIDR", "give a pool's CIDR or its name"),
        ("ipam.ipv4_pools", "a/b", "is not a CIDR", "give a pool's CIDR or its name"),
        ("ipam.ipv4_pools", "", "is not a pool", "give a pool's CIDR or its name"),
        ("ipam.ipv4_pools", "a b", "is not a pool", "give a pool's CIDR or its name"),
        ("ipam.ipv4_pools", "fd00::/64", "is IPv6", "move it to ipam.ipv6_pools"),
        ("ipam.ipv6_pools", "10.0.0.0/8", "is IPv4", "move it to ipam.ipv4_pools"),
    ],
)
def test_error_has_the_index_of_an_invalid_pool(path: str, value: str, problem: str, fix: str) -> None:
    data = config(ipam__assign_ipv6="true")
    data["ipam"][path.split(".")[1]] = ["blue", value]
    error = refused(data)
    assert f"{path}[1] = {value!r} {problem}" in error.msg
    assert fix in str(error)


def test_pools_of_an_unassigned_family_are_not_checked() -> None:
    """A pod that requests the family may still use them."""
    assert parsed(config(ipam__ipv6_pools=["10.0.0.0/8"])).ipam == IpamConf("svc-ipam", ipv6_pools=("10.0.0.0/8",))
    data = config(ipam__assign_ipv4="false", ipam__assign_ipv6="true", ipam__ipv4_pools=["10.0.0.0/8"])
    assert parsed(data).ipam == IpamConf("svc-ipam", False, True, ("10.0.0.0/8",))


@pytest.mark.parametrize("feature", ["ip_addrs_no_ipam", "floating_ips"])
def test_features_are_off_by_default(feature: str) -> None:
    assert parsed(config(feature_control={})).features == Features()
    assert parsed(config(feature_control={feature: True})).features == Features(**{feature: True})


def test_ipv6_requires_its_minimum_mtu() -> None:
    assert parsed(config(mtu=1279)).mtu == 1279
    assert parsed(config(mtu=1280, ipam__assign_ipv6="true")).mtu == 1280
    error = refused(config(mtu=1279, ipam__assign_ipv6="true"))
    assert "mtu = 1279 is too small for IPv6" in error.msg
    assert "give at least 1280, or 0" in error.details


# the table


def test_table_has_no_path_twice() -> None:
    paths = [path for field in FIELDS for path in field.paths]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.path)
def test_every_row_is_complete_for_the_reference(field: Field) -> None:
    assert field.meaning.endswith(".")
    assert field.section
    assert field.default is None or field.default in field.allowed or not field.allowed

"""Table of all fields of the network configuration that svc reads, for parsing, validation and the user reference.

A new field needs a row here and, if code uses its value, an attribute of `NetConf`.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.model.field_errors import Check, Finding, matching
from svc.model.waits import parse_gate
from svc.values import dataclass

STRING: Final = "string"
INTEGER: Final = "integer"
BOOLEAN: Final = "boolean"
OBJECT: Final = "object"
STRINGS: Final = "array of strings"
ATTACHMENTS: Final = "array of attachments"
RANGES: Final = "array of arrays of ranges"
ROUTES: Final = "array of routes"

LOG_LEVELS: Final = ("ERROR", "WARNING", "INFO", "DEBUG")
DATASTORES: Final = ("etcdv3", "orch", "embedded")
DATASTORE_ALIASES: Final = {"kubernetes": "orch"}
POLICY_TYPES: Final = ("orch", "k8s")
TRUTHS: Final = ("true", "false")

MAX_NAME: Final = 124  # with a dot and a container ID of 128 characters at most 253, the limit of Kubernetes object names
MAX_POOL: Final = 253  # a Kubernetes object name
MAX_QUEUES: Final = 4096  # limit of the kernel for each direction
MIN_MTU: Final = 68  # RFC 791
MIN_MTU_IPV6: Final = 1280  # RFC 8200
MAX_MTU: Final = 65535
MAX_INTEGER: Final = 2**31 - 1
GATE_SECONDS: Final = 30  # for all readiness gates of an ADD
MAX_GATE_SECONDS: Final = 3600  # runtimes give up long before
MAX_GATES: Final = 32  # each has a thread of its own while a call waits for it

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `check` receives a value of the right type."""

    path: str
    type: str
    meaning: str
    section: str  # of the specification
    default: Any = None
    allowed: tuple[str, ...] = ()
    required: bool = False
    check: Check | None = None
    aliases: tuple[str, ...] = ()  # other paths, used if this one is missing
    fold: Callable[[str], str] | None = None  # applied before `allowed` and `check`
    secret: bool = False  # the value, or a part of it, is never shown

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)


@cache
def keys_of(path: str) -> tuple[str, ...]:
    """Return the keys of a path. Dots separate them, except in keys with the domain prefix of the CNI specification."""
    return (path,) if path.startswith("cni.dev/") else tuple(path.split("."))


def _name(text: str) -> Finding | None:
    if len(text) > MAX_NAME:
        return f"has {len(text)} characters", f"give at most {MAX_NAME}"
    if not _NAME.fullmatch(text):
        return "is not a network name", "start with a letter or digit, then letters, digits, '_', '.' and '-'"
    return None


_not_empty: Final = matching(r"[\s\S]+", "is empty", "name the plugin")
node_name: Final = matching(
    r"([^\s/\x00-\x1f\x7f]{1,253})?",
    "is not a node name",
    "give 1 to 253 characters without '/', white space and control characters",
)
"""Validate a node's name from any source; an empty one means none."""
_absolute: Final = matching(r"(/[^\0]*)?", "is not an absolute path", "start it with '/'")
_url: Final = matching(r"(https?://[^\s/?#@]+(/[^\s?#]*)?)?", "is not a URL", "write http://HOST:PORT or https://HOST:PORT")
_dataplane: Final = matching("(linux)?", "is not served", 'leave it out, or write "linux"')


def _between(low: int, high: int, note: str = "") -> Check:
    def check(number: int) -> Finding | None:
        if low <= number <= high:
            return None
        return "is out of range", f"give {low} to {high}{note}"

    return check


def mtu(number: int, *, ipv6: bool = False) -> Finding | None:
    """Validate an MTU from any source, for interfaces with or without IPv6 addresses."""
    if number == 0 or MIN_MTU <= number <= MAX_MTU:
        if 0 < number < MIN_MTU_IPV6 and ipv6:
            return "is too small for IPv6", f"give at least {MIN_MTU_IPV6}, or 0 for the kernel's default"
        return None
    return "is out of range", f"give {MIN_MTU} to {MAX_MTU}, or 0 for the kernel's default"


def _device_type(text: str) -> Finding | None:
    if text in ("", "veth"):
        return None
    return ("is not served" if text == "netkit" else "is not known"), 'leave it out, or write "veth"'


def pool(text: str, version: int) -> Finding | None:
    """Validate a pool's name or CIDR; only a CIDR has a family."""
    if not 0 < len(text) <= MAX_POOL or any(char.isspace() for char in text):
        return "is not a pool", "give a pool's CIDR or its name"
    if "/" not in text:
        return None
    try:
        network = Cidr.masked(text)
    except ValueError as error:
        return f"is not a CIDR ({error})", "give a pool's CIDR or its name"
    if network.version != version:
        return f"is IPv{network.version}", f"move it to ipam.ipv{network.version}_pools"
    return None


def gate(text: str) -> Finding | None:
    """Validate one URL of `readiness_gates`."""
    try:
        parse_gate(text)
    except ValueError as error:
        return str(error), "write http://HOST:PORT/PATH or https://HOST:PORT/PATH"
    return None


def _node(path: str, meaning: str, section: str, *aliases: str) -> Field:
    return Field(path, STRING, meaning, section, check=node_name, fold=str.strip, aliases=aliases)


def _path(path: str, meaning: str, section: str, default: str | None = "", *aliases: str) -> Field:
    return Field(path, STRING, meaning, section, default, check=_absolute, aliases=aliases)


def _number(path: str, meaning: str, section: str, default: int, check: Check) -> Field:
    return Field(path, INTEGER, meaning, section, default, check=check)


_log_number: Final = _between(0, MAX_INTEGER, "; 0 means the default")
_queues: Final = _between(0, MAX_QUEUES, "; 0 means 1")
_seconds: Final = _between(0, MAX_INTEGER, "; 0 means off")
_gate_seconds: Final = _between(1, MAX_GATE_SECONDS)

FIELDS: Final = (
    Field("name", STRING, "Name of the network.", "2.1", required=True, check=_name),
    Field("cniVersion", STRING, "Version of the CNI specification that the runtime speaks.", "2.1"),
    Field("type", STRING, "The plugin's executable.", "2.1", required=True, check=_not_empty),
    _node("nodename", "Name under which the node agent registered; else the host name.", "2.1"),
    _path("nodename_file", "File with that name; else the one of the node agent.", "2.1", None),
    Field("nodename_file_optional", BOOLEAN, "Whether the host name serves where that file is missing.", "2.1", False),
    _node("hostname", "Deprecated: the name where neither nodename nor the file has one.", "2.1"),
    Field(
        "datastore_type",
        STRING,
        "Where addresses and endpoints are kept.",
        "2.1",
        default="etcdv3",
        allowed=DATASTORES,
        fold=lambda text: DATASTORE_ALIASES.get(text, text),
    ),
    Field("log_level", STRING, "The least severe message logged.", "2.1", "INFO", allowed=LOG_LEVELS, fold=str.upper),
    _path("log_file_path", "Log file on each host; without it only stderr is written.", "2.1", None),
    _number("log_file_max_size", "Size in MB at which the log file is rotated.", "2.1", 100, _log_number),
    _number("log_file_max_age", "Days after which a rotated file is removed.", "2.1", 30, _log_number),
    _number("log_file_max_count", "Rotated files that are kept.", "2.1", 10, _log_number),
    _number("mtu", "MTU of the interfaces; 0 is the kernel's default.", "2.1", 0, mtu),
    Field("require_mtu_file", BOOLEAN, "Whether the node agent's MTU file must be there when mtu is 0.", "2.1", False),
    Field("device_type", STRING, "Kind of the interfaces; only veth.", "2.1", "", check=_device_type),
    Field("dataplane_options", OBJECT, "Who wires the pods.", "2.1"),
    Field("dataplane_options.type", STRING, "Only linux, which is this plugin.", "2.1", "", check=_dataplane, fold=str.lower),
    _number("num_queues", "Transmit and receive queues of the interfaces.", "2.1", 1, _queues),
    Field("ipam", OBJECT, "Address management.", "2.3", required=True),
    Field("ipam.type", STRING, "The IPAM plugin's executable.", "2.3", required=True),
    Field("ipam.assign_ipv4", STRING, "Whether to assign an IPv4 address.", "2.3", "true", allowed=TRUTHS),
    Field("ipam.assign_ipv6", STRING, "Whether to assign an IPv6 address.", "2.3", "false", allowed=TRUTHS),
    Field("ipam.ipv4_pools", STRINGS, "CIDRs or names of pools; else all available.", "2.3", ()),
    Field("ipam.ipv6_pools", STRINGS, 'As ipv4_pools; used when assign_ipv6 is "true".', "2.3", ()),
    Field("ipam.ranges", RANGES, 'For host-local: ranges with a "subnet" each; one address of every inner array.', "2.7", ()),
    Field("ipam.subnet", STRING, "For host-local: a CIDR, usePodCidr or usePodCidrIPv6; instead of ranges.", "2.7", ""),
    Field("ipam.routes", ROUTES, 'For host-local: the container\'s routes, by "dst"; else the default ones.', "2.7", ()),
    _path("ipam.dataDir", "For host-local: where it keeps its addresses.", "2.7"),
    Field("include_default_routes", BOOLEAN, "Default routes beside those of ipam.routes.", "2.7", False),
    Field("container_settings", OBJECT, "Settings of the container's side.", "2.4"),
    Field("container_settings.allow_ip_forwarding", BOOLEAN, "Whether the container may forward packets.", "2.4", False),
    Field("etcd_endpoints", STRING, "Comma-separated endpoint URLs.", "2.2", ""),
    Field("etcd_discovery_srv", STRING, "Domain whose SRV records name the endpoints.", "2.2", ""),
    _path("etcd_key_file", "Private key of the client certificate.", "2.2"),
    _path("etcd_cert_file", "Client certificate.", "2.2"),
    _path("etcd_ca_cert_file", "Certificates of the authorities that are trusted.", "2.2"),
    Field(
        "etcd_authority", STRING, "Deprecated: host and port, when etcd_endpoints is absent; else 127.0.0.1:2379.", "2.2", ""
    ),
    Field("etcd_scheme", STRING, "Deprecated: scheme for etcd_authority; else http.", "2.2", ""),
    Field(
        "readiness_gates", STRINGS, "URLs that must answer with a status from 200 to 399 before an address is given.", "2.1", ()
    ),
    _number("readiness_gates_timeout_seconds", "How long an ADD waits for all of them.", "R6", GATE_SECONDS, _gate_seconds),
    Field("readiness_gates_tls_verify", BOOLEAN, "Whether certificates of https gates are checked.", "R6", True),
    _path("readiness_gates_ca_file", "Authorities trusted for https gates, instead of the system's.", "R6"),
    Field("orch", OBJECT, "Access to the Kubernetes API.", "2.5", aliases=("kubernetes",)),
    _path("orch.kubeconfig", "Path of a kubeconfig.", "2.5", "", "kubernetes.kubeconfig"),
    Field(
        "orch.orch_api_root",
        STRING,
        "URL of the API, instead of a kubeconfig.",
        "2.5",
        "",
        check=_url,
        aliases=("orch.k8s_api_root", "kubernetes.orch_api_root", "kubernetes.k8s_api_root", "policy.k8s_api_root"),
    ),
    _node("orch.node_name", "Node whose pod CIDR host-local IPAM takes.", "2.5", "kubernetes.node_name"),
    Field("policy", OBJECT, "Network policy.", "2.6", secret=True),
    Field("policy.type", STRING, "Kind of policy.", "2.6", "", allowed=("", *POLICY_TYPES)),
    Field("policy.k8s_auth_token", STRING, "Token for the API, instead of the kubeconfig's.", "2.6", "", secret=True),
    _path("policy.k8s_client_certificate", "Client certificate for the API.", "2.6"),
    _path("policy.k8s_client_key", "Private key of that certificate.", "2.6"),
    _path("policy.k8s_certificate_authority", "Authorities trusted for the API.", "2.6"),
    _number("policy_setup_timeout_seconds", "How long a pod waits for its policy; 0 is not at all.", "2.6", 0, _seconds),
    _path(
        "endpoint_status_dir",
        "Where the policy agent tells which endpoints are set up; else endpoint-status in the run directory.",
        "2.1",
    ),
    Field("feature_control", OBJECT, "Features that are off unless asked for.", "2.1"),
    Field("feature_control.ip_addrs_no_ipam", BOOLEAN, "Allow addresses that bypass IPAM.", "2.1", False),
    Field("feature_control.floating_ips", BOOLEAN, "Allow floating addresses.", "2.1", False),
    Field("args", OBJECT, "What an orchestrator tells of a container: labels of one that is not a pod.", "CNI"),
    Field("prevResult", OBJECT, "Result of the ADD, set by the runtime.", "CNI"),
    Field(
        "cni.dev/valid-attachments",
        ATTACHMENTS,
        "What a GC must keep, set by the runtime.",
        "CNI",
        aliases=("cni.dev/attachments",),
    ),
)
FILE_OPTIONS: Final = frozenset(keys_of(field.path)[-1] for field in FIELDS if field.check is _absolute)

_DEFAULTS: Final = {field.path: field.default for field in FIELDS}


def default_of(path: str) -> Any:
    """Return the default of a field."""
    return _DEFAULTS[path]

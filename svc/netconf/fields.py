"""Every field of the network configuration that we read, in one table.

Parsing, validation and the reference for users come from it. Adding a field means adding a row here and, when code needs
its value, an attribute of `NetConf`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from svc._core.cidr import Cidr

Finding = tuple[str, str]  # problem, remedy
Check = Callable[[Any], Finding | None]

STRING: Final = "string"
INTEGER: Final = "integer"
BOOLEAN: Final = "boolean"
OBJECT: Final = "object"
STRINGS: Final = "array of strings"
ATTACHMENTS: Final = "array of attachments"

LOG_LEVELS: Final = ("ERROR", "WARNING", "INFO", "DEBUG")
DATASTORES: Final = ("etcdv3", "orch", "embedded")
DATASTORE_ALIASES: Final = {"kubernetes": "orch"}
POLICY_TYPES: Final = ("orch", "k8s")
TRUTHS: Final = ("true", "false")

MAX_NAME: Final = 124  # with a dot and a container id of 128 characters, an object name of the orchestrator: 253
MAX_QUEUES: Final = 4096  # of the kernel, for each direction
MIN_MTU: Final = 68  # RFC 791
MIN_MTU_IPV6: Final = 1280  # RFC 8200
MAX_MTU: Final = 65535
MAX_INTEGER: Final = 2**31 - 1

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_URL: Final = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
_NODE_NAME: Final = re.compile(r"[^\s/\x00-\x1f\x7f]{1,253}")


@dataclass(frozen=True, slots=True)
class Field:
    """One row. `check` sees a value of the right type; `later` tells a value that asks for a feature that is not there yet."""

    path: str
    type: str
    meaning: str
    section: str  # of the specification
    default: Any = None
    allowed: tuple[str, ...] = ()
    required: bool = False
    check: Check | None = None
    later: Callable[[Any], bool] | None = None
    aliases: tuple[str, ...] = ()  # other paths, looked at when this one is absent
    fold: Callable[[str], str] | None = None  # applied before `allowed` and `check` look

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)


@cache
def keys_of(path: str) -> tuple[str, ...]:
    """Dots separate the keys of a path, except in the keys that the CNI specification prefixes with its domain."""
    return (path,) if path.startswith("cni.dev/") else tuple(path.split("."))


def _name(text: str) -> Finding | None:
    if len(text) > MAX_NAME:
        return f"has {len(text)} characters", f"give at most {MAX_NAME}"
    if not _NAME.fullmatch(text):
        return "is not a network name", "start with a letter or digit, then letters, digits, '_', '.' and '-'"
    return None


def _not_empty(text: str) -> Finding | None:
    return None if text else ("is empty", "name the plugin")


def _node_name(text: str) -> Finding | None:
    if not text or _NODE_NAME.fullmatch(text):
        return None
    return "is not a node name", "give 1 to 253 characters without '/', white space and control characters"


def _absolute(text: str) -> Finding | None:
    if not text or (text.startswith("/") and "\0" not in text):
        return None
    return "is not an absolute path", "start it with '/'"


def _url(text: str) -> Finding | None:
    if not text or _URL.fullmatch(text):
        return None
    return "is not a URL", "write http://HOST:PORT or https://HOST:PORT"


def _between(low: int, high: int, note: str = "") -> Check:
    def check(number: int) -> Finding | None:
        if low <= number <= high:
            return None
        return "is out of range", f"give {low} to {high}{note}"

    return check


def _mtu(number: int) -> Finding | None:
    if number == 0 or MIN_MTU <= number <= MAX_MTU:
        return None
    return "is out of range", f"give {MIN_MTU} to {MAX_MTU}, or 0 for the kernel's default"


def _queues(number: int) -> Finding | None:
    if number <= MAX_QUEUES:
        return None
    return "is out of range", f"give at most {MAX_QUEUES}, or 0 for one queue"


def pool(text: str, version: int) -> Finding | None:
    """A pool's name or CIDR; only the CIDR can be wrong by itself."""
    if not text or any(char.isspace() for char in text):
        return "is not a pool", "give a pool's CIDR or its name"
    if "/" not in text:
        return None
    try:
        network = Cidr(text)
    except ValueError as fault:
        return f"is not a CIDR ({fault})", "give a pool's CIDR or its name"
    if network.version != version:
        return f"is IPv{network.version}", f"move it to ipam.ipv{network.version}_pools"
    return None


_log_number: Final = _between(0, MAX_INTEGER, "; 0 means the default")
_seconds: Final = _between(0, MAX_INTEGER, "; 0 means off")

FIELDS: Final = (
    Field("name", STRING, "Name of the network.", "2.1", required=True, check=_name),
    Field("cniVersion", STRING, "Version of the CNI specification that the runtime speaks.", "2.1"),
    Field("type", STRING, "The plugin's executable.", "2.1", required=True, check=_not_empty),
    Field(
        "nodename",
        STRING,
        "Name under which the node agent registered; else the host name.",
        "2.1",
        check=_node_name,
        fold=str.strip,
    ),
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
    Field("log_file_path", STRING, "Log file on each host; without it only stderr is written.", "2.1", check=_absolute),
    Field("log_file_max_size", INTEGER, "Size in MB at which the log file is rotated.", "2.1", 100, check=_log_number),
    Field("log_file_max_age", INTEGER, "Days after which a rotated file is removed.", "2.1", 30, check=_log_number),
    Field("log_file_max_count", INTEGER, "Rotated files that are kept.", "2.1", 10, check=_log_number),
    Field("mtu", INTEGER, "MTU of the interfaces; 0 is the kernel's default.", "2.1", 0, check=_mtu),
    Field("num_queues", INTEGER, "Transmit and receive queues of the interfaces.", "2.1", 1, check=_queues),
    Field("ipam", OBJECT, "Address management.", "2.3", required=True),
    Field("ipam.type", STRING, "The IPAM plugin's executable.", "2.3", required=True),
    Field("ipam.assign_ipv4", STRING, "Whether to assign an IPv4 address.", "2.3", "true", allowed=TRUTHS),
    Field("ipam.assign_ipv6", STRING, "Whether to assign an IPv6 address.", "2.3", "false", allowed=TRUTHS),
    Field("ipam.ipv4_pools", STRINGS, "CIDRs or names of pools; else all available.", "2.3", ()),
    Field("ipam.ipv6_pools", STRINGS, 'As ipv4_pools; used when assign_ipv6 is "true".', "2.3", ()),
    Field("container_settings", OBJECT, "Settings of the container's side.", "2.4"),
    Field("container_settings.allow_ip_forwarding", BOOLEAN, "Whether the container may forward packets.", "2.4", False),
    Field("etcd_endpoints", STRING, "Comma-separated endpoint URLs.", "2.2", ""),
    Field("etcd_discovery_srv", STRING, "Domain whose SRV records name the endpoints.", "2.2", ""),
    Field("etcd_key_file", STRING, "Private key of the client certificate.", "2.2", "", check=_absolute),
    Field("etcd_cert_file", STRING, "Client certificate.", "2.2", "", check=_absolute),
    Field("etcd_ca_cert_file", STRING, "Certificates of the authorities that are trusted.", "2.2", "", check=_absolute),
    Field(
        "etcd_authority",
        STRING,
        "Deprecated: host and port, when etcd_endpoints is absent; else 127.0.0.1:2379.",
        "2.2",
        "",
    ),
    Field("etcd_scheme", STRING, "Deprecated: scheme for etcd_authority; else http.", "2.2", ""),
    Field("readiness_gates", STRINGS, "URLs that must answer before an address is given.", "2.1", (), later=bool),
    Field("orch", OBJECT, "Access to the orchestrator's API.", "2.5", aliases=("kubernetes",)),
    Field("orch.kubeconfig", STRING, "Path of a kubeconfig.", "2.5", "", check=_absolute, aliases=("kubernetes.kubeconfig",)),
    Field(
        "orch.orch_api_root",
        STRING,
        "URL of the API, instead of a kubeconfig.",
        "2.5",
        "",
        check=_url,
        aliases=("orch.k8s_api_root", "kubernetes.orch_api_root", "kubernetes.k8s_api_root", "policy.k8s_api_root"),
    ),
    Field(
        "orch.node_name",
        STRING,
        "Node whose pod CIDR host-local IPAM takes.",
        "2.5",
        "",
        later=bool,
        aliases=("kubernetes.node_name",),
    ),
    Field("policy", OBJECT, "Network policy.", "2.6"),
    Field("policy.type", STRING, "Kind of policy.", "2.6", "", allowed=("", *POLICY_TYPES)),
    Field("policy.k8s_auth_token", STRING, "Token for the API, instead of the kubeconfig's.", "2.6", ""),
    Field("policy.k8s_client_certificate", STRING, "Client certificate for the API.", "2.6", "", check=_absolute),
    Field("policy.k8s_client_key", STRING, "Private key of that certificate.", "2.6", "", check=_absolute),
    Field("policy.k8s_certificate_authority", STRING, "Authorities trusted for the API.", "2.6", "", check=_absolute),
    Field(
        "policy_setup_timeout_seconds",
        INTEGER,
        "How long a pod waits for its policy; 0 is not at all.",
        "2.6",
        0,
        check=_seconds,
        later=bool,
    ),
    Field(
        "endpoint_status_dir", STRING, "Where the data-plane agent tells which endpoints are set up.", "2.1", check=_absolute
    ),
    Field("feature_control", OBJECT, "Features that are off unless asked for.", "2.1"),
    Field("feature_control.ip_addrs_no_ipam", BOOLEAN, "Allow addresses that bypass IPAM.", "2.1", False),
    Field("feature_control.floating_ips", BOOLEAN, "Allow floating addresses.", "2.1", False),
    Field("prevResult", OBJECT, "Result of the ADD, set by the runtime.", "CNI"),
    Field(
        "cni.dev/valid-attachments",
        ATTACHMENTS,
        "What a GC must keep, set by the runtime.",
        "CNI",
        aliases=("cni.dev/attachments",),
    ),
)

_DEFAULTS: Final = {field.path: field.default for field in FIELDS}


def default_of(path: str) -> Any:
    """What holds where a network configuration leaves the field out."""
    return _DEFAULTS[path]

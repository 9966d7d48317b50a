"""The network configuration: parse the bytes of stdin into validated values."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.model.annotations import Features
from svc.model.errors import Code
from svc.model.field_errors import HIDDEN, MISSING, FieldError, FieldErrors, json_kind
from svc.model.waits import GateSettings, PolicySettings, TlsTrust
from svc.names import Names
from svc.netconf import cross_checks, fields, host_local
from svc.netconf.args import Labels, labels_of
from svc.netconf.decoding import REMEMBERED_BYTES, decode, read_exact
from svc.netconf.fields import FIELDS, Field, keys_of
from svc.values import dataclass

MAX_TEXT: Final = 4096  # characters of a field, as in a path: errors, logs and records repeat some fields

# Required even by a DEL: the network's name is a part of the handle, and the version determines the reply.
ESSENTIAL: Final = frozenset({"name", "cniVersion"})

# Location of the datastore. An invalid value must not make a DEL ask another datastore.
_LOCATION: Final[Mapping[str, tuple[str, ...]]] = {
    "embedded": (),
    "etcdv3": ("etcd_endpoints", "etcd_discovery_srv", "etcd_authority", "etcd_scheme"),
    "orch": ("orch", "orch.kubeconfig", "orch.orch_api_root"),
}

ORCHESTRATOR: Final = (
    "orch.kubeconfig",
    "orch.orch_api_root",
    "policy.k8s_auth_token",
    "policy.k8s_client_certificate",
    "policy.k8s_client_key",
    "policy.k8s_certificate_authority",
)
DATASTORE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "embedded": (),
    "etcdv3": (*_LOCATION["etcdv3"], "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file"),
    "orch": ORCHESTRATOR,
}


@dataclass(frozen=True, slots=True)
class DatastoreSettings:
    """Datastore kind and options. Equal settings share a session."""

    kind: str
    options: tuple[tuple[str, str], ...] = ()  # sorted; fields of the configuration without their section

    def to_json(self) -> dict[str, str]:
        """Return the settings in the form of sessions and the journal."""
        return {"kind": self.kind, **dict(self.options)}


@dataclass(frozen=True, slots=True)
class IpamConf:
    """The `ipam` section. No pools means all available pools. Those of a family that is not assigned are not validated."""

    type: str
    assign_ipv4: bool = True
    assign_ipv6: bool = False
    ipv4_pools: tuple[str, ...] = ()
    ipv6_pools: tuple[str, ...] = ()
    data_dir: str = ""  # of host-local

    @property
    def is_delegated(self) -> bool:
        """Return True if another plugin assigns the addresses."""
        return self.type == host_local.TYPE

    @property
    def versions(self) -> tuple[int, ...]:
        """Return the families of which an ADD assigns an address."""
        return (4,) * self.assign_ipv4 + (6,) * self.assign_ipv6

    @property
    def pools(self) -> dict[int, tuple[str, ...]]:
        """Return the pools that an ADD may use, by family; empty means any."""
        return {4: self.ipv4_pools, 6: self.ipv6_pools}


@dataclass(frozen=True, slots=True)
class NetConf:
    """A valid network configuration; `raw` is the complete object with unknown fields."""

    name: str
    cni_version: str | None
    type: str
    nodename: str | None
    nodename_file: str | None
    nodename_file_optional: bool
    hostname: str | None  # deprecated
    datastore: DatastoreSettings
    policy: bool  # whether pods and namespaces are read from the Kubernetes API
    orchestrator: tuple[tuple[str, str], ...]  # access to the Kubernetes API, in the form of datastore options
    log_level: str
    log_file_path: str | None
    log_file_max_size: int
    log_file_max_age: int
    log_file_max_count: int
    ipam: IpamConf
    routes: tuple[Cidr, ...] | None  # into the container, by destination; None: the default routes of its families
    pod_cidr_node: str | None  # node whose pod CIDRs host-local uses, if not this node
    features: Features
    allow_ip_forwarding: bool
    num_queues: int
    mtu: int
    require_mtu_file: bool
    namespace: str  # of a container that is not a pod; empty for the default one
    labels: Labels  # of a container that is not a pod
    gates: GateSettings
    policy_setup: PolicySettings
    prev_result: dict[str, Any] | None
    valid_attachments: tuple[tuple[str, str], ...] | None
    location_errors: FieldErrors  # if it has any, after a lenient parse, `datastore` is not the one that is meant
    raw: dict[str, Any]


def parse(stdin: bytes, names: Names, *, lenient: bool = False) -> NetConf:
    """Parse a network configuration. Raise CallerError that lists all field errors.

    `lenient` is for a DEL: an invalid value counts as missing, except for name and version. The errors of the datastore's
    location are in the result.
    """
    return (_parsed if len(stdin) <= REMEMBERED_BYTES else _parsed.__wrapped__)(stdin, names, lenient)


@lru_cache(maxsize=64)
def _parsed(stdin: bytes, names: Names, lenient: bool) -> NetConf:
    """Parse and cache. A node sees the same few configurations repeatedly, and the result is immutable."""
    raw = decode(stdin)
    return read_exact(raw, stdin, lambda data: read(data, names, lenient=lenient))


def read(raw: dict[str, Any], names: Names, *, lenient: bool = False, source: str = "network configuration") -> NetConf:
    """Return the same as `parse`, for a decoded object. Errors name the `source`."""
    errors = FieldErrors(f"invalid {source}", Code.INVALID_NETCONF)
    values = {field.path: _read(field, raw, errors) for field in FIELDS}
    location = FieldErrors(errors.subject, errors.code, _misleading(values["datastore_type"], errors))
    host_local.check(values, raw, errors)
    cross_checks.check(values, names, errors)
    namespace, labels = labels_of(values["args"], names, errors)
    if lenient:
        errors.found = [error for error in errors.found if error.field in ESSENTIAL]
    errors.raise_if_any()
    return _build(values, raw, namespace, labels, location)


def _misleading(datastore: str, errors: FieldErrors) -> list[FieldError]:
    paths = {path for field in FIELDS if field.path in ("datastore_type", *_LOCATION[datastore]) for path in field.paths}
    return [error for error in errors.found if error.field in paths]


_TYPES: Final[Mapping[str, tuple[type, str]]] = {  # Python's type, and the fix for another one
    fields.STRING: (str, "write a string in quotes"),
    fields.INTEGER: (int, "write a whole number without quotes"),
    fields.BOOLEAN: (bool, "write true or false without quotes"),
    fields.OBJECT: (dict, "write an object, {...}"),
    fields.STRINGS: (list, "write an array of strings, [...]"),
    fields.ATTACHMENTS: (list, 'write an array of objects with "containerID" and "ifname"'),
    fields.RANGES: (list, "write an array of arrays of objects, [[{...}]]"),
    fields.ROUTES: (list, "write an array of objects, [{...}]"),
}


def _read(field: Field, raw: dict[str, Any], errors: FieldErrors) -> Any:
    """Return the field's value, or its default if it is missing, null or invalid."""
    path, value = _find(field, raw)
    if field.type == fields.ATTACHMENTS:
        return _attachments(path, value, errors)
    if value is MISSING or value is None:
        if field.required and _has_parent(field, raw):
            errors.missing(field.path, _how_to_add(field))
        return field.default
    before = len(errors.found)
    value = _checked(field, path, value, errors)
    return value if len(errors.found) == before else field.default


def _find(field: Field, raw: dict[str, Any]) -> tuple[str, Any]:
    for path in field.paths:
        value = lookup(raw, path)
        if value is not MISSING:
            return path, value
    return field.path, MISSING


def lookup(raw: dict[str, Any], path: str) -> Any:
    """Return the value at a field's path, or MISSING."""
    value: Any = raw
    for key in keys_of(path):
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _has_parent(field: Field, raw: dict[str, Any]) -> bool:
    """Return True if the field's section exists. A missing section is one field error, not one for each of its fields."""
    parent, _, _key = field.path.rpartition(".")
    return not parent or isinstance(lookup(raw, parent), dict)


def _how_to_add(field: Field) -> str:
    meaning = field.meaning[0].lower() + field.meaning[1:].rstrip(".")
    return f'add "{keys_of(field.path)[-1]}" ({field.type}): {meaning}'


def _checked(field: Field, path: str, value: Any, errors: FieldErrors) -> Any:
    """Return the value in its internal form. Problems are added to the field errors."""
    is_exact = type(value) is _TYPES[field.type][0]  # isinstance would take a boolean for an int
    if not is_exact:
        errors.add(path, HIDDEN if field.secret else value, f"is {json_kind(value)}", _remedy(field))
        return None
    if field.type == fields.STRINGS:
        return _strings(path, value, errors)
    folded = field.fold(value) if field.fold else value
    if field.allowed and folded not in field.allowed:
        errors.add(path, value, "is not known", _remedy(field))
    elif finding := field.check and field.check(folded):
        errors.add(path, value, *finding)
    elif field.type == fields.STRING and len(value) > MAX_TEXT and not field.secret:
        errors.add(path, value, f"has {len(value)} characters", f"give at most {MAX_TEXT}")
    return folded


def _remedy(field: Field) -> str:
    if field.allowed:
        return "write one of " + ", ".join(f'"{text}"' for text in field.allowed if text) + ", in quotes"
    return _TYPES[field.type][1]


def _strings(path: str, items: list[Any], errors: FieldErrors) -> tuple[str, ...]:
    for index, item in enumerate(items):
        if not isinstance(item, str):
            errors.add(f"{path}[{index}]", item, f"is {json_kind(item)}", _TYPES[fields.STRING][1])
    return tuple(items)


def _attachments(path: str, value: Any, errors: FieldErrors) -> tuple[tuple[str, str], ...] | None:
    """Return None if the member is missing. An empty list, which some runtimes send as null, means no valid attachment."""
    if value is MISSING:
        return None
    if value is not None and not isinstance(value, list):
        errors.add(path, value, f"is {json_kind(value)}", _TYPES[fields.ATTACHMENTS][1])
        return None
    return tuple(_attachment(f"{path}[{index}]", item, errors) for index, item in enumerate(value or ()))


def _attachment(path: str, item: Any, errors: FieldErrors) -> tuple[str, str]:
    if not isinstance(item, dict):
        errors.add(path, item, f"is {json_kind(item)}", _TYPES[fields.ATTACHMENTS][1])
        return "", ""
    return _identifier(path, item, "containerID", errors), _identifier(path, item, "ifname", errors)


def _identifier(path: str, item: dict[str, Any], key: str, errors: FieldErrors) -> str:
    text = item.get(key, MISSING)
    if isinstance(text, str) and text:
        return text
    problem = "is missing" if text is MISSING else "is not a name"
    errors.add(f"{path}.{key}", text, problem, "give a string that is not empty")
    return ""


def _build(values: dict[str, Any], raw: dict[str, Any], namespace: str, labels: Labels, location: FieldErrors) -> NetConf:
    return NetConf(
        name=values["name"],
        cni_version=values["cniVersion"],
        type=values["type"] or "",
        nodename=values["nodename"] or None,
        nodename_file=values["nodename_file"] or None,
        nodename_file_optional=values["nodename_file_optional"],
        hostname=values["hostname"] or None,
        datastore=DatastoreSettings(values["datastore_type"], _options(values, DATASTORE_OPTIONS[values["datastore_type"]])),
        policy=bool(values["policy.type"]),
        orchestrator=_options(values, ORCHESTRATOR),
        log_level=values["log_level"],
        log_file_path=values["log_file_path"] or None,
        log_file_max_size=_or_default(values, "log_file_max_size"),
        log_file_max_age=_or_default(values, "log_file_max_age"),
        log_file_max_count=_or_default(values, "log_file_max_count"),
        ipam=IpamConf(
            values["ipam.type"] or "",
            values["ipam.assign_ipv4"] == "true",
            values["ipam.assign_ipv6"] == "true",
            values["ipam.ipv4_pools"],
            values["ipam.ipv6_pools"],
            values["ipam.dataDir"],
        ),
        routes=host_local.container_routes(values),
        pod_cidr_node=values["orch.node_name"] or None,
        features=Features(values["feature_control.ip_addrs_no_ipam"], values["feature_control.floating_ips"]),
        allow_ip_forwarding=values["container_settings.allow_ip_forwarding"],
        num_queues=max(values["num_queues"], 1),
        mtu=values["mtu"],
        require_mtu_file=values["require_mtu_file"],
        namespace=namespace,
        labels=labels,
        gates=_gates(values),
        policy_setup=PolicySettings(values["policy_setup_timeout_seconds"], values["endpoint_status_dir"]),
        prev_result=values["prevResult"],
        valid_attachments=values["cni.dev/valid-attachments"],
        location_errors=location,
        raw=raw,
    )


def _options(values: dict[str, Any], paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((path.rpartition(".")[2], values[path]) for path in paths if values[path]))


def _gates(values: dict[str, Any]) -> GateSettings:
    """Return the readiness gates without duplicate URLs."""
    trust = TlsTrust(values["readiness_gates_tls_verify"], values["readiness_gates_ca_file"])
    return GateSettings(tuple(dict.fromkeys(values["readiness_gates"])), values["readiness_gates_timeout_seconds"], trust)


def _or_default(values: dict[str, Any], path: str) -> int:
    """Return the value; zero means the default."""
    return int(values[path] or fields.default_of(path))

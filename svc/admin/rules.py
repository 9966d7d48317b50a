"""Rules for documents of kinds other than pools and reservations. Each check yields an error and its fix for each field."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from svc._core.cidr import Address
from svc.admin.field_rules import Found, Rule, fields, items, lines, one_of, texts, typed
from svc.admin.resources import READY
from svc.ipam.settings import check_settings
from svc.model.errors import CallerError
from svc.model.field_errors import MISSING, FieldError
from svc.model.ipam import IpamConfig
from svc.model.resource import Resource, label_errors
from svc.netconf.fields import node_name

NODE_FIELDS: Final = (
    "bgp",
    "ipv4VXLANTunnelAddr",
    "vxlanTunnelMACAddr",
    "ipv6VXLANTunnelAddr",
    "vxlanTunnelMACAddrV6",
    "orchRefs",
    "wireguard",
    "addresses",
    "interfaces",
)
ENDPOINT_FIELDS: Final = ("node", "interfaceName", "expectedIPs", "profiles", "ports")
PROFILE_FIELDS: Final = ("ingress", "egress", "labelsToApply")
SETTINGS: Final[dict[str, type]] = {
    "strictAffinity": bool,
    "autoAllocateBlocks": bool,
    "maxBlocksPerHost": int,
    "kubeVirtVMAddressPersistence": str,
    "ipCooldownSeconds": int,
}
ACTIONS: Final = ("Allow", "Deny", "Log", "Pass")
_MAX_INTERFACE: Final = 15  # characters of an interface's name in the kernel
_GUID: Final = re.compile("[0-9a-f]{32}")
_PROTOCOLS: Final = ("TCP", "UDP", "ICMP", "ICMPv6", "SCTP", "UDPLite")


def check_host_endpoint(resource: Resource, _present: Resource | None) -> Iterator[str]:
    """Yield the problems of a host endpoint."""
    yield from lines(_host_endpoint(resource.spec))


def check_profile(reserved: str, resource: Resource, _present: Resource | None) -> Iterator[str]:
    """Yield the problems of a profile. `reserved` is the name of the profile that policy agents have without a document."""
    if resource.name == reserved:
        yield f"metadata.name = {reserved!r} is built in: give another name"
    rules = items(partial(fields, {"action": one_of(ACTIONS)}, open_ended=True, required=("action",)))
    known: dict[str, Rule] = {"ingress": rules, "egress": rules, "labelsToApply": texts}
    yield from lines(fields(known, "spec", resource.spec))


def check_node(resource: Resource, _present: Resource | None) -> Iterator[str]:
    """Yield the problems of a node. Its fields belong to the node agent, so only their types are checked."""
    if finding := node_name(resource.name):
        yield FieldError("metadata.name", resource.name, *finding).line
    kinds = dict.fromkeys(("bgp", "wireguard"), dict) | dict.fromkeys(("orchRefs", "addresses", "interfaces"), list)
    yield from lines(fields({name: typed(kinds.get(name, str)) for name in NODE_FIELDS}, "spec", resource.spec))
    yield from lines(label_errors(resource.labels))


def check_cluster(version_field: str, resource: Resource, present: Resource | None) -> Iterator[str]:
    """Yield the problems of the cluster's information. Its identity cannot be replaced."""
    text = typed(str)
    known: dict[str, Rule] = {
        "clusterGUID": _guid,
        "clusterType": text,
        version_field: text,
        READY: typed(bool),
        "variant": text,
    }
    yield from lines(fields(known, "spec", resource.spec))
    stored, given = (present.spec if present else {}).get("clusterGUID"), resource.spec.get("clusterGUID")
    if stored and given and given != stored:
        yield FieldError("spec.clusterGUID", given, f"cannot replace {stored!r}", "leave it out: it identifies the data").line
    if not (stored or given):
        yield "spec.clusterGUID is missing: give 32 hexadecimal digits, or use `svcctl clusterinfo init`, which makes them"


def check_settings_document(resource: Resource, _present: Resource | None) -> Iterator[str]:
    """Yield the problems of the IPAM settings."""
    found = list(fields({name: typed(kind) for name, kind in SETTINGS.items()}, "spec", resource.spec))
    yield from lines(found)
    for name in ("labels", "annotations"):
        if given := resource.metadata.get(name):
            yield FieldError(f"metadata.{name}", given, "is not stored", "leave it out: these settings have none").line
    if found:
        return
    try:
        check_settings(settings_of(resource), lambda name, value: f"set spec.{name} to {value}")
    except CallerError as error:
        yield from (f"spec.{line}" for line in error.errors)


def settings_of(resource: Resource) -> IpamConfig:
    """Return valid settings, with defaults for fields that are missing."""
    given = {name: value for name, value in resource.spec.items() if value is not None}
    return IpamConfig(
        given.get("strictAffinity", False),
        given.get("autoAllocateBlocks", True),
        given.get("maxBlocksPerHost", 0),
        given.get("kubeVirtVMAddressPersistence", ""),
        given.get("ipCooldownSeconds", 0),
    )


def _host_endpoint(spec: dict[str, Any]) -> Found:
    port: dict[str, Rule] = {"name": typed(str), "port": _port, "protocol": check_protocol}
    known: dict[str, Rule] = {
        "node": _node,
        "interfaceName": _interface,
        "expectedIPs": items(_address),
        "profiles": items(typed(str)),
        "ports": items(partial(fields, port, required=tuple(port))),
    }
    yield from fields(known, "spec", spec, required=("node",))
    if not spec.get("interfaceName") and not spec.get("expectedIPs"):
        remedy = 'give the name of an interface, or "*" for all of the node, or expectedIPs'
        yield FieldError("spec.interfaceName", MISSING, "is missing", remedy)


def _guid(where: str, value: Any) -> Found:
    if not isinstance(value, str) or not _GUID.fullmatch(value):
        yield FieldError(where, value, "is not a GUID", "give 32 hexadecimal digits in lower case")


def _node(where: str, value: Any) -> Found:
    finding = ("is empty", "name the node") if value == "" else node_name(value) if isinstance(value, str) else None
    yield from [FieldError(where, value, *finding)] if finding else typed(str)(where, value)


def _interface(where: str, value: Any) -> Found:
    if not isinstance(value, str) or len(value) > _MAX_INTERFACE or "/" in value or any(char.isspace() for char in value):
        remedy = f'give up to {_MAX_INTERFACE} characters without "/" and blanks, or "*" for all of the node'
        yield FieldError(where, value, "is not the name of an interface", remedy)


def _address(where: str, value: Any) -> Found:
    try:
        Address(value)
    except (TypeError, ValueError):
        yield FieldError(where, value, "is not an IP address", "give one such as 192.0.2.1 or 2001:db8::1")


def _port(where: str, value: Any) -> Found:
    if type(value) is not int or not 0 < value < 1 << 16:
        yield FieldError(where, value, "is not a port", "give 1 to 65535")


def check_protocol(where: str, value: Any) -> Found:
    """Yield the error of a value that is neither the name nor the number of a protocol."""
    if value not in _PROTOCOLS and not (type(value) is int and 0 < value < 256):
        yield FieldError(where, value, "is not a protocol", f"give one of {', '.join(_PROTOCOLS)}, or a number from 1 to 255")

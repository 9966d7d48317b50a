"""Node resource of a Kubernetes node: its labels, and the annotations that other programs have written."""

from typing import Any

import orjson

from svc.model.resource import Resource, ordered
from svc.names import Names

Json = dict[str, Any]

KIND = "Node"

_SPEC = (  # annotation, section and field of spec ("" is spec itself)
    ("IPv4Address", "bgp", "ipv4Address"),
    ("IPv6Address", "bgp", "ipv6Address"),
    ("ASNumber", "bgp", "asNumber"),
    ("RouteReflectorClusterID", "bgp", "routeReflectorClusterID"),
    ("IPv4IPIPTunnelAddr", "bgp", "ipv4IPIPTunnelAddr"),
    ("IPv4VXLANTunnelAddr", "", "ipv4VXLANTunnelAddr"),
    ("VXLANTunnelMACAddr", "", "vxlanTunnelMACAddr"),
    ("IPv6VXLANTunnelAddr", "", "ipv6VXLANTunnelAddr"),
    ("VXLANTunnelMACAddrV6", "", "vxlanTunnelMACAddrV6"),
    ("IPv4WireguardInterfaceAddr", "wireguard", "interfaceIPv4Address"),
    ("IPv6WireguardInterfaceAddr", "wireguard", "interfaceIPv6Address"),
)
_STATUS = (("WireguardPublicKey", "wireguardPublicKey"), ("WireguardPublicKeyV6", "wireguardPublicKeyV6"))
_OURS = "NodeIP"  # end of the type of addresses that BGP uses
_KEPT = ("name", "uid", "creationTimestamp", "deletionTimestamp")


def node_resource(names: Names, node: Json) -> Resource:
    """Return the resource of a Kubernetes node. Unreadable annotations count as missing. Raise KeyError without metadata."""
    metadata = node["metadata"]
    notes = {
        name.removeprefix(f"{names.label_prefix}/"): text
        for name, text in (metadata.get("annotations") or {}).items()
        if name.startswith(f"{names.label_prefix}/")
    }
    labels = _pairs(notes.get("labels")) | (metadata.get("labels") or {})
    kept = {name: metadata[name] for name in _KEPT if metadata.get(name)}
    shown = ordered(kept | {"labels": labels, "annotations": _pairs(notes.get("annotations"))})
    return Resource(KIND, shown, _spec(names, node, notes), _status(node, notes))


def _spec(names: Names, node: Json, notes: dict[str, str]) -> Json:
    spec: Json = {}
    for note, section, field in _SPEC:
        if text := notes.get(note):
            part = spec.setdefault(section, {}) if section else spec
            part[field] = int(text) if field == "asNumber" and text.isdigit() else text
    spec["orchRefs"] = [{"nodeName": node["metadata"]["name"], "orchestrator": names.orchestrator}]
    if addresses := _addresses(names, node, spec.get("bgp") or {}):
        spec["addresses"] = addresses
    if interfaces := _loaded(notes.get("Interfaces"), list):
        spec["interfaces"] = interfaces
    return spec


def _addresses(names: Names, node: Json, bgp: Json) -> list[Json]:
    kind = names.plugin.capitalize() + _OURS
    own = [{"address": bgp[field], "type": kind} for field in ("ipv4Address", "ipv6Address") if field in bgp]
    given = (node.get("status") or {}).get("addresses") or ()
    return own + [
        {"address": item["address"], "type": item["type"]} for item in given if item.get("type") in ("InternalIP", "ExternalIP")
    ]


def _status(node: Json, notes: dict[str, str]) -> Json:
    status = {field: notes[note] for note, field in _STATUS if notes.get(note)}
    ranges = (node.get("spec") or {}).get("podCIDRs")
    return status | ({"podCIDRs": ranges} if ranges else {})


def _pairs(text: str | None) -> dict[str, str]:
    found: dict[str, str] = _loaded(text, dict) or {}
    return found


def _loaded(text: str | None, kind: type) -> Any:
    try:
        found = orjson.loads(text or "null")
    except ValueError:
        return None
    return found if isinstance(found, kind) else None

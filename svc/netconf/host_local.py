"""The `ipam` section of a network with host-local IPAM (2.7): the fields that svc reads and replaces.

host-local validates the rest of the section; unknown fields are passed on unchanged.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from svc._core.cidr import Address, Cidr
from svc.model import cni_versions
from svc.model.field_errors import MISSING, FieldErrors, json_kind
from svc.netconf import fields

Json = dict[str, Any]

TYPE: Final = "host-local"
KEYWORDS: Final[Mapping[str, int]] = {"usepodcidr": 4, "usepodcidripv6": 6}  # in lower case, to family
DEFAULTS: Final = (Cidr("0.0.0.0/0"), Cidr("::/0"))

_OWN_IPAM: Final = ("assign_ipv4", "assign_ipv6", "ipv4_pools", "ipv6_pools")
_DATA_DIR: Final = "/var/lib/cni/networks"  # default of host-local
_PLAIN_SUBNET: Final = "give a CIDR, usePodCidr or usePodCidrIPv6"
_ANYWHERE: Final = "0.0.0.0/0", "::/0"  # ranges for releases: they contain every address


def check(values: Json, raw: Json, errors: FieldErrors) -> None:
    """Add field errors. Invalid values count as missing afterwards."""
    if values["ipam.type"] != TYPE:
        return
    ipam = raw["ipam"]
    for key in _OWN_IPAM:
        if ipam.get(key) is not None:
            errors.add(f"ipam.{key}", ipam[key], f"needs the IPAM of svc, which {TYPE} replaces", "remove it")
            values[f"ipam.{key}"] = fields.default_of(f"ipam.{key}")
    _check_ranges(ipam, raw, errors)
    routes = enumerate(values["ipam.routes"])
    values["ipam.routes"] = [route for index, route in routes if _is_sound(f"ipam.routes[{index}]", route, errors)]
    _check_access(values, ipam, errors)
    if any((_is_word(text) and KEYWORDS[text.lower()] == 6) or ":" in text for text in _subnets(ipam)):
        errors.check("mtu", values["mtu"], fields.mtu(values["mtu"], ipv6=True))


def families(raw: Json) -> frozenset[int]:
    """Return the families for which the section requests the node's pod CIDR."""
    return frozenset(KEYWORDS[text.lower()] for text in _subnets(raw["ipam"]) if _is_word(text))


def resolved(raw: Json, node_ranges: Mapping[int, str]) -> Json:
    """Return the configuration with which host-local assigns an address.

    CIDRs replace the keywords for pod CIDRs. Gateways, which host-local would use, and routes without destination are removed.
    """
    ipam = dict(raw["ipam"])
    if ipam.get("subnet"):
        ipam["subnet"] = _replaced(ipam["subnet"], node_ranges)
    if ipam.get("ranges"):
        ipam["ranges"] = [
            [item | {"subnet": _replaced(item["subnet"], node_ranges)} for item in group] for group in ipam["ranges"]
        ]
    if ipam.get("routes"):
        kept = [route for route in ipam["routes"] if route.get("dst")]
        ipam["routes"] = [{key: value for key, value in route.items() if key != "gw"} for route in kept]
    return {**raw, "ipam": ipam}


def for_release(name: str, data_dir: str) -> Json:
    """Return a configuration that releases an attachment's addresses, independent of the network's present one and of the API.

    It has the latest CNI version, because older ones refuse such ranges. The result of a release does not depend on it.
    """
    ipam: Json = {"type": TYPE, "ranges": [[{"subnet": subnet}] for subnet in _ANYWHERE]}
    if data_dir:
        ipam["dataDir"] = data_dir
    return {"cniVersion": cni_versions.LATEST, "name": name, "type": TYPE, "ipam": ipam}


def holder(name: str, data_dir: str, address: Address) -> tuple[str, str]:
    """Return container and interface of an address from host-local's files; empty if the address is not assigned."""
    try:
        container, ifname, *_ = [*(Path(data_dir or _DATA_DIR) / name / str(address)).read_text().splitlines(), "", ""]
    except (OSError, ValueError):
        return "", ""
    return container, ifname


def container_routes(values: Json) -> tuple[Cidr, ...] | None:
    """Return the destinations of a container's routes from valid values. None means the default routes of its families."""
    given = values["ipam.routes"] if values["ipam.type"] == TYPE else ()
    custom = [Cidr.masked(route["dst"]) for route in given if route.get("dst")]
    return tuple(dict.fromkeys([*(DEFAULTS if values["include_default_routes"] else ()), *custom])) if custom else None


def _check_ranges(ipam: Json, raw: Json, errors: FieldErrors) -> None:
    items = list(_items(ipam, errors))
    for path, item in items:
        _check_subnet(f"{path}.subnet", item.get("subnet", MISSING), errors)
    for path, item in (*items, ("ipam", ipam)):
        for key in ("rangeStart", "rangeEnd"):
            if _is_word(text := item.get(key)):
                errors.add(f"{path}.{key}", text, "is not an address", "usePodCidr and usePodCidrIPv6 are for subnet alone")
    if isinstance(subnet := ipam.get("subnet"), str) and subnet:
        _check_subnet("ipam.subnet", subnet, errors)
    runtime = raw.get("runtimeConfig")
    told = isinstance(runtime, dict) and runtime.get("ipRanges")
    if not (ipam.get("ranges") or ipam.get("subnet") or told or any(error.field == "ipam.ranges" for error in errors.found)):
        errors.missing("ipam.ranges", 'give the ranges of addresses, such as [[{"subnet": "usePodCidr"}]]')


def _items(ipam: Json, errors: FieldErrors) -> Iterator[tuple[str, Json]]:
    """Yield the ranges with their paths. A field error for `ranges` of another type already exists."""
    ranges = ipam.get("ranges")
    for outer, group in enumerate(ranges if isinstance(ranges, list) else ()):
        path = f"ipam.ranges[{outer}]"
        if not isinstance(group, list) or not group:
            problem = "is empty" if group == [] else f"is {json_kind(group)}"
            errors.add(path, group, problem, "give an array of ranges, [{...}]")
            continue
        for inner, item in enumerate(group):
            if isinstance(item, dict):
                yield f"{path}[{inner}]", item
            else:
                errors.add(f"{path}[{inner}]", item, f"is {json_kind(item)}", "give an object, {...}")


def _check_subnet(path: str, text: object, errors: FieldErrors) -> None:
    if text is MISSING:
        errors.missing(path, _PLAIN_SUBNET)
    elif not isinstance(text, str):
        errors.add(path, text, f"is {json_kind(text)}", _PLAIN_SUBNET)
    elif not _is_word(text):
        try:
            Cidr.masked(text)
        except ValueError as error:
            errors.add(path, text, f"is not a CIDR ({error})", _PLAIN_SUBNET)


def _is_sound(path: str, route: Any, errors: FieldErrors) -> bool:
    if not isinstance(route, dict):
        errors.add(path, route, f"is {json_kind(route)}", "give an object, {...}")
        return False
    dst = route.get("dst") or ""
    try:
        if dst and "/" not in dst:
            raise ValueError("it has no prefix length")
        return not dst or bool(Cidr.masked(dst))
    except (TypeError, ValueError) as error:
        errors.add(f"{path}.dst", dst, f"is not a CIDR ({error})", "give ADDRESS/LENGTH")
        return False


def _check_access(values: Json, ipam: Json, errors: FieldErrors) -> None:
    word = next((text for text in _subnets(ipam) if _is_word(text)), None)
    if word is None or values["orch.kubeconfig"] or values["orch.orch_api_root"]:
        return
    if not any(error.field.startswith("orch.") for error in errors.found):
        errors.missing("orch.kubeconfig", f'"{word}" needs it: give the path of a kubeconfig, or orch.orch_api_root')


def _subnets(ipam: Json) -> list[str]:
    """Return all subnets of the section that are strings."""
    ranges = ipam.get("ranges")
    groups = [group for group in (ranges if isinstance(ranges, list) else ()) if isinstance(group, list)]
    found = [item.get("subnet") for group in groups for item in group if isinstance(item, dict)]
    return [text for text in (*found, ipam.get("subnet")) if isinstance(text, str)]


def _is_word(text: object) -> bool:
    return isinstance(text, str) and text.lower() in KEYWORDS


def _replaced(subnet: str, node_ranges: Mapping[int, str]) -> str:
    return node_ranges[KEYWORDS[subnet.lower()]] if _is_word(subnet) else subnet

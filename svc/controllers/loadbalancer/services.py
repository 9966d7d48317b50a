"""What services of type LoadBalancer request: read from a service of the Kubernetes API, without I/O."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from svc._core.cidr import Address, Cidr
from svc.ipam.load_balancer import handle_of
from svc.model.annotations import POOLS
from svc.model.field_errors import FieldError
from svc.names import Names
from svc.values import dataclass, field

Json = dict[str, Any]

TYPE: Final = "LoadBalancer"
ADDRESSES: Final = "loadBalancerIPs"

_FAMILIES: Final = {"IPv4": 4, "IPv6": 6}


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """The addresses that a service requests: these `addresses`, or else one of each family in `versions`.

    `pools` names the pools of a family, by name or CIDR. `is_explicit` is false if the service has no request of its own.
    """

    versions: tuple[int, ...] = (4,)
    pools: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    addresses: tuple[Address, ...] = ()
    is_explicit: bool = False


class ServiceRow(NamedTuple):
    """A service that may get addresses from svc. `problem` says what is wrong with its request.

    `ingress` has the addresses in its status; an entry without an address is an empty text.
    """

    handle: str
    request: ServiceRequest
    problem: str
    ingress: tuple[str, ...]


class _Invalid(ValueError):
    """The error about a request. The message names the field, the value and the remedy."""


def read_service(names: Names, service: Json) -> tuple[str, ServiceRow | None]:
    """Return NAMESPACE/NAME and the row of a service; no row if it has another type or another class."""
    metadata = service["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    key = f"{namespace}/{name}"
    if (service.get("spec") or {}).get("type") != TYPE or has_another_class(names, service):
        return key, None
    request, problem = ServiceRequest(is_explicit=True), ""
    try:
        request = _request(names, service)
    except _Invalid as invalid:
        problem = str(invalid)
    return key, ServiceRow(handle_of(namespace, name, str(metadata["uid"])), request, problem, shown_addresses(service))


def has_another_class(names: Names, service: Json) -> bool:
    """Return whether another program serves the class of a service."""
    return (service.get("spec") or {}).get("loadBalancerClass") not in (None, "", names.plugin)


def ingress_of(service: Json) -> list[Json]:
    """Return the entries in the status of a service."""
    found = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress")
    return list(found or ())


def shown_addresses(service: Json) -> tuple[str, ...]:
    """Return the address of each entry in the status; an empty text for one without."""
    return tuple(_canonical(str(entry.get("ip") or "")) for entry in ingress_of(service))


def fitting(
    request: ServiceRequest, held: Collection[Address], pools: Mapping[str, Cidr], shown: Sequence[str]
) -> tuple[Address, ...]:
    """Return those of the held addresses that meet the request. Of several, the one that the status shows is preferred.

    `pools` has the CIDRs of the pools, by name and by CIDR. A missing pool does not cause the replacement of an address.
    """
    if request.addresses:
        return tuple(address for address in request.addresses if address in held)
    preferred = sorted(held, key=lambda address: (str(address) not in shown, str(address)))
    found = []
    for version in request.versions:
        fit = (each for each in preferred if each.version == version and _is_in(each, request.pools.get(version, ()), pools))
        found += [address for address, _ in zip(fit, range(1), strict=False)]
    return tuple(found)


def missing(request: ServiceRequest, kept: Collection[Address]) -> tuple[Address | int, ...]:
    """Return the requested addresses, or else families, that these addresses lack."""
    if request.addresses:
        return tuple(address for address in request.addresses if address not in kept)
    present = {address.version for address in kept}
    return tuple(version for version in request.versions if version not in present)


def _is_in(address: Address, named: Sequence[str], pools: Mapping[str, Cidr]) -> bool:
    return not named or any(name not in pools or address in pools[name] for name in named)


def _request(names: Names, service: Json) -> ServiceRequest:
    versions = _versions(service["spec"])
    notes = service["metadata"].get("annotations") or {}
    pools = {version: _texts(notes, f"{names.label_prefix}/{note}", "pools") for version, note in POOLS.items()}
    addresses = _addresses(names, service, notes)
    for address in addresses:
        if address.version not in versions:
            families = " and ".join(f"IPv{version}" for version in versions)
            raise _Invalid(
                f"address {str(address)!r} is requested, and spec.ipFamilies has {families} only: correct one of them"
            )
    wanted = {version: names for version, names in pools.items() if names}
    return ServiceRequest(versions, wanted, addresses, is_explicit=bool(wanted or addresses))


def _versions(spec: Json) -> tuple[int, ...]:
    """Return the families of a service. An old API server does not list them, so the addresses inside the cluster show them."""
    given = spec.get("ipFamilies")
    found = [_FAMILIES[family] for family in given or () if family in _FAMILIES]
    if not found:
        inside = spec.get("clusterIPs") or [spec.get("clusterIP")]
        found = [6 if ":" in text else 4 for text in inside if text and text != "None"]
    return tuple(dict.fromkeys(found)) or (4,)


def _addresses(names: Names, service: Json, notes: Mapping[str, str]) -> tuple[Address, ...]:
    note = f"{names.label_prefix}/{ADDRESSES}"
    texts, place = _texts(notes, note, "addresses"), _place(note)
    if not texts and (single := service["spec"].get("loadBalancerIP")):
        texts, place = (str(single),), "spec.loadBalancerIP"
    found: dict[int, Address] = {}
    for text in texts:
        try:
            address = Address(text)
        except ValueError:
            raise _error(place, text, "is not an address", "give one such as 192.0.2.1 or 2001:db8::1") from None
        if address.version in found:
            raise _error(place, ", ".join(texts), "has two addresses of one family", "give at most one of each")
        found[address.version] = address
    return tuple(found.values())


def _texts(notes: Mapping[str, str], note: str, what: str) -> tuple[str, ...]:
    """Return the JSON list of texts in an annotation; nothing if it is missing."""
    text = notes.get(note) or ""
    if not text:
        return ()
    try:
        found = orjson.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise _error(_place(note), text, f"is not a JSON list of {what}", 'give one such as ["a", "b"]')
    return tuple(found)


def _place(note: str) -> str:
    return f"metadata.annotations[{note}]"


def _error(place: str, value: str, problem: str, remedy: str) -> _Invalid:
    return _Invalid(FieldError(place, value, problem, remedy).line)


def _canonical(text: str) -> str:
    try:
        return str(Address(text))
    except ValueError:
        return ""

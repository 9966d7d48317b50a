"""Parser for the annotation settings of a pod and its namespace (specification 2.8, rules R2 to R5).

If both have the same annotation, that of the pod counts. An address annotation of the pod replaces both address annotations of
the namespace. A replaced annotation is not validated.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from svc._core.cidr import Address, Cidr
from svc.model import annotations
from svc.model.annotations import NO_SETTINGS, AnnotationSettings, Features
from svc.model.errors import CallerError, Code
from svc.model.field_errors import FieldErrors, display, json_kind
from svc.model.qos import controls_of
from svc.model.resource import MAX_NAME
from svc.names import Names
from svc.values import dataclass

Parsed = TypeVar("Parsed")

_VERSIONS: Final = {"IPv4": 4, "IPv6": 6}
_USELESS: Final = {
    "0.0.0.0/8": "means no host", "127.0.0.0/8": "is a loopback address", "169.254.0.0/16": "is a link-local address",
    "224.0.0.0/4": "is a multicast address", "255.255.255.255/32": "is the broadcast address",
    "::/128": "means no host", "::1/128": "is a loopback address", "::ffff:0:0/96": "is an IPv4 address in IPv6 form",
    "fe80::/10": "is a link-local address", "ff00::/8": "is a multicast address",
}  # fmt: skip
_NETWORKS: Final = {Cidr(text): problem for text, problem in _USELESS.items()}
_HOST_MAC: Final = b"\xee" * 6
_MAC: Final = re.compile(r"\w{2}(:\w{2}){5}|\w{2}(-\w{2}){5}|\w{4}(\.\w{4}){2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ObjectAnnotations:
    """The annotations of an object; `owner` names it in errors (`pod default/web-0`)."""

    owner: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Note:
    """One annotation with its location."""

    name: str  # without the prefix
    place: str
    text: str


_PAIR: Final = "give at most one IPv4 and one IPv6 address"
_LIST: Final = 'write a JSON list of strings, such as ["a", "b"]'


def parse_annotations(
    names: Names, pod: ObjectAnnotations, namespace: ObjectAnnotations, features: Features
) -> AnnotationSettings:
    """Return the annotation settings. Raise CallerError that lists all field errors of the annotations that count."""
    prefixes = f"{names.annotation_prefix}/", f"{names.qos_prefix}/", f"{names.orch_domain}/"
    if not any(note.startswith(prefixes) for notes in (pod, namespace) for note in notes.values):
        return NO_SETTINGS
    return _Reader(names, pod, namespace, features).read()


def require_svc_ipam(kind: str, names: Names, asked: Iterable[str]) -> None:
    """Raise CallerError if settings require the IPAM of svc, and `kind` (ipam.type) is another plugin (rule R8)."""
    places = list(asked)
    if places and kind != names.ipam_plugin:
        raise CallerError(
            f"ipam.type {kind!r} gives no pod an address or pool of its own",
            details=f"{'; '.join(places)}: remove that, or set ipam.type to {names.ipam_plugin!r}",
            code=Code.ANNOTATION,
        )


class _Reader:
    def __init__(self, names: Names, pod: ObjectAnnotations, namespace: ObjectAnnotations, features: Features) -> None:
        self._names = names
        self._pod = pod
        self._namespace = namespace
        self._features = features
        self._errors = FieldErrors("invalid annotations", Code.ANNOTATION)
        self._sources: dict[str, str] = {}

    def read(self) -> AnnotationSettings:
        both = self._pod, self._namespace
        pools = {
            version: self._list(self._note(name, *both), partial(_pool, version)) for version, name in annotations.POOLS.items()
        }
        versions = tuple(sorted(set(self._list(self._note(annotations.FAMILIES, *both), _version))))
        addresses = self._address_note()
        settings = AnnotationSettings(
            pools={version: given for version, given in pools.items() if given},
            versions=versions,
            addresses=self._addresses(addresses) if addresses else (),
            unmanaged=addresses is not None and addresses.name == annotations.UNMANAGED,
            floating=self._floating(),
            mac=self._mac(),
            sources=self._sources,
            warnings=tuple(controls_of(self._names, self._pod.values)[1]),
        )
        self._list(self._note(annotations.SOURCE_PREFIXES, self._pod), _prefix, may_be_empty=True)
        self._errors.raise_if_any()
        return settings

    def _address_note(self) -> _Note | None:
        """Return the annotation that gives the pod its addresses. Return None if it does not exist, or if two conflict."""
        for notes in (self._pod, self._namespace):
            given = [note for name in (annotations.ADDRESSES, annotations.UNMANAGED) if (note := self._note(name, notes))]
            if len(given) == 2:
                self._error(given[0], f"cannot be used together with {annotations.UNMANAGED}", "remove one of the two")
                return None
            if given:
                return given[0]
        return None

    def _addresses(self, note: _Note) -> tuple[Address, ...]:
        if note.name == annotations.UNMANAGED and not self._features.ip_addrs_no_ipam:
            self._demand_feature(note, "ip_addrs_no_ipam")
        addresses = self._list(note, _pod_address, at_most=2)
        if len({address.version for address in addresses}) < len(addresses):
            self._error(note, f"has two IPv{addresses[0].version} addresses", _PAIR)
        return addresses

    def _floating(self) -> tuple[Address, ...]:
        note = self._note(annotations.FLOATING, self._pod, self._namespace)
        addresses = self._list(note, _plain_address, may_be_empty=True)
        if note and addresses and not self._features.floating_ips:
            self._demand_feature(note, "floating_ips")
        return addresses

    def _demand_feature(self, note: _Note, feature: str) -> None:
        remedy = "set that to true in the network configuration, or remove the annotation"
        self._error(note, f"needs feature_control.{feature}", remedy)

    def _error(self, note: _Note, problem: str, remedy: str) -> None:
        self._errors.add(note.place, note.text, problem, remedy)

    def _mac(self) -> str:
        note = self._note(annotations.MAC, self._pod)
        if note is None:
            return ""
        try:
            return _hardware_address(note.text).hex(":")
        except ValueError as error:
            self._error(note, str(error), "give a unicast address of 6 octets, such as 0a:00:5e:00:53:01")
            return ""

    def _note(self, name: str, *where: ObjectAnnotations) -> _Note | None:
        """Return the annotation of the first object that has it."""
        key = f"{self._names.annotation_prefix}/{name}"
        for notes in where:
            if key in notes.values:
                return _Note(name, f"{key} of {notes.owner}", notes.values[key])
        return None

    def _list(
        self, note: _Note | None, parse: Callable[[str], Parsed], *, may_be_empty: bool = False, at_most: int = 0
    ) -> tuple[Parsed, ...]:
        """Return the valid entries; empty if the annotation is missing."""
        if note is None:
            return ()
        self._sources[note.name] = f"{note.place} = {display(note.text)}"
        items = self._decoded(note)
        if not items:
            if items is not None and not may_be_empty:
                self._error(note, "is an empty list", "name something, or remove the annotation")
            return ()
        if at_most and len(items) > at_most:
            self._error(note, f"has {len(items)} addresses", _PAIR)
            return ()
        found = [self._item(note, index, item, parse) for index, item in enumerate(items)]
        return tuple(item for item in found if item is not None)

    def _decoded(self, note: _Note) -> list[Any] | None:
        try:
            items = orjson.loads(note.text)
        except orjson.JSONDecodeError:
            self._error(note, "is not JSON", _LIST)
            return None
        if not isinstance(items, list):
            self._error(note, f"is {json_kind(items)}, not a list", _LIST)
            return None
        return items

    def _item(self, note: _Note, index: int, item: object, parse: Callable[[str], Parsed]) -> Parsed | None:
        where = f"{note.place}, entry {index + 1}"
        if not isinstance(item, str):
            self._errors.add(where, item, f"is {json_kind(item)}", "write a string in quotes")
            return None
        try:
            return parse(item)
        except ValueError as error:
            self._errors.add(where, item, str(error), _REMEDIES[note.name])
            return None


_REMEDIES: Final = {
    **dict.fromkeys(annotations.POOLS.values(), "give the name or the CIDR of a pool, as `svcctl pool get` shows it"),
    **dict.fromkeys(
        (annotations.ADDRESSES, annotations.UNMANAGED, annotations.FLOATING),
        "give an IPv4 or IPv6 address without a prefix length",
    ),
    annotations.FAMILIES: 'write "IPv4" or "IPv6"',
    annotations.SOURCE_PREFIXES: "give a CIDR, such as 192.0.2.0/24",
}


def _pool(version: int, text: str) -> str:
    if not text or any(char.isspace() for char in text):
        raise ValueError("is not a pool")
    if len(text) > MAX_NAME:
        raise ValueError(f"has {len(text)} characters, as no pool's name")
    if "/" in text and _prefix(text).version != version:
        raise ValueError(f"is not IPv{version}")
    return text


def _prefix(text: str) -> Cidr:
    try:
        return Cidr.masked(text)
    except ValueError as error:
        raise ValueError(f"is not a CIDR ({error})") from None


def _version(text: str) -> int:
    if text not in _VERSIONS:
        raise ValueError("is not an address family")
    return _VERSIONS[text]


def _plain_address(text: str) -> Address:
    try:
        return Address(text)
    except ValueError as error:
        raise ValueError(f"is not an address ({error})") from None


def _pod_address(text: str) -> Address:
    """Parse an address that an interface can have. Raise ValueError."""
    address = _plain_address(text)
    problem = next((problem for network, problem in _NETWORKS.items() if address in network), None)
    if problem:
        raise ValueError(problem)
    return address


def _hardware_address(text: str) -> bytes:
    try:
        mac = bytes.fromhex(re.sub("[:.-]", "", text)) if _MAC.fullmatch(text) else b""
    except ValueError:
        mac = b""
    if not mac:
        raise ValueError("is not a hardware address")
    if mac[0] & 1:
        raise ValueError("is a multicast address")
    if mac in (bytes(6), _HOST_MAC):
        raise ValueError("is the address that every host side has" if any(mac) else "is not the address of a host")
    return mac

"""Strict parser for `prevResult` and for results of other plugins, with all field errors in one exception."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from svc._core.cidr import Address, Cidr
from svc.model import cni_versions
from svc.model.errors import CallerError, Code
from svc.model.field_errors import MISSING, FieldErrors, json_kind
from svc.model.result import Dns, Interface, IpConfig, Result, Route

Json = dict[str, Any]

_MAX_NUMBER: Final = 2**32 - 1


def parse_prev_result(data: object, version: str, root: str = "prevResult") -> Result:
    """Parse a result or its bytes in the version that it names, else in `version`. Raise CallerError with all field errors."""
    if isinstance(data, bytes | bytearray):
        data = _decode(bytes(data), root)
    errors = FieldErrors(f"invalid {root}", Code.INVALID_NETCONF)
    result = _Reader(errors, root).result(data, version)
    errors.raise_if_any()
    return result


def _decode(data: bytes, root: str) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        msg = f"{root} is not JSON: {error}"
        raise CallerError(msg, details=f"{root}: give one JSON object", code=Code.DECODING_FAILURE) from None


class _Reader:
    """A reader of object members. An invalid member is recorded and read as empty, so that the rest is checked too."""

    def __init__(self, errors: FieldErrors, root: str) -> None:
        self._errors = errors
        self._root = root

    def result(self, data: object, version: str) -> Result:
        if not isinstance(data, dict):
            self._wrong_kind(self._root, data, "an object, {...}")
            return Result()
        shape = self._version(data, version)
        return self._lists(data, shape) if cni_versions.at_least(shape, "0.3.0") else self._single(data)

    def _version(self, data: Json, default: str) -> str:
        text = self._text(data, self._root, "cniVersion") or default
        if text in cni_versions.SUPPORTED:
            return text
        remedy = f"give one of {', '.join(cni_versions.SUPPORTED)}"
        self._errors.add(f"{self._root}.cniVersion", text, "is not a supported version", remedy)
        return default

    def _lists(self, data: Json, version: str) -> Result:
        rich = cni_versions.at_least(version, "1.1.0")
        given = self._array(data, self._root, "interfaces")
        interfaces = tuple(self._interface(item, path, rich) for path, item in self._objects(given, f"{self._root}.interfaces"))
        listed = self._objects(self._array(data, self._root, "ips"), f"{self._root}.ips")
        ips = tuple(self._ip(item, path, version, len(given)) for path, item in listed)
        return Result(interfaces, ips, self._routes(data, self._root, rich), self._dns(data))

    def _single(self, data: Json) -> Result:
        ips: list[IpConfig] = []
        routes: list[Route] = []
        for family in (4, 6):
            path = f"{self._root}.ip{family}"
            if member := self._object(data, self._root, f"ip{family}"):
                ips.append(self._family_ip(member, path, family))
                routes.extend(self._routes(member, path, rich=False))
        return Result((), tuple(ips), tuple(routes), self._dns(data))

    def _family_ip(self, data: Json, path: str, family: int) -> IpConfig:
        address = self._parsed(data, path, "ip", interface_address, required=True)
        ip = IpConfig(address, gateway=self._parsed(data, path, "gateway", _address))
        if address and ip.family != family:
            self._errors.add(f"{path}.ip", address, f"is IPv{ip.family}", f"give an IPv{family} address")
        return ip

    def _interface(self, data: Json, path: str, rich: bool) -> Interface:
        name = self._text(data, path, "name", required=True)
        mac, sandbox = (self._text(data, path, key) for key in ("mac", "sandbox"))
        if not rich:
            return Interface(name, mac, sandbox=sandbox)
        socket_path, pci_id = (self._text(data, path, key) for key in ("socketPath", "pciID"))
        return Interface(name, mac, self._number(data, path, "mtu") or 0, sandbox, socket_path, pci_id)

    def _ip(self, data: Json, path: str, version: str, interfaces: int) -> IpConfig:
        address = self._parsed(data, path, "address", interface_address, required=True)
        index = self._number(data, path, "interface")
        if index is not None and index >= interfaces:
            remedy = f"give an index into the result's interfaces, of which there are {interfaces}"
            self._errors.add(f"{path}.interface", index, "names no interface", remedy)
        ip = IpConfig(address, index, self._parsed(data, path, "gateway", _address))
        if not cni_versions.at_least(version, "1.0.0"):
            tag = self._text(data, path, "version")
            if tag and address and tag != str(ip.family):
                self._errors.add(f"{path}.version", tag, f"does not fit {address!r}", f'give "{ip.family}"')
        return ip

    def _routes(self, data: Json, path: str, rich: bool) -> tuple[Route, ...]:
        listed = self._objects(self._array(data, path, "routes"), f"{path}.routes")
        return tuple(self._route(item, place, rich) for place, item in listed)

    def _route(self, data: Json, path: str, rich: bool) -> Route:
        dst = self._parsed(data, path, "dst", interface_address, required=True)
        gw = self._parsed(data, path, "gw", _address)
        if not rich:
            return Route(dst, gw)
        mtu, advmss = (self._number(data, path, key) or 0 for key in ("mtu", "advmss"))
        priority, table, scope = (self._number(data, path, key) for key in ("priority", "table", "scope"))
        return Route(dst, gw, mtu, advmss, priority, table, scope)

    def _dns(self, data: Json) -> Dns:
        member = self._object(data, self._root, "dns") or {}
        path = f"{self._root}.dns"
        nameservers, search, options = (self._texts(member, path, key) for key in ("nameservers", "search", "options"))
        return Dns(nameservers, self._text(member, path, "domain"), search, options)

    # Members of an object, by kind. Missing members and null are read as empty.

    def _wrong_kind(self, place: str, value: object, wanted: str) -> None:
        self._errors.add(place, value, f"is {json_kind(value)}", f"give {wanted}")

    def _object(self, data: Json, path: str, key: str) -> Json | None:
        value = data.get(key)
        if value is None or isinstance(value, dict):
            return value
        self._wrong_kind(f"{path}.{key}", value, "an object, {...}")
        return None

    def _array(self, data: Json, path: str, key: str) -> list[Any]:
        value = data.get(key)
        if value is None or isinstance(value, list):
            return value or []
        self._wrong_kind(f"{path}.{key}", value, "an array, [...]")
        return []

    def _objects(self, items: list[Any], path: str) -> Iterator[tuple[str, Json]]:
        for index, item in enumerate(items):
            place = f"{path}[{index}]"
            if isinstance(item, dict):
                yield place, item
            else:
                self._wrong_kind(place, item, "an object, {...}")

    def _texts(self, data: Json, path: str, key: str) -> tuple[str, ...]:
        items = self._array(data, path, key)
        for index, item in enumerate(items):
            if not isinstance(item, str):
                self._wrong_kind(f"{path}.{key}[{index}]", item, "a string")
        return tuple(items)

    def _text(self, data: Json, path: str, key: str, *, required: bool = False) -> str:
        value = data.get(key)
        if isinstance(value, str) and (value or not required):
            return value
        if value is not None or required:
            self._not_text(f"{path}.{key}", data.get(key, MISSING), required)
        return ""

    def _not_text(self, place: str, value: object, required: bool) -> None:
        remedy = "a string that is not empty" if required else "a string"
        if value is MISSING:
            self._errors.missing(place, f"give {remedy}")
        elif value == "":
            self._errors.add(place, value, "is empty", f"give {remedy}")
        else:
            self._wrong_kind(place, value, remedy)

    def _number(self, data: Json, path: str, key: str) -> int | None:
        value = data.get(key)
        if value is None:
            return None
        if type(value) is not int:
            self._wrong_kind(f"{path}.{key}", value, "a whole number")
        elif 0 <= value <= _MAX_NUMBER:
            return value
        else:
            self._errors.add(f"{path}.{key}", value, "is out of range", f"give 0 to {_MAX_NUMBER}")
        return None

    def _parsed(self, data: Json, path: str, key: str, canonical: Callable[[str], str], *, required: bool = False) -> str:
        text = self._text(data, path, key, required=required)
        try:
            return canonical(text) if text else ""
        except ValueError as error:
            self._errors.add(f"{path}.{key}", text, f"is wrong ({error})", _FORMS[canonical])
            return ""


def interface_address(text: str) -> str:
    """Return ADDRESS/LENGTH in canonical form with the host bits. Raise ValueError for other text."""
    address, separator, _ = text.partition("/")
    if not separator:
        raise ValueError("it has no prefix length")
    return f"{Address(address)}/{Cidr.masked(text).length}"


def _address(text: str) -> str:
    return str(Address(text))


_FORMS: Final[Mapping[Callable[[str], str], str]] = {
    interface_address: "give ADDRESS/LENGTH",
    _address: "give an IPv4 or IPv6 address",
}

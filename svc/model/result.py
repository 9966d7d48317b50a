"""The result of an ADD, independent of the CNI version in which it is written."""

from typing import Any, TypeVar

from svc.values import dataclass, fields

Json = dict[str, Any]
T = TypeVar("T")

VERSION = "1.1.0"  # the CNI version of `to_json`
_NAMES = {"socket_path": "socketPath", "pci_id": "pciID"}  # of members that differ from their attributes


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface. `sandbox` is the path of its network namespace, empty for an interface of the host."""

    name: str
    mac: str = ""
    mtu: int = 0
    sandbox: str = ""
    socket_path: str = ""
    pci_id: str = ""

    def to_json(self) -> Json:
        return {"name": self.name} | _given(
            mac=self.mac, mtu=self.mtu, sandbox=self.sandbox, socketPath=self.socket_path, pciID=self.pci_id
        )


@dataclass(frozen=True, slots=True)
class IpConfig:
    """An assigned address. `address` is ADDRESS/LENGTH; `interface` is an index into the result's interfaces."""

    address: str
    interface: int | None = None
    gateway: str = ""

    @property
    def family(self) -> int:
        return 6 if ":" in self.address else 4

    def to_json(self) -> Json:
        index: Json = {} if self.interface is None else {"interface": self.interface}
        return index | {"address": self.address} | _given(gateway=self.gateway)


@dataclass(frozen=True, slots=True)
class Route:
    """A route. Zero is valid for `priority`, `table` and `scope`; None means that they are not given."""

    dst: str
    gw: str = ""
    mtu: int = 0
    advmss: int = 0
    priority: int | None = None
    table: int | None = None
    scope: int | None = None

    @property
    def family(self) -> int:
        return 6 if ":" in self.dst else 4

    def to_json(self) -> Json:
        numbers = {"priority": self.priority, "table": self.table, "scope": self.scope}
        data = {"dst": self.dst} | _given(gw=self.gw, mtu=self.mtu, advmss=self.advmss)
        return data | {key: value for key, value in numbers.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Dns:
    """Resolver settings."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return _given(
            nameservers=list(self.nameservers), domain=self.domain, search=list(self.search), options=list(self.options)
        )


@dataclass(frozen=True, slots=True)
class Result:
    """A complete result. That of an IPAM plugin has no interfaces."""

    interfaces: tuple[Interface, ...] = ()
    ips: tuple[IpConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: Dns = Dns()

    def to_json(self) -> Json:
        """Return the JSON without empty members, which every version allows."""
        return {"cniVersion": VERSION} | _given(
            interfaces=[item.to_json() for item in self.interfaces],
            ips=[item.to_json() for item in self.ips],
            routes=[item.to_json() for item in self.routes],
            dns=self.dns.to_json(),
        )

    @staticmethod
    def from_json(data: Json) -> "Result":
        """Return the inverse of `to_json`, for results that svc wrote. `parse_prev_result` reads those of a runtime."""
        return Result(
            tuple(_read(Interface, item) for item in data.get("interfaces") or ()),
            tuple(_read(IpConfig, item) for item in data.get("ips") or ()),
            tuple(_read(Route, item) for item in data.get("routes") or ()),
            _read(Dns, data.get("dns") or {}),
        )


def _given(**members: object) -> Json:
    return {key: value for key, value in members.items() if value}


def _read(part: type[T], data: Json) -> T:
    """Return a part of a result from its JSON. Null is a missing member."""
    found: Json = {}
    for attribute in fields(part):  # type: ignore[arg-type]
        value = data.get(_NAMES.get(attribute.name, attribute.name))
        if value is not None:
            found[attribute.name] = tuple(value) if isinstance(value, list) else value
    return part(**found)

"""The result of an ADD, independent of the CNI version in which it is written."""

from typing import Any

from svc.values import dataclass

Json = dict[str, Any]

VERSION = "1.1.0"  # the CNI version of `to_json`


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

    @staticmethod
    def from_json(data: Json) -> "Interface":
        return Interface(
            data["name"],
            data.get("mac") or "",
            data.get("mtu") or 0,
            data.get("sandbox") or "",
            data.get("socketPath") or "",
            data.get("pciID") or "",
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

    @staticmethod
    def from_json(data: Json) -> "IpConfig":
        return IpConfig(data["address"], data.get("interface"), data.get("gateway") or "")


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

    @staticmethod
    def from_json(data: Json) -> "Route":
        return Route(
            data["dst"],
            data.get("gw") or "",
            data.get("mtu") or 0,
            data.get("advmss") or 0,
            data.get("priority"),
            data.get("table"),
            data.get("scope"),
        )


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

    @staticmethod
    def from_json(data: Json) -> "Dns":
        return Dns(
            tuple(data.get("nameservers") or ()),
            data.get("domain") or "",
            tuple(data.get("search") or ()),
            tuple(data.get("options") or ()),
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
            tuple(Interface.from_json(item) for item in data.get("interfaces") or ()),
            tuple(IpConfig.from_json(item) for item in data.get("ips") or ()),
            tuple(Route.from_json(item) for item in data.get("routes") or ()),
            Dns.from_json(data.get("dns") or {}),
        )


def _given(**members: object) -> Json:
    """Return the members that are not empty."""
    return {key: value for key, value in members.items() if value}

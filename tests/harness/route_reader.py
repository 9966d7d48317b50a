"""What the kernel of a namespace has for svc-routes, read by pyroute2: routes, devices, neighbours and fdb entries."""

from dataclasses import dataclass

from pyroute2 import IPRoute  # type: ignore[import-untyped]  # noqa: TID251

PROTOCOL = 83
_MAIN = 254
_TYPES = {1: "unicast", 6: "blackhole"}


@dataclass(frozen=True)
class SeenRoute:
    """A route of the main table."""

    network: str
    via: str | None = None
    device: str | None = None
    type: str = "unicast"
    metric: int | None = None
    onlink: bool = False


@dataclass(frozen=True)
class SeenDevice:
    """A VXLAN device."""

    mtu: int
    mac: str
    alias: str | None
    up: bool
    vni: int
    port: int
    learning: int
    local: str
    parent: str


def own_routes(protocol: int = PROTOCOL) -> set[SeenRoute]:
    """Return the routes with a protocol number, of both families, in the namespace of the calling thread."""
    with IPRoute() as kernel:
        names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in kernel.get_links()}
        found = [*kernel.get_routes(family=2, table=_MAIN), *kernel.get_routes(family=10, table=_MAIN)]
    seen = set()
    for route in found:
        if route["proto"] != protocol:
            continue
        is_hole = route["type"] == 6
        seen.add(
            SeenRoute(
                f"{route.get_attr('RTA_DST')}/{route['dst_len']}",
                route.get_attr("RTA_GATEWAY"),
                None if is_hole else names[route.get_attr("RTA_OIF")],
                _TYPES[route["type"]],
                route.get_attr("RTA_PRIORITY"),
                bool(route["flags"] & 4),
            )
        )
    return seen


def device(name: str) -> SeenDevice | None:
    """Return a VXLAN device, or None if it does not exist."""
    with IPRoute() as kernel:
        indexes = kernel.link_lookup(ifname=name)
        if not indexes:
            return None
        (link,) = kernel.get_links(indexes[0])
        data = link.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_DATA")
        (parent,) = kernel.get_links(data.get_attr("IFLA_VXLAN_LINK"))
    return SeenDevice(
        link.get_attr("IFLA_MTU"),
        link.get_attr("IFLA_ADDRESS"),
        link.get_attr("IFLA_IFALIAS"),
        bool(link["flags"] & 1),
        data.get_attr("IFLA_VXLAN_ID"),
        data.get_attr("IFLA_VXLAN_PORT"),
        data.get_attr("IFLA_VXLAN_LEARNING"),
        data.get_attr("IFLA_VXLAN_LOCAL") or data.get_attr("IFLA_VXLAN_LOCAL6"),
        parent.get_attr("IFLA_IFNAME"),
    )


def neighbours(name: str, family: int = 2) -> set[tuple[str, str]]:
    """Return (address, MAC) of the permanent neighbours on a device."""
    return _pairs(name, family)


def fdb(name: str) -> set[tuple[str, str]]:
    """Return (remote end, MAC) of the permanent fdb entries of a device."""
    return _pairs(name, 7)


def _pairs(name: str, family: int) -> set[tuple[str, str]]:
    with IPRoute() as kernel:
        (index,) = kernel.link_lookup(ifname=name)
        found = [item for item in kernel.get_neighbours(family=family) if item["ifindex"] == index and item["state"] & 0x80]
    return {(item.get_attr("NDA_DST"), item.get_attr("NDA_LLADDR")) for item in found}

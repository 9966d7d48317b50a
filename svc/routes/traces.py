"""Traces of another program that routes between nodes: devices, routes to addresses of the pools, NAT chains."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from svc._core.cidr import Address, Cidr
from svc.dataplane.plan import HOST_MAC
from svc.names import Names
from svc.routes.kernel_routes import Key, foreign_route, network_of
from svc.routes.nft import Chain
from svc.routes.tunnel_values import ALIAS, Links

_IPIP_DEVICE: Final = "tunl0"  # the kernel makes it with the module, so that only an address shows a user
_NAT_TABLE: Final = "nat"  # of the iptables programs


def of_devices(names: Names, links: Links, addressed: Iterable[int]) -> Iterator[str]:
    """Yield a sentence for each device of another program. `addressed` are the indexes of links with addresses."""
    having = set(addressed)
    for name, link in links.items():
        if link["alias"] == ALIAS:
            continue
        if name in names.foreign_devices:
            yield f"device {name!r} of another program exists"
        elif name == _IPIP_DEVICE and link["index"] in having:
            yield f"device {name!r} of another program has an address"


def of_routes(foreign: Mapping[Key, list[dict[str, Any]]], links: Links, pools: Iterable[Cidr]) -> Iterator[str]:
    """Yield a sentence for each protocol with routes of another program to addresses of the pools.

    The links were read before the routes."""
    ours = {link["index"] for link in links.values() if is_pod_interface(link) or link["alias"] == ALIAS}
    names = {link["index"]: name for name, link in links.items()}
    ranges = [(pool.version, pool.first.packed, pool.last.packed, pool.length) for pool in pools]
    counts: dict[int, int] = {}
    examples: dict[int, str] = {}
    for key, routes in foreign.items():
        if not _is_inside(key, ranges):
            continue
        for route in routes:
            is_new = route["index"] and route["index"] not in names  # its link came after the links were read, as that of a pod
            if is_new or route["index"] in ours:
                continue
            protocol = route["protocol"]
            counts[protocol] = counts.get(protocol, 0) + 1
            examples.setdefault(protocol, f"{network_of(key)} {foreign_route(route, names).text}")
    for protocol, count in sorted(counts.items()):
        noun = "route" if count == 1 else "routes"
        yield f"{count} {noun} of protocol {protocol} to addresses of the pools: {examples[protocol]}"


def of_chains(names: Names, chains: Iterable[Chain]) -> Iterator[str]:
    """Yield a sentence for each table with NAT chains of another program."""
    found = list(chains)
    tables = {(chain.family, chain.table) for chain in found if chain.kind == "nat" or chain.table == _NAT_TABLE}
    seen = set()
    for chain in found:
        table = (chain.family, chain.table)
        if table in tables and table not in seen and chain.name.startswith(names.foreign_chains):
            seen.add(table)
            yield f"NAT chain {chain.name!r} of another program in table '{chain.family} {chain.table}'"


def is_pod_interface(link: Mapping[str, Any]) -> bool:
    """Return True if the link is the host side of a pair that the agent made."""
    return bool(link["kind"] == "veth" and link["mac"] == HOST_MAC)


def _is_inside(key: Key, ranges: list[tuple[int, bytes, bytes, int]]) -> bool:
    address, length = key
    version = Address.from_packed(address).version
    return any(version == of and length >= least and first <= address <= last for of, first, last, least in ranges)

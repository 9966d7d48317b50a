"""Check whether the ranges of a host-local network are full. host-local keeps one file for each assigned address."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from svc._core.cidr import Address, Cidr

Json = dict[str, Any]
Span = tuple[int, int, int]  # family, first and last address

_DATA_DIR: Final = Path("/var/lib/cni/networks")


def exhausted(netconf: Json) -> str:
    """Return the ranges of the first group without a free address; empty if each has one, or if host-local cannot read them.

    An ADD assigns one address of each group. Blocks for one listing of a directory.
    """
    try:
        groups = list(_groups(netconf))
        given = _given(Path(netconf["ipam"].get("dataDir") or _DATA_DIR) / netconf["name"])
        return next((_text(group) for group in groups if _is_full(group, given)), "")
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        return ""


def _groups(netconf: Json) -> Iterator[list[Json]]:
    """Yield the groups that host-local reads, in its older and its newer form."""
    ipam = netconf["ipam"]
    if ipam.get("subnet"):
        yield [ipam]
    yield from (netconf.get("runtimeConfig") or {}).get("ipRanges") or ()
    yield from ipam.get("ranges") or ()


def _given(folder: Path) -> set[tuple[int, int]]:
    """Return the assigned addresses of all ranges."""
    found = set()
    for name in os.listdir(folder) if folder.is_dir() else ():
        with suppress(ValueError):  # other files: the lock, and the last assigned address
            address = Address(name)
            found.add((address.version, int(address)))
    return found


def _is_full(group: list[Json], given: set[tuple[int, int]]) -> bool:
    spans = [(*_span(item), _gateway(item)) for item in group]
    size = sum(last - first + 1 - (first <= gateway <= last) for _, first, last, gateway in spans)
    if size > len(given):
        return False
    used = {
        (family, number)
        for family, number in given
        for version, first, last, gateway in spans
        if family == version and first <= number <= last and number != gateway
    }
    return len(used) >= size


def _span(item: Json) -> Span:
    """Return the span of the range. By default it omits the network address and, for IPv4, the broadcast address."""
    subnet = Cidr.masked(item["subnet"])
    first = Address(item["rangeStart"]) if item.get("rangeStart") else subnet.address(1)
    last = Address(item["rangeEnd"]) if item.get("rangeEnd") else subnet.last
    return subnet.version, int(first), int(last) - (subnet.version == 4 and not item.get("rangeEnd"))


def _gateway(item: Json) -> int:
    """Return the gateway, which is never assigned. The default is the first address."""
    return int(Address(item["gateway"]) if item.get("gateway") else Cidr.masked(item["subnet"]).address(1))


def _text(group: list[Json]) -> str:
    return ", ".join(
        "-".join(filter(None, (item.get("rangeStart"), item.get("rangeEnd")))) or str(item["subnet"]) for item in group
    )

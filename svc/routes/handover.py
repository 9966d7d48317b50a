"""Making way for another program that routes: which of the own routes stay, and with which preference.

1. A route that stays has the lowest preference but one. The kernel then accepts the route of the other program to the same
   network, and prefers it at once, so that no packet is lost in between.
2. A route goes when the other program has one to the network, or around it. It also goes when the datastore says that it is
   wrong, because nothing corrects it any more.
3. Nothing is added.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.routes.kernel_routes import HIGHEST_METRIC, Entry, Key, Table, network_of

LAST_METRIC: Final = HIGHEST_METRIC - 1  # before blackholes
HANDOVER_SECONDS: Final = 60.0  # that own tunnels stay: another program cannot make one with the same numbers beside them


def remaining(table: Table, foreign: Iterable[Cidr], wanted: Mapping[Cidr, Entry] | None) -> dict[Cidr, Entry]:
    """Return the own routes that stay, as they should be. With `wanted`, those that differ from it do not stay.

    `foreign` are the networks to which the other program has routes."""
    others = set(foreign)
    lengths = sorted({network.length for network in others})
    found = {}
    for key, entries in table.own.items():
        network, entry = network_of(key), min(entries)
        if _is_covered(network, others, lengths):
            continue
        if wanted is not None and not _is_same(wanted.get(network), entry):
            continue
        found[network] = entry._replace(metric=max(entry.metric, LAST_METRIC))
    return found


def networks_in(foreign: Mapping[Key, list[dict[str, Any]]], ignored: Iterable[int], pools: Iterable[Cidr]) -> list[Cidr]:
    """Return the networks inside the pools to which other programs have routes, except through the `ignored` links."""
    links, ranges, found = set(ignored), list(pools), []
    for key, routes in foreign.items():
        network = network_of(key)
        if any(network in pool for pool in ranges) and any(route["index"] not in links for route in routes):
            found.append(network)
    return found


def _is_covered(network: Cidr, others: set[Cidr], lengths: list[int]) -> bool:
    """Return whether another route leads to the network. One to a single address is needed beside that to its block."""
    if network.length == network.bits:
        return network in others
    return any(Cidr.of(network.first, length) in others for length in lengths if length <= network.length)


def _is_same(wanted: Entry | None, entry: Entry) -> bool:
    return wanted is not None and wanted._replace(metric=entry.metric) == entry

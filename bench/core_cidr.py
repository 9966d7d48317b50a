"""Addresses against netaddr and the standard library, the pool index against py-radix and pytricia."""

import ipaddress
import random
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import netaddr  # type: ignore[import-untyped]
import pytricia  # type: ignore[import-not-found]
import radix  # type: ignore[import-untyped]

from bench._core_case import Case, run
from svc._core.cidr import Address, Cidr, CidrIndex

EXAMPLES = [("10.65.130.71", "10.65.0.0/16"), ("2001:db8:12:7e00::a3f7", "2001:db8::/32")]
POOL_LENGTHS = {4: (16, 20, 24, 26), 6: (48, 56, 64, 122)}
POOLS = 1000  # and of addresses, so that branches are not always taken in the same way


def cases() -> list[Case]:
    return [
        *(case for address, network in EXAMPLES for case in text_cases(address, network)),
        *(case for version in (4, 6) for case in match_cases(version)),
    ]


def text_cases(address: str, network: str) -> list[Case]:
    ours, our_network = Address(address), Cidr(network)
    theirs, their_network = netaddr.IPAddress(address), netaddr.IPNetwork(network)
    return [
        Case(f"parse {address}", partial(Address, address), partial(netaddr.IPAddress, address), "netaddr", 10),
        Case(f"parse {address}", partial(Address, address), partial(ipaddress.ip_address, address), "ipaddress", 10),
        Case(f"format {address}", partial(str, ours), partial(str, theirs), "netaddr", 5),
        Case(f"parse {network}", partial(Cidr, network), partial(netaddr.IPNetwork, network), "netaddr", 10),
        Case(f"{address} in {network}", lambda: ours in our_network, lambda: theirs in their_network, "netaddr", 5),
    ]


def match_cases(version: int) -> list[Case]:
    """Return the cases. The sides must agree on every pool before the measurement."""
    pools = random_pools(version)
    texts = [random_address(pool) for pool in pools]
    ours, with_radix, with_pytricia = svc_match(pools), radix_match(pools), pytricia_match(pools)
    for text in texts:
        assert ours(text) == with_radix(text).prefix == with_pytricia(text)
    name = f"match {POOLS} IPv{version} texts against {POOLS} pools"
    return [
        Case(name, partial(sweep, ours, texts), partial(sweep, with_radix, texts), "py-radix", 1),
        Case(name, partial(sweep, ours, texts), partial(sweep, with_pytricia, texts), "pytricia", 1),
    ]


def sweep(match: Callable[[str], object], texts: list[str]) -> None:
    """Make calls without a Python frame between them."""
    deque(map(match, texts), maxlen=0)


def svc_match(pools: list[Cidr]) -> Callable[[str], str | None]:
    index: CidrIndex[str] = CidrIndex()
    for pool in pools:
        index.insert(pool, str(pool))
    return index.match_text


def radix_match(pools: list[Cidr]) -> Callable[[str], Any]:
    tree = radix.Radix()
    for pool in pools:
        tree.add(str(pool))
    return tree.search_best  # type: ignore[no-any-return]


def pytricia_match(pools: list[Cidr]) -> Callable[[str], Any]:
    tree = pytricia.PyTricia(pools[0].bits, socket.AF_INET if pools[0].version == 4 else socket.AF_INET6)
    for pool in pools:
        tree[str(pool)] = str(pool)
    return tree.__getitem__  # type: ignore[no-any-return]


def random_pools(version: int) -> list[Cidr]:
    """Return pools of which some lie inside others. They are the same in every run."""
    source = random.Random(version)
    universe = Cidr("10.0.0.0/8" if version == 4 else "fd00::/16")
    pools = set[Cidr]()
    while len(pools) < POOLS:
        length = source.choice(POOL_LENGTHS[version])
        pools.add(universe.block(source.randrange(universe.block_count(length)), length))
    return sorted(pools)


def random_address(pool: Cidr) -> str:
    return str(pool.address(random.Random(str(pool)).randrange(pool.size)))


if __name__ == "__main__":
    run(cases())

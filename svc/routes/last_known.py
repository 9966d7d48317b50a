"""Nodes and pools as they were before they vanished from the datastore, so that their routes do not change at once.

A Node that is deleted comes back, as a rule: with its addresses after a moment, and with those of its tunnels when svc-routes
there has announced them again. A pool that is deleted while nodes have blocks of it says nothing about their ways any more.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from svc._core.cidr import Address, Cidr
from svc.routes.inputs import NodeFacts, RoutedPool

GRACE_SECONDS: Final = 600.0  # for a node


class LastNodes:
    """What nodes other than `own` have lost, with the time of the loss (monotonic). Not thread-safe."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._lost: dict[str, tuple[NodeFacts, float]] = {}  # with what the nodes have lost, and perhaps more

    def note(self, name: str, before: NodeFacts | None, present: NodeFacts | None, now: float) -> None:
        """Note a change of a node."""
        if name == self._own:
            return
        known = self._lost.get(name)
        if before is not None and _lacks(before, present):
            self._lost[name] = (before if known is None else _completed(before, known[0]), now)
        elif known is not None and present is not None and not _lacks(known[0], present):
            del self._lost[name]

    def completed(self, nodes: Mapping[str, NodeFacts], now: float) -> dict[str, NodeFacts]:
        """Return the nodes with what they have lost. An address that another node has got is not among it."""
        found = dict(nodes)
        self._lost = {name: lost for name, lost in self._lost.items() if now - lost[1] < GRACE_SECONDS}
        if not self._lost:
            return found
        taken = {address for facts in nodes.values() for address in facts.addresses.values()}
        for name, (lost, _) in self._lost.items():
            found[name] = _completed(nodes.get(name), _without(lost, taken))
        return found

    def problems(self, nodes: Mapping[str, NodeFacts], now: float) -> Iterator[str]:
        """Yield a sentence for each node whose routes stay for a time."""
        for name, (_, since) in self._lost.items():
            loss = "has lost an address or a tunnel" if name in nodes else "does not exist any more"
            minutes = max(1, round((GRACE_SECONDS - now + since) / 60))
            yield f"node {name!r} {loss}: its routes stay for {minutes} more minutes"


class LastPools:
    """Pools that were deleted. Not thread-safe."""

    def __init__(self) -> None:
        self._deleted: dict[str, RoutedPool] = {}

    def note(self, name: str, before: RoutedPool | None, present: RoutedPool | None) -> None:
        """Note a change of a pool."""
        if present is not None:
            self._deleted.pop(name, None)
        elif before is not None:
            self._deleted[name] = before

    def completed(self, pools: Mapping[str, RoutedPool], networks: Iterable[Cidr]) -> tuple[RoutedPool, ...]:
        """Return the pools, and the deleted ones of which nodes have blocks that no present pool contains."""
        return (*pools.values(), *self._used(pools, networks))

    def problems(self, pools: Mapping[str, RoutedPool], networks: Iterable[Cidr]) -> Iterator[str]:
        """Yield a sentence for each deleted pool of which nodes have blocks."""
        for pool in self._used(pools, networks):
            yield f"pool {pool.name!r} does not exist any more, and nodes have blocks of it: their routes stay as they were"

    def _used(self, pools: Mapping[str, RoutedPool], networks: Iterable[Cidr]) -> list[RoutedPool]:
        if not self._deleted:
            return []
        present = [pool.cidr for pool in pools.values()]
        orphans = [network for network in networks if not any(network in cidr for cidr in present)]
        used = {name: pool for name, pool in self._deleted.items() if any(network in pool.cidr for network in orphans)}
        self._deleted = used
        return list(used.values())


def _lacks(before: NodeFacts, present: NodeFacts | None) -> bool:
    """Return whether a node has lost an address or a tunnel. A changed one counts as present."""
    if present is None:
        return True
    return not (before.addresses.keys() <= present.addresses.keys() and before.tunnels.keys() <= present.tunnels.keys())


def _completed(present: NodeFacts | None, lost: NodeFacts) -> NodeFacts:
    if present is None:
        return lost
    addresses, tunnels = {**lost.addresses, **present.addresses}, {**lost.tunnels, **present.tunnels}
    return NodeFacts(present.name, addresses, tunnels, {**lost.macs, **present.macs}, present.ranges)


def _without(facts: NodeFacts, taken: Iterable[Address]) -> NodeFacts:
    addresses = {version: address for version, address in facts.addresses.items() if address not in taken}
    return NodeFacts(facts.name, addresses, facts.tunnels, facts.macs, facts.ranges)

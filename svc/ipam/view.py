"""What this process remembers of the datastore: the pools, the node's labels, the node's own blocks.

The view chooses, it never decides: a choice made from an old view fails at the compare-and-swap, and before anything is refused
the view is read anew (`forget_all`).
"""

from collections.abc import Sequence

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Entry, NotFound
from svc.ipam import blocks, errors
from svc.ipam.pools import PoolSet
from svc.model.ipam import CONFIRMED, Affinity, Block
from svc.model.keys import AffinityKey, AffinityQuery, BlockKey, ResourceKey, ResourceQuery
from svc.model.pool import Pool
from svc.model.resource import Resource


class View:
    """One node's memory of one datastore; used by one thread at a time."""

    def __init__(self, backend: Backend, node: str) -> None:
        self._backend = backend
        self._node = node
        self._pools: PoolSet | None = None
        self._pools_generation = -1
        self._labels: dict[str, str] | None = None
        self._labels_generation = -1
        self._blocks: dict[Cidr, Entry] = {}
        self._own: dict[int, tuple[Cidr, ...]] = {}
        self._doubtful: set[Cidr] = set()

    def pools(self) -> PoolSet:
        generation = self._backend.generation("IPPool")
        if self._pools is None or generation != self._pools_generation:
            self._pools = PoolSet(_parsed(self._backend.list(ResourceQuery("IPPool"))))
            self._pools_generation = generation
        return self._pools

    def node_labels(self) -> dict[str, str]:
        """PeerError when the node must be registered and is not."""
        generation = self._backend.generation("Node")
        if self._labels is None or generation != self._labels_generation:
            self._labels = self._read_labels()
            self._labels_generation = generation
        return self._labels

    def own_blocks(self, version: int) -> tuple[Cidr, ...]:
        """CIDRs of the blocks that this node has an affinity to, sorted."""
        if version not in self._own:
            states = {
                entry.key.cidr: entry.value
                for entry in self._backend.list(AffinityQuery(self._node, version))
                if isinstance(entry.key, AffinityKey)
            }
            self._doubtful.update(cidr for cidr, value in states.items() if value != Affinity(CONFIRMED))
            self._own[version] = tuple(sorted(states))
        return self._own[version]

    def is_doubtful(self, cidr: Cidr) -> bool:
        """Whether the affinity was not confirmed when it was read: the claim was broken off, or is being given up."""
        return cidr in self._doubtful

    def block(self, cidr: Cidr) -> Entry:
        """The remembered or freshly read block; NotFound, Damaged."""
        if cidr not in self._blocks:
            entry = self._backend.get(BlockKey(cidr))
            self.remember(entry)
            return entry
        return self._blocks[cidr]

    def remember(self, entry: Entry) -> None:
        """Keeps a block that was just read or written, if it is this node's own."""
        assert isinstance(entry.value, Block)
        if entry.value.affinity == blocks.host_affinity(self._node):
            self._blocks[entry.value.cidr] = entry

    def own(self, entry: Entry) -> None:
        """Keeps a block whose claim is confirmed."""
        self.remember(entry)
        assert isinstance(entry.value, Block)
        cidr = entry.value.cidr
        self._doubtful.discard(cidr)
        self._own[cidr.version] = tuple(sorted({*self.own_blocks(cidr.version), cidr}))

    def disown(self, cidr: Cidr) -> None:
        """Forgets a block that has turned out to be somebody else's."""
        self._blocks.pop(cidr, None)
        self._own[cidr.version] = tuple(own for own in self.own_blocks(cidr.version) if own != cidr)

    def forget_blocks(self) -> None:
        """When a lost race has shown that others are at work."""
        self._blocks.clear()
        self._own.clear()
        self._doubtful.clear()

    def forget_all(self) -> None:
        self._pools = None
        self._labels = None
        self.forget_blocks()

    def _read_labels(self) -> dict[str, str]:
        try:
            entry = self._backend.get(ResourceKey("Node", self._node))
        except NotFound:
            if self._backend.needs_node:
                raise errors.node_missing(self._node) from None
            return {}
        assert isinstance(entry.value, Resource)
        return entry.value.labels


def _parsed(entries: Sequence[Entry]) -> list[Pool]:
    pools = []
    for entry in entries:
        assert isinstance(entry.value, Resource)
        try:
            pools.append(Pool.from_resource(entry.value))
        except ValueError:
            continue
    return pools

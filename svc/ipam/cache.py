"""Cache of pools, reservations, IPAM settings, the node's labels, and the blocks of the host.

The cache is a hint: a stale choice fails its compare-and-swap. Before a request is refused, the cache is invalidated
(`forget_all`) and reloaded.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Entry, NotFound
from svc.ipam import blocks, errors
from svc.ipam.host import NODE, Host
from svc.ipam.pools import PoolSet
from svc.ipam.reservations import KIND as RESERVATION
from svc.ipam.reservations import Reserved, read_reservations, undecodable
from svc.ipam.settings import read_settings
from svc.model.ipam import Affinity, Block, IpamConfig
from svc.model.keys import IPAM_CONFIG, AffinityKey, AffinityQuery, BlockKey, BlockQuery, ResourceKey, ResourceQuery
from svc.model.pool import Pool

AVOID_SECONDS: Final = 60.0
_KINDS: Final = ("IPPool", "Node", RESERVATION, IPAM_CONFIG)

Value = TypeVar("Value")


class _Remembered(Generic[Value]):
    """A cached value that is read from resources of one kind, and is valid for one generation of that kind."""

    def __init__(self, read: Callable[[], Value]) -> None:
        self._read = read
        self._value: Value | None = None
        self._read_at = self._generation = -1

    def note(self, generation: int) -> None:
        """Set the current generation."""
        self._generation = generation

    def get(self) -> Value:
        if self._value is None or self._read_at != self._generation:
            self._read_at, self._value = self._generation, self._read()
        return self._value

    def forget(self) -> None:
        self._value = None


class IpamCache:
    """The cache of one host for one datastore. One thread at a time may use it; `avoid` is thread-safe."""

    def __init__(self, backend: Backend, host: Host) -> None:
        self._backend = backend
        self._host = host
        self._pools = _Remembered(lambda: read_pools(backend))
        self._labels = _Remembered(lambda: node_labels(backend, host))
        self._avoided: dict[Address, float] = {}  # until this time of the monotonic clock, in seconds
        self._reserved = _Remembered(lambda: read_reserved(backend))
        self._settings = _Remembered(lambda: read_settings(backend))
        self._blocks: dict[Cidr, Entry[Block]] = {}
        self._own: dict[int, tuple[Cidr, ...]] = {}
        self._doubtful: set[Cidr] = set()
        self._resting: set[Cidr] = set()
        self._doubtful_blocks: dict[str, frozenset[Cidr]] = {}
        self._selected: _Selection = _Selection(PoolSet(()), {})

    def look(self) -> None:
        """Read the generations. A value whose generation has changed is reloaded on next use."""
        pools, labels, reserved, settings = self._backend.generations(_KINDS)
        self._pools.note(pools)
        self._labels.note(labels)
        self._reserved.note(reserved)
        self._settings.note(settings)

    def pools(self) -> PoolSet:
        return self._pools.get()

    def node_labels(self) -> Mapping[str, str]:
        """Return the labels of the host's node. Raise PeerError if the datastore requires a Node resource and it is missing."""
        return self._labels.get()

    def reserved(self) -> Reserved:
        """Return the reservations and the avoided addresses."""
        reserved = self._reserved.get()
        if not self._avoided:
            return reserved
        now = time.monotonic()
        self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        return reserved.beside(address.host() for address in self._avoided)

    def avoid(self, addresses: Iterable[Address]) -> None:
        """Do not assign these addresses automatically for `AVOID_SECONDS`. Thread-safe."""
        until = time.monotonic() + AVOID_SECONDS
        self._avoided = self._avoided | dict.fromkeys(addresses, until)

    def faults(self) -> tuple[str, ...]:
        """Return the fault of each unreadable pool and reservation. Requests skip these."""
        return (*self._pools.get().unreadable.values(), *self._reserved.get().unreadable.values())

    def settings(self) -> IpamConfig:
        """Return the IPAM settings. Raise UndecodableEntry if they cannot be decoded."""
        return self._settings.get()

    def selected(self, version: int, namespace_labels: Mapping[str, str], use: str) -> Sequence[Pool]:
        """Return the pools that serve a request without pool names. Raise PeerError as `node_labels`."""
        return self._selection().pools_for(version, namespace_labels, use)

    def strays(self, version: int) -> Sequence[Cidr]:
        """Return the host's ineligible blocks in usable pools, as of the last call of `selected`."""
        return self._selected.misplaced(version, self.own_blocks(version))

    def own_blocks(self, version: int) -> tuple[Cidr, ...]:
        """Return the CIDRs of the blocks for which this host has an affinity, sorted."""
        if version not in self._own:
            states = {
                entry.key.cidr: entry.value
                for entry in self._backend.list(AffinityQuery(self._host.name, version, self._host.kind))
                if isinstance(entry.key, AffinityKey)
            }
            sure = {cidr for cidr, value in states.items() if isinstance(value, Affinity) and value.is_confirmed}
            self._doubtful.update(states.keys() - sure)
            self._own[version] = tuple(sorted(states))
        return self._own[version]

    def is_doubtful(self, cidr: Cidr) -> bool:
        """Return whether the affinity was not confirmed when it was read: its claim or its release is incomplete."""
        return cidr in self._doubtful

    def has_resting(self, block: Block) -> bool:
        """Return whether addresses of the block may be in cooldown."""
        return block.cidr in self._resting if block.cidr in self._blocks else blocks.has_resting(block)

    def block(self, cidr: Cidr) -> Entry[Block]:
        """Return the cached block, or read it. Raise NotFound or UndecodableEntry."""
        if cidr not in self._blocks:
            entry = self._backend.get(BlockKey(cidr))
            self.remember(entry)
            return entry
        return self._blocks[cidr]

    def remember(self, entry: Entry[Block]) -> None:
        """Cache a block that was just read or written, if it has this host's affinity. Otherwise remove it from the cache."""
        cidr = entry.value.cidr
        if entry.value.affinity != self._host.affinity:
            self._blocks.pop(cidr, None)
            return
        self._blocks[cidr] = entry
        if blocks.has_resting(entry.value):
            self._resting.add(cidr)
        else:
            self._resting.discard(cidr)

    def doubt(self, handle: str, cidrs: frozenset[Cidr]) -> None:
        """Record that a write of unknown outcome may still give the handle addresses in these blocks."""
        self._doubtful_blocks[handle] = self._doubtful_blocks.get(handle, frozenset()) | cidrs

    def doubtful_blocks(self, handle: str) -> frozenset[Cidr]:
        """Return the blocks recorded by `doubt`.

        A new write of such a block changes its revision, so that the earlier write conflicts if the datastore applies it later.
        """
        return self._doubtful_blocks.get(handle, frozenset())

    def end_doubt(self, handle: str) -> None:
        """Remove the record of `doubt` after its blocks were written."""
        self._doubtful_blocks.pop(handle, None)

    def own(self, entry: Entry[Block]) -> None:
        """Cache a block whose claim is confirmed, and add it to the host's blocks."""
        self.remember(entry)
        cidr = entry.value.cidr
        self._doubtful.discard(cidr)
        self._own[cidr.version] = tuple(sorted({*self.own_blocks(cidr.version), cidr}))

    def disown(self, cidr: Cidr) -> None:
        """Remove a block from the cache and from the host's blocks: it has another affinity or none."""
        self._blocks.pop(cidr, None)
        self._own[cidr.version] = tuple(own for own in self.own_blocks(cidr.version) if own != cidr)

    def forget_block(self, cidr: Cidr) -> None:
        """Invalidate a block that another writer has changed."""
        self._blocks.pop(cidr, None)

    def forget_blocks(self) -> None:
        """Invalidate all blocks and affinities, after a conflict."""
        self._blocks.clear()
        self._own.clear()
        self._doubtful.clear()

    def forget_all(self) -> None:
        for remembered in (self._pools, self._labels, self._reserved, self._settings):
            remembered.forget()
        self.forget_blocks()

    def _selection(self) -> "_Selection":
        pools, labels = self._pools.get(), self._labels.get()
        if self._selected.pools is not pools or self._selected.labels is not labels:
            self._selected = _Selection(pools, labels)
        return self._selected


class _Selection:
    """Results computed once for one state of the pools and of the node's labels."""

    def __init__(self, pools: PoolSet, labels: Mapping[str, str]) -> None:
        self.pools = pools
        self.labels = labels
        self._served: dict[object, Sequence[Pool]] = {}
        self._misplaced: dict[int, tuple[tuple[Cidr, ...], list[Cidr]]] = {}

    def pools_for(self, version: int, namespace_labels: Mapping[str, str], use: str) -> Sequence[Pool]:
        key = (version, use, tuple(namespace_labels.items()))
        if key not in self._served:
            self._served[key] = self.pools.selected(version, self.labels, namespace_labels, use)
        return self._served[key]

    def misplaced(self, version: int, own: tuple[Cidr, ...]) -> list[Cidr]:
        known = self._misplaced.get(version)
        if known is None or known[0] is not own:
            known = (own, [cidr for cidr in own if self.pools.misplaced(cidr, self.labels, usable=True)])
            self._misplaced[version] = known
        return known[1]


def read_pools(backend: Backend) -> PoolSet:
    """Read the pools. The set lists the unreadable ones with their faults."""
    entries = backend.list(ResourceQuery("IPPool"))
    pools: list[Pool] = []
    unreadable = undecodable("IP pool", entries.skipped)
    for entry in entries:
        try:
            pools.append(Pool.from_resource(entry.value))
        except ValueError as error:
            unreadable[entry.value.name] = str(error)
    return PoolSet(pools, unreadable)


def read_blocks(backend: Backend, version: int = 0) -> Iterator[Block]:
    """Yield the blocks of one IP version, or of both if it is 0. Skip blocks that cannot be decoded."""
    for entry in backend.list(BlockQuery(version)):
        yield entry.value


def node_labels(backend: Backend, host: Host) -> Mapping[str, str]:
    """Read the labels of the host's node; a virtual host does not have labels.

    If the Node resource is missing, raise PeerError if the datastore requires it, and otherwise return no labels.
    """
    if host.kind != NODE:
        return {}
    try:
        entry = backend.get(ResourceKey("Node", host.name))
    except NotFound as missing:
        if backend.requires_node:
            raise errors.node_missing(host.name, missing.details) from None
        return {}
    return entry.value.labels


def read_reserved(backend: Backend) -> Reserved:
    """Read the reservations. The result lists the unreadable ones with their faults."""
    entries = backend.list(ResourceQuery(RESERVATION))
    return read_reservations((entry.value for entry in entries), entries.skipped)

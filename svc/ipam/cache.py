"""Cache of pools, reservations, IPAM settings, the node's labels, and the blocks of the host.

The cache is a hint: a stale choice fails its compare-and-swap. Before a request is refused, the cache is invalidated
(`invalidate_all`) and reloaded.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Entry, NotFound
from svc.ipam import blocks
from svc.ipam.pools import RESERVATION, PoolSet, Reserved, read_pools, read_reserved
from svc.ipam.settings import read_settings
from svc.model.errors import Code, PeerError
from svc.model.ipam import Block, IpamConfig
from svc.model.keys import IPAM_CONFIG, NODE, AffinityKey, AffinityQuery, BlockKey, BlockQuery, Host, ResourceKey
from svc.model.pool import Pool

AVOID_SECONDS: Final = 60.0

Value = TypeVar("Value")


class _CachedValue(Generic[Value]):
    """A value that is read from resources of one kind. A call returns it; `generation` is the current one of the kind."""

    def __init__(self, kind: str, read: Callable[[], Value]) -> None:
        self.kind = kind
        self.generation = -1
        self._read = read
        self._value: Value | None = None
        self._read_at = -1

    def __call__(self) -> Value:
        if self._value is None or self._read_at != self.generation:
            self._read_at, self._value = self.generation, self._read()
        return self._value

    def invalidate(self) -> None:
        self._value = None


class IpamCache:
    """The cache of one host for one datastore. One thread at a time may use it; `avoid` is thread-safe.

    `node_labels` raises PeerError if a required Node resource is missing, `settings` UndecodableEntry.

    `unresolved` has, by handle, the blocks in which a write of unknown outcome may still give it addresses. A new write of such
    a block changes its revision, so that the earlier write conflicts if the datastore applies it later.
    """

    def __init__(self, backend: Backend, host: Host) -> None:
        self._backend = backend
        self._host = host
        self.pools: _CachedValue[PoolSet] = _CachedValue("IPPool", lambda: read_pools(backend))
        self.node_labels: _CachedValue[Mapping[str, str]] = _CachedValue("Node", lambda: node_labels(backend, host))
        self.settings: _CachedValue[IpamConfig] = _CachedValue(IPAM_CONFIG, lambda: read_settings(backend))
        self._reserved: _CachedValue[Reserved] = _CachedValue(RESERVATION, lambda: read_reserved(backend))
        self._values: tuple[_CachedValue[Any], ...] = (self.pools, self.node_labels, self.settings, self._reserved)
        self._kinds = tuple(cached.kind for cached in self._values)
        self._avoided: dict[Address, float] = {}  # until this time of the monotonic clock, in seconds
        self._avoiding = threading.Lock()  # for changes of it
        self._blocks: dict[Cidr, Entry[Block]] = {}
        self._own: dict[int, tuple[Cidr, ...]] = {}
        self._unconfirmed: set[Cidr] = set()
        self._in_cooldown: set[Cidr] = set()
        self._full: set[Cidr] = set()
        self.unresolved: dict[str, frozenset[Cidr]] = {}
        self._selected: _Selection = _Selection(PoolSet(()), {})

    def refresh_generations(self) -> None:
        """Read the generations. A value whose generation has changed is reloaded on next use."""
        for cached, generation in zip(self._values, self._backend.generations(self._kinds), strict=True):
            cached.generation = generation

    def reserved(self) -> Reserved:
        """Return the reservations and the avoided addresses."""
        reserved = self._reserved()
        if not self._avoided:
            return reserved
        now = time.monotonic()
        with self._avoiding:
            self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        return reserved.beside(address.host() for address in self._avoided)

    def avoid(self, addresses: Iterable[Address]) -> None:
        """Do not assign these addresses automatically for `AVOID_SECONDS`. Thread-safe."""
        further = dict.fromkeys(addresses, time.monotonic() + AVOID_SECONDS)  # may read them from the journal
        with self._avoiding:
            self._avoided = self._avoided | further

    def errors(self) -> tuple[str, ...]:
        """Return the error of each unreadable pool and reservation. Requests skip these."""
        return (*self.pools().unreadable.values(), *self._reserved().unreadable.values())

    def selected(self, version: int, namespace_labels: Mapping[str, str], use: str) -> Sequence[Pool]:
        """Return the pools that serve a request without pool names. Raise PeerError as `node_labels`."""
        pools, labels = self.pools(), self.node_labels()
        if self._selected.pools is not pools or self._selected.labels is not labels:
            self._selected = _Selection(pools, labels)
        return self._selected.pools_for(version, namespace_labels, use)

    @property
    def verdicts(self) -> dict[object, str]:
        """Texts on pools, for the state of the pools and of the node's labels at the last call of `selected`."""
        return self._selected.verdicts

    def ineligible_blocks(self, version: int) -> Sequence[Cidr]:
        """Return the host's ineligible blocks in usable pools, as of the last call of `selected`."""
        return self._selected.ineligible(version, self.own_blocks(version))

    def own_blocks(self, version: int) -> tuple[Cidr, ...]:
        """Return the CIDRs of the blocks for which this host has an affinity, sorted."""
        if version not in self._own:
            entries = self._backend.list(AffinityQuery(self._host.name, version, self._host.kind))
            affinities = {entry.key.cidr: entry.value for entry in entries if isinstance(entry.key, AffinityKey)}
            self._unconfirmed.update(cidr for cidr, affinity in affinities.items() if not affinity.is_confirmed)
            self._own[version] = tuple(sorted(affinities))
        return self._own[version]

    def is_unconfirmed(self, cidr: Cidr) -> bool:
        """Return whether the affinity was not confirmed when it was read: its claim or its release is incomplete."""
        return cidr in self._unconfirmed

    def is_full(self, cidr: Cidr) -> bool:
        """Return whether the block, as it is cached, has neither a free address nor one in cooldown. A busy node has many."""
        return cidr in self._full and cidr not in self._unconfirmed

    def has_cooldown(self, block: Block) -> bool:
        """Return whether addresses of the block may be in cooldown."""
        return block.cidr in self._in_cooldown if block.cidr in self._blocks else blocks.has_cooldown(block)

    def block(self, cidr: Cidr) -> Entry[Block]:
        """Return the cached block, or read it. Raise NotFound or UndecodableEntry."""
        if cidr not in self._blocks:
            entry = self._backend.get(BlockKey(cidr))
            self.remember(entry)
            return entry
        return self._blocks[cidr]

    def replaces(self, entry: Entry[Block]) -> bool:
        """Return whether the cache has another version of this block."""
        return self._blocks.get(entry.value.cidr, entry) is not entry

    def remember(self, entry: Entry[Block]) -> None:
        """Cache a block that was just read or written, if it has this host's affinity. Otherwise remove it from the cache."""
        cidr = entry.value.cidr
        if entry.value.affinity != self._host.affinity:
            self.invalidate_block(cidr)
            return
        self._blocks[cidr] = entry
        has_cooldown = blocks.has_cooldown(entry.value)
        _set_member(self._in_cooldown, cidr, has_cooldown)
        _set_member(self._full, cidr, not (has_cooldown or entry.value.ordinals.available(None)))

    def add_own(self, entry: Entry[Block]) -> None:
        """Cache a block whose claim is confirmed, and add it to the host's blocks."""
        self.remember(entry)
        cidr = entry.value.cidr
        self._unconfirmed.discard(cidr)
        self._own[cidr.version] = tuple(sorted({*self.own_blocks(cidr.version), cidr}))

    def remove_own(self, cidr: Cidr) -> None:
        """Remove a block from the cache and from the host's blocks: it has another affinity or none."""
        self.invalidate_block(cidr)
        self._own[cidr.version] = tuple(own for own in self.own_blocks(cidr.version) if own != cidr)

    def newest(self, read: Mapping[Cidr, Block]) -> dict[Cidr, Block]:
        """Return the blocks of the host, which were `read` earlier, as far as the cache knows them. Any thread may call it."""
        own = dict(self._own)
        still = {cidr: block for cidr, block in read.items() if cidr.version not in own or cidr in own[cidr.version]}
        return still | {entry.value.cidr: entry.value for entry in list(self._blocks.values())}

    def invalidate_block(self, cidr: Cidr) -> None:
        self._blocks.pop(cidr, None)
        self._full.discard(cidr)

    def invalidate_blocks(self) -> None:
        """Invalidate all blocks and affinities, after a conflict."""
        self._blocks.clear()
        self._full.clear()
        self._own.clear()
        self._unconfirmed.clear()

    def invalidate_all(self) -> None:
        for cached in self._values:
            cached.invalidate()
        self.invalidate_blocks()


def _set_member(cidrs: set[Cidr], cidr: Cidr, is_member: bool) -> None:
    """Add a member, or remove it."""
    if is_member:
        cidrs.add(cidr)
    else:
        cidrs.discard(cidr)


class _Selection:
    """Results computed once for one state of the pools and of the node's labels."""

    def __init__(self, pools: PoolSet, labels: Mapping[str, str]) -> None:
        self.pools = pools
        self.labels = labels
        self.verdicts: dict[object, str] = {}
        self._served: dict[object, Sequence[Pool]] = {}
        self._ineligible: dict[int, tuple[tuple[Cidr, ...], list[Cidr]]] = {}

    def pools_for(self, version: int, namespace_labels: Mapping[str, str], use: str) -> Sequence[Pool]:
        key = (version, use, tuple(namespace_labels.items()))
        if key not in self._served:
            self._served[key] = self.pools.selected(version, self.labels, namespace_labels, use)
        return self._served[key]

    def ineligible(self, version: int, own: tuple[Cidr, ...]) -> list[Cidr]:
        known = self._ineligible.get(version)
        if known is None or known[0] is not own:
            known = (own, [cidr for cidr in own if self.pools.is_ineligible(cidr, self.labels, usable=True)])
            self._ineligible[version] = known
        return known[1]


def node_labels(backend: Backend, host: Host) -> Mapping[str, str]:
    """Read the labels of the host's node, if it has some. Raise PeerError if a required Node resource is missing."""
    if host.kind != NODE:
        return {}
    try:
        entry = backend.get(ResourceKey("Node", host.name))
    except NotFound as missing:
        if backend.requires_node:
            remedy = "register it with `svcctl node apply`, or set `nodename` in the network configuration"
            msg = f"node {host.name!r} does not exist in the datastore"
            raise PeerError(msg, details=missing.remedy or remedy, code=Code.POOL) from None
        return {}
    return entry.value.labels


def read_blocks(backend: Backend, version: int = 0) -> Iterator[Block]:
    """Yield the blocks of one IP version, or of both if it is 0, from pages. Skip blocks that cannot be decoded."""
    for page in backend.pages(BlockQuery(version)):
        yield from (entry.value for entry in page)

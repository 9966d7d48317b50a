"""What one observation of a datastore shows: blocks with their allocations, affinities, handles, nodes and uses.

An allocation counts only if both readings of its block show it at the same sequence number: what was read between them then
belongs to it.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from svc._core.cidr import Address, Cidr, CidrIndex
from svc.admin.ipam_check.uses import Uses
from svc.datastore.api import Backend
from svc.ipam.blocks import is_windows_reserved
from svc.ipam.pools import PoolSet, Reserved
from svc.model.ipam import Affinity, Attribute, Block
from svc.model.keys import AffinityKey
from svc.names import Names
from svc.values import dataclass, field
from svc.values import dataclass as value

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra


@value(frozen=True, slots=True)
class Place:
    """The datastore to check, and what is known besides.

    `client` reads pods and services, if there is a Kubernetes API. In `pods_are_endpoints` it is the datastore as well, so that
    pods store the endpoints. Attachments of `wired_networks` have endpoints.
    """

    backend: Backend
    names: Names
    client: "Client | None" = None
    pods_are_endpoints: bool = False
    wired_networks: frozenset[str] = frozenset()


@value(frozen=True, slots=True)
class Earlier:
    """What the first reading shows of a block."""

    sequence: int
    affinity: str | None
    ordinal_sequences: Mapping[int, int]


@value(frozen=True, slots=True)
class Allocation:
    """An address that is not free, in the second reading. `is_stable` is whether the first one shows the same allocation."""

    address: Address
    attribute: Attribute
    sequence: int | None
    block: "ObservedBlock"
    is_stable: bool

    @property
    def owner(self) -> Mapping[str, str]:
        """The attributes of its active owner."""
        return self.attribute.secondary or {}

    @property
    def is_held(self) -> bool:
        """Whether it is neither in cooldown nor set aside for Windows."""
        return not self.attribute.released_at and not is_windows_reserved(self.attribute)


@value(frozen=True, slots=True)
class ObservedBlock:
    """A block in the second reading, and what the first one shows of it."""

    block: Block
    revision: str
    earlier: Earlier | None

    @property
    def cidr(self) -> Cidr:
        return self.block.cidr

    @property
    def is_stable(self) -> bool:
        """Whether nothing of the block changed between the readings."""
        return self.earlier is not None and self.earlier.sequence == self.block.sequence

    def allocations(self) -> Iterator[Allocation]:
        """Yield the addresses that are not free."""
        for tag, attribute in enumerate(self.block.attributes or ()):
            for ordinal in self.block.ordinals.tagged(tag):
                yield self._allocation(ordinal, attribute)

    def allocation(self, address: Address) -> Allocation | None:
        """Return the allocation of an address; None if it is free."""
        ordinal = self.cidr.ordinal(address)
        tag = self.block.ordinals.tag(ordinal)
        return None if tag < 0 else self._allocation(ordinal, (self.block.attributes or [])[tag])

    def was_allocated(self, address: Address) -> bool:
        """Return whether the first reading shows the address as allocated."""
        return self.earlier is not None and self.cidr.ordinal(address) in self.earlier.ordinal_sequences

    def _allocation(self, ordinal: int, attribute: Attribute) -> Allocation:
        sequence = self.block.ordinal_sequences.get(ordinal)
        earlier = None if self.earlier is None else self.earlier.ordinal_sequences.get(ordinal)
        is_stable = self.is_stable or (sequence is not None and sequence == earlier)
        return Allocation(self.cidr.address(ordinal), attribute, sequence, self, is_stable)


@value(frozen=True, slots=True)
class ObservedHandle:
    """A handle: its revision, and its number of addresses by block."""

    revision: str
    counts: tuple[tuple[str, int], ...]


@value(frozen=True, slots=True)
class ObservedAffinity:
    """An affinity and its revision."""

    key: AffinityKey
    value: Affinity
    revision: str


@dataclass(slots=True)
class Observation:
    """What one pass over the datastore shows.

    `unreadable` are the blocks that cannot be read: nothing is known about their addresses. `undecodable` has the errors of
    documents by path, and `inconsistent` those of blocks by CIDR.
    """

    place: Place
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    cooldown_seconds: int = 0
    pools: PoolSet = field(default_factory=lambda: PoolSet(()))
    reserved: Reserved = field(default_factory=Reserved)
    uses: Uses = field(default_factory=Uses)
    blocks: dict[Cidr, ObservedBlock] = field(default_factory=dict)
    affinities: list[ObservedAffinity] = field(default_factory=list)
    handles: dict[str, ObservedHandle] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    unreadable: list[Cidr] = field(default_factory=list)
    undecodable: dict[str, str] = field(default_factory=dict)
    inconsistent: dict[str, str] = field(default_factory=dict)
    index: CidrIndex[Cidr] = field(default_factory=CidrIndex)

    def allocations(self) -> Iterator[Allocation]:
        """Yield the addresses of all blocks that are not free."""
        for block in self.blocks.values():
            yield from block.allocations()

    def blocks_of(self, address: Address) -> list[ObservedBlock]:
        """Return the blocks that have the address: several if they overlap. The first is the one that a release writes."""
        cidrs = self.index.overlapping(address.host())
        if len(cidrs) > 1:
            regular = self.pools.any_block_of(address)
            cidrs.sort(key=lambda cidr: cidr != regular)
        return [self.blocks[cidr] for cidr in cidrs]

    def is_unreadable(self, cidr: Cidr) -> bool:
        """Return whether a block that cannot be read has addresses of the CIDR."""
        return any(cidr.overlaps(unreadable) for unreadable in self.unreadable)

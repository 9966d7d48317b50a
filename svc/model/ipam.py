"""What IPAM stores: blocks, affinities, handles and the configuration record.

Shapes are those of a key-value store; the field order of `to_json` is the order in which they are written.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import orjson

from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr

Json = dict[str, Any]

PENDING = "pending"
CONFIRMED = "confirmed"
PENDING_DELETION = "pendingDeletion"


@dataclass(slots=True)
class Attribute:
    """Why an ordinal is not free: who holds it, or since when it cools down. Never changed in place, for blocks share it."""

    handle_id: str | None = None
    secondary: dict[str, str] | None = None
    alternate: dict[str, str] | None = None
    released_at: str | None = None
    _encoded: orjson.Fragment | None = field(default=None, repr=False, compare=False)

    def encoded(self) -> orjson.Fragment:
        """`to_json` as it is written, made once: every write of a block comes here for every address in it."""
        if self._encoded is None:
            self._encoded = orjson.Fragment(orjson.dumps(self.to_json()))
        return self._encoded

    def to_json(self) -> Json:
        data: Json = {}
        if self.handle_id:
            data["handle_id"] = self.handle_id
        if self.secondary:
            data["secondary"] = self.secondary
        if self.alternate:
            data["alternateOwnerAttrs"] = self.alternate
        if self.released_at:
            data["releasedAt"] = self.released_at
        return data

    @staticmethod
    def from_json(data: Json) -> "Attribute":
        return Attribute(data.get("handle_id"), data.get("secondary"), data.get("alternateOwnerAttrs"), data.get("releasedAt"))


@cache
def _ordinals_as_text(size: int) -> tuple[tuple[str, int], ...]:
    """In the order of the text, as keys are written."""
    return tuple(sorted((str(ordinal), ordinal) for ordinal in range(size)))


@dataclass(slots=True)
class Block:
    """One address block: 2**n ordinals, who holds each, and in which order the free ones are handed out.

    `sequence` counts writes (64 bits, starts at the creation time in nanoseconds); `ordinal_sequences` remembers for every
    taken ordinal the sequence before the write that took it, so that a late release cannot free a newer allocation.
    """

    cidr: Cidr
    affinity: str | None
    ordinals: Ordinals
    sequence: int
    claimed_at: str | None = None
    attributes: list[Attribute] | None = None
    ordinal_sequences: dict[int, int] = field(default_factory=dict)
    deleted: bool = False

    def to_json(self, attribute: Callable[[Attribute], Any] = Attribute.to_json) -> Json:
        """`attribute` makes what stands for each of them."""
        data: Json = {"cidr": str(self.cidr), "affinity": self.affinity}
        if self.claimed_at:
            data["affinity_claim_time"] = self.claimed_at
        data["allocations"] = self.ordinals.allocations()
        data["unallocated"] = self.ordinals.unallocated()
        data["attributes"] = None if self.attributes is None else list(map(attribute, self.attributes))
        data["sequenceNumber"] = self.sequence
        sequences = self.ordinal_sequences
        data["sequenceNumberForAllocation"] = {
            text: sequences[ordinal] for text, ordinal in _ordinals_as_text(self.ordinals.size) if ordinal in sequences
        }
        data["deleted"] = self.deleted
        return data

    @staticmethod
    def from_json(data: Json) -> "Block":
        """ValueError when the lists do not fit together."""
        attributes = data.get("attributes")
        sequences = data.get("sequenceNumberForAllocation") or {}
        highest = max((tag for tag in data["allocations"] if tag is not None), default=-1)
        if highest >= len(attributes or ()):
            raise ValueError(f"allocations name attribute {highest} of {len(attributes or ())}")
        return Block(
            cidr=Cidr(data["cidr"]),
            affinity=data.get("affinity"),
            ordinals=Ordinals.load(data["allocations"], data["unallocated"]),
            sequence=int(data.get("sequenceNumber") or 0),
            claimed_at=data.get("affinity_claim_time"),
            attributes=None if attributes is None else [Attribute.from_json(item) for item in attributes],
            ordinal_sequences={int(key): int(value) for key, value in sequences.items()},
            deleted=bool(data.get("deleted")),
        )

    def copy(self) -> "Block":
        """Independent of this one, but for the attributes themselves, which are never changed in place."""
        return Block(
            self.cidr,
            self.affinity,
            self.ordinals.copy(),
            self.sequence,
            self.claimed_at,
            None if self.attributes is None else list(self.attributes),
            dict(self.ordinal_sequences),
            self.deleted,
        )


@dataclass(frozen=True, slots=True)
class Affinity:
    """The state of a host's claim: pending before its block exists, confirmed after, pendingDeletion while it is given up."""

    state: str = CONFIRMED
    deleted: bool = False

    def to_json(self) -> Json:
        return {"state": self.state, "deleted": self.deleted}

    @staticmethod
    def from_json(data: Json) -> "Affinity":
        return Affinity(data.get("state") or CONFIRMED, bool(data.get("deleted")))


@dataclass(frozen=True, slots=True)
class Handle:
    """How many addresses a handle holds, by block CIDR."""

    blocks: dict[str, int]
    deleted: bool = False

    def to_json(self) -> Json:
        return {"block": {key: self.blocks[key] for key in sorted(self.blocks)}, "deleted": self.deleted}

    @staticmethod
    def from_json(data: Json) -> "Handle":
        """ValueError when it names a block that is none."""
        return Handle(
            {str(Cidr(key)): int(count) for key, count in (data.get("block") or {}).items()}, bool(data.get("deleted"))
        )

    def changed(self, cidr: str, difference: int) -> "Handle":
        """With `difference` more (or fewer) addresses in that block; a count of zero leaves the handle."""
        blocks = dict(self.blocks)
        count = blocks.pop(cidr, 0) + difference
        if count > 0:
            blocks[cidr] = count
        return Handle(blocks, self.deleted)


@dataclass(frozen=True, slots=True)
class IpamConfig:
    """Cluster-wide IPAM settings; these defaults hold where no record exists."""

    strict_affinity: bool = False
    auto_allocate_blocks: bool = True
    max_blocks_per_host: int = 0
    vm_address_persistence: str = ""
    cooldown_seconds: int = 0

    def to_json(self) -> Json:
        pairs = (
            ("strict_affinity", self.strict_affinity),
            ("auto_allocate_blocks", self.auto_allocate_blocks),
            ("maxBlocksPerHost", self.max_blocks_per_host),
            ("kubeVirtVMAddressPersistence", self.vm_address_persistence),
            ("ipCooldownSeconds", self.cooldown_seconds),
        )
        return {name: value for name, value in pairs if value}

    @staticmethod
    def from_json(data: Json) -> "IpamConfig":
        return IpamConfig(
            bool(data.get("strict_affinity")),
            bool(data.get("auto_allocate_blocks")),
            int(data.get("maxBlocksPerHost") or 0),
            str(data.get("kubeVirtVMAddressPersistence") or ""),
            int(data.get("ipCooldownSeconds") or 0),
        )

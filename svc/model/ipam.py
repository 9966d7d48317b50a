"""IPAM documents: blocks, affinities, handles and the IPAM settings.

The forms are those of a key-value store; `to_json` has the order in which fields are written. `extra` contains all other fields
of a document, from newer versions or other programs; they are written back unchanged. `from_json` raises ValueError that names
a field which is missing or of another type.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import orjson

from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.model import json_fields
from svc.model.field_errors import display, json_kind
from svc.values import dataclass, field

Json = dict[str, Any]

PENDING = "pending"
CONFIRMED = "confirmed"
PENDING_DELETION = "pendingDeletion"

_OF_ATTRIBUTES = frozenset({"handle_id", "secondary", "alternateOwnerAttrs", "releasedAt"})
_OF_BLOCKS = frozenset({"cidr", "affinity", "affinity_claim_time", "allocations", "unallocated", "attributes", "deleted"})
_OF_BLOCKS |= {"sequenceNumber", "sequenceNumberForAllocation"}
_OF_AFFINITIES = frozenset({"state", "deleted"})
_OF_HANDLES = frozenset({"block", "deleted"})


class InconsistentBlock(ValueError):
    """The fields of a block contradict each other, although each has the right type."""


@dataclass(slots=True)
class Attribute:
    """The reason that an ordinal is not free: its handle, or the start of its cooldown. Immutable, because blocks share it."""

    handle_id: str | None = None
    secondary: dict[str, str] | None = None
    alternate: dict[str, str] | None = None
    released_at: str | None = None
    extra: Json | None = None
    _encoded: orjson.Fragment | None = field(default=None, init=False, repr=False, compare=False)

    def encoded(self) -> orjson.Fragment:
        """Return the encoded JSON, cached, because every write of a block encodes the attribute of every allocation."""
        if self._encoded is None:
            text = memoryview(orjson.dumps(self.to_json())).tobytes()  # a result of orjson occupies 4 KiB at least
            self._encoded = orjson.Fragment(text)
        return self._encoded

    def to_json(self) -> Json:
        members = {
            "handle_id": self.handle_id,
            "secondary": self.secondary,
            "alternateOwnerAttrs": self.alternate,
            "releasedAt": self.released_at,
        }
        data: Json = {name: value for name, value in members.items() if value}
        return data | self.extra if self.extra else data

    @staticmethod
    def from_json(data: Json) -> "Attribute":
        handle, secondary = data.get("handle_id"), data.get("secondary")
        if type(handle) is str and type(secondary) is dict and len(data) == 2 and {*map(type, secondary.values())} == {str}:
            return Attribute(handle, secondary)  # fast path: a full block has many of this form
        return Attribute(
            json_fields.text(data, "handle_id"),
            json_fields.texts(data, "secondary"),
            json_fields.texts(data, "alternateOwnerAttrs"),
            json_fields.text(data, "releasedAt"),
            json_fields.unknown(data, _OF_ATTRIBUTES),
        )


@cache
def _ordinals_as_text(size: int) -> tuple[tuple[str, int], ...]:
    """Return the ordinals in the lexical order in which keys are written."""
    return tuple(sorted((str(ordinal), ordinal) for ordinal in range(size)))


@cache
def _ordinals_of_text(size: int) -> dict[str, int]:
    return dict(_ordinals_as_text(size))


@dataclass(slots=True)
class Block:
    """One block: 2**n ordinals, the attribute of each, and the order in which free ones are assigned.

    `sequence` counts writes (64 bits, starts at the creation time in nanoseconds). `ordinal_sequences` has, for each assigned
    ordinal, the sequence before the write that assigned it. So a late release cannot free a newer allocation.
    """

    cidr: Cidr
    affinity: str | None
    ordinals: Ordinals
    sequence: int
    claimed_at: str | None = None
    attributes: list[Attribute] | None = None
    ordinal_sequences: dict[int, int] = field(default_factory=dict)
    deleted: bool = False
    extra: Json | None = None

    def to_json(self, attribute: Callable[[Attribute], Any] = Attribute.to_json) -> Json:
        """Return the JSON; `attribute` encodes each attribute."""
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
        return data | self.extra if self.extra else data

    @staticmethod
    def from_json(data: Json) -> "Block":
        """Parse a block. Raise ValueError, and InconsistentBlock if its lists are inconsistent."""
        cidr = Cidr(json_fields.required_text(data, "cidr"))
        ordinals, attributes = _ordinals(data), _attributes(data)
        if ordinals.size != cidr.size:
            raise InconsistentBlock(f"block {cidr} lists {ordinals.size} addresses, not {cidr.size}")
        highest = max((tag for tag in data["allocations"] if tag is not None), default=-1)
        if highest >= len(attributes or ()):
            raise InconsistentBlock(f"allocations name attribute {highest} of {len(attributes or ())}")
        return Block(
            cidr=cidr,
            affinity=json_fields.text(data, "affinity"),
            ordinals=ordinals,
            sequence=json_fields.number(data, "sequenceNumber"),
            claimed_at=json_fields.text(data, "affinity_claim_time"),
            attributes=attributes,
            ordinal_sequences=_ordinal_sequences(data, ordinals.size),
            deleted=json_fields.flag(data, "deleted"),
            extra=json_fields.unknown(data, _OF_BLOCKS),
        )

    def copy(self) -> "Block":
        """Return an independent copy. The attributes are shared, because they are immutable."""
        return Block(
            self.cidr,
            self.affinity,
            self.ordinals.copy(),
            self.sequence,
            self.claimed_at,
            None if self.attributes is None else list(self.attributes),
            dict(self.ordinal_sequences),
            self.deleted,
            self.extra,
        )


def _ordinals(data: Json) -> Ordinals:
    if data.get("allocations") is None:
        raise ValueError("allocations is missing")
    allocations, unallocated = json_fields.items(data, "allocations"), json_fields.items(data, "unallocated")
    try:
        return Ordinals.load(allocations, unallocated)
    except ValueError as error:
        raise InconsistentBlock(str(error)) from None


def _attributes(data: Json) -> list[Attribute] | None:
    if data.get("attributes") is None:
        return None
    found = []
    for index, item in enumerate(json_fields.items(data, "attributes")):
        if not isinstance(item, dict):
            raise ValueError(f"attributes[{index}] = {display(item)} is {json_kind(item)}, not an object")
        try:
            found.append(Attribute.from_json(item))
        except ValueError as error:
            raise ValueError(f"attributes[{index}].{error}") from None
    return found


def _ordinal_sequences(data: Json, size: int) -> dict[int, int]:
    found = json_fields.numbers(data, "sequenceNumberForAllocation")
    known = _ordinals_of_text(size)
    for name in found.keys() - known.keys():
        raise ValueError(f"sequenceNumberForAllocation names ordinal {name!r}, none of 0..{size - 1}")
    return {known[name]: number for name, number in found.items()}


@dataclass(frozen=True, slots=True)
class Affinity:
    """The state of a host's affinity: pending before its block exists, pendingDeletion during its release."""

    state: str = CONFIRMED
    deleted: bool = False
    extra: Json | None = None

    @property
    def is_confirmed(self) -> bool:
        return self.state == CONFIRMED and not self.deleted

    def to_json(self) -> Json:
        return {"state": self.state, "deleted": self.deleted, **(self.extra or {})}

    @staticmethod
    def from_json(data: Json) -> "Affinity":
        state, deleted = json_fields.text(data, "state") or CONFIRMED, json_fields.flag(data, "deleted")
        return Affinity(state, deleted, json_fields.unknown(data, _OF_AFFINITIES))

    def with_state(self, state: str) -> "Affinity":
        """Return the affinity in another state."""
        return Affinity(state, extra=self.extra)


@dataclass(frozen=True, slots=True)
class Handle:
    """The number of allocations of a handle, by block CIDR."""

    blocks: dict[str, int]
    deleted: bool = False
    extra: Json | None = None

    def to_json(self) -> Json:
        counts = {key: self.blocks[key] for key in sorted(self.blocks)}
        return {"block": counts, "deleted": self.deleted, **(self.extra or {})}

    @staticmethod
    def from_json(data: Json) -> "Handle":
        """Parse a handle. Raise ValueError also if a block is not a CIDR."""
        counts = {str(Cidr(key)): count for key, count in json_fields.numbers(data, "block").items()}
        return Handle(counts, json_fields.flag(data, "deleted"), json_fields.unknown(data, _OF_HANDLES))

    def changed(self, cidr: str, difference: int) -> "Handle":
        """Return the handle with `difference` more (or fewer) addresses in that block. A count of zero or less is removed."""
        blocks = dict(self.blocks)
        count = blocks.pop(cidr, 0) + difference
        if count > 0:
            blocks[cidr] = count
        return self.counting(blocks)

    def counting(self, blocks: dict[str, int]) -> "Handle":
        """Return the handle with other counts."""
        return Handle(blocks, self.deleted, self.extra)


@dataclass(frozen=True, slots=True)
class IpamConfig:
    """Cluster-wide IPAM settings, with the defaults that apply if no record exists."""

    strict_affinity: bool = False
    auto_allocate_blocks: bool = True
    max_blocks_per_host: int = 0
    vm_address_persistence: str = ""
    cooldown_seconds: int = 0
    extra: Json | None = None

    def to_json(self) -> Json:
        found = {name: getattr(self, attribute) for name, (attribute, _) in _SETTINGS.items()}
        return {name: value for name, value in found.items() if value} | (self.extra or {})

    @staticmethod
    def from_json(data: Json) -> "IpamConfig":
        found = {attribute: read(data, name) for name, (attribute, read) in _SETTINGS.items()}
        return IpamConfig(**found, extra=json_fields.unknown(data, _SETTINGS.keys()))


_SETTINGS: dict[str, tuple[str, Callable[[Json, str], Any]]] = {  # attribute and reader of each field
    "strict_affinity": ("strict_affinity", json_fields.flag),
    "auto_allocate_blocks": ("auto_allocate_blocks", json_fields.flag),
    "maxBlocksPerHost": ("max_blocks_per_host", json_fields.integer),
    "kubeVirtVMAddressPersistence": ("vm_address_persistence", lambda data, name: json_fields.text(data, name) or ""),
    "ipCooldownSeconds": ("cooldown_seconds", json_fields.integer),
}

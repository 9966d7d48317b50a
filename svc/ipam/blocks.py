"""What may happen to one block: made, assigned from, released to. Pure: the caller writes the result.

A taken ordinal points at an attribute: who holds it, or since when it rests. Equal attributes are shared. Freed ordinals
go to the tail of the queue, so an address rests as long as possible before it is handed out again; with a cooldown it is
not even in the queue before that has passed.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from operator import attrgetter

from svc._core.bitmap import Ordinals, OrdinalSet
from svc._core.cidr import Address, Cidr
from svc.model.ipam import Attribute, Block
from svc.values import dataclass

RESERVED_HANDLE = "windows-reserved-ipam-handle"  # holds what Windows nodes set aside in their blocks

_released_at = attrgetter("released_at")


@dataclass(frozen=True, slots=True)
class Cooldown:
    """For how many seconds freed addresses rest, and what time it is (aware). Without seconds they are free at once."""

    seconds: int
    now: datetime

    def is_over(self, released_at: str) -> bool:
        """A time that cannot be read is long ago. So is one further ahead than any rest lasts: a clock was wrong then, and
        the address would rest until that time has come."""
        if self.seconds <= 0:
            return True
        since, length = moment(released_at), timedelta(seconds=self.seconds)
        return since is None or since < self.now - length or since > self.now + length


def stamp(now: datetime) -> str:
    """A time as blocks have it: UTC, to the second."""
    return now.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str | None) -> datetime | None:
    """The time that a block names; None when it names none that can be read."""
    try:
        found = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def new_block(cidr: Cidr, affinity: str, now: datetime) -> Block:
    """An empty block. Its sequence starts at the time in nanoseconds, so that a block made anew never repeats one."""
    sequence = int(now.timestamp() * 1_000_000) * 1000
    return Block(cidr, affinity, Ordinals(cidr.bits - cidr.length), sequence, stamp(now))


def assign(block: Block, attribute: Attribute, reserved: OrdinalSet | None = None) -> Address | None:
    """Takes the next free address that is not reserved; None when there is none."""
    if not block.ordinals.available(reserved):
        return None
    ordinal = block.ordinals.allocate(_tag(block, attribute), reserved)
    block.ordinal_sequences[ordinal] = block.sequence
    return block.cidr.address(ordinal)


def assign_at(block: Block, address: Address, attribute: Attribute) -> bool:
    """Takes this very address; False when somebody has it, or it rests."""
    ordinal = block.cidr.ordinal(address)
    if ordinal in block.ordinals:
        return False
    block.ordinals.allocate_at(ordinal, _tag(block, attribute))
    block.ordinal_sequences[ordinal] = block.sequence
    return True


def release(block: Block, ordinals: Iterable[int], rest: Cooldown | None = None, *, restamp: bool = False) -> None:
    """Frees them, in ascending order and among those whose rest is over, or lets them rest.

    `restamp`: a resting ordinal gets the sequence of its release, as those do that are released by address."""
    gone = set(ordinals)
    if rest is None or rest.seconds <= 0:
        _free(block, gone | set(_rested(block, rest)))
        return
    if gone:
        tag = _tag(block, Attribute(released_at=stamp(rest.now)))
        for ordinal in gone:
            block.ordinals.retag(ordinal, tag)
            if restamp:
                block.ordinal_sequences[ordinal] = block.sequence
    _free(block, _rested(block, rest))


def collect(block: Block, rest: Cooldown) -> None:
    """Frees whatever has rested long enough."""
    rested = _rested(block, rest)
    if rested:
        _free(block, rested)


def has_resting(block: Block) -> bool:
    """Whether an address of it may be resting."""
    return any(map(_released_at, block.attributes or ()))


def set_attribute(block: Block, ordinal: int, attribute: Attribute) -> None:
    """Replaces what is said of a taken ordinal, of no other that shares it."""
    block.ordinals.retag(ordinal, _tag(block, attribute))
    _prune_attributes(block)


def held_by(block: Block, handle: str) -> list[int]:
    """The ordinals that a handle holds, ascending."""
    found: list[int] = []
    for tag, attribute in enumerate(block.attributes or ()):
        if attribute.handle_id == handle:
            found.extend(block.ordinals.tagged(tag))
    return sorted(found)


def allocations(block: Block) -> Iterator[tuple[Attribute, Address]]:
    """The addresses that are not free, each with its attribute."""
    for tag, attribute in enumerate(block.attributes or ()):
        for ordinal in block.ordinals.tagged(tag):
            yield attribute, block.cidr.address(ordinal)


def holder(block: Block, address: Address) -> Attribute | None:
    """Who holds the address, or since when it rests; None when it is free."""
    tag = block.ordinals.tag(block.cidr.ordinal(address))
    return None if tag < 0 else (block.attributes or [])[tag]


def is_empty(block: Block) -> bool:
    """Whether nobody holds an address of it and none rests. What Windows sets aside in every block does not count."""
    if block.ordinals.used == 0:
        return True
    attributes = block.attributes or []
    return all(tag is None or is_windows_reserved(attributes[tag]) for tag in block.ordinals.allocations())


def is_of_windows(block: Block) -> bool:
    """Whether its owner is a Windows node. It delivers all of its block by itself: nobody else can use a part of it."""
    return block.affinity is not None and any(map(is_windows_reserved, block.attributes or ()))


def count_set_aside(block: Block) -> int:
    """Addresses that the system of the block's node needs."""
    attributes = enumerate(block.attributes or ())
    return sum(len(block.ordinals.tagged(tag)) for tag, attribute in attributes if is_windows_reserved(attribute))


def is_windows_reserved(attribute: Attribute) -> bool:
    """Whether nobody holds the address: its node's system needs it."""
    return (attribute.handle_id or "").lower() == RESERVED_HANDLE


def _rested(block: Block, rest: Cooldown | None) -> list[int]:
    if rest is None or not has_resting(block):
        return []
    return [
        ordinal
        for tag, attribute in enumerate(block.attributes or ())
        if attribute.released_at and rest.is_over(attribute.released_at)
        for ordinal in block.ordinals.tagged(tag)
    ]


def _free(block: Block, ordinals: Iterable[int]) -> None:
    for ordinal in sorted(ordinals):
        block.ordinals.release(ordinal)
        block.ordinal_sequences.pop(ordinal, None)
    _prune_attributes(block)


def _tag(block: Block, attribute: Attribute) -> int:
    if block.attributes is None:
        block.attributes = []
    for tag, present in enumerate(block.attributes):
        if present.handle_id == attribute.handle_id and present == attribute:
            return tag
    block.attributes.append(attribute)
    return len(block.attributes) - 1


def _prune_attributes(block: Block) -> None:
    used = set(block.ordinals.allocations())
    kept: list[Attribute] = []
    new_tags: list[int] = []
    for tag, attribute in enumerate(block.attributes or ()):
        new_tags.append(len(kept))
        if tag in used:
            kept.append(attribute)
    block.attributes = kept
    block.ordinals.renumber(new_tags)

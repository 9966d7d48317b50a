"""Operations on one block in memory: create it, assign and release addresses. The caller writes the result.

An ordinal is the position of an address in its block. A taken ordinal refers to an attribute, which has the handle or the time
of release. Equal attributes are shared. Freed ordinals go to the end of the queue, so an address is assigned again as late as
possible. An ordinal in cooldown enters the queue when its cooldown is over.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from operator import attrgetter

from svc._core.bitmap import Ordinals, OrdinalSet
from svc._core.cidr import Address, Cidr
from svc.model.ipam import Attribute, Block
from svc.values import dataclass

RESERVED_HANDLE = "windows-reserved-ipam-handle"  # holds the addresses that Windows nodes set aside in their blocks

_released_at = attrgetter("released_at")


@dataclass(frozen=True, slots=True)
class Cooldown:
    """The cooldown in seconds, and the current time with its time zone. With 0 seconds, released addresses are free at once."""

    seconds: int
    now: datetime

    def is_over(self, released_at: str) -> bool:
        """Return whether the cooldown of an address released at this time is over.

        It is over, too, if the time cannot be parsed, or is further in the future than the cooldown lasts (a wrong clock).
        """
        if self.seconds <= 0:
            return True
        since, length = parse_time(released_at), timedelta(seconds=self.seconds)
        return since is None or since < self.now - length or since > self.now + length


def format_time(now: datetime) -> str:
    """Format a time as blocks store it: UTC, to the second."""
    return now.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> datetime | None:
    """Parse a time of a block; without a time zone it is UTC. Return None if it cannot be parsed."""
    try:
        found = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def new_block(cidr: Cidr, affinity: str, now: datetime) -> Block:
    """Create an empty block. Its sequence starts at the time in nanoseconds, so that a recreated block repeats no number."""
    sequence = int(now.timestamp() * 1_000_000) * 1000
    return Block(cidr, affinity, Ordinals(cidr.bits - cidr.length), sequence, format_time(now))


def assign(block: Block, attribute: Attribute, reserved: OrdinalSet | None = None) -> Address | None:
    """Assign the next free address that is not reserved. Return None if no such address exists."""
    if not block.ordinals.available(reserved):
        return None
    ordinal = block.ordinals.allocate(_tag(block, attribute), reserved)
    block.ordinal_sequences[ordinal] = block.sequence
    return block.cidr.address(ordinal)


def assign_at(block: Block, address: Address, attribute: Attribute) -> bool:
    """Assign the given address. Return False if it is assigned already or in cooldown."""
    ordinal = block.cidr.ordinal(address)
    if ordinal in block.ordinals:
        return False
    block.ordinals.allocate_at(ordinal, _tag(block, attribute))
    block.ordinal_sequences[ordinal] = block.sequence
    return True


def release(block: Block, ordinals: Iterable[int], cooldown: Cooldown | None = None, *, restamp: bool = False) -> None:
    """Free the ordinals if no cooldown applies, else begin their cooldown. Free those whose cooldown is over, too.

    With `restamp`, as for releases by address, an ordinal gets the block's sequence number when its cooldown begins.
    """
    gone = set(ordinals)
    if cooldown is None or cooldown.seconds <= 0:
        _free(block, gone | set(_expired(block, cooldown)))
        return
    if gone:
        tag = _tag(block, Attribute(released_at=format_time(cooldown.now)))
        for ordinal in gone:
            block.ordinals.retag(ordinal, tag)
            if restamp:
                block.ordinal_sequences[ordinal] = block.sequence
    _free(block, _expired(block, cooldown))


def free_expired(block: Block, cooldown: Cooldown) -> None:
    """Free the ordinals whose cooldown is over."""
    expired = _expired(block, cooldown)
    if expired:
        _free(block, expired)


def has_cooldown(block: Block) -> bool:
    """Return whether an address of the block may be in cooldown."""
    return any(map(_released_at, block.attributes or ()))


def set_attribute(block: Block, ordinal: int, attribute: Attribute) -> None:
    """Replace the attribute of one taken ordinal. Other ordinals that share the old attribute keep it."""
    block.ordinals.retag(ordinal, _tag(block, attribute))
    _prune_attributes(block)


def held_by(block: Block, handle: str) -> list[int]:
    """Return the ordinals that a handle holds, ascending."""
    found: list[int] = []
    for tag, attribute in enumerate(block.attributes or ()):
        if attribute.handle_id == handle:
            found.extend(block.ordinals.tagged(tag))
    return sorted(found)


def allocations(block: Block) -> Iterator[tuple[Attribute, Address]]:
    """Yield the addresses that are not free, each with its attribute."""
    for tag, attribute in enumerate(block.attributes or ()):
        for ordinal in block.ordinals.tagged(tag):
            yield attribute, block.cidr.address(ordinal)


def allocation_of(block: Block, address: Address) -> Attribute | None:
    """Return the attribute of an assigned address or of one in cooldown; None if the address is free."""
    tag = block.ordinals.tag(block.cidr.ordinal(address))
    return None if tag < 0 else (block.attributes or [])[tag]


def is_empty(block: Block) -> bool:
    """Return whether no address of the block is assigned or in cooldown. Addresses that Windows sets aside do not count."""
    if block.ordinals.used == 0:
        return True
    attributes = block.attributes or []
    return all(is_windows_reserved(attributes[tag]) for tag in set(block.ordinals.allocations()) if tag is not None)


def is_of_windows(block: Block) -> bool:
    """Return whether the block has the affinity of a Windows node, which delivers the packets to its whole block."""
    return block.affinity is not None and any(map(is_windows_reserved, block.attributes or ()))


def count_windows_reserved(block: Block) -> int:
    """Count the addresses that Windows sets aside in the block."""
    attributes = enumerate(block.attributes or ())
    return sum(len(block.ordinals.tagged(tag)) for tag, attribute in attributes if is_windows_reserved(attribute))


def is_windows_reserved(attribute: Attribute) -> bool:
    """Return whether Windows sets the address aside, so that no attachment holds it."""
    return (attribute.handle_id or "").lower() == RESERVED_HANDLE


def _expired(block: Block, cooldown: Cooldown | None) -> list[int]:
    if cooldown is None or not has_cooldown(block):
        return []
    return [
        ordinal
        for tag, attribute in enumerate(block.attributes or ())
        if attribute.released_at and cooldown.is_over(attribute.released_at)
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

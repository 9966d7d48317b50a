"""What may happen to one block: made, assigned from, released to. Pure: the caller writes the result.

A taken ordinal points at an attribute (who holds it); equal attributes are shared. Freed ordinals go to the tail of the
queue, so an address rests as long as possible before it is handed out again.
"""

from collections.abc import Iterable
from datetime import datetime, timezone

from svc._core.bitmap import Ordinals
from svc._core.cidr import Address, Cidr
from svc.model.ipam import Attribute, Block


def host_affinity(host: str) -> str:
    """The affinity of a block that a host owns."""
    return f"host:{host}"


def new_block(cidr: Cidr, affinity: str, now: datetime) -> Block:
    """An empty block. Its sequence starts at the time in nanoseconds, so that a block made anew never repeats one."""
    claimed_at = now.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    sequence = int(now.timestamp() * 1_000_000) * 1000
    return Block(cidr, affinity, Ordinals(cidr.bits - cidr.length), sequence, claimed_at)


def assign(block: Block, attribute: Attribute) -> Address | None:
    """Takes the next free address; None when the block is full."""
    if not block.ordinals.free:
        return None
    ordinal = block.ordinals.allocate(_tag(block, attribute))
    block.ordinal_sequences[ordinal] = block.sequence
    return block.cidr.address(ordinal)


def assign_at(block: Block, address: Address, attribute: Attribute) -> bool:
    """Takes this very address; False when somebody has it."""
    ordinal = block.cidr.ordinal(address)
    if ordinal in block.ordinals:
        return False
    block.ordinals.allocate_at(ordinal, _tag(block, attribute))
    block.ordinal_sequences[ordinal] = block.sequence
    return True


def release(block: Block, ordinals: Iterable[int]) -> None:
    """Frees them, in ascending order."""
    for ordinal in sorted(ordinals):
        block.ordinals.release(ordinal)
        block.ordinal_sequences.pop(ordinal, None)
    _prune_attributes(block)


def held_by(block: Block, handle: str) -> list[int]:
    """The ordinals that a handle holds, ascending."""
    found: list[int] = []
    for tag, attribute in enumerate(block.attributes or ()):
        if attribute.handle_id == handle:
            found.extend(block.ordinals.tagged(tag))
    return sorted(found)


def holder(block: Block, address: Address) -> Attribute | None:
    """Who holds the address; None when it is free."""
    tag = block.ordinals.tag(block.cidr.ordinal(address))
    return None if tag < 0 else (block.attributes or [])[tag]


def is_empty(block: Block) -> bool:
    """Whether nobody holds an address of it."""
    return block.ordinals.used == 0


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

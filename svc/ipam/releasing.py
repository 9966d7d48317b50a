"""Plan the release of addresses: all of a handle, or single addresses."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress

from svc._core.cidr import Address, Cidr
from svc.datastore.api import NotFound
from svc.ipam import blocks, errors
from svc.ipam.plan import Draft, Plan, Planned
from svc.ipam.requests import Release, ReleaseAddresses, ReleaseResult, ReleaseTarget
from svc.model.errors import SvcError
from svc.model.ipam import Attribute, Block


def release(plan: Plan, request: Release) -> Planned:
    """Plan a write of each block that the handle lists, or in which a write of unknown outcome may still give it an address.

    Write a block even if it has nothing to release. A concurrent assignment to the handle has counted already, and its write of
    the block then conflicts.
    """
    draft = Draft(plan)
    named = [Cidr(text) for text in plan.stored_handle(request.handle).blocks]
    unnamed = [address for address in request.addresses if not any(address in cidr for cidr in named)]
    for cidr in dict.fromkeys([*named, *_blocks_of(plan, unnamed), *plan.view.doubtful_blocks(request.handle)]):
        _release_from(plan, draft, cidr, request)
    plan.join(draft)
    return Planned(ReleaseResult(), frozenset(draft.blocks))


def release_addresses(plan: Plan, request: ReleaseAddresses) -> Planned:
    """Plan each block by itself: a refusal in one block does not affect the others."""
    by_block, unknown = _by_block(plan, request.addresses)
    plan.prefetch_handles(name for cidr, held in by_block.items() for name in _holders(plan.block(cidr), held))
    freed: list[Address] = []
    unallocated = list(unknown)
    refused: dict[Address, SvcError] = {}
    written: set[Cidr] = set()
    for cidr, held in by_block.items():
        draft = Draft(plan)
        try:
            gone = _release_checked(plan, draft, cidr, held)
        except SvcError as failure:
            refused.update(dict.fromkeys(held, failure))
            continue
        freed.extend(gone)
        unallocated.extend(address for address in held if address not in gone)
        if gone:
            plan.join(draft)
            written.add(cidr)
    return Planned(ReleaseResult(tuple(freed), tuple(unallocated), refused), frozenset(written))


def bare(handle: str | None) -> str:
    """Return the part of a handle that is compared. Some stored handles end in a carriage return and further text."""
    return (handle or "").partition("\r")[0]


def _blocks_of(plan: Plan, addresses: Iterable[Address]) -> list[Cidr]:
    found = (plan.room.block_holding(plan.block, address) for address in addresses)
    return [cidr for cidr in found if cidr is not None]


def _release_from(plan: Plan, draft: Draft, cidr: Cidr, request: Release) -> None:
    kept = 0
    with suppress(NotFound):
        block = draft.block(cidr)
        held = blocks.held_by(block, request.handle)
        gone = [ordinal for ordinal in held if cidr.address(ordinal) not in request.keep]
        blocks.release(block, gone, plan.rest())
        kept = len(held) - len(gone)
    draft.count(request.handle, cidr, kept - draft.handle(request.handle).blocks.get(str(cidr), 0))


def _by_block(
    plan: Plan, addresses: Iterable[ReleaseTarget]
) -> tuple[Mapping[Cidr, dict[Address, ReleaseTarget]], list[Address]]:
    """Group the targets by the block that has the address; list the addresses in no block.

    If an address occurs more than once, its last target counts.
    """
    by_block: dict[Cidr, dict[Address, ReleaseTarget]] = defaultdict(dict)
    unknown: dict[Address, None] = {}
    for held in addresses:
        cidr = plan.room.block_holding(plan.block, held.address)
        if cidr is None:
            unknown[held.address] = None
        else:
            by_block[cidr][held.address] = held
    return by_block, list(unknown)


def _holders(block: Block, held: Iterable[Address]) -> set[str]:
    attributes = (blocks.holder(block, address) for address in held)
    return {attribute.handle_id for attribute in attributes if attribute is not None and attribute.handle_id}


def _release_checked(plan: Plan, draft: Draft, cidr: Cidr, held: Mapping[Address, ReleaseTarget]) -> list[Address]:
    """Release the targets of one block and return the addresses that were released.

    Raise CallerError and release none of them if an allocation differs from its target.
    """
    block = draft.block(cidr)
    freed: dict[Address, Attribute] = {}
    for address, wanted in held.items():
        attribute = blocks.holder(block, address)
        if attribute is None or attribute.released_at:
            continue
        _check(block, wanted, attribute)
        freed[address] = attribute
    for attribute in freed.values():
        if attribute.handle_id:
            plan.stored_handle(attribute.handle_id)
            draft.count(attribute.handle_id, cidr, -1)
    blocks.release(block, [cidr.ordinal(address) for address in freed], plan.rest(), restamp=True)
    return list(freed)


def _check(block: Block, wanted: ReleaseTarget, attribute: Attribute) -> None:
    if blocks.is_windows_reserved(attribute):
        raise errors.of_windows(wanted.address, block.affinity)
    if wanted.handle and bare(attribute.handle_id) != bare(wanted.handle):
        raise errors.other_handle(wanted.address, attribute.handle_id, wanted.handle)
    sequence = block.ordinal_sequences.get(block.cidr.ordinal(wanted.address))
    if wanted.sequence is not None and wanted.sequence != sequence:
        raise errors.other_allocation(wanted.address, sequence, wanted.sequence)

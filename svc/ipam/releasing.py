"""Plan the release of addresses: all of a handle, or single addresses."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress

from svc._core.cidr import Address, Cidr
from svc.datastore.api import NotFound
from svc.ipam import blocks, errors
from svc.ipam.plan import Plan, Planned, RequestChanges
from svc.ipam.requests import Release, ReleaseAddresses, ReleaseResult, ReleaseTarget
from svc.ipam.selection import BlockFinder
from svc.model.errors import SvcError
from svc.model.ipam import Attribute, Block


def release(plan: Plan, request: Release) -> Planned:
    """Plan a write of each block that the handle lists, or in which a write of unknown outcome may still give it an address.

    Write also a block without such an address: a concurrent assignment has counted already, and its write then conflicts.
    """
    changes = RequestChanges(plan)
    listed = [Cidr(text) for text in plan.stored_handle(request.handle).blocks]
    unlisted = [address for address in request.addresses if not any(address in cidr for cidr in listed)]
    finder = BlockFinder(changes)
    found = [cidr for address in unlisted if (cidr := finder.find_existing(address)) is not None]
    for cidr in dict.fromkeys([*listed, *found, *plan.cache.unresolved.get(request.handle, ())]):
        _release_from(changes, cidr, request)
    plan.join(changes)
    return Planned(ReleaseResult(), frozenset(changes.blocks))


def release_addresses(plan: Plan, request: ReleaseAddresses) -> Planned:
    """Plan each block by itself, unless the request says so: a refusal in one block does not affect the others."""
    if request.whole_handles:
        return _release_whole_handles(plan, request)
    by_block, unknown = _by_block(plan, request.addresses)
    plan.prefetch_handles(name for cidr, targets in by_block.items() for name in _handles(plan.block(cidr), targets))
    freed: list[Address] = []
    unallocated = list(unknown)
    refused: dict[Address, SvcError] = {}
    written: set[Cidr] = set()
    for cidr, targets in by_block.items():
        changes = RequestChanges(plan)
        try:
            gone = _release_checked(changes, cidr, targets)
        except SvcError as failure:
            refused.update(dict.fromkeys(targets, failure))
            continue
        freed.extend(gone)
        unallocated.extend(address for address in targets if address not in gone)
        if gone:
            plan.join(changes)
            written.add(cidr)
    return Planned(ReleaseResult(tuple(freed), tuple(unallocated), refused), frozenset(written))


def _release_whole_handles(plan: Plan, request: ReleaseAddresses) -> Planned:
    """Plan all blocks together. Raise CallerError if an allocation differs, or a handle holds more than the targets."""
    by_block, unknown = _by_block(plan, request.addresses)
    changes, freed = RequestChanges(plan), list[Address]()
    handles = {handle for cidr, targets in by_block.items() for handle in _handles(plan.block(cidr), targets)}
    listed = {Cidr(text) for handle in handles for text in plan.stored_handle(handle).blocks}
    for cidr in listed | by_block.keys():
        if (block := changes.find(cidr)) is not None:
            _require_all(block, handles, by_block.get(cidr, {}))
    for cidr, targets in by_block.items():
        freed += _release_checked(changes, cidr, targets)
    plan.join(changes)
    others = [*unknown, *(address for targets in by_block.values() for address in targets if address not in freed)]
    return Planned(ReleaseResult(tuple(freed), tuple(others)), frozenset(changes.blocks))


def _require_all(block: Block, handles: Iterable[str], targets: Mapping[Address, ReleaseTarget]) -> None:
    """Raise CallerError if one of the handles holds an address of the block that is no target."""
    for handle in handles:
        for ordinal in blocks.held_by(block, handle):
            if (address := block.cidr.address(ordinal)) not in targets:
                raise errors.holds_more(handle, address)


def bare(handle: str | None) -> str:
    """Return the part of a handle that is compared. Some stored handles end in a carriage return and further text."""
    return (handle or "").partition("\r")[0]


def _release_from(changes: RequestChanges, cidr: Cidr, request: Release) -> None:
    kept = 0
    with suppress(NotFound):
        block = changes.block(cidr)
        held = blocks.held_by(block, request.handle)
        gone = [ordinal for ordinal in held if cidr.address(ordinal) not in request.keep]
        blocks.release(block, gone, changes.plan.cooldown)
        kept = len(held) - len(gone)
    changes.count(request.handle, cidr, kept - changes.handle(request.handle).blocks.get(str(cidr), 0))


def _by_block(
    plan: Plan, targets: Iterable[ReleaseTarget]
) -> tuple[Mapping[Cidr, dict[Address, ReleaseTarget]], Iterable[Address]]:
    """Group the targets by the block that has the address; the last target of an address counts. List the others."""
    finder = BlockFinder(RequestChanges(plan))
    by_block: dict[Cidr, dict[Address, ReleaseTarget]] = defaultdict(dict)
    unknown: dict[Address, None] = {}
    for target in targets:
        cidr = finder.find_existing(target.address)
        if cidr is None:
            unknown[target.address] = None
        else:
            by_block[cidr][target.address] = target
    return by_block, unknown


def _handles(block: Block, addresses: Iterable[Address]) -> set[str]:
    attributes = (blocks.allocation_of(block, address) for address in addresses)
    return {attribute.handle_id for attribute in attributes if attribute is not None and attribute.handle_id}


def _release_checked(changes: RequestChanges, cidr: Cidr, targets: Mapping[Address, ReleaseTarget]) -> list[Address]:
    """Release the targets of one block. Raise CallerError and release none if an allocation differs from its target."""
    plan, block = changes.plan, changes.block(cidr)
    freed: dict[Address, Attribute] = {}
    for address, target in targets.items():
        attribute = blocks.allocation_of(block, address)
        if attribute is None or attribute.released_at:
            continue
        _check(block, target, attribute)
        freed[address] = attribute
    for attribute in freed.values():
        if attribute.handle_id:
            plan.stored_handle(attribute.handle_id)
            changes.count(attribute.handle_id, cidr, -1)
    blocks.release(block, [cidr.ordinal(address) for address in freed], plan.cooldown, restamp=True)
    return list(freed)


def _check(block: Block, target: ReleaseTarget, attribute: Attribute) -> None:
    if blocks.is_windows_reserved(attribute):
        raise errors.of_windows(target.address, block.affinity)
    if target.handle and bare(attribute.handle_id) != bare(target.handle):
        raise errors.other_handle(target.address, attribute.handle_id, target.handle)
    sequence = block.ordinal_sequences.get(block.cidr.ordinal(target.address))
    if target.sequence is not None and target.sequence != sequence:
        raise errors.AddressUnavailable(
            f"address {str(target.address)!r} was assigned again",
            details=f"its allocation has sequence number {sequence}, not {target.sequence}: read the allocations again",
        )

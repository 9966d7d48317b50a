"""Plan a request for addresses."""

from collections.abc import Sequence

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Conflict
from svc.ipam import blocks, errors
from svc.ipam.host import VIRTUAL
from svc.ipam.plan import Draft, Plan, Planned
from svc.ipam.pools import why_not
from svc.ipam.requests import Allocation, Assign, AssignResult
from svc.model.ipam import Attribute
from svc.model.keys import BlockKey
from svc.model.pool import LOAD_BALANCER, Pool


def assign(plan: Plan, request: Assign) -> Planned:
    """Plan the assignment of all addresses of the request.

    Raise SvcError and leave the plan unchanged if one of them cannot be assigned.
    """
    if (request.use == LOAD_BALANCER) != (plan.host.kind == VIRTUAL):
        raise errors.other_host(request.use, plan.host)
    if request.restores:
        return _restore(plan, request)
    draft = Draft(plan)
    found: list[Allocation] = []
    taken: list[Allocation] = []
    for wanted in request.addresses or request.versions:
        allocation = _held_already(plan, draft, wanted, request, found)
        if allocation is None:
            allocation = _take(plan, draft, wanted, request)
            draft.count(request.handle, allocation.block, 1)
            taken.append(allocation)
        found.append(allocation)
    plan.join(draft)
    chosen = not request.addresses and any(not request.pools.get(version) for version in request.versions)
    assigned = AssignResult(tuple(found), faults=plan.view.faults() if chosen else ())
    return Planned(assigned, frozenset(draft.blocks), tuple(taken))


def _restore(plan: Plan, request: Assign) -> Planned:
    """Assign the addresses of a live attachment again, and set the handle's counts to the allocations in the blocks."""
    draft = Draft(plan)
    plan.stored_handle(request.handle)
    attribute = Attribute(request.handle, dict(sorted(request.attributes.items())))
    found = [_restored(plan, draft, address, attribute) for address in request.addresses]
    for cidr in {allocation.block for allocation in found}:
        held = len(blocks.held_by(draft.block(cidr), request.handle))
        counted = draft.handle(request.handle).blocks.get(str(cidr), 0)
        if held != counted:
            draft.count(request.handle, cidr, held - counted)
    plan.join(draft)
    return Planned(AssignResult(tuple(found)), frozenset(draft.blocks), tuple(found))


def _restored(plan: Plan, draft: Draft, address: Address, attribute: Attribute) -> Allocation:
    cidr = plan.room.block_of_live(draft.peek, address)
    holder = blocks.holder(draft.peek(cidr), address)
    if holder is not None and not holder.released_at and holder.handle_id == attribute.handle_id:
        return Allocation(address, cidr)
    return _assigned_at(draft, cidr, address, attribute)


def pools_for(plan: Plan, version: int, request: Assign) -> Sequence[Pool]:
    """Return the pools that serve the request, in order. Raise SvcError if no pool does, or if the node is unknown."""
    names = request.pools.get(version, ())
    view = plan.view
    if names:
        return view.pools().named(names, version, request.use)
    pools = view.selected(version, request.namespace_labels, request.use)
    if not pools:
        given = [pool for pool in view.pools().all if pool.cidr.version == version]
        labels, namespace = view.node_labels(), request.namespace_labels
        reasons = [f"{pool.name} {why_not(pool, labels, namespace, request.use)}" for pool in given]
        reasons += [f"{fault} (it cannot be used)" for fault in view.pools().unreadable.values()]
        raise errors.no_pool(version, plan.host, reasons)
    return pools


def _take(plan: Plan, draft: Draft, wanted: Address | int, request: Assign) -> Allocation:
    """Assign the given address, or any address of the given family."""
    attribute = Attribute(request.handle, dict(sorted(request.attributes.items())))
    if isinstance(wanted, Address):
        return _take_at(plan, draft, wanted, attribute, request)
    version = wanted
    pools = pools_for(plan, version, request)
    request.explain(lambda: _considered(plan, version, request, pools))
    if not request.pools.get(version):
        plan.room.tidy(draft.peek, version)
    cidr = plan.room.block_with_room(draft.peek, version, pools, request.max_blocks)
    address = blocks.assign(draft.block(cidr), attribute, plan.room.reserved.mask(cidr))
    assert address is not None
    request.explain(lambda: f"IPv{version}: {address} of block {cidr} ({draft.block(cidr).affinity or 'unclaimed'})")
    return Allocation(address, cidr)


def _considered(plan: Plan, version: int, request: Assign, pools: Sequence[Pool]) -> str:
    """Return the text of a trace line: the pools used, the pools dropped with reasons, and the blocks of this host."""
    names = [pool.name for pool in pools]
    given = request.namespace_labels
    labels = plan.view.node_labels()
    dropped = [
        f"{pool.name} {why_not(pool, labels, given, request.use) or 'is not asked for'}"
        for pool in plan.view.pools().all
        if pool.cidr.version == version and pool.name not in names
    ]
    own = [str(cidr) for cidr in plan.view.own_blocks(version)]
    parts = ("pools", names), ("dropped", dropped), (f"blocks of {plan.host.name}", own)
    return f"IPv{version}: " + "; ".join(f"{what}: {', '.join(found) or 'none'}" for what, found in parts)


def _take_at(plan: Plan, draft: Draft, address: Address, attribute: Attribute, request: Assign) -> Allocation:
    return _assigned_at(draft, plan.room.block_at(draft.peek, address, request.use), address, attribute)


def _assigned_at(draft: Draft, cidr: Cidr, address: Address, attribute: Attribute) -> Allocation:
    block = draft.block(cidr)
    if not blocks.assign_at(block, address, attribute):
        holder = blocks.holder(block, address)
        if holder is not None and holder.released_at:
            raise errors.resting(address, holder.released_at)
        raise errors.taken(address, f"handle {holder.handle_id!r}" if holder and holder.handle_id else "an unknown container")
    return Allocation(address, cidr)


def _held_already(
    plan: Plan, draft: Draft, wanted: Address | int, request: Assign, found: Sequence[Allocation]
) -> Allocation | None:
    """Return an address that the handle holds if it is at its limit (`max_per_handle`); None if it may get another address.

    Raise CallerError if the handle is at its limit and no held address fits. Raise Conflict if the handle counts more addresses
    than it holds, because a concurrent assignment is in progress.
    """
    limit = request.max_per_handle
    if not limit:
        return None
    version = wanted.version if isinstance(wanted, Address) else wanted
    if request.handle not in draft.handles:
        plan.stored_handle(request.handle)
    counted = draft.handle(request.handle).blocks
    counts = {cidr: count for text, count in counted.items() if (cidr := Cidr(text)).version == version}
    if sum(counts.values()) < limit:
        return None
    held = {address: cidr for cidr in counts for address in _held_now(plan, draft, cidr, request.handle, counts[cidr])}
    fit = [address for address in held if not isinstance(wanted, Address) or address == wanted]
    reused = next((address for address in fit if address not in [allocation.address for allocation in found]), None)
    if reused is None:
        raise errors.handle_full(request.handle, version, limit)
    return Allocation(reused, held[reused])


def _held_now(plan: Plan, draft: Draft, cidr: Cidr, handle: str, count: int) -> list[Address]:
    block = draft.blocks.get(cidr) or plan.current_block(cidr)
    held = [cidr.address(ordinal) for ordinal in blocks.held_by(block, handle)]
    if len(held) < count:
        raise Conflict(BlockKey(cidr))
    return held

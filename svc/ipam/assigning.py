"""Plan a request for addresses."""

from collections.abc import Sequence

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Conflict
from svc.ipam import blocks, errors
from svc.ipam.plan import Plan, Planned, RequestChanges
from svc.ipam.pools import rejection_reason
from svc.ipam.requests import Allocation, Assign, AssignResult
from svc.ipam.selection import BlockFinder
from svc.model.errors import Code, PeerError
from svc.model.ipam import Attribute
from svc.model.keys import VIRTUAL, BlockKey
from svc.model.pool import LOAD_BALANCER, Pool


def assign(plan: Plan, request: Assign) -> Planned:
    """Plan the assignment of all addresses. Raise SvcError and leave the plan unchanged if one cannot be assigned."""
    if (request.use == LOAD_BALANCER) != (plan.host.kind == VIRTUAL):
        raise errors.PoolRefused(
            f"addresses for {errors.BENEFICIARIES[request.use]} cannot be assigned by {plan.host}",
            details=f"use {LOAD_BALANCER} is for virtual hosts, every other one is for nodes",
        )
    assignment = _Assignment(plan, request)
    return assignment.restore() if request.restores else assignment.assign()


def pools_for(plan: Plan, version: int, request: Assign) -> Sequence[Pool]:
    """Return the pools that serve the request, in order. Raise SvcError if no pool does, or if the node is unknown."""
    names = request.pools.get(version, ())
    cache = plan.cache
    if names:
        return cache.pools().named(names, version, request.use)
    pools = cache.selected(version, request.namespace_labels, request.use)
    if not pools:
        reasons = [f"{pool.name} {reason}" for pool, reason in rejections(plan, version, request)]
        reasons += [f"{error} (it cannot be used)" for error in cache.pools().unreadable.values()]
        details = f"{'; '.join(errors.shortened(reasons))}: see `svcctl pool get`"
        if not reasons:
            details = f"the datastore has no IPv{version} pool: make one with `svcctl pool apply`"
        raise PeerError(f"no IPv{version} pool is available to {plan.host}", details=details, code=Code.POOL)
    return pools


class _Assignment:
    """The planning of one request: its changes and the allocations found so far."""

    def __init__(self, plan: Plan, request: Assign) -> None:
        self._plan = plan
        self._request = request
        self._changes = RequestChanges(plan)
        self._finder = BlockFinder(self._changes)
        self._attribute = Attribute(request.handle, dict(sorted(request.attributes.items())))
        self._found: list[Allocation] = []

    def assign(self) -> Planned:
        request, added = self._request, list[Allocation]()
        for wanted in request.addresses or request.versions:
            allocation = self._held_already(wanted) if request.max_per_handle else None
            if allocation is None:
                allocation = self._any_of(wanted) if isinstance(wanted, int) else self._requested(wanted)
                self._changes.count(request.handle, allocation.block, 1)
                added.append(allocation)
            self._found.append(allocation)
        selected = not request.addresses and any(not request.pools.get(version) for version in request.versions)
        return self._planned(added, self._plan.cache.errors() if selected else ())

    def restore(self) -> Planned:
        """Assign the addresses of a live attachment again, and set the handle's counts to the allocations in the blocks."""
        changes, handle = self._changes, self._request.handle
        self._plan.stored_handle(handle)
        self._found += map(self._restored, self._request.addresses)
        for cidr in {allocation.block for allocation in self._found}:
            held = len(blocks.held_by(changes.block(cidr), handle))
            counted = changes.handle(handle).blocks.get(str(cidr), 0)
            if held != counted:
                changes.count(handle, cidr, held - counted)
        return self._planned(self._found, ())

    def _planned(self, added: Sequence[Allocation], errors: tuple[str, ...]) -> Planned:
        self._plan.join(self._changes)
        return Planned(AssignResult(tuple(self._found), errors=errors), frozenset(self._changes.blocks), tuple(added))

    def _restored(self, address: Address) -> Allocation:
        cidr = self._finder.find_for_live(address)
        present = blocks.allocation_of(self._changes.peek(cidr), address)
        if present is not None and not present.released_at and present.handle_id == self._request.handle:
            return Allocation(address, cidr)
        return self._assigned_at(cidr, address)

    def _any_of(self, version: int) -> Allocation:
        request, changes = self._request, self._changes
        pools = pools_for(self._plan, version, request)
        request.decide(self._verdicts(version, pools))
        request.explain(lambda: self._own_blocks(version))
        if not request.pools.get(version):
            self._finder.release_ineligible(version)
        cidr = self._finder.find_free(version, pools, request.max_blocks)
        address = blocks.assign(changes.block(cidr), self._attribute, self._plan.reserved.mask(cidr))
        assert address is not None
        request.decide(f"IPv{version}: {address} of block {cidr} ({changes.block(cidr).affinity or 'unclaimed'})")
        return Allocation(address, cidr)

    def _verdicts(self, version: int, pools: Sequence[Pool]) -> str:
        """Return the pools used, and the pools dropped with reasons. The text is made once for a state of the pools."""
        request, known = self._request, self._plan.cache.verdicts
        if request.pools.get(version):
            return f"IPv{version}: pools: {', '.join(pool.name for pool in pools)}, as asked for"
        key = version, request.use, tuple(request.namespace_labels.items())
        if key not in known:
            used = errors.shortened([pool.name for pool in pools])
            dropped = [f"{pool.name} {reason}" for pool, reason in rejections(self._plan, version, request) if reason]
            known[key] = f"IPv{version}: pools: {', '.join(used)}; dropped: {', '.join(errors.shortened(dropped)) or 'none'}"
        return known[key]

    def _own_blocks(self, version: int) -> str:
        own = ", ".join(map(str, self._plan.cache.own_blocks(version)))
        return f"IPv{version}: blocks of {self._plan.host.name}: {own or 'none'}"

    def _requested(self, address: Address) -> Allocation:
        return self._assigned_at(self._finder.find_for_address(address, self._request.use), address)

    def _assigned_at(self, cidr: Cidr, address: Address) -> Allocation:
        block = self._changes.block(cidr)
        if not blocks.assign_at(block, address, self._attribute):
            present = blocks.allocation_of(block, address)
            if present is not None and present.released_at:
                raise errors.in_cooldown(address, present.released_at)
            handle = present.handle_id if present else ""
            holder = f"handle {handle!r}" if handle else "an unknown container"
            raise errors.AddressUnavailable(
                f"address {str(address)!r} is already assigned",
                details=f"it is held by {holder}; release that first, or ask for another address",
            )
        return Allocation(address, cidr)

    def _held_already(self, wanted: Address | int) -> Allocation | None:
        """Return an address of the handle if it is at its limit (`max_per_handle`); None if it may get another address.

        Raise CallerError if no held address fits then. Raise Conflict during a concurrent assignment to the handle.
        """
        handle, limit = self._request.handle, self._request.max_per_handle
        version = wanted if isinstance(wanted, int) else wanted.version
        if handle not in self._changes.handles:
            self._plan.stored_handle(handle)
        counted = self._changes.handle(handle).blocks
        counts = {cidr: count for text, count in counted.items() if (cidr := Cidr(text)).version == version}
        if sum(counts.values()) < limit:
            return None
        held = [Allocation(address, cidr) for cidr, count in counts.items() for address in self._held_now(cidr, count)]
        fit = (each for each in held if isinstance(wanted, int) or each.address == wanted)
        reused = next((each for each in fit if each not in self._found), None)
        if reused is None:
            raise errors.AddressUnavailable(
                f"handle {handle!r} holds {limit} IPv{version} addresses already",
                details="it may not hold more: ask for one of those, or release one first",
            )
        return reused

    def _held_now(self, cidr: Cidr, count: int) -> list[Address]:
        block = self._changes.blocks.get(cidr) or self._plan.current_block(cidr)
        held = [cidr.address(ordinal) for ordinal in blocks.held_by(block, self._request.handle)]
        if len(held) < count:
            raise Conflict(BlockKey(cidr))
        return held


def rejections(plan: Plan, version: int, request: Assign) -> list[tuple[Pool, str]]:
    """Return the pools of the family, each with the reason if it does not serve a request without pool names."""
    labels, namespace = plan.cache.node_labels(), request.namespace_labels
    given = [pool for pool in plan.cache.pools().all if pool.cidr.version == version]
    return [(pool, rejection_reason(pool, labels, namespace, request.use)) for pool in given]

"""Findings on single addresses."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from svc._core.cidr import Address
from svc.admin.ipam_check.findings import CONFIRM_SECONDS, KINDS, SETTLE_SECONDS, Candidate, candidate
from svc.admin.ipam_check.observation import Allocation, Observation
from svc.admin.ipam_check.uses import ENDPOINT, POD, SERVICE, Use
from svc.admin.ipam_check.verdicts import LEAKED, Verdicts, since, wait_for
from svc.ipam.blocks import parse_time

_CLOCK_SKEW: Final = timedelta(seconds=60)
_OVERDUE: Final = timedelta(seconds=300)  # blocks free what has ended only when they are written


def check(found: Observation, verdicts: Verdicts) -> Iterator[Candidate]:
    """Yield the findings on addresses."""
    for allocation in found.allocations():
        if allocation.attribute.released_at:
            yield from _cooldown(found, allocation)
        elif allocation.is_stable:
            yield from _leak(found, verdicts, allocation)
    for address in found.uses.by_address:
        yield from _use(found, address)
    yield from _overlapping_blocks(found)


def _leak(found: Observation, verdicts: Verdicts, allocation: Allocation) -> Iterator[Candidate]:
    verdict = verdicts.of(allocation)
    if verdict.state != LEAKED:
        return
    address, handle = str(allocation.address), allocation.attribute.handle_id or ""
    options = (("--ip", address), ("--handle", handle), ("--sequence", allocation.sequence))
    yield candidate(
        "leaked",
        address,
        verdict.reason,
        addresses=(address,),
        node=allocation.owner.get("node", ""),
        since=since(allocation),
        fix=" ".join(("svcctl ipam release", *(f"{name} {text}" for name, text in options if text not in ("", None)))),
        evidence=f"{handle} {allocation.sequence}",
        wait=wait_for(allocation, found.now),
    )


def _cooldown(found: Observation, allocation: Allocation) -> Iterator[Candidate]:
    address, text = str(allocation.address), allocation.attribute.released_at or ""
    released = parse_time(text)
    if released is not None and released > found.now + _CLOCK_SKEW:
        yield _released_in_the_future(found, allocation, released, text)
        return
    ended = None if released is None else released + timedelta(seconds=found.cooldown_seconds)
    if ended is None or ended < found.now - _OVERDUE:
        problem = f"released at {text!r}, with a cooldown of {found.cooldown_seconds} s"
        yield candidate("cooldown-over", address, problem, addresses=(address,), since=text if released else "")


def _released_in_the_future(found: Observation, allocation: Allocation, released: datetime, text: str) -> Candidate:
    """Return the finding. An ADD takes a time that is further away than the cooldown lasts for one that is over."""
    ahead, block = (released - found.now).total_seconds(), allocation.block.block
    problem = (
        f"released at {text}, {ahead:.0f} s ahead of this clock, in block {block.cidr} ({block.affinity or 'no affinity'})"
    )
    is_over = ahead > found.cooldown_seconds
    fix = KINDS["cooldown-over" if is_over else "cooldown-future"].fix
    clocks = "set the clock of the node that is wrong, this one or that which released it; " if is_over else ""
    address = str(allocation.address)
    return candidate("cooldown-future", address, problem, addresses=(address,), since=text, fix=f"{clocks}{fix}")


def _use(found: Observation, address: Address) -> Iterator[Candidate]:
    uses, claims = found.uses.by_address[address], found.uses.claims(address)
    pool, blocks = found.pools.pool_of(address), found.blocks_of(address)
    if not blocks and found.is_unreadable(address.host()):
        return
    allocations = [each for block in blocks if (each := block.allocation(address)) is not None]
    allocation = next((each for each in allocations if each.is_held), allocations[0] if allocations else None)
    is_allocated = allocation is not None and allocation.is_held
    if pool is None or not pool.usable:
        if is_allocated or (claims and found.pools.all):
            yield from _outside(found, address, claims or uses)
    elif not is_allocated and not found.reserved.ranges_in(address.host()):
        yield from _unallocated(found, address, claims)
    yield from _two_owners(found, address, uses, claims, allocation)


def _outside(found: Observation, address: Address, uses: tuple[Use, ...]) -> Iterator[Candidate]:
    """Services without a pool have their addresses from another program. A pool may be replaced at this moment."""
    pool = found.pools.pool_of(address)
    if address in found.uses.bypassing or found.pools.unreadable:
        return
    if pool is None and all(use.kind == SERVICE for use in uses):
        return
    reason = "no pool has it" if pool is None else f"pool {pool.name!r} is disabled"
    yield candidate(
        "outside",
        str(address),
        f"{reason}, and {uses[0]} has it",
        addresses=(str(address),),
        node=uses[0].node,
        evidence=f"{reason} {_sandboxes(uses)}",
        wait=SETTLE_SECONDS if found.uses.claims(address) else CONFIRM_SECONDS,
    )


def _unallocated(found: Observation, address: Address, claims: tuple[Use, ...]) -> Iterator[Candidate]:
    """A pod whose status alone shows the address may have lost it to a DEL."""
    blocks = found.blocks_of(address)
    if any(block.was_allocated(address) for block in blocks):
        return
    uses = claims or tuple(use for use in found.uses.by_address[address] if not _is_ending(found, use))
    if uses:
        is_settled = bool(claims) and all(block.is_stable for block in blocks)
        yield candidate(
            "unallocated",
            str(address),
            f"{uses[0]} has it",
            addresses=(str(address),),
            node=uses[0].node,
            evidence=_sandboxes(uses),
            wait=0.0 if is_settled else CONFIRM_SECONDS,
        )


def _sandboxes(uses: Iterable[Use]) -> str:
    """Return what changes if a pod gets another sandbox, perhaps with the same address."""
    return " ".join(sorted(f"{use} {use.container}" for use in uses))


def _is_ending(found: Observation, use: Use) -> bool:
    state = found.uses.pods.get(use.owner)
    return state is None or state.is_deleted


def _two_owners(
    found: Observation, address: Address, uses: tuple[Use, ...], claims: tuple[Use, ...], allocation: Allocation | None
) -> Iterator[Candidate]:
    """Services may share an address. Pods whose status alone shows it may have got it one after the other."""
    owners = {use.owner: use for use in uses if use.kind != POD or not _is_ending(found, use)}
    if len(owners) < 2:
        yield from _two_endpoints(address, uses)
        return
    if all(use.kind == SERVICE for use in owners.values()):
        return
    is_settled = len({use.owner for use in claims}) > 1 and allocation is not None and allocation.is_stable
    yield candidate(
        "duplicate",
        str(address),
        " and ".join(map(_on_node, owners.values())),
        addresses=(str(address),),
        evidence=_sandboxes(owners.values()),
        wait=0.0 if is_settled else CONFIRM_SECONDS,
    )


def _two_endpoints(address: Address, uses: tuple[Use, ...]) -> Iterator[Candidate]:
    """Yield a finding if one owner has the address on two nodes, or at two interfaces. The owner may move at this moment."""
    endpoints = [use for use in uses if use.kind == ENDPOINT]
    if len(endpoints) < 2:
        return
    is_moved = len({use.node for use in endpoints}) > 1
    problem = " and ".join(_on_node(use) if is_moved else f"interface {use.interface} of {use.owner}" for use in endpoints)
    yield candidate(
        "duplicate",
        str(address),
        problem,
        addresses=(str(address),),
        node="" if is_moved else endpoints[0].node,
        fix="" if is_moved else f"recreate the workload of {address}",
        evidence=f"{problem} {_sandboxes(endpoints)}",
        wait=CONFIRM_SECONDS,
    )


def _on_node(use: Use) -> str:
    return f"{use} on node {use.node!r}" if use.node else str(use)


def _overlapping_blocks(found: Observation) -> Iterator[Candidate]:
    for cidr in found.blocks:
        for other in found.index.overlapping(cidr):
            if cidr < other:
                problem = f"blocks {cidr} and {other} share addresses"
                fix = "end the workloads that use one of the blocks: it is deleted when it is empty"
                yield candidate("duplicate", f"{cidr} and {other}", problem, fix=fix)

"""Findings on blocks."""

from collections.abc import Iterator

from svc.admin.ipam_check.findings import CONFIRM_SECONDS, SETTLE_SECONDS, Candidate, candidate
from svc.admin.ipam_check.observation import Observation, ObservedBlock


def check(found: Observation) -> Iterator[Candidate]:
    """Yield the findings on blocks. A block in a pool that cannot be read is not orphaned."""
    yield from (candidate("block-invalid", path, error) for path, error in found.inconsistent.items())
    for block in found.blocks.values():
        yield from _invalid(block)
        yield from _pool(found, block)


def _invalid(block: ObservedBlock) -> Iterator[Candidate]:
    """Yield what a block that can be read has in excess. Reading refuses every other contradiction."""
    used = set(block.block.ordinals.allocations())
    unused = [tag for tag in range(len(block.block.attributes or ())) if tag not in used]
    if unused:
        problem = f"no address has attribute {', '.join(map(str, unused))} of {len(block.block.attributes or ())}"
        fix = "none is needed: the next DEL that frees an address of the block removes it"
        yield candidate("block-invalid", str(block.cidr), problem, since=block.block.claimed_at or "", fix=fix)


def _pool(found: Observation, block: ObservedBlock) -> Iterator[Candidate]:
    pool = found.pools.pool_of(block.cidr.first)
    if pool is None:
        if not found.pools.unreadable:
            yield _misplaced("block-orphaned", block, "no pool has it")
    elif pool.block_size != block.cidr.length:
        yield _misplaced("block-size", block, f"pool {pool.name!r} has blocks of /{pool.block_size}")


def _misplaced(id_: str, block: ObservedBlock, reason: str) -> Candidate:
    """A pool is replaced in several writes, and deleted after its blocks."""
    held = tuple(str(allocation.address) for allocation in block.allocations() if allocation.is_held)
    return candidate(
        id_,
        str(block.cidr),
        f"{reason}; {len(held)} addresses are allocated",
        addresses=held,
        node=(block.block.affinity or "").partition(":")[2],
        since=block.block.claimed_at or "",
        evidence=f"{reason} {block.block.claimed_at}",
        wait=SETTLE_SECONDS if block.is_stable else CONFIRM_SECONDS,
    )

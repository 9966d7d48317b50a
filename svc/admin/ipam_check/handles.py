"""Findings on handles.

A handle that grows is written before its block, and one that shrinks after it. So an ADD or a DEL in flight looks like a handle
that counts too much, until the handle gets another revision.
"""

from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import Final

from svc._core.cidr import Cidr
from svc.admin.ipam_check.findings import CONFIRM_SECONDS, Candidate, candidate
from svc.admin.ipam_check.observation import Allocation, Observation, ObservedHandle
from svc.admin.ipam_check.verdicts import since
from svc.ipam.blocks import RESERVED_HANDLE, is_windows_reserved
from svc.ipam.releasing import bare
from svc.model.custom_resources import handle_name
from svc.model.ipam import Block

EMPTY, MISCOUNTED = "handle-empty", "handle-miscounted"

_Held = dict[str, dict[str, int]]  # number of addresses, by handle and block
_NONE: Final[Mapping[str, int]] = {}


def held_by_handle(blocks: Iterable[Block]) -> _Held:
    """Return how many addresses each handle holds, by block. Addresses in cooldown, or set aside for Windows, do not count."""
    held: _Held = {}
    for block in blocks:
        cidr = intern(str(block.cidr))
        for tag, attribute in enumerate(block.attributes or ()):
            handle = bare(attribute.handle_id)
            if handle and not attribute.released_at and not is_windows_reserved(attribute):
                counts = held.setdefault(handle, {})
                counts[cidr] = counts.get(cidr, 0) + len(block.ordinals.tagged(tag))
    return held


def judge(handle: str, counts: Mapping[str, int], held: _Held) -> str:
    """Return the ID of the finding on a handle with these counts; empty if they are those of the blocks."""
    shown = held.get(bare(handle), _NONE)
    counts = {cidr: count for cidr, count in counts.items() if count}
    if handle.lower() == RESERVED_HANDLE or (counts and counts == shown):
        return ""
    return MISCOUNTED if shown else EMPTY


def check(found: Observation) -> Iterator[Candidate]:
    """Yield the findings on handles."""
    held = held_by_handle(block.block for block in found.blocks.values())
    missing: dict[str, list[Allocation]] = {}
    lost = {path.rpartition("/handle/")[2].rpartition("/")[2] for path in found.undecodable}
    for allocation in found.allocations():
        stored = allocation.attribute.handle_id
        handle = bare(stored)
        if handle and allocation.is_held:
            is_known = handle in found.handles or stored in found.handles
            if allocation.is_stable and not is_known and lost.isdisjoint((handle, handle_name(handle))):
                missing.setdefault(handle, []).append(allocation)
    yield from (_missing(handle, allocations) for handle, allocations in missing.items())
    for handle, observed in found.handles.items():
        yield from _miscounted(found, handle, observed, held)


def _missing(handle: str, allocations: list[Allocation]) -> Candidate:
    first, addresses = allocations[0], tuple(str(allocation.address) for allocation in allocations)
    problem = f"{len(addresses)} addresses are allocated to it"
    return candidate(
        "handle-missing", handle, problem, addresses=addresses, node=first.owner.get("node", ""), since=since(first)
    )


def _miscounted(found: Observation, handle: str, observed: ObservedHandle, held: _Held) -> Iterator[Candidate]:
    """Compare the counts of a handle with the addresses that the blocks show. Blocks that cannot be read do not count."""
    nonzero = {cidr: count for cidr, count in observed.counts if count}
    are_readable = not found.unreadable
    counts = {cidr: count for cidr, count in nonzero.items() if are_readable or not found.is_unreadable(Cidr(cidr))}
    id_ = judge(handle, counts, held)
    if not id_ or (nonzero and not counts):
        return
    shown = held.get(bare(handle), _NONE)
    wrong = [cidr for cidr in dict.fromkeys([*counts, *shown]) if counts.get(cidr) != shown.get(cidr)]
    lines = [f"it counts {counts.get(cidr, 0)} addresses in {cidr}, which shows {shown.get(cidr, 0)}" for cidr in wrong]
    problem = "; ".join(lines) or "it counts no address"
    yield candidate(id_, handle, problem, evidence=observed.revision, wait=CONFIRM_SECONDS)

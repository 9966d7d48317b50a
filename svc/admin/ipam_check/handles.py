"""Findings on handles.

A handle that grows is written before its block, and one that shrinks after it. So an ADD or a DEL in flight looks like a handle
that counts too much, until the handle gets another revision.
"""

from collections.abc import Iterator, Mapping
from sys import intern

from svc._core.cidr import Cidr
from svc.admin.ipam_check.findings import CONFIRM_SECONDS, Candidate, candidate
from svc.admin.ipam_check.observation import Allocation, Observation, ObservedHandle
from svc.admin.ipam_check.verdicts import since
from svc.ipam.blocks import RESERVED_HANDLE
from svc.ipam.releasing import bare
from svc.model.custom_resources import handle_name

_Held = dict[str, dict[str, int]]  # number of addresses, by handle and block


def check(found: Observation) -> Iterator[Candidate]:
    """Yield the findings on handles."""
    held: _Held = {}
    missing: dict[str, list[Allocation]] = {}
    lost = {path.rpartition("/handle/")[2].rpartition("/")[2] for path in found.undecodable}
    for allocation in found.allocations():
        stored = allocation.attribute.handle_id
        handle = bare(stored)
        if handle and allocation.is_held:
            counts, cidr = held.setdefault(handle, {}), intern(str(allocation.block.cidr))
            counts[cidr] = counts.get(cidr, 0) + 1
            is_known = handle in found.handles or stored in found.handles
            if allocation.is_stable and not is_known and lost.isdisjoint((handle, handle_name(handle))):
                missing.setdefault(handle, []).append(allocation)
    yield from (_missing(handle, allocations) for handle, allocations in missing.items())
    for handle, observed in found.handles.items():
        if handle.lower() != RESERVED_HANDLE:
            yield from _miscounted(found, handle, observed, held.get(bare(handle), {}))


def _missing(handle: str, allocations: list[Allocation]) -> Candidate:
    first, addresses = allocations[0], tuple(str(allocation.address) for allocation in allocations)
    problem = f"{len(addresses)} addresses are allocated to it"
    return candidate(
        "handle-missing", handle, problem, addresses=addresses, node=first.owner.get("node", ""), since=since(first)
    )


def _miscounted(found: Observation, handle: str, observed: ObservedHandle, held: Mapping[str, int]) -> Iterator[Candidate]:
    """Compare the counts of a handle with the addresses that the blocks show. Blocks that cannot be read do not count."""
    nonzero = {cidr: count for cidr, count in observed.counts if count}
    are_readable = not found.unreadable
    counts = {cidr: count for cidr, count in nonzero.items() if are_readable or not found.is_unreadable(Cidr(cidr))}
    if (counts == held and counts) or (nonzero and not counts):
        return
    wrong = [cidr for cidr in dict.fromkeys([*counts, *held]) if counts.get(cidr) != held.get(cidr)]
    lines = [f"it counts {counts.get(cidr, 0)} addresses in {cidr}, which shows {held.get(cidr, 0)}" for cidr in wrong]
    id_, problem = "handle-miscounted" if held else "handle-empty", "; ".join(lines) or "it counts no address"
    yield candidate(id_, handle, problem, evidence=observed.revision, wait=CONFIRM_SECONDS)

"""Findings on affinities.

A claim writes a pending affinity, then the block, then the confirmed affinity. A release writes them in the opposite order.
"""

from collections import defaultdict
from collections.abc import Iterator

from svc._core.cidr import Cidr
from svc.admin.ipam_check.findings import CONFIRM_SECONDS, PENDING_SECONDS, Candidate, candidate
from svc.admin.ipam_check.observation import Observation, ObservedAffinity, ObservedBlock
from svc.ipam.blocks import parse_time
from svc.model.custom_resources import block_name
from svc.model.keys import HOST_KINDS, Host


def check(found: Observation) -> Iterator[Candidate]:
    """Yield the findings on affinities."""
    by_block: dict[Cidr, list[ObservedAffinity]] = defaultdict(list)
    for affinity in found.affinities:
        if affinity.value.is_confirmed:
            by_block[affinity.key.cidr].append(affinity)
        else:
            yield _pending(found, affinity)
    for cidr, affinities in by_block.items():
        block = found.blocks.get(cidr)
        if len(affinities) > 1:
            yield _double(cidr, affinities, block)
        elif block is None and not found.is_unreadable(cidr):
            yield _stale(affinities[0], None)
        elif block is not None and block.block.affinity != _host(affinities[0]).affinity:
            yield _stale(affinities[0], block)
    known = {(_host(affinity).affinity, affinity.key.cidr) for affinity in found.affinities}
    for block in found.blocks.values():
        host = Host.of(block.block.affinity)
        if host is None or host.kind not in HOST_KINDS or (host.affinity, block.cidr) in known:
            continue
        if not _is_unreadable(found, block.cidr):
            yield _missing(host, block)


def _is_unreadable(found: Observation, cidr: Cidr) -> bool:
    """Return whether an affinity to the block cannot be decoded. Its path ends in the CIDR, as in a key or an object's name."""
    return any(path.endswith((f"/{str(cidr).replace('/', '-')}", f"-{block_name(cidr)}")) for path in found.undecodable)


def _host(affinity: ObservedAffinity) -> Host:
    return Host(affinity.key.host, affinity.key.kind)


def _name(affinity: ObservedAffinity) -> str:
    return f"{_host(affinity).affinity} {affinity.key.cidr}"


def _wait(block: ObservedBlock | None) -> float:
    return 0.0 if block is not None and block.is_stable else CONFIRM_SECONDS


def _pending(found: Observation, affinity: ObservedAffinity) -> Candidate:
    """An affinity has no time. That of its block is known; otherwise it is observed for as long as it may take."""
    block = found.blocks.get(affinity.key.cidr)
    since = block.block.claimed_at if block is not None and block.block.affinity == _host(affinity).affinity else None
    claimed = parse_time(since)
    is_old = claimed is not None and (found.now - claimed).total_seconds() > PENDING_SECONDS
    is_claim = affinity.value.state == "pending"
    return candidate(
        "affinity-pending",
        _name(affinity),
        f"its state is {affinity.value.state}" + (f"; the block was claimed at {since}" if since and is_claim else ""),
        node=affinity.key.host,
        since=since or "",
        evidence=affinity.revision,
        wait=CONFIRM_SECONDS if is_old and is_claim else PENDING_SECONDS,
    )


def _double(cidr: Cidr, affinities: list[ObservedAffinity], block: ObservedBlock | None) -> Candidate:
    hosts = " and ".join(_host(affinity).affinity for affinity in affinities)
    problem = f"{hosts} have an affinity; the block names {block.block.affinity if block else 'none: it does not exist'}"
    return candidate("affinity-double", str(cidr), problem, node=affinities[0].key.host, evidence=problem, wait=_wait(block))


def _stale(affinity: ObservedAffinity, block: ObservedBlock | None) -> Candidate:
    problem = "the block does not exist" if block is None else f"the block names {block.block.affinity or 'no host'}"
    return candidate(
        "affinity-stale",
        _name(affinity),
        problem,
        node=affinity.key.host,
        evidence=affinity.revision,
        wait=_wait(block),
    )


def _missing(host: Host, block: ObservedBlock) -> Candidate:
    return candidate(
        "affinity-missing",
        str(block.cidr),
        f"the block names {host.affinity}, which has no affinity to it",
        node=host.name,
        since=block.block.claimed_at or "",
        evidence=host.affinity,
        wait=_wait(block),
    )

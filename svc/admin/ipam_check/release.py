"""Release of addresses and handles that a check has found unused.

Every address is checked again, in an observation of its own. What is in use, or what only the agent of its node can tell, is
refused. The write itself compares handle and sequence number, so that a new allocation of the address stays.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from svc._core.cidr import Address, Cidr
from svc.admin.ipam_check.findings import CONFIRM_SECONDS
from svc.admin.ipam_check.living_agents import nodes_with_agent
from svc.admin.ipam_check.local_uses import LocalUses
from svc.admin.ipam_check.observation import Allocation, Observation, ObservedBlock, Place
from svc.admin.ipam_check.reading import observe
from svc.admin.ipam_check.verdicts import LEAKED, USED, Verdicts, age
from svc.datastore.api import Backend, Conflict, Delete, NotFound
from svc.ipam.errors import shortened
from svc.ipam.releasing import bare
from svc.ipam.requests import ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.keys import VIRTUAL, HandleKey, Host
from svc.values import dataclass

RELEASED, DELETED, FREE, REFUSED, READY = "released", "deleted", "already free", "refused", "unused"
_BATCH: Final = 100  # addresses of one request, so that the output shows the progress
_SELF: Final = Host("svcctl", VIRTUAL)  # which has no blocks


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for an address or a handle, or what is possible. `target` is set if the address can be released."""

    object: str
    result: str
    reason: str = ""
    target: ReleaseTarget | None = None
    revision: str = ""  # of a handle that can be deleted
    doubted_by: str = ""  # node that knows more than the datastore


def examine(
    place: Place,
    targets: Sequence[ReleaseTarget],
    handles: Sequence[tuple[str, str]],
    local: LocalUses,
    *,
    is_forced: bool = False,
) -> list[Outcome]:
    """Check addresses, and handles at their revisions, against what is in use now. Raise StoreError if that cannot be read.

    `is_forced` says that nodes whose agent does not show up are gone for good."""
    found = observe(place)
    verdicts = Verdicts(found)
    outcomes = [_examined(found, verdicts, target, local) for target in targets]
    outcomes = _without_doubt(place.backend, outcomes, is_forced=is_forced)
    held = {bare(allocation.attribute.handle_id) for allocation in found.allocations()} if handles else set()
    return [*outcomes, *(_examined_handle(found, held, handle, revision) for handle, revision in handles)]


def carry_out(backend: Backend, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Release and delete what can be, and yield each outcome when it is known. Raise SvcError if the datastore fails."""
    ipam = IpamService(backend, _SELF)
    yield from (outcome for outcome in outcomes if outcome.result != READY)
    targets = [outcome.target for outcome in outcomes if outcome.target is not None]
    for start in range(0, len(targets), _BATCH):
        yield from _released(ipam, targets[start : start + _BATCH])
    for outcome in outcomes:
        if outcome.revision:
            yield _deleted(backend, outcome)


def _examined(found: Observation, verdicts: Verdicts, target: ReleaseTarget, local: LocalUses) -> Outcome:
    blocks = found.blocks_of(target.address)
    if found.is_unreadable(target.address.host()):
        reason = (
            f"another block than {blocks[0].cidr} has it as well, and cannot be read" if blocks else "its block cannot be read"
        )
        return Outcome(str(target.address), REFUSED, reason)
    if not blocks:
        return _without_block(found, target)
    allocation = blocks[0].allocation(target.address)
    if reason := _overlap(blocks, target.address):
        return Outcome(str(target.address), REFUSED, reason)
    if allocation is None or allocation.attribute.released_at:
        return Outcome(str(target.address), FREE, "in cooldown" if allocation else "")
    doubt = _difference(target, allocation) or _obstacle(verdicts, allocation, local)
    if reason := doubt or _why_too_young(found, target, allocation):
        return Outcome(str(target.address), REFUSED, reason)
    present = ReleaseTarget(target.address, allocation.attribute.handle_id or "", allocation.sequence)
    verdict, node = verdicts.of(allocation), allocation.owner.get("node", "")
    doubted_by = node if verdict.lacks_endpoint and not local.can_tell(node) else ""
    return Outcome(str(target.address), READY, verdict.reason, present, doubted_by=doubted_by)


def _without_block(found: Observation, target: ReleaseTarget) -> Outcome:
    """Return that nothing is allocated. Refuse an address of no pool, which is mistyped unless its handle is known."""
    address, is_known = target.address, target.handle or target.sequence is not None
    if is_known or found.pools.pool_of(address) is not None:
        return Outcome(str(address), FREE, "no block has it")
    listed = shortened([f"{pool.name} {pool.cidr}" for pool in found.pools.all])
    return Outcome(str(address), REFUSED, f"no pool and no block has it: the pools are {', '.join(listed) or 'none'}")


def _without_doubt(backend: Backend, outcomes: Sequence[Outcome], *, is_forced: bool) -> list[Outcome]:
    """Refuse what only a missing endpoint shows unused: an administrator may have deleted that of a live pod.

    The node itself can tell, and a pod outlives the agent of its node. So only the user can say that the node is gone."""
    nodes = {outcome.doubted_by for outcome in outcomes} - {""}
    alive = nodes_with_agent(backend, nodes) if nodes and is_forced else ()
    return [
        _refused_by_node(outcome, is_alive=is_forced)
        if outcome.doubted_by and (not is_forced or outcome.doubted_by in alive)
        else outcome
        for outcome in outcomes
    ]


def _refused_by_node(outcome: Outcome, *, is_alive: bool) -> Outcome:
    node, deleted = outcome.doubted_by, f"{outcome.reason}, which an administrator may have deleted"
    if is_alive:
        return Outcome(outcome.object, REFUSED, f"{deleted}. The agent of node {node!r} is alive: repeat this there")
    remedy = f"Repeat this on node {node!r}, which can tell; with --force if that machine is gone for good"
    return Outcome(outcome.object, REFUSED, f"{deleted}. {remedy}")


def _overlap(blocks: Sequence[ObservedBlock], address: Address) -> str:
    """Return why no release can be sure of an address: another block than the one that is written has it allocated as well."""
    for block in blocks[1:]:
        other = block.allocation(address)
        if other is not None and other.is_held:
            return f"blocks {blocks[0].cidr} and {block.cidr} overlap, and {block.cidr} has it allocated: end the overlap first"
    return ""


def _difference(target: ReleaseTarget, allocation: Allocation) -> str:
    handle = allocation.attribute.handle_id or ""
    if target.handle and bare(target.handle) != bare(handle):
        return f"it is allocated to {handle}, not to {target.handle}"
    if target.sequence is not None and target.sequence != allocation.sequence:
        return f"it was allocated again: its sequence number is {allocation.sequence}, not {target.sequence}"
    return "" if allocation.is_stable else "its block changes now: try again"


def _obstacle(verdicts: Verdicts, allocation: Allocation, local: LocalUses) -> str:
    verdict, node = verdicts.of(allocation), allocation.owner.get("node", "")
    if verdict.state == USED:
        return f"{verdict.uses[0]} has it: end that first"
    if allocation.address in local.addresses:
        return local.addresses[allocation.address]
    if verdict.state != LEAKED:
        return f"{verdict.reason or 'it is set aside'}: only the agent of node {node!r} can tell; the runtime's GC releases it"
    return ""


def _why_too_young(found: Observation, target: ReleaseTarget, allocation: Allocation) -> str:
    """Return why an ADD in flight may have made the allocation. A sequence number is that of a finding, seen for a minute."""
    seconds = age(allocation, found.now)
    if seconds is None:
        known = target.sequence is not None
        return "" if known else "no time of its allocation is recorded: give the --sequence that `svcctl ipam check` shows"
    young = "it was allocated less than a minute ago, perhaps by an ADD in flight: try again later"
    return young if seconds < CONFIRM_SECONDS else ""


def _examined_handle(found: Observation, held: set[str], handle: str, revision: str) -> Outcome:
    present = found.handles.get(handle)
    if present is None:
        return Outcome(f"handle {handle}", FREE, "it does not exist")
    if bare(handle) in held:
        return Outcome(f"handle {handle}", REFUSED, "addresses are allocated to it")
    if unreadable := [cidr for cidr, _ in present.counts if found.is_unreadable(Cidr(cidr))]:
        return Outcome(f"handle {handle}", REFUSED, f"it counts addresses in {unreadable[0]}, which cannot be read")
    if present.revision != revision:
        return Outcome(f"handle {handle}", REFUSED, f"it was changed since: its revision is {present.revision}, not {revision}")
    return Outcome(f"handle {handle}", READY, "no address is allocated to it", revision=revision)


def _released(ipam: IpamService, targets: Sequence[ReleaseTarget]) -> Iterator[Outcome]:
    result = ipam.release_addresses(targets)
    yield from (Outcome(str(address), RELEASED) for address in result.freed)
    yield from (Outcome(str(address), FREE) for address in result.unallocated)
    yield from (Outcome(str(address), REFUSED, str(error)) for address, error in result.refused.items())


def _deleted(backend: Backend, outcome: Outcome) -> Outcome:
    handle = outcome.object.removeprefix("handle ")
    try:
        backend.write([Delete(HandleKey(handle), outcome.revision)])
    except NotFound:
        return Outcome(outcome.object, FREE, "it does not exist")
    except Conflict:
        return Outcome(outcome.object, REFUSED, "it was changed since it was examined")
    return Outcome(outcome.object, DELETED)

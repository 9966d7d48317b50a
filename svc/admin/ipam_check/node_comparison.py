"""The comparison of a node's journal with its interfaces and with what the datastore shows allocated there."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from svc._core.cidr import Address, Cidr
from svc.admin.ipam_check.findings import CONFIRM_SECONDS, Candidate, candidate
from svc.admin.ipam_check.observation import Allocation
from svc.admin.ipam_check.owners import SERVICE, TUNNEL, kind_of
from svc.admin.ipam_check.verdicts import since
from svc.admin.other_agents import links_of_other_agents
from svc.attach.record import ADDED, ADDING, DELETING, AttachmentId, Record
from svc.attach.recovery import is_abandoned
from svc.attach.sources.select import source_of
from svc.ipam.releasing import bare
from svc.values import dataclass

Rows = Mapping[AttachmentId, Record]


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """What one look at the node shows.

    `rows` are those that did not change during it, `known` all that were there. The addresses of `stored` are in the datastore.
    `links` are the host sides of pairs by name, `uses` the other uses of addresses. `held` has the allocations of this node and
    of the rows' addresses, `unreadable` the blocks that cannot be read. `links_of_others` asks the other agents here.
    `journal` tells where the journal comes from.
    """

    node: str
    boot_id: str
    rows: Rows
    known: tuple[Record, ...]
    stored: frozenset[AttachmentId]
    links: Mapping[str, dict[str, Any]]
    uses: Mapping[Address, str]
    held: Mapping[Address, Allocation]
    unreadable: tuple[Cidr, ...] = ()
    links_of_others: Callable[[], Mapping[str, int]] = links_of_other_agents
    journal: str = ""


def compare(found: NodeObservation) -> list[Candidate]:
    """Return the contradictions that one observation shows."""
    return [each for part in (_attachments(found), _allocations(found), _links(found)) for each in part]


def unchanged(before: Rows, after: Rows) -> Rows:
    """Return the rows that two readings of the journal show in the same state."""

    def state(record: Record | None) -> tuple[int, str] | None:
        return None if record is None else (record.generation, record.state)

    return {key: record for key, record in after.items() if state(before.get(key)) == state(record)}


def _attachments(found: NodeObservation) -> Iterator[Candidate]:
    for record in found.rows.values():
        if reason := _why_unfinished(found, record):
            evidence = "" if record.state == DELETING else str(record.generation)  # each retry writes the row of a release
            yield _candidate("attachment-unfinished", record, reason, evidence=evidence)
        elif record.state == ADDED:
            yield from _live(found, record)


def _why_unfinished(found: NodeObservation, record: Record) -> str:
    if record.state == DELETING:
        return "its release is pending"
    if record.boot_id != found.boot_id:
        return "it was added before the node was started"
    if record.state == ADDING:
        return "its ADD has not ended"
    return "its ADD has ended waiting, and its client does not come back" if is_abandoned(record) else ""


def _live(found: NodeObservation, record: Record) -> Iterator[Candidate]:
    link = found.links.get(record.host_name)
    if record.is_wired and not record.shares and (link is None or link["index"] != record.host_index):
        yield _candidate("link-missing", record, f"interface {record.host_name} does not exist")
    if record.id in found.stored and not record.shares and source_of(record).uses_pools:
        for address in record.address_list():
            yield from _unallocated(found, record, address)


def _unallocated(found: NodeObservation, record: Record, address: Address) -> Iterator[Candidate]:
    if any(address in cidr for cidr in found.unreadable):
        return
    allocation = found.held.get(address)
    handle = None if allocation is None else allocation.attribute.handle_id
    if handle is None or bare(handle) not in (bare(record.handle), bare(record.older_handle)):
        problem = f"{address} is not allocated" if allocation is None else f"{address} is allocated to {handle or 'no handle'}"
        yield _candidate("attachment-unallocated", record, problem, addresses=(str(address),))


def _candidate(
    id_: str, record: Record, problem: str, addresses: tuple[str, ...] = (), evidence: str | None = None
) -> Candidate:
    return candidate(
        id_,
        f"{record.id.network} {record.id.container_id} {record.id.ifname}",
        f"{problem} (pod {record.namespace}/{record.pod})" if record.pod else problem,
        addresses=addresses or tuple(record.addresses),
        node=record.node,
        evidence=f"{record.generation} {problem}" if evidence is None else evidence,
        wait=CONFIRM_SECONDS,
    )


def _allocations(found: NodeObservation) -> Iterator[Candidate]:
    """Yield the allocations of this node that no row has. An address with an interface or a host route is in use."""
    known = {bare(handle) for record in found.known for handle in (record.handle, record.older_handle) if handle}
    for address, allocation in found.held.items():
        owner, handle = allocation.owner, allocation.attribute.handle_id or ""
        is_other = owner.get("node") != found.node or kind_of(owner) in (TUNNEL, SERVICE)
        if is_other or address in found.uses or bare(handle) in known:
            continue
        pod = f" for pod {owner.get('namespace')}/{owner['pod']}" if owner.get("pod") else ""
        yield candidate(
            "allocation-unattached",
            str(address),
            f"it is allocated to {handle or 'no handle'}{pod}, of which the agent has no record",
            addresses=(str(address),),
            node=found.node,
            since=since(allocation),
            evidence=f"{handle} {allocation.sequence}",
            wait=CONFIRM_SECONDS,
        )


def _links(found: NodeObservation) -> Iterator[Candidate]:
    """Yield the interfaces without a row. That of an attachment has the recorded index; that of an ADD may have none yet."""
    known = {(record.host_name, index) for record in found.known for index in _indexes(found, record)}
    unknown = [name for name, link in found.links.items() if known.isdisjoint({(name, link["index"]), (name, 0)})]
    others = found.links_of_others() if unknown else {}
    for name in unknown:
        index = found.links[name]["index"]
        if others.get(name) not in (0, index):
            origin = f", which was {found.journal}," if found.journal else ""
            problem = f"no row of the agent's journal{origin} names it"
            yield candidate("link-unknown", name, problem, node=found.node, evidence=str(index), wait=CONFIRM_SECONDS)


def _indexes(found: NodeObservation, record: Record) -> Iterator[int]:
    if record.boot_id == found.boot_id:
        yield record.host_index if record.state == ADDED else 0

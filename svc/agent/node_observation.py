"""Observe this node for the comparison of journal, kernel and datastore."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from svc._core.cidr import Address, Cidr
from svc.admin.ipam_check.findings import Candidate
from svc.admin.ipam_check.local_uses import kernel_uses
from svc.admin.ipam_check.node_comparison import NodeObservation, Rows
from svc.admin.ipam_check.node_comparison import compare as contradictions
from svc.admin.ipam_check.observation import Allocation, ObservedBlock
from svc.attach.context import Context
from svc.attach.dead_sandboxes import dead_attachments
from svc.attach.journal_reader import origin_of
from svc.attach.record import AttachmentId, Record, SessionKey
from svc.model.errors import SvcError
from svc.names import DEFAULT
from svc.netconf.installed import read_installed
from svc.values import dataclass

_NO_DATASTORE: Final = (
    "no row of the journal and no installed network list names a datastore, so that no allocation is compared: "
    "`svcctl --netconf FILE ipam check --node` compares them"
)
Links = Mapping[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of one comparison: its contradictions, the attachments without interface and sandbox, and what failed."""

    attachments: int
    candidates: tuple[Candidate, ...]
    dead: tuple[Record, ...]
    errors: tuple[str, ...]
    journal: str  # where it comes from


@dataclass(frozen=True, slots=True)
class _Store:
    """What one datastore shows: its attachments with the allocations of this node, and the blocks that cannot be read."""

    node: str
    stored: frozenset[AttachmentId]
    held: Mapping[Address, Allocation]
    unreadable: tuple[Cidr, ...]


def compare(context: Context, state_dir: Path) -> Comparison:
    """Compare everything once. Raise SvcError if journal or kernel cannot be read; a datastore that fails is left out."""
    before = {record.id: record for record in context.journal.all()}
    links = {link["name"]: link for link in context.kernel.host_sides()}
    uses, errors = kernel_uses(), list[str]()
    stores = list(_stores(context, before, errors))
    rows, known = _unchanged(context, before)
    own = _of_svc(context, state_dir, known, links)
    origin = str(origin_of(context.journal.notes("journal.*"), state_dir / "journal.db"))
    found: dict[tuple[str, str, str], Candidate] = {}
    for store in stores or [_Store("", frozenset(), {}, ())]:
        look = NodeObservation(
            store.node, context.boot_id, rows, known, store.stored, own, uses, store.held, store.unreadable, journal=origin
        )
        found |= {each.identity: each for each in contradictions(look)}
    if not stores and not errors and any(each.finding.id == "link-unknown" for each in found.values()):
        errors.append(_NO_DATASTORE)
    dead = dead_attachments(context, rows.values(), {link["index"] for link in links.values()}.__contains__)
    return Comparison(len(rows), tuple(found.values()), tuple(dead), tuple(errors), origin)


def _unchanged(context: Context, before: Rows) -> tuple[Rows, tuple[Record, ...]]:
    """Return the rows that did not change since they were read, and all that were there then or are there now."""
    after = {(generation, state) for generation, state, _ in context.journal.states()}
    rows = {key: record for key, record in before.items() if (record.generation, record.state) in after}
    is_same = {generation for generation, _ in after} <= {record.generation for record in before.values()}
    return rows, (*before.values(), *(() if is_same else context.journal.all()))


def _stores(context: Context, rows: Rows, errors: list[str]) -> Iterator[_Store]:
    """Yield what each datastore shows. Add the failures."""
    keys = {record.session_key for record in rows.values()} | set(context.networks.present.values())
    for key in keys:
        records = [record for record in rows.values() if record.session_key == key]
        try:
            held, unreadable = _held(context, key, records)
        except SvcError as failure:
            errors.append(str(failure))
        else:
            yield _Store(key.node, frozenset(record.id for record in records), held, tuple(unreadable))


def _held(context: Context, key: SessionKey, records: list[Record]) -> tuple[dict[Address, Allocation], list[Cidr]]:
    """Return the allocations of this node in its own blocks, and those of the attachments' addresses in any block."""
    session = context.session(key)
    session.readiness.require()
    addresses = {address for record in records for address in record.address_list()}
    blocks, unreadable = session.ipam.read_blocks_for(addresses)
    held = {}
    for block in blocks.values():
        for each in ObservedBlock(block, "", None).allocations():
            if each.is_held and (each.owner.get("node") == key.node or each.address in addresses):
                held[each.address] = each
    return held, unreadable


def _of_svc(context: Context, state_dir: Path, records: tuple[Record, ...], links: Links) -> Links:
    """Return the links of the deployments on this node: other plugins give their pairs the same hardware address."""
    profiles = {record.profile for record in records} | {profile for profile, _ in context.networks.present}
    with suppress(SvcError):  # also those without a network list: their attachments may be known to no row
        profiles |= {entry.profile for entry in read_installed(state_dir)}
    prefixes = {DEFAULT.interface_prefix}
    for profile in profiles:
        with suppress(SvcError):
            prefixes.add(context.names_of(profile).interface_prefix)
    return {name: link for name, link in links.items() if name.startswith(tuple(prefixes))}

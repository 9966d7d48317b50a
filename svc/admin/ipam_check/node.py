"""The check of this node: the agent's journal, compared with the interfaces and with what the datastore shows allocated here.

The journal is read before and after the rest. A row counts only if both readings show it in the same state.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from svc._core.cidr import Address, Cidr
from svc.admin.ipam_check.check import Wait, confirm
from svc.admin.ipam_check.findings import Candidate, Finding
from svc.admin.ipam_check.local_uses import kernel_uses
from svc.admin.ipam_check.node_agent import require_same_netns
from svc.admin.ipam_check.node_comparison import NodeObservation, Rows, compare, unchanged
from svc.admin.ipam_check.observation import Allocation, ObservedBlock, Place
from svc.admin.ipam_check.reading import block_at
from svc.admin.node_state import journal_path
from svc.attach.journal_reader import read_every_row, read_origin
from svc.attach.record import AttachmentId, Record
from svc.attach.token_cache import without_secrets
from svc.dataplane.kernel import Kernel
from svc.model.errors import CallerError
from svc.model.keys import BlockQuery
from svc.names import Names
from svc.netconf.names_profiles import load_profile
from svc.values import dataclass

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class NodePlace:
    """This node: its datastore with the settings for it, its name, and the state directory of its agent."""

    store: Place
    settings: Mapping[str, str]
    node: str
    state_dir: Path


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The findings on the node, the observation that shows them, and the number by ID of what was seen once."""

    findings: tuple[Finding, ...]
    observation: NodeObservation
    unconfirmed: Mapping[str, int]


def check_node(place: NodePlace, wait: Wait | None = None) -> NodeResult:
    """Check this node. Raise StoreError if the datastore cannot be read, SvcError if journal or kernel cannot."""
    require_same_netns(place.state_dir)
    return NodeResult(*confirm(lambda: _look(place), wait))


def _look(place: NodePlace) -> tuple[list[Candidate], NodeObservation]:
    found = _observe(place)
    return compare(found), found


def _observe(place: NodePlace) -> NodeObservation:
    before = _rows(place.state_dir)
    links, uses = _links_of(place.store.names.interface_prefix), kernel_uses()
    addresses = {address for record in before.values() for address in record.address_list()}
    held, unreadable = _held(place, addresses)
    after = _rows(place.state_dir)
    rows = unchanged(before, after)
    known = (*before.values(), *after.values())
    boot_id, stored = _BOOT_ID.read_text().strip(), _stored(place, rows)
    origin = str(read_origin(journal_path(place.state_dir)))
    return NodeObservation(place.node, boot_id, rows, known, stored, links, uses, held, tuple(unreadable), journal=origin)


def _stored(place: NodePlace, rows: Rows) -> frozenset[AttachmentId]:
    """Return the attachments whose addresses are in the datastore that is checked."""
    settings, profiles = without_secrets(dict(place.settings)), _profiles_of(place.store.names, rows)
    return frozenset(key for key, record in rows.items() if record.profile in profiles and record.settings == settings)


def _profiles_of(names: Names, rows: Rows) -> frozenset[str]:
    """Return the names profiles of the rows that have these names. One whose file was removed has none."""
    found = set()
    for profile in {record.profile for record in rows.values()}:
        with suppress(CallerError):
            if load_profile(profile) == names:
                found.add(profile)
    return frozenset(found)


def _rows(state_dir: Path) -> dict[AttachmentId, Record]:
    return {record.id: record for record in read_every_row(journal_path(state_dir))}


def _links_of(prefix: str) -> dict[str, dict[str, Any]]:
    return {link["name"]: link for link in Kernel().host_sides() if link["name"].startswith(prefix)}


def _held(place: NodePlace, addresses: set[Address]) -> tuple[dict[Address, Allocation], list[Cidr]]:
    """Return the allocations of these addresses and of the node, and the blocks that cannot be read."""
    held: dict[Address, Allocation] = {}
    unreadable = []
    for page in place.store.backend.pages(BlockQuery()):
        unreadable += [cidr for path in page.skipped if (cidr := block_at(path))]
        for entry in page:
            for each in ObservedBlock(entry.value, entry.revision, None).allocations():
                if each.is_held and (each.owner.get("node") == place.node or each.address in addresses):
                    held[each.address] = each
        page.clear()
    return held, unreadable

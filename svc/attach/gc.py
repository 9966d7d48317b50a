"""GC: what the runtime no longer knows is taken down, in the kernel and in the datastore."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svc._core.cidr import Address, Cidr
from svc.attach.context import Context
from svc.attach.credentials import without_secrets
from svc.attach.handles import container_of, handle_of
from svc.attach.record import ADDED, ADDING, DELETING, WAITING, Record
from svc.attach.recover import Store, store_of
from svc.attach.request import NodeSettings
from svc.attach.restore import restore_rows
from svc.attach.session import Session
from svc.attach.teardown import put_off, take_down
from svc.ipam.blocks import allocations
from svc.ipam.host import Host
from svc.ipam.requests import Release
from svc.ipam.view import read_blocks
from svc.model.errors import PeerError, SvcError
from svc.trace import Trace

if TYPE_CHECKING:
    from svc.attach.delegation import Delegation


def collect(
    context: Context,
    network: str,
    valid: Iterable[tuple[str, str]],
    where: NodeSettings,
    trace: Trace,
    delegation: "Delegation | None" = None,
) -> None:
    """Takes down every attachment of the network that is not in `valid` (container, interface), then frees addresses of
    containers that nobody knows, or has the plugin do so that gives them. Goes on after a failure; PeerError names them all at
    the end.

    An address whose interface is alive in a valid attachment is never freed, whoever the datastore says holds it.
    """
    session = context.session(where.profile, where.datastore, where.node)
    session.require_ready()
    if session.claim is not None:
        session.claim.require_decided()
    restore_rows(context, session, where.profile, trace)
    known = frozenset(valid)
    failures = [
        *_take_down_unknown(context, network, known, where, trace),
        *(_free_unknown(context, session, network, known, trace) if delegation is None else _have_freed(delegation, trace)),
    ]
    if failures:
        raise PeerError(
            f"{len(failures)} attachments of network {network!r} could not be collected", details="; ".join(failures)
        )


def _take_down_unknown(
    context: Context, network: str, valid: frozenset[tuple[str, str]], where: NodeSettings, trace: Trace
) -> list[str]:
    """A datastore that has failed once is not asked for the rest, whose releases become pending."""
    failures = []
    own: Store = (where.profile, tuple(sorted(without_secrets(where.datastore).items())), "")
    failing: set[Store] = set()
    for record in context.journal.of_network(network):
        if (record.id.container_id, record.id.ifname) in valid or _is_under_way(context, record):
            continue
        if record.state == DELETING and store_of(record) != own:
            continue  # it is retried apart from every call
        trace.info(f"collecting {record.id.container_id} {record.id.ifname}: the runtime does not know it")
        try:
            if store_of(record) in failing:
                put_off(context, record)
            elif not take_down(context, record, trace):
                failing.add(store_of(record))
        except SvcError as failure:
            failures.append(f"{record.id.container_id} {record.id.ifname}: {failure}")
    return failures


def _is_under_way(context: Context, record: Record) -> bool:
    """Whether an ADD, which the runtime need not know yet, works on the row. In an agent every other such row is taken down by
    the recovery; a process of one call works alone, but for ADDs that wait."""
    if record.boot_id != context.boot_id:
        return False
    if record.state == WAITING:
        return record.waits_until > time.time()
    return record.state == ADDING and context.resident


def _have_freed(delegation: "Delegation", trace: Trace) -> list[str]:
    from svc.attach.delegation import collect as delegated

    try:
        delegated(delegation, trace)
    except PeerError as failure:
        return [str(failure)]
    return []


def _free_unknown(
    context: Context, session: Session, network: str, valid: frozenset[tuple[str, str]], trace: Trace
) -> list[str]:
    """Addresses that this node has assigned in the network without an attachment: their journal, or their handle, was lost."""
    if session.claim is not None and session.claim.had_recent_predecessor():
        trace.info(f"addresses without a record are kept: another machine used the name {session.node!r} until recently")
        return []
    containers = {container for container, _ in valid}
    shown = _shown(session, handle_of(session.names, network, ""))  # before the journal is read: an ADD has a row first
    without = {} if session.backend.atomic else _without_addresses(session, shown)
    journalled = {record.handle for record in context.journal.all()}
    alive = _alive(context, network, valid)

    def is_unknown(handle: str) -> bool:
        container = container_of(session.names, network, handle)
        return bool(container) and container not in containers and handle not in journalled

    failures = []
    for handle, addresses in filter(lambda found: is_unknown(found[0]), shown.of_this_node().items()):
        trace.info(f"freeing the addresses of {handle}: neither the runtime nor this node knows its container")
        try:
            session.ipam.release(Release(handle, alive, tuple(addresses)))
        except SvcError as failure:
            failures.append(f"{handle}: {failure}")
    for handle, cidrs in filter(lambda found: is_unknown(found[0]), without.items()):
        trace.info(f"counting the addresses of {handle} again: no block has any")
        try:
            session.ipam.recount(handle, cidrs)
        except SvcError as failure:
            failures.append(f"{handle}: {failure}")
    return failures


@dataclass(slots=True)
class _Shown:
    """What the blocks show: the addresses of handles that this node has assigned, handles of which others have assigned some,
    and whether each block is another node's."""

    here: dict[str, list[Address]] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    foreign: dict[Cidr, bool] = field(default_factory=dict)

    def of_this_node(self) -> dict[str, list[Address]]:
        """The addresses of each handle of which this node alone has assigned addresses."""
        return {handle: addresses for handle, addresses in self.here.items() if handle not in self.others}


def _shown(session: Session, prefix: str) -> _Shown:
    """One listing of the blocks, for handles with this prefix."""
    shown, own = _Shown(), Host(session.node)
    for block in read_blocks(session.backend):
        shown.foreign[block.cidr] = Host.of(block.affinity) not in (None, own)
        for attribute, address in allocations(block):
            handle = attribute.handle_id or ""
            if not handle.startswith(prefix):
                continue
            if (attribute.secondary or {}).get("node") == session.node:
                shown.here.setdefault(handle, []).append(address)
            else:
                shown.others.add(handle)
    return shown


def _without_addresses(session: Session, shown: _Shown) -> dict[str, Sequence[Cidr]]:
    """The blocks of each handle that counts addresses, though no block shows one, unless all of its blocks are other nodes'.

    Without transactions a write of an ADD that arrives after the release leaves such a handle."""
    return {
        handle: cidrs
        for handle, cidrs in session.ipam.counts().items()
        if handle not in shown.here and handle not in shown.others and not all(shown.foreign.get(cidr) for cidr in cidrs)
    }


def _alive(context: Context, network: str, valid: frozenset[tuple[str, str]]) -> frozenset[Address]:
    return frozenset(
        address
        for record in context.journal.of_network(network)
        if (record.id.container_id, record.id.ifname) in valid and _is_alive(context, record)
        for address in record.address_list()
    )


def _is_alive(context: Context, record: Record) -> bool:
    if record.state != ADDED or record.boot_id != context.boot_id:
        return False
    if not record.is_wired:
        return True  # its interface is another plugin's: the runtime's word must do
    link = context.kernel.find_link(index=record.host_index)
    return link is not None and link["name"] == record.host_name

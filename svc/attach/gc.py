"""GC: what the runtime no longer knows is taken down, in the kernel and in the datastore."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from svc._core.cidr import Address, Cidr
from svc.attach.context import Context
from svc.attach.record import ADDED, ADDING, WAITING, Record, handle_of
from svc.attach.request import NodeSettings
from svc.attach.session import Session
from svc.attach.teardown import take_down
from svc.datastore.api import NotFound
from svc.ipam.blocks import held_by, holder
from svc.ipam.requests import Release
from svc.model.errors import PeerError, SvcError
from svc.model.ipam import Block, Handle
from svc.model.keys import BlockKey, HandleKey, HandleQuery
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
    known = frozenset(valid)
    failures = [
        *_take_down_unknown(context, network, known, trace),
        *(_free_unknown(context, session, network, known, trace) if delegation is None else _have_freed(delegation, trace)),
    ]
    if failures:
        raise PeerError(
            f"{len(failures)} attachments of network {network!r} could not be collected", details="; ".join(failures)
        )


def _take_down_unknown(context: Context, network: str, valid: frozenset[tuple[str, str]], trace: Trace) -> list[str]:
    failures = []
    for record in context.journal.of_network(network):
        if (record.id.container_id, record.id.ifname) in valid or _is_under_way(context, record):
            continue
        trace.info(f"collecting {record.id.container_id} {record.id.ifname}: the runtime does not know it")
        try:
            take_down(context, record, trace)
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
    """Handles of this node in the network without an attachment: their journal was lost."""
    if session.claim is not None and session.claim.had_recent_predecessor():
        trace.info(f"addresses without a record are kept: another machine used the name {session.node!r} until recently")
        return []
    containers = {container for container, _ in valid}
    stored = _handles_of(session, network)  # before the journal is read: an ADD has a row before it has an address
    journalled = {record.handle for record in context.journal.all()}
    alive = _alive(context, network, valid)
    failures = []
    for handle, value in stored:
        container = handle.removeprefix(f"{network}.")
        if container in containers or "." in container or handle in journalled or not _held_here(session, handle, value):
            continue
        trace.info(f"freeing the addresses of {handle}: neither the runtime nor this node knows its container")
        try:
            session.ipam.release(Release(handle, alive))
        except SvcError as failure:
            failures.append(f"{handle}: {failure}")
    return failures


def _handles_of(session: Session, network: str) -> list[tuple[str, Handle]]:
    prefix = handle_of(network, "")
    return [
        (entry.key.handle, entry.value)
        for entry in session.backend.list(HandleQuery())
        if isinstance(entry.key, HandleKey) and isinstance(entry.value, Handle) and entry.key.handle.startswith(prefix)
    ]


def _held_here(session: Session, handle: str, value: Handle) -> bool:
    """Whether all that the handle holds was assigned by this node."""
    return all(_assigned_by(session, Cidr(text), handle) for text in value.blocks)


def _assigned_by(session: Session, cidr: Cidr, handle: str) -> bool:
    try:
        block = session.backend.get(BlockKey(cidr)).value
    except NotFound:
        return True
    assert isinstance(block, Block)
    owners = [holder(block, cidr.address(ordinal)) for ordinal in held_by(block, handle)]
    return all(owner is not None and (owner.secondary or {}).get("node") == session.node for owner in owners)


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

"""GC of the pools: release what this node assigned to containers that neither the runtime nor the journal knows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from svc._core.cidr import Address, Cidr
from svc.attach.context import Context
from svc.attach.handles import container_of, handle_of
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.base import Valid
from svc.call_trace import CallTrace
from svc.ipam.blocks import allocations
from svc.ipam.cache import read_blocks
from svc.ipam.requests import Release
from svc.model.errors import SvcError
from svc.model.keys import Host


def release_unknown(context: Context, session: DatastoreSession, network: str, valid: Valid, trace: CallTrace) -> list[str]:
    """Release the addresses of the network that this node assigned and no attachment has. Return the failures.

    Such addresses remain if a row or a handle was lost. An address of an attachment in `valid` whose interface exists is never
    released, even if it is allocated under another handle.
    """
    if session.claim is not None and session.claim.had_recent_predecessor():
        trace.info(f"addresses without a record are kept: another machine used the name {session.node!r} until recently")
        return []
    containers = {container for container, _ in valid}
    shown = _shown(session, handle_of(session.names, network, ""))  # before the journal: an ADD writes its row first
    without = {} if session.backend.atomic else _without_addresses(session, shown)
    journalled = {record.handle for record in context.journal.all()}
    alive = _alive(context, network, valid)

    failures: list[str] = []

    def attempt(handle: str, text: str, work: Callable[[], object]) -> None:
        container = container_of(session.names, network, handle)
        if not container or container in containers or handle in journalled or handle in shown.others:
            return
        trace.info(text)
        try:
            work()
        except SvcError as failure:
            failures.append(f"{handle}: {failure}")

    for handle, addresses in shown.here.items():
        text = f"freeing the addresses of {handle}: neither the runtime nor this node knows its container"
        attempt(handle, text, partial(session.ipam.release, Release(handle, alive, tuple(addresses))))
    for handle, cidrs in without.items():
        text = f"counting the addresses of {handle} again: no block has any"
        attempt(handle, text, partial(session.ipam.recount_handle, handle, cidrs))
    return failures


@dataclass(slots=True)
class _Shown:
    """The content of the blocks."""

    here: dict[str, list[Address]] = field(default_factory=dict)  # the addresses that this node assigned, by handle
    others: set[str] = field(default_factory=set)  # the handles with addresses that other nodes assigned
    foreign: dict[Cidr, bool] = field(default_factory=dict)  # whether the block has the affinity of another host


def _shown(session: DatastoreSession, prefix: str) -> _Shown:
    """Read all blocks once, and return their content for handles with this prefix."""
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


def _without_addresses(session: DatastoreSession, shown: _Shown) -> dict[str, Sequence[Cidr]]:
    """Return the blocks of each handle that counts addresses although no block has any of them.

    Omit handles whose blocks all have the affinity of other nodes. Such a handle remains in a store without transactions if a
    write of an ADD arrives after the release.
    """
    return {
        handle: cidrs
        for handle, cidrs in session.ipam.counts().items()
        if handle not in shown.here and handle not in shown.others and not all(shown.foreign.get(cidr) for cidr in cidrs)
    }


def _alive(context: Context, network: str, valid: Valid) -> frozenset[Address]:
    return frozenset(
        address
        for record in context.journal.of_network(network)
        if (record.id.container_id, record.id.ifname) in valid and context.is_live(record)
        for address in record.address_list()
    )

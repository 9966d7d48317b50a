"""GC of the pools: release what this node assigned to containers that neither the runtime nor the journal knows.

Their endpoints are deleted before the addresses are released, because a new pod may get these at once.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial

from svc._core.cidr import Address, Cidr
from svc.attach.context import Context
from svc.attach.endpoints import StoredEndpoint, endpoints_of_node, is_named_by_svc
from svc.attach.handles import container_of, handle_of
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.base import Valid
from svc.call_trace import CallTrace
from svc.datastore.api import Conflict, Delete, Entry, NotFound
from svc.datastore.expired_pages import repeated
from svc.ipam.blocks import allocations
from svc.ipam.cache import read_blocks
from svc.ipam.requests import Release
from svc.model.errors import SvcError
from svc.model.keys import Host
from svc.model.resource import Resource
from svc.values import dataclass, field

_Work = tuple[str, str, Callable[[], object]]
"""The subject of a write, its message for the log, and the write."""


def release_unknown(context: Context, session: DatastoreSession, network: str, valid: Valid, trace: CallTrace) -> list[str]:
    """Release the addresses of the network that this node assigned and no attachment has, and delete the endpoints of this node
    that have only such or free addresses. Return the failures.

    They remain if a row or a handle was lost, or a pending release was dropped. An address of an attachment in `valid` whose
    interface exists is never released, even if it is allocated under another handle.
    """
    if session.claim is not None and session.claim.had_recent_predecessor():
        trace.info(f"addresses without a record are kept: another machine used the name {session.node!r} until recently")
        return []
    failures = []
    for what, text, work in _unknown(context, session, network, valid):
        trace.info(text)
        try:
            work()
        except SvcError as failure:
            failures.append(f"{what}: {failure}")
    return failures


def _unknown(context: Context, session: DatastoreSession, network: str, valid: Valid) -> Iterator[_Work]:
    """Yield the deletions of endpoints, then the releases of addresses, then the corrections of handles."""
    containers = {container for container, _ in valid}
    stored = _endpoints(session)  # read these before the journal: an ADD writes its row first
    shown = repeated(lambda: _shown(session, handle_of(session.names, network, "")))
    without = {} if session.backend.atomic else _without_addresses(session, shown)
    records = context.journal.all()
    journalled = {record.handle for record in records}
    alive = _alive(context, network, valid)

    def is_unknown(handle: str) -> bool:
        container = container_of(session.names, network, handle)
        return bool(container) and container not in containers and handle not in journalled and handle not in shown.others

    unknown = {handle: addresses for handle, addresses in shown.here.items() if is_unknown(handle)}
    free = {address for addresses in unknown.values() for address in addresses} - alive
    known = containers | {record.id.container_id for record in records}
    for entry in stored:
        endpoint = StoredEndpoint(entry.value)
        if endpoint.container in known or not shown.are_free(endpoint.addresses, free) or _has_interface(context, endpoint):
            continue
        text = f"deleting the endpoint of {endpoint.container}: neither the runtime nor this node knows this container"
        yield endpoint.container, text, partial(_delete, session, entry)
    for handle, addresses in unknown.items():
        text = f"freeing the addresses of {handle}: neither the runtime nor this node knows its container"
        yield handle, text, partial(session.ipam.release, Release(handle, alive, tuple(addresses)))
    for handle, cidrs in without.items():
        if is_unknown(handle):
            text = f"counting the addresses of {handle} again: no block has any"
            yield handle, text, partial(session.ipam.recount_handle, handle, cidrs)


def _endpoints(session: DatastoreSession) -> list[Entry[Resource]]:
    """Return the endpoints of this node that svc made. In the Kubernetes API, they end with their pods."""
    if session.settings["kind"] == "orch":
        return []
    return [entry for entry in endpoints_of_node(session) if is_named_by_svc(session, entry)]


def _has_interface(context: Context, endpoint: StoredEndpoint) -> bool:
    return context.kernel.find_link(name=str(endpoint.resource.spec.get("interfaceName"))) is not None


def _delete(session: DatastoreSession, entry: Entry[Resource]) -> None:
    """Delete the endpoint unless it has changed since: a new sandbox of the pod may have it."""
    with suppress(Conflict, NotFound):
        session.backend.write([Delete(entry.key, entry.revision)])


@dataclass(slots=True)
class _Shown:
    """The content of the blocks."""

    here: dict[str, list[Address]] = field(default_factory=dict)  # the addresses that this node assigned, by handle
    others: set[str] = field(default_factory=set)  # the handles with addresses that other nodes assigned
    foreign: dict[Cidr, bool] = field(default_factory=dict)  # whether the block has the affinity of another host
    allocated: set[Address] = field(default_factory=set)  # by any node under any handle, without those in cooldown

    def are_free(self, addresses: Sequence[Address], released: Collection[Address]) -> bool:
        """Return whether each address is one of the released ones, or a block shows that it is not allocated."""
        return bool(addresses) and all(
            address in released or (address not in self.allocated and any(address in cidr for cidr in self.foreign))
            for address in addresses
        )


def _shown(session: DatastoreSession, prefix: str) -> _Shown:
    """Read all blocks once, and return their content for handles with this prefix."""
    shown, own = _Shown(), Host(session.node)
    for block in read_blocks(session.backend):
        shown.foreign[block.cidr] = Host.of(block.affinity) not in (None, own)
        for attribute, address in allocations(block):
            handle = attribute.handle_id or ""
            if not attribute.released_at:
                shown.allocated.add(address)
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

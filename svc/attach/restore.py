"""Restore missing journal rows from kernel and datastore.

Both show enough of an attachment for its teardown, CHECK and a repeated ADD.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from svc._core import netns
from svc._core.cidr import Address
from svc.attach.context import Context
from svc.attach.endpoints import StoredEndpoint, endpoints_of_node
from svc.attach.handles import handle_of, plain_handle
from svc.attach.record import ADDED, ADDING, AttachmentId, Record, SessionKey
from svc.attach.request import Attachment, Sandbox
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.base import AddressSource
from svc.attach.sources.own import BYPASS, POOLS_OF_SVC
from svc.call_trace import CallTrace
from svc.dataplane.kernel import addresses_of, is_host_side, link_of
from svc.model.endpoint import Workload, host_interface
from svc.model.errors import SvcError
from svc.names import Names
from svc.values import dataclass

Link = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """The properties of an attachment that neither its interface nor its endpoint shows."""

    network: str
    source: AddressSource = BYPASS


Locate = Callable[[str, str, list[Address]], Origin | None]
"""A function that returns the origin of an attachment by container, interface and addresses; None if it is unknown."""


def restore_rows(
    context: Context, session: DatastoreSession, where: SessionKey, trace: CallTrace, locate: Locate | None = None
) -> bool:
    """Write a row for each interface with an endpoint of this node, but no row. Return whether rows were missing.

    Do this once per session and after each loss of rows. If the datastore fails, the next call retries.
    """
    losses = context.journal.losses
    if session.rows.restored_after == losses:
        return False
    links = unknown_links(context, session.names)
    left = set(links)
    try:
        for record in _records(context, session, where, links, locate, trace) if links else ():
            left.discard(record.host_name)
            _write_row(context, record, trace)
    except SvcError as failure:
        trace.warning(f"rows of the journal cannot be restored now: {failure}")
    else:
        session.rows.restored_after, session.rows.left = losses, frozenset(left)
    return bool(links)


def restore_own(context: Context, session: DatastoreSession, own: Attachment, trace: CallTrace) -> bool:
    """Do as `restore_rows`, also for the attachment of the call if it has no endpoint or no addresses from the pools."""
    are_missing = restore_rows(context, session, own.where, trace, partial(_locate, own))
    if not session.rows.left or context.journal.get(own.id) is not None:
        return are_missing
    name = host_interface(session.names, own.workload, own.id.ifname)
    if name in session.rows.left:
        session.rows.restored_after = -1  # restore again: its endpoint may be newer than the last restoration
        restore_rows(context, session, own.where, trace, partial(_locate, own))
    if name in session.rows.left and own.sandbox is not None:
        for record in _records_of_pairs(context, session, own, own.sandbox):
            _write_row(context, record, trace)
    return True


def restore_for_call(context: Context, own: Attachment, trace: CallTrace) -> None:
    """Do as `restore_own`, also if the interface of the call shows that rows were lost since. Ignore failures."""
    with suppress(SvcError):
        session = context.session(own.where)
        if lacks_row(context, own.id, host_interface(session.names, own.workload, own.id.ifname)):
            context.journal.note_loss()
        restore_own(context, session, own, trace)


def lacks_row(context: Context, key: AttachmentId, host_name: str, *, made: int = 0) -> bool:
    """Return whether a host interface of svc has this name, and no row tells of it. `made` is the index of the call's own one.

    Another in-flight ADD has not recorded its interface yet. Raise PeerError if the kernel cannot be asked.
    """
    link = context.kernel.find_link(name=host_name)
    if link is None or link["index"] == made or not is_host_side(link, link["peer_index"]):
        return False
    rows = (row for row in context.journal.with_host_name(host_name) if row.boot_id == context.boot_id)
    return not any(row.host_index == link["index"] or (row.state == ADDING and row.id != key) for row in rows)


def _locate(own: Attachment, container: str, ifname: str, _addresses: list[Address]) -> Origin | None:
    """Return the origin of the call's attachment; None for others. Addresses from pools would have a handle."""
    is_own = (container, ifname) == (own.id.container_id, own.id.ifname)
    return Origin(own.id.network, BYPASS if own.source.uses_pools else own.source) if is_own else None


def _write_row(context: Context, record: Record, trace: CallTrace) -> None:
    """Write the row, and remove it again if the interface does not exist any more.

    A DEL of the attachment may be in flight. It looks for a new row after it has removed the interface.
    """
    if not context.journal.restore(record):
        return
    if context.kernel.find_link(index=record.host_index) is None:
        context.journal.remove(record)
        return
    trace.warning(
        f"the journal lacked {record.id.container_id} {record.id.ifname}: its row is restored from kernel and datastore"
    )


def _records_of_pairs(context: Context, session: DatastoreSession, own: Attachment, sandbox: Sandbox) -> Iterator[Record]:
    """Yield records of the interfaces without endpoint in the sandbox of the call, found by their pairs.

    These are the interface of the call, and those with addresses of the same handle: without rows, a DEL of the call's
    interface would release these addresses.
    """
    hosts = {link["index"]: link for link in unknown_links(context, session.names).values()}
    handle = handle_of(session.names, own.id.network, own.id.container_id)
    held = frozenset(session.ipam.addresses_of(handle))
    with netns.Socket(sandbox.fd) as socket:
        for index, addresses in addresses_of(socket).items():
            link = link_of(socket, index=index)
            host = hosts.get(link["peer_index"]) if link else None
            if link is None or host is None or host["peer_index"] != index:
                continue
            if link["name"] == own.id.ifname or not held.isdisjoint(addresses):
                key = AttachmentId(own.id.network, own.id.container_id, link["name"])
                record = _restored(context, session, own.where, key, own.workload, host, addresses)
                record.sandbox, record.mac, record.peer_index = sandbox.identity, link["mac"].hex(":"), link["index"]
                record.recorded_only = own.source.uses_pools  # its teardown releases only the addresses on the interface
                own.source.mark(record)
                yield record


def _restored(
    context: Context,
    session: DatastoreSession,
    where: SessionKey,
    key: AttachmentId,
    workload: Workload,
    host: Link,
    ips: list[Address],
) -> Record:
    record = Record.of(key, workload, where, session.names, context.boot_id)
    record.state, record.addresses = ADDED, [str(address) for address in ips]
    record.host_name, record.mtu = host["name"], host["mtu"]
    record.host_index, record.peer_index = host["index"], host["peer_index"]
    return record


def unknown_links(context: Context, names: Names) -> dict[str, Link]:
    """Return the host interfaces of this deployment that have no row, by name. An in-flight ADD writes its row before its pair.

    The index of an added attachment must match too. An older copy of the journal may have rows of earlier pairs of this name.
    """
    links = {link["name"]: link for link in context.kernel.host_sides() if link["name"].startswith(names.interface_prefix)}
    if not links:
        return links
    known = context.journal.interfaces(context.boot_id)
    unknown = {name: link for name, link in links.items() if known.isdisjoint({(name, link["index"]), (name, 0)})}
    if unknown:
        context.journal.all()  # sets rows aside that cannot be decoded: others can take their place then
    return unknown


def _records(
    context: Context,
    session: DatastoreSession,
    where: SessionKey,
    links: dict[str, Link],
    locate: Locate | None,
    trace: CallTrace,
) -> Iterator[Record]:
    for entry in endpoints_of_node(session):
        stored, spec = StoredEndpoint(entry.value), entry.value.spec
        link = links.get(str(spec.get("interfaceName")))
        if link is None or not stored.container:
            continue
        ifname = str(spec.get("endpoint") or "eth0")
        handle, origin = _origin(session, stored, ifname, locate)
        if origin is None:
            trace.warning(f"interface {link['name']} has no row, and the datastore does not tell its network: it is left alone")
            continue
        key = AttachmentId(origin.network, stored.container, ifname)
        pod = str(spec.get("pod") or "")
        workload = Workload(key.container_id, pod, entry.value.namespace if pod else "")
        record = _restored(context, session, where, key, workload, link, stored.addresses)
        record.mac = str(spec.get("mac") or "")
        record.handle = handle or plain_handle(key.network, key.container_id)
        origin.source.mark(record)
        yield record


def _origin(session: DatastoreSession, stored: StoredEndpoint, ifname: str, locate: Locate | None) -> tuple[str, Origin | None]:
    """Return the handle of the endpoint's addresses, and the origin with the network that the handle names.

    Addresses without a handle are not from the pools. Their origin is that of `locate`, else the network that created a bare
    container's endpoint, else None.
    """
    suffix = f".{stored.container}"
    for address in stored.addresses:
        _, handle = session.ipam.pool_and_handle(address)
        if handle.endswith(suffix):
            return handle, Origin(handle.removesuffix(suffix).replace("..", "."), POOLS_OF_SVC)
    origin = locate(stored.container, ifname, stored.addresses) if locate else None
    if origin is None and not stored.resource.spec.get("pod") and stored.network:
        origin = Origin(stored.network)
    return "", origin

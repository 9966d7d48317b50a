"""Write the rows again that the journal lacks: what kernel and datastore show of an attachment is enough to take it down, to
check it, and to answer its repeated ADD.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from svc._core.cidr import Address, Cidr
from svc.attach.context import Context
from svc.attach.credentials import without_secrets
from svc.attach.record import ADDED, AttachmentId, Record
from svc.attach.request import NodeSettings
from svc.attach.session import Session
from svc.model.endpoint import KIND
from svc.model.errors import SvcError
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource
from svc.trace import Trace

Link = dict[str, Any]
UNKNOWN_SANDBOX = (0, 0)  # of a restored row, until the next ADD shows its own


def restore_rows(context: Context, session: Session, profile: str, trace: Trace) -> bool:
    """Write a row for each interface of the session's deployment that has an endpoint of this node, and no row. Return whether
    rows were missing.

    It is done once a session, and again after rows were lost. A datastore that fails now is asked again by the next call.
    """
    losses = context.journal.losses
    if session.rows.restored_after == losses:
        return False
    links = _unknown_links(context, session)
    try:
        for record in _records(context, session, profile, links, trace) if links else ():
            if context.journal.restore(record):
                trace.warning(f"the journal lacked {record.id}: its row is restored from kernel and datastore")
    except SvcError as failure:
        trace.warning(f"rows of the journal cannot be restored now: {failure}")
    else:
        session.rows.restored_after = losses
    return bool(links)


def restore_rows_of(context: Context, where: NodeSettings, trace: Trace) -> None:
    """As `restore_rows`, for a call that goes on without its datastore."""
    with suppress(SvcError):
        restore_rows(context, context.session(where.profile, where.datastore, where.node), where.profile, trace)


def _unknown_links(context: Context, session: Session) -> dict[str, Link]:
    """The host's sides of pairs of this deployment that no row knows, by name. An ADD in flight has a row before its pair."""
    links = {
        link["name"]: link for link in context.kernel.host_sides() if link["name"].startswith(session.names.interface_prefix)
    }
    if not links:
        return links
    known = {record.host_name for record in context.journal.all() if record.boot_id == context.boot_id}
    return {name: link for name, link in links.items() if name not in known}


def _records(context: Context, session: Session, profile: str, links: dict[str, Link], trace: Trace) -> Iterator[Record]:
    for entry in session.backend.list(ResourceQuery(KIND)):
        assert isinstance(entry.value, Resource)
        spec = entry.value.spec
        link = links.get(str(spec.get("interfaceName")))
        if link is None or spec.get("node") != session.node or not spec.get("containerID"):
            continue
        handle, network = _network(session, spec)
        if not network:
            trace.warning(f"interface {link['name']} has no row, and the datastore does not tell its network: it is left alone")
            continue
        yield Record(
            id=AttachmentId(network, spec["containerID"], spec.get("endpoint") or "eth0"),
            state=ADDED,
            boot_id=context.boot_id,
            sandbox=UNKNOWN_SANDBOX,
            node=session.node,
            settings=without_secrets(session.settings),
            host_name=link["name"],
            mac=str(spec.get("mac") or ""),
            pod=str(spec.get("pod") or ""),
            namespace=entry.value.namespace if spec.get("pod") else "",
            mtu=link["mtu"],
            addresses=[str(address) for address in _addresses(spec)],
            host_index=link["index"],
            peer_index=link["peer_index"],
            profile=profile,
            unmanaged=not handle,
            handle=handle,
        )


def _network(session: Session, spec: dict[str, Any]) -> tuple[str, str]:
    """Return the handle of the endpoint's addresses, and the network that it names; without a handle, which addresses of our
    IPAM have, the network that made a bare container's endpoint. Empty if the datastore does not tell."""
    suffix = f".{spec['containerID']}"
    for address in _addresses(spec):
        _, handle = session.ipam.standing(address)
        if handle.endswith(suffix):
            return handle, handle.removesuffix(suffix).replace("..", ".")
    profiles = spec.get("profiles") or [""]
    return "", "" if spec.get("pod") else str(profiles[0])


def _addresses(spec: dict[str, Any]) -> list[Address]:
    return [Cidr.masked(text).first for text in spec.get("ipNetworks") or ()]

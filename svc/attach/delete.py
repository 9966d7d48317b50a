"""DEL: tear an attachment down. A missing attachment is not an error."""

from typing import Any

from svc._core import netns
from svc.attach.context import Context
from svc.attach.endpoints import StoredEndpoint, endpoints_of_node, stored_endpoint
from svc.attach.handles import is_ambiguous, older_handle
from svc.attach.record import ADDED, AttachmentId, Record
from svc.attach.rehoming import datastore_of_call
from svc.attach.request import Attachment, Sandbox
from svc.attach.restore import restore_for_call
from svc.attach.sources.own import POOLS_OF_SVC
from svc.attach.sources.select import source_of
from svc.attach.teardown import remove_inside, tear_down
from svc.call_trace import CallTrace
from svc.dataplane.kernel import addresses_of, is_host_side, link_of
from svc.model.endpoint import host_interface
from svc.model.errors import CallerError, SvcError
from svc.model.field_errors import FieldErrors
from svc.values import replace


def delete(
    context: Context, own: Attachment, trace: CallTrace, location: FieldErrors | None = None, *, wired: bool = True
) -> None:
    """Tear the attachment down; `wired` is false if it has addresses only. The journal takes precedence over the call.

    Raise SvcError if the interface stays, if the datastore is locked, or if only the call could name the datastore and
    `location` has errors.
    """
    key, sandbox = own.id, own.sandbox
    where = own.where if location is None or not location.found else None
    record = context.journal.get(key)
    if record is None:
        if location is not None:
            location.raise_if_any()
        own = replace(own, where=datastore_of_call(context, key.network, own.where))
        restore_for_call(context, own if wired else replace(own, sandbox=None), trace)
        record = context.journal.get(key)
    if record is not None:
        own.source.complete(record)
        tear_down(context, record, trace, sandbox if wired else None, where)
        return
    if reason := own.source.why_unusable():
        trace.warning(f"{reason}: nothing is known of an address that it would have to free")
        own = replace(own, source=POOLS_OF_SVC)
    try:
        context.names_of(own.where.profile)
    except CallerError:  # no ADD succeeds without the profile
        return
    is_others = wired and _is_of_another_network(context, key)
    record = _reconstructed(context, own, wired=wired and not is_others)
    record.shares |= is_others and not own.workload.is_pod
    if sandbox is not None:
        _spare_other_interfaces(context, record, sandbox)
    tear_down(context, record, trace)
    restored = context.journal.get(key)
    if restored is not None and restored.state == ADDED:  # another call has restored the row during the teardown
        tear_down(context, restored, trace)
    if record.is_wired and sandbox is not None:
        remove_inside(sandbox, key.ifname, lambda link: not _is_of_another_container(context, record, link))


def _spare_other_interfaces(context: Context, record: Record, sandbox: Sandbox) -> None:
    """Exclude the addresses of other interfaces in the sandbox from the release.

    All interfaces share the handle, and the others may have no row either.
    """
    if record.recorded_only or not source_of(record).uses_pools:
        return
    with netns.Socket(sandbox.fd) as socket:
        present = addresses_of(socket)
        link = link_of(socket, name=record.id.ifname)
    own = present.pop(link["index"], []) if link else []
    others = {address for addresses in present.values() for address in addresses}
    if not others:
        return
    try:
        held = context.session(record.session_key).ipam.addresses_of(record.handle)
    except SvcError:
        held = tuple(own)
    else:
        if others.isdisjoint(held):
            return
    record.recorded_only = True
    record.addresses = [str(address) for address in held if address not in others]


def _is_of_another_network(context: Context, key: AttachmentId) -> bool:
    """Return whether an attachment of another network has the interface.

    The ADD to this network was refused then, so its DEL finds only addresses.
    """
    return any(record.is_wired for record in context.journal.of_interface(key.container_id, key.ifname))


def _reconstructed(context: Context, own: Attachment, *, wired: bool) -> Record:
    """Return the record of an attachment that has no row.

    A pod's host interface is named after the pod, so only the endpoint shows whether it belongs to this container. Without an
    endpoint, an empty boot ID prevents the removal of an interface by its name. A bare container may have joined the interface
    of another network. Its endpoint names that network first.
    """
    key, workload, names = own.id, own.workload, context.names_of(own.where.profile)
    record = Record.of(key, workload, own.where, names, context.boot_id)
    record.state = ADDED
    record.host_name = host_interface(names, workload, key.ifname) if wired else ""
    record.older_handle = older_handle(names, key.network, workload)
    record.recorded_only = names.plain_handles and is_ambiguous(names, key.network, key.container_id)
    own.source.mark(record)
    stored = _stored_endpoint(context, record) if wired or record.recorded_only else None
    if stored is not None and stored.is_of(record):  # the document of the handle, which lists its blocks, may be lost
        record.addresses = [str(address) for address in stored.addresses]
    container, network = (stored.container, stored.network) if wired and stored is not None else ("", "")
    if container != key.container_id and (container or workload.is_pod):
        record.boot_id = ""
    elif not workload.is_pod and network not in ("", key.network):
        record.host_name, record.shares = "", True
    return record


def _stored_endpoint(context: Context, record: Record) -> StoredEndpoint | None:
    try:
        return stored_endpoint(context.session(record.session_key), record)
    except SvcError:
        return None


def _is_of_another_container(context: Context, record: Record, link: dict[str, Any]) -> bool:
    """Return whether the journal or an endpoint names another container, or its container cannot be determined."""
    host = context.kernel.find_link(index=link["peer_index"]) if link["peer_index"] else None
    if host is None or not is_host_side(host, link["index"]):
        return True
    for other in context.journal.all():
        if other.boot_id == context.boot_id and other.host_index == host["index"]:
            return True
    try:
        for entry in endpoints_of_node(context.session(record.session_key)):
            if entry.value.spec.get("interfaceName") == host["name"]:
                return StoredEndpoint(entry.value).container not in ("", record.id.container_id)
    except SvcError:
        return True
    return False

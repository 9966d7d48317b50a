"""DEL: what was attached is taken down; what is gone already is no error."""

from typing import TYPE_CHECKING

from svc._core import nsock, rtnl
from svc.attach.context import Context
from svc.attach.credentials import without_secrets
from svc.attach.endpoints import endpoint_owner
from svc.attach.record import ADDED, AttachmentId, Record
from svc.attach.request import NodeSettings, Sandbox
from svc.attach.teardown import take_down
from svc.dataplane.kernel import link_of, refused
from svc.datastore.api import StoreError
from svc.model.endpoint import Workload, host_interface
from svc.trace import Trace

if TYPE_CHECKING:
    from svc.attach.delegation import Delegation


def delete(
    context: Context,
    key: AttachmentId,
    workload: Workload,
    where: NodeSettings,
    sandbox: Sandbox | None,
    trace: Trace,
    *,
    wired: bool = True,
    delegation: "Delegation | None" = None,
) -> None:
    """Takes the attachment down; `wired` is false for one that has addresses only. `delegation`: who, by the network's present
    configuration, gives the addresses; what the journal says counts more.

    SvcError when its interface stays, or the datastore is locked.
    """
    record = context.journal.get(key)
    if record is not None:
        if record.delegate is not None and delegation is not None:
            delegation.tell_path(record.delegate)
        take_down(context, record, trace)
        return
    if delegation is not None and (missing := delegation.why_missing()):
        trace.warning(f"{missing}: nothing is known of an address that it would have to free")
        delegation = None
    is_others = wired and _is_of_another_network(context, key)
    record = _reconstructed(context, key, workload, where, delegation, wired=wired and not is_others)
    record.shares |= is_others and not workload.is_pod
    take_down(context, record, trace)
    if record.is_wired and sandbox is not None:
        _remove_inside(sandbox, key.ifname)


def _is_of_another_network(context: Context, key: AttachmentId) -> bool:
    """Whether the interface is that network's: an ADD to this one was refused then, and its DEL finds only addresses."""
    return any(record.is_wired for record in context.journal.of_interface(key.container_id, key.ifname))


def _reconstructed(
    context: Context,
    key: AttachmentId,
    workload: Workload,
    where: NodeSettings,
    delegation: "Delegation | None",
    *,
    wired: bool,
) -> Record:
    """What the attachment must have been, when the journal does not know it.

    A pod's host interface is named after the pod: when a newer sandbox of the pod has the endpoint, the interface is
    that one's, and an empty boot id says that nothing of ours is in the kernel. A bare container may have joined the
    interface of another network, which its endpoint names first.
    """
    record = Record(
        id=key,
        state=ADDED,
        boot_id=context.boot_id,
        sandbox=(0, 0),
        node=where.node,
        settings=without_secrets(where.datastore),
        host_name=host_interface(context.names_of(where.profile), workload, key.ifname) if wired else "",
        mac="",
        pod=workload.pod,
        namespace=workload.namespace,
        profile=where.profile,
        delegate=None if delegation is None else delegation.remembered(),
    )
    container, network = _owner(context, record) if wired else (None, None)
    if container is not None and container != key.container_id:
        record.boot_id = ""
    elif not workload.is_pod and network not in (None, key.network):
        record.host_name, record.shares = "", True
    return record


def _owner(context: Context, record: Record) -> tuple[str | None, str | None]:
    try:
        return endpoint_owner(context.session(record.profile, record.settings, record.node), record)
    except StoreError:
        return None, None


def _remove_inside(sandbox: Sandbox, ifname: str) -> None:
    """An interface left in the sandbox under our name: its pair was not where the journal or its name said."""
    with nsock.Socket(sandbox.fd) as socket:
        link = link_of(socket, name=ifname)
        if link is None or link["kind"] != "veth":
            return
        batch = rtnl.Batch()
        batch.delete_link(link["index"])
        try:
            socket.execute(batch)
        except rtnl.NetlinkError as refusal:
            raise refused(refusal) from refusal

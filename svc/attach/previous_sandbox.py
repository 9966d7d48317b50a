"""Remove the interface of a pod's previous sandbox, and release its addresses.

A pod has one sandbox at a time. When the runtime adds the next one, it no longer uses the previous one, even without a DEL.
The host interface has the same name, so it must be removed anyway. Its addresses are released after that, but only those that
are allocated under its own handle.
"""

from svc._core.cidr import Address, Cidr
from svc.attach.context import Context
from svc.attach.endpoints import stored_endpoint
from svc.attach.handles import handle_of
from svc.attach.record import ADDED, Record
from svc.attach.sessions import Session
from svc.ipam.requests import ReleaseTarget
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class PreviousSandbox:
    """The addresses of a pod's previous sandboxes. False if they have none."""

    context: Context
    session: Session
    host_name: str
    held: tuple[ReleaseTarget, ...] = ()

    @staticmethod
    def of(context: Context, session: Session, record: Record) -> "PreviousSandbox":
        """Find the addresses in the journal and, for lost rows, in the endpoint. Raise StoreError if either cannot be read."""
        if not record.is_wired:
            return PreviousSandbox(context, session, "")
        held = {
            ReleaseTarget(address, other.handle): None
            for other in context.journal.with_host_name(record.host_name)
            if other.id.container_id != record.id.container_id and not other.unmanaged
            for address in other.address_list()
        }
        held |= dict.fromkeys(_by_endpoint(session, record))
        return PreviousSandbox(context, session, record.host_name, tuple(held))

    def tear_down(self) -> None:
        """Remove the interface, then release the addresses. Raise SvcError if either fails."""
        if not self.held:
            return
        link = self.context.kernel.find_link(name=self.host_name)
        if link is not None:
            self.context.reaper.remove(link["index"], self.host_name)
        self.session.ipam.release_addresses(self.held)

    def __bool__(self) -> bool:
        return bool(self.held)


def is_replaceable(context: Context, record: Record) -> bool:
    """Return whether an ADD may replace an existing interface pair of the same names.

    It may replace the pair of a previous container of the same pod, but not that of another network's attachment of the same
    container.
    """
    others = (other for other in context.journal.with_host_name(record.host_name) if other.id != record.id)
    same = (other for other in others if (other.id.container_id, other.state) == (record.id.container_id, ADDED))
    return record.workload.is_pod and not any(same)


def _by_endpoint(session: Session, record: Record) -> list[ReleaseTarget]:
    resource = stored_endpoint(session, record)
    container = str(resource.spec.get("containerID") or "") if resource else ""
    if resource is None or container in ("", record.id.container_id):
        return []
    handle = handle_of(session.names, record.id.network, container)
    return [ReleaseTarget(_address(text), handle) for text in resource.spec.get("ipNetworks") or ()]


def _address(network: str) -> Address:
    return Cidr.masked(network).first

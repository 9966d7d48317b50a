"""An earlier sandbox of the same pod: it has lost its place, and may still hold the address that the pod is to keep.

A pod has one sandbox at a time. When the next one asks for the same interface, the runtime has given the earlier one up,
whether its DEL has come or not; its host interface, of the same name, would be taken away in any case. Its addresses are freed
after that, and only as far as its own handle holds them: what anybody else has is not touched.
"""

from svc._core.cidr import Address, Cidr
from svc.attach.context import Context
from svc.attach.endpoints import stored_endpoint
from svc.attach.handles import handle_of
from svc.attach.record import ADDED, Record
from svc.attach.session import Session
from svc.ipam.requests import Held
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier sandboxes hold; false when that is nothing."""

    context: Context
    session: Session
    host_name: str
    held: tuple[Held, ...] = ()

    @staticmethod
    def of(context: Context, session: Session, record: Record) -> "Earlier":
        """By the journal, and by the endpoint for what the journal has lost. StoreError."""
        if not record.is_wired:
            return Earlier(context, session, "")
        held = {
            Held(address, other.handle): None
            for other in context.journal.with_host_name(record.host_name)
            if other.id.container_id != record.id.container_id and not other.unmanaged
            for address in other.address_list()
        }
        held |= dict.fromkeys(_by_endpoint(session, record))
        return Earlier(context, session, record.host_name, tuple(held))

    def take_away(self) -> None:
        """The interface, then the addresses. SvcError."""
        if not self.held:
            return
        link = self.context.kernel.find_link(name=self.host_name)
        if link is not None:
            self.context.reaper.remove(link["index"], self.host_name)
        self.session.ipam.release_addresses(self.held)

    def __bool__(self) -> bool:
        return bool(self.held)


def is_replaceable(context: Context, record: Record) -> bool:
    """Whether an ADD may replace the pair that has its names: of an earlier container of the same pod, which has lost this
    sandbox, but not of another network's attachment of the same container."""
    others = (other for other in context.journal.with_host_name(record.host_name) if other.id != record.id)
    same = (other for other in others if (other.id.container_id, other.state) == (record.id.container_id, ADDED))
    return record.workload.is_pod and not any(same)


def _by_endpoint(session: Session, record: Record) -> list[Held]:
    resource = stored_endpoint(session, record)
    container = str(resource.spec.get("containerID") or "") if resource else ""
    if resource is None or container in ("", record.id.container_id):
        return []
    handle = handle_of(session.names, record.id.network, container)
    return [Held(_address(text), handle) for text in resource.spec.get("ipNetworks") or ()]


def _address(network: str) -> Address:
    return Cidr.masked(network).first

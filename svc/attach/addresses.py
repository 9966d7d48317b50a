"""The addresses of an attachment: where an ADD gets them, whether they are still held, how they go back."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from svc._core.cidr import Address
from svc.attach.context import Context
from svc.attach.record import Record
from svc.attach.request import AddRequest
from svc.attach.session import Session
from svc.ipam.requests import Allocation, Assign, Release
from svc.model.errors import Code, SvcError
from svc.model.result import Dns, IpConfig, Route
from svc.orch.info import PodInfo
from svc.times import date_and_time
from svc.trace import Trace

REFUSALS = (Code.NO_ADDRESS, Code.POOL)  # that other labels of the namespace might have spared


@dataclass(frozen=True, slots=True)
class Taken:
    """What a source gave; `ips`, `routes` and `dns` as the result of the ADD shows them."""

    addresses: tuple[Address, ...]
    ips: tuple[IpConfig, ...]
    routes: tuple[Route, ...]
    dns: Dns = field(default_factory=Dns)


class Source(Protocol):
    """Where the addresses of one ADD come from."""

    def take(self, record: Record) -> Taken:
        """All addresses for the attachment, or SvcError; `give_back` undoes it, also when it was cut short."""


class OwnIpam:
    """Addresses from our own pools."""

    def __init__(self, session: Session, request: AddRequest, pod: PodInfo) -> None:
        self._session = session
        self._request = request
        self._pod = pod

    def take(self, record: Record) -> Taken:
        allocations = self._assigned(record)
        return Taken(
            tuple(allocation.address for allocation in allocations),
            tuple(self._ip(allocation) for allocation in allocations),
            tuple(self._route(allocation) for allocation in allocations),
        )

    def _assigned(self, record: Record) -> tuple[Allocation, ...]:
        """Nothing is refused on account of what was remembered of the namespace."""
        labels = self._pod.namespace_labels
        try:
            return self._session.ipam.assign(self._assignment(record, labels))
        except SvcError as refusal:
            if refusal.code not in REFUSALS or (fresh := self._pod.fresh_labels()) == labels:
                raise
            return self._session.ipam.assign(self._assignment(record, fresh))

    def _assignment(self, record: Record, namespace_labels: dict[str, str]) -> Assign:
        return Assign(
            handle=record.handle,
            attributes=self._owner(),
            versions=self._request.versions,
            pools=self._request.pools,
            address=self._request.address,
            namespace_labels=namespace_labels,
        )

    def _owner(self) -> dict[str, str]:
        owner = {"node": self._session.node, "timestamp": _timestamp()}
        if self._request.workload.is_pod:
            owner |= {"pod": self._request.workload.pod, "namespace": self._request.workload.namespace}
        return owner

    def _ip(self, allocation: Allocation) -> IpConfig:
        """As IPAM plugins answer: with the length of the block, and of the address alone when it was asked for by itself."""
        address = allocation.address
        if self._request.sandbox is not None:
            return IpConfig(str(address.host()), interface=1)
        return IpConfig(f"{address}/{allocation.block.length if self._request.address is None else address.bits}")

    def _route(self, allocation: Allocation) -> Route:
        """Nobody programs the routes of our own wiring; other main plugins do, and the kernel takes no host bits there."""
        if self._request.sandbox is None:
            return Route(str(allocation.block))
        return Route(f"{allocation.address}/{allocation.block.length}")


def source_of(context: Context, session: Session, request: AddRequest, pod: PodInfo, trace: Trace) -> Source:
    """Where the request's addresses are to come from. SvcError when that can be refused before anything is noted."""
    if request.delegation is None:
        return OwnIpam(session, request, pod)
    from svc.attach.delegation import Delegated

    return Delegated(context, request.delegation, trace)


def not_held(session: Session, record: Record, trace: Trace) -> str:
    """Why the attachment's addresses are, right now, not its own; empty when they are. PeerError when that cannot be told."""
    if record.delegate is not None:
        from svc.attach import delegation

        return delegation.difference(record, trace)
    if session.ipam.holds(record.handle, record.address_list()):
        return ""
    return f"the datastore does not say that {', '.join(record.addresses)} belong to {record.handle}"


def give_back(context: Context, session: Session, record: Record, trace: Trace) -> None:
    """Frees the attachment's addresses, but not those of the container's other interfaces in the same network. PeerError."""
    if record.delegate is not None:
        from svc.attach import delegation

        delegation.free(record, trace)
        return
    others = [
        other for other in context.journal.of_container(record.id.network, record.id.container_id) if other.id != record.id
    ]
    keep = frozenset(address for other in others for address in other.address_list())
    session.ipam.release(Release(record.handle, keep))


def _timestamp() -> str:
    now = time.time_ns()
    seconds, nanoseconds = divmod(now, 1_000_000_000)
    fraction = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
    return f"{date_and_time(seconds)}{fraction} +0000 UTC"

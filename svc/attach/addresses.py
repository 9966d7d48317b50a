"""The addresses of an attachment: where an ADD gets them, whether they are still held."""

import time
from dataclasses import field, replace
from typing import Protocol

from svc._core.cidr import Address
from svc.attach.choice import Choice, choose
from svc.attach.context import Context
from svc.attach.earlier import Earlier
from svc.attach.record import Record
from svc.attach.request import AddRequest
from svc.attach.session import Session
from svc.dataplane.plan import GATEWAY4, GATEWAY6
from svc.ipam.requests import Allocation, Assign, Companion
from svc.model.errors import Code, SvcError
from svc.model.result import Dns, IpConfig, Route
from svc.model.wishes import ADDRESSES, FAMILIES, POOLS, Wishes
from svc.times import to_nanoseconds
from svc.trace import Trace
from svc.values import dataclass

REFUSALS = (Code.NO_ADDRESS, Code.POOL, Code.ADDRESS_UNAVAILABLE)  # that a namespace of another kind might have spared


@dataclass(frozen=True, slots=True)
class Taken:
    """What a source gave; `ips`, `routes` and `dns` as the result of the ADD shows them."""

    addresses: tuple[Address, ...]
    ips: tuple[IpConfig, ...]
    routes: tuple[Route, ...]
    dns: Dns = field(default_factory=Dns)
    has_endpoint: bool = False  # whether the endpoint was created along with them


class Source(Protocol):
    """Where the addresses of one ADD come from."""

    def take(self, record: Record) -> Taken:
        """All addresses for the attachment, or SvcError; `releasing.give_back` undoes it, also when it was cut short."""


class OwnIpam:
    """Addresses from our own pools."""

    def __init__(
        self, session: Session, request: AddRequest, choice: Choice, companion: Companion | None, trace: Trace
    ) -> None:
        self._session = session
        self._request = request
        self._choice = choice
        self._companion = companion
        self._trace = trace

    def take(self, record: Record) -> Taken:
        assigned = self._session.ipam.assign(self._assignment(record))
        for fault in assigned.faults:
            self._trace.warning(f"passed {fault}")
        addresses = assigned.addresses
        if self._request.point_to_point:
            return _point_to_point(self._session, addresses)
        return Taken(
            addresses,
            tuple(self._ip(allocation) for allocation in assigned.allocations),
            tuple(self._route(allocation) for allocation in assigned.allocations),
            has_endpoint=assigned.accompanied,
        )

    def _assignment(self, record: Record) -> Assign:
        return Assign(
            handle=record.handle,
            attributes=self._owner(),
            versions=self._choice.versions,
            pools=dict(self._choice.pools),
            addresses=self._choice.addresses,
            namespace_labels=self._choice.pod.namespace.labels,
            companion=self._companion,
        )

    def _owner(self) -> dict[str, str]:
        owner = {"node": self._session.node, "timestamp": to_nanoseconds(time.time_ns())}
        if self._request.workload.is_pod:
            owner |= {"pod": self._request.workload.pod, "namespace": self._request.workload.namespace}
        return owner

    def _ip(self, allocation: Allocation) -> IpConfig:
        """As IPAM plugins answer: with the length of the block, and of the address alone when it was asked for by itself."""
        address = allocation.address
        if self._request.sandbox is not None:
            return IpConfig(str(address.host()), interface=1)
        return IpConfig(f"{address}/{address.bits if self._choice.addresses else allocation.block.length}")

    def _route(self, allocation: Allocation) -> Route:
        """Nobody programs the routes of our own wiring; other main plugins do, and the kernel takes no host bits there."""
        if self._request.sandbox is None:
            return Route(str(allocation.block))
        return Route(f"{allocation.address}/{allocation.block.length}")


def _point_to_point(session: Session, addresses: tuple[Address, ...]) -> Taken:
    """For ptp: it puts the gateway on the host's side of each pair, and leads the whole network of the address there. Routes
    it programs before there is a way to the next hop: only a link-local one of IPv6 needs none."""
    routes = (Route("::/0"),) if any(address.version == 6 for address in addresses) else ()
    return Taken(addresses, tuple(_beyond_next_hop(session, address) for address in addresses), routes)


def _beyond_next_hop(session: Session, address: Address) -> IpConfig:
    """Two addresses at least make its network: ptp replaces the route that the kernel has for it, and there is none for one."""
    pool = session.ipam.pool_of(address)
    length = address.bits if pool is None else pool.length
    gateway = GATEWAY4 if address.version == 4 else GATEWAY6
    return IpConfig(f"{address}/{min(length, address.bits - 1)}", gateway=str(gateway))


class GivenAddresses:
    """The very addresses that annotations name, from our own pools. What an earlier sandbox of the pod has goes back first."""

    def __init__(self, context: Context, inner: OwnIpam, session: Session) -> None:
        self._context = context
        self._inner = inner
        self._session = session

    def take(self, record: Record) -> Taken:
        earlier = Earlier.of(self._context, self._session, record)
        try:
            taken = self._inner.take(record)
        except SvcError as refusal:
            if not earlier or refusal.code != Code.ADDRESS_UNAVAILABLE:
                raise
            earlier.take_away()
            taken = self._inner.take(record)
        else:
            earlier.take_away()
        return replace(taken, routes=()) if record.is_wired else taken


class Bypass:
    """Addresses that nobody keeps a book of: conflicts are up to whoever asked for them (rule R5)."""

    def __init__(self, session: Session, addresses: tuple[Address, ...], trace: Trace, *, point_to_point: bool) -> None:
        self._session = session
        self._addresses = addresses
        self._trace = trace
        self._point_to_point = point_to_point

    def take(self, record: Record) -> Taken:
        self._session.require_ready()  # no write of an address will ask
        for address in self._addresses:
            self._warn(address)
        record.unmanaged = True
        if self._point_to_point:
            return _point_to_point(self._session, self._addresses)
        interface = 1 if record.is_wired else None
        return Taken(self._addresses, tuple(IpConfig(str(address.host()), interface) for address in self._addresses), ())

    def _warn(self, address: Address) -> None:
        pool, holder = self._session.ipam.standing(address)
        if holder:
            self._trace.warning(f"address {address} bypasses IPAM, where {holder} holds it: both will answer for it")
        elif pool:
            remedy = "set it aside with an IPReservation"
            self._trace.warning(f"address {address} bypasses IPAM, which may assign it to others of pool {pool}: {remedy}")


class Chosen:
    """What was chosen, and chosen again where the namespace has changed: nothing is refused on account of what was
    remembered of it."""

    def __init__(
        self, context: Context, session: Session, request: AddRequest, choice: Choice, companion: Companion | None, trace: Trace
    ) -> None:
        self._context = context
        self._session = session
        self._request = request
        self._choice = choice
        self._companion = companion
        self._trace = trace

    def take(self, record: Record) -> Taken:
        try:
            try:
                return self._source().take(record)
            except SvcError as refusal:
                pod = self._choice.pod
                if refusal.code not in REFUSALS or (fresh := pod.refreshed()).namespace == pod.namespace:
                    raise
            self._choice = choose(self._session.names, self._request, fresh, self._trace)
            return self._source().take(record)
        except SvcError as refusal:
            _tell_annotations(refusal, self._choice.wishes)
            raise

    def _source(self) -> Source:
        choice = self._choice
        if choice.wishes.unmanaged:
            return Bypass(self._session, choice.addresses, self._trace, point_to_point=self._request.point_to_point)
        own = OwnIpam(self._session, self._request, choice, self._companion, self._trace)
        return GivenAddresses(self._context, own, self._session) if choice.wishes.addresses else own


def source_of(
    context: Context, session: Session, request: AddRequest, choice: Choice, companion: Companion | None, trace: Trace
) -> Source:
    """Where the request's addresses are to come from. SvcError when that can be refused before anything is noted."""
    if request.delegation is None:
        return Chosen(context, session, request, choice, companion, trace)
    from svc.attach.delegation import Delegated

    return Delegated(context, request.delegation, trace)


def not_held(session: Session, record: Record, trace: Trace) -> str:
    """Why the attachment's addresses are, right now, not its own; empty when they are. PeerError when that cannot be told."""
    if record.unmanaged:
        return ""
    if record.delegate is not None:
        from svc.attach import delegation

        return delegation.difference(record, trace)
    if session.ipam.holds(record.handle, record.address_list()):
        return ""
    return f"the datastore does not say that {', '.join(record.addresses)} belong to {record.handle}"


def _tell_annotations(refusal: SvcError, wishes: Wishes) -> None:
    """Which annotations a refusal is about, for these are what is to be put right."""
    about = (ADDRESSES,) if wishes.addresses else (*POOLS.values(), FAMILIES)
    places = [wishes.places[name] for name in about if name in wishes.places]
    if places and refusal.code in REFUSALS:
        refusal.details = f"{'; '.join(places)}: {refusal.details}"

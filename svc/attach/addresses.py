"""The addresses of an attachment: where an ADD gets them, whether they are still held, how they go back."""

import time
from dataclasses import dataclass, replace
from typing import Protocol

from svc._core.cidr import Address
from svc.attach.choice import Choice, choose
from svc.attach.context import Context
from svc.attach.earlier import Earlier
from svc.attach.record import Record
from svc.attach.request import AddRequest
from svc.attach.session import Session
from svc.ipam.requests import Allocation, Assign, Release
from svc.model.errors import Code, SvcError
from svc.model.result import IpConfig, Route
from svc.model.wishes import ADDRESSES, FAMILIES, POOLS, Wishes
from svc.orch.info import PodInfo
from svc.times import date_and_time
from svc.trace import Trace

REFUSALS = (Code.NO_ADDRESS, Code.POOL, Code.ADDRESS_UNAVAILABLE)  # that a namespace of another kind might have spared


@dataclass(frozen=True, slots=True)
class Taken:
    """What a source gave; `ips` and `routes` as the result of the ADD shows them."""

    addresses: tuple[Address, ...]
    ips: tuple[IpConfig, ...]
    routes: tuple[Route, ...]


class Source(Protocol):
    """Where the addresses of one ADD come from."""

    def take(self, record: Record) -> Taken:
        """All addresses for the attachment, or SvcError; `give_back` undoes it, also when it was cut short."""


class OwnIpam:
    """Addresses from our own pools."""

    def __init__(self, session: Session, request: AddRequest, pod: PodInfo, choice: Choice) -> None:
        self._session = session
        self._request = request
        self._pod = pod
        self._choice = choice

    def take(self, record: Record) -> Taken:
        allocations = self._session.ipam.assign(self._assignment(record))
        return Taken(
            tuple(allocation.address for allocation in allocations),
            tuple(self._ip(allocation) for allocation in allocations),
            tuple(self._route(allocation) for allocation in allocations),
        )

    def _assignment(self, record: Record) -> Assign:
        return Assign(
            handle=record.handle,
            attributes=self._owner(),
            versions=self._choice.versions,
            pools=dict(self._choice.pools),
            addresses=self._choice.addresses,
            namespace_labels=self._pod.namespace.labels,
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
        return IpConfig(f"{address}/{address.bits if self._choice.addresses else allocation.block.length}")

    def _route(self, allocation: Allocation) -> Route:
        """Nobody programs the routes of our own wiring; other main plugins do, and the kernel takes no host bits there."""
        if self._request.sandbox is None:
            return Route(str(allocation.block))
        return Route(f"{allocation.address}/{allocation.block.length}")


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

    def __init__(self, session: Session, addresses: tuple[Address, ...], trace: Trace) -> None:
        self._session = session
        self._addresses = addresses
        self._trace = trace

    def take(self, record: Record) -> Taken:
        for address in self._addresses:
            self._warn(address)
        record.unmanaged = True
        interface = 1 if record.is_wired else None
        return Taken(self._addresses, tuple(IpConfig(str(address.host()), interface) for address in self._addresses), ())

    def _warn(self, address: Address) -> None:
        pool, holder = self._session.ipam.standing(address)
        if holder:
            self._trace.warning(f"address {address} bypasses IPAM, where {holder} holds it: both will answer for it")
        elif pool:
            remedy = "set it aside with an IPReservation"
            self._trace.warning(f"address {address} bypasses IPAM, which may assign it to others of pool {pool}: {remedy}")


def take_addresses(
    context: Context, session: Session, request: AddRequest, pod: PodInfo, choice: Choice, record: Record, trace: Trace
) -> Taken:
    """All addresses for the attachment, or SvcError. Nothing is refused on account of what was remembered of the namespace."""
    wishes = choice.wishes
    try:
        try:
            return source_of(context, session, request, pod, choice, trace).take(record)
        except SvcError as refusal:
            if refusal.code not in REFUSALS or (fresh := pod.refreshed()).namespace == pod.namespace:
                raise
        choice = choose(session.names, request, fresh, trace)
        wishes = choice.wishes
        return source_of(context, session, request, fresh, choice, trace).take(record)
    except SvcError as refusal:
        _tell_annotations(refusal, wishes)
        raise


def source_of(context: Context, session: Session, request: AddRequest, pod: PodInfo, choice: Choice, trace: Trace) -> Source:
    """Where the addresses of the request are to come from."""
    if choice.wishes.unmanaged:
        return Bypass(session, choice.addresses, trace)
    own = OwnIpam(session, request, pod, choice)
    return GivenAddresses(context, own, session) if choice.wishes.addresses else own


def still_held(session: Session, record: Record) -> bool:
    """Whether the attachment's addresses are, right now, its own. StoreError."""
    return record.unmanaged or session.ipam.holds(record.handle, record.address_list())


def give_back(context: Context, session: Session, record: Record) -> None:
    """Frees the attachment's addresses, but not those of the container's other interfaces in the same network. StoreError."""
    others = [
        other for other in context.journal.of_container(record.id.network, record.id.container_id) if other.id != record.id
    ]
    keep = frozenset(address for other in others if not other.unmanaged for address in other.address_list())
    session.ipam.release(Release(record.handle, keep))


def _tell_annotations(refusal: SvcError, wishes: Wishes) -> None:
    """Which annotations a refusal is about, for these are what is to be put right."""
    about = (ADDRESSES,) if wishes.addresses else (*POOLS.values(), FAMILIES)
    places = [wishes.places[name] for name in about if name in wishes.places]
    if places and refusal.code in REFUSALS:
        refusal.details = f"{'; '.join(places)}: {refusal.details}"


def _timestamp() -> str:
    now = time.time_ns()
    seconds, nanoseconds = divmod(now, 1_000_000_000)
    fraction = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
    return f"{date_and_time(seconds)}{fraction} +0000 UTC"

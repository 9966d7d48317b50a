"""Addresses from the pools of the datastore."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from svc._core.cidr import Address
from svc.attach.context import Context
from svc.attach.previous_sandbox import PreviousSandbox
from svc.attach.record import Record
from svc.attach.sessions import Session
from svc.attach.sources import pool_gc, pool_release
from svc.attach.sources.base import Addressing, AddressSource, AssignedAddresses, Assignment, Valid
from svc.attach.sources.bypass import BYPASS
from svc.call_trace import CallTrace
from svc.dataplane.plan import GATEWAY4, GATEWAY6
from svc.datastore.api import Delete, Found
from svc.ipam.requests import Allocation, Assign
from svc.model.annotations import ADDRESSES, FAMILIES, POOLS, AnnotationSettings
from svc.model.errors import Code, SvcError
from svc.model.result import IpConfig, Route
from svc.timestamps import to_nanoseconds

REFUSALS = (Code.NO_ADDRESS, Code.POOL, Code.ADDRESS_UNAVAILABLE)  # errors that changed annotations of the namespace may avoid


class PoolSource(AddressSource):
    """Addresses that svc assigns from the pools. With `point_to_point`, the result has the form for the plugin ptp."""

    plugin = ""
    uses_pools = True

    def __init__(self, *, point_to_point: bool = False) -> None:
        self._point_to_point = point_to_point

    def require_own_handle(self, context: Context, session: Session, record: Record) -> None:
        pool_release.require_own_handle(context, session, record)

    def assign(self, wanted: Assignment) -> AssignedAddresses:
        """Assign the addresses. If that fails and the namespace has changed since it was cached, retry with the new one.

        Raise SvcError if the assignment fails.
        """
        try:
            try:
                return self._assign(wanted)
            except SvcError as refusal:
                renewed = wanted.addressing.renewed() if refusal.code in REFUSALS else None
                if renewed is None:
                    raise
            wanted = replace(wanted, addressing=renewed)
            return self._assign(wanted)
        except SvcError as refusal:
            _add_annotations(refusal, wanted.addressing.wishes)
            raise

    def adopt(self, session: Session, record: Record, addressing: Addressing) -> tuple[Route, ...]:
        if record.unmanaged or addressing.wishes.addresses:
            return ()
        allocations = session.ipam.allocations(record.handle, record.address_list())
        return tuple(Route(f"{each.address}/{each.block.length}") for each in allocations)

    def why_not_held(self, session: Session, record: Record, _trace: CallTrace) -> str:
        if session.ipam.holds(record.handle, record.address_list()):
            return ""
        return f"the datastore does not say that {', '.join(record.addresses)} belong to {record.handle}"

    def release(
        self,
        context: Context,
        session: Session,
        record: Record,
        trace: CallTrace,
        extra_write: Delete | None,
        handle: Found | None,
    ) -> bool:
        return pool_release.release(context, session, record, trace, extra_write, handle, record.address_list())

    def collect(self, context: Context, session: Session, network: str, valid: Valid, trace: CallTrace) -> list[str]:
        return pool_gc.collect(context, session, network, valid, trace)

    def _assign(self, wanted: Assignment) -> AssignedAddresses:
        if wanted.addressing.wishes.unmanaged:
            assigned = BYPASS.assign(wanted)
        elif wanted.addressing.wishes.addresses:
            assigned = _assign_fixed(wanted)
        else:
            assigned = _assign_from_pools(wanted)
        return _point_to_point(wanted.session, assigned) if self._point_to_point else assigned


POOLS_OF_SVC: Final = PoolSource()


def _assign_fixed(wanted: Assignment) -> AssignedAddresses:
    """Assign the addresses that annotations name. Release the addresses of previous sandboxes of the pod."""
    previous = PreviousSandbox.of(wanted.context, wanted.session, wanted.record)
    try:
        assigned = _assign_from_pools(wanted)
    except SvcError as refusal:
        if not previous or refusal.code != Code.ADDRESS_UNAVAILABLE:
            raise
        previous.tear_down()
        assigned = _assign_from_pools(wanted)
    else:
        previous.tear_down()
    return replace(assigned, routes=()) if wanted.record.is_wired else assigned


def _assign_from_pools(wanted: Assignment) -> AssignedAddresses:
    session, record, addressing = wanted.session, wanted.record, wanted.addressing
    assigned = session.ipam.assign(
        Assign(
            handle=record.handle,
            attributes=_owner(session, record),
            versions=addressing.versions,
            pools=dict(addressing.pools),
            addresses=addressing.addresses,
            namespace_labels=addressing.pod.namespace.labels,
            extra_write=wanted.extra_write,
        )
    )
    for fault in assigned.faults:
        wanted.trace.warning(f"passed {fault}")
    allocations, is_fixed = assigned.allocations, bool(addressing.addresses)
    return AssignedAddresses(
        assigned.addresses,
        tuple(_ip(record, allocation, is_fixed=is_fixed) for allocation in allocations),
        tuple(_route(record, allocation) for allocation in allocations),
        has_endpoint=assigned.has_extra,
    )


def _owner(session: Session, record: Record) -> dict[str, str]:
    owner = {"node": session.node, "timestamp": to_nanoseconds(time.time_ns())}
    if record.workload.is_pod:
        owner |= {"pod": record.pod, "namespace": record.namespace}
    return owner


def _ip(record: Record, allocation: Allocation, *, is_fixed: bool) -> IpConfig:
    """Return the address for the result.

    For another main plugin it has the prefix length of its block, or the full length if the address was requested.
    """
    address = allocation.address
    if record.is_wired:
        return IpConfig(str(address.host()), interface=1)
    return IpConfig(f"{address}/{address.bits if is_fixed else allocation.block.length}")


def _route(record: Record, allocation: Allocation) -> Route:
    """Return the route to the block.

    Only other main plugins program this route, and the kernel rejects a route with host bits.
    """
    return Route(f"{allocation.address}/{allocation.block.length}" if record.is_wired else str(allocation.block))


def _point_to_point(session: Session, assigned: AssignedAddresses) -> AssignedAddresses:
    """Return the result for ptp.

    ptp sets the gateway on the host interface, and routes the whole network of the address there. It programs routes before
    the next hop is reachable. Only a link-local IPv6 next hop needs no route, so the result has only an IPv6 route.
    """
    addresses: Sequence[Address] = assigned.addresses
    routes = (Route("::/0"),) if any(address.version == 6 for address in addresses) else ()
    return AssignedAddresses(assigned.addresses, tuple(_beyond_next_hop(session, address) for address in addresses), routes)


def _beyond_next_hop(session: Session, address: Address) -> IpConfig:
    """Return the address with a gateway, in a network of at least two addresses.

    ptp replaces the kernel's route of the network, and the kernel adds no route for a single address.
    """
    pool = session.ipam.pool_of(address)
    length = address.bits if pool is None else pool.length
    gateway = GATEWAY4 if address.version == 4 else GATEWAY6
    return IpConfig(f"{address}/{min(length, address.bits - 1)}", gateway=str(gateway))


def _add_annotations(refusal: SvcError, wishes: AnnotationSettings) -> None:
    """Add the annotations that caused an error to its details, because the user must correct these."""
    about = (ADDRESSES,) if wishes.addresses else (*POOLS.values(), FAMILIES)
    places = [wishes.sources[name] for name in about if name in wishes.sources]
    if places and refusal.code in REFUSALS:
        refusal.details = f"{'; '.join(places)}: {refusal.details}"

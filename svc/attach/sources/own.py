"""Addresses from the pools of the datastore, and addresses that bypass IPAM."""

from collections.abc import Sequence
from typing import Final

from svc._core.cidr import Address
from svc.attach.context import Context
from svc.attach.endpoints import stored_endpoint
from svc.attach.handles import handle_of
from svc.attach.record import Record
from svc.attach.sessions import DatastoreSession
from svc.attach.sources import pool_gc, pool_release
from svc.attach.sources.base import Addressing, AddressSource, AssignedAddresses, Assignment, Holdings, Valid
from svc.call_trace import CallTrace
from svc.dataplane.plan import GATEWAY4, GATEWAY6
from svc.datastore.api import Delete
from svc.ipam.requests import Allocation, Assign, ReleaseTarget
from svc.model.annotations import ADDRESSES, FAMILIES, POOLS, AnnotationSettings
from svc.model.errors import Code, SvcError
from svc.model.result import IpConfig, Route
from svc.values import replace

REFUSALS = (Code.NO_ADDRESS, Code.POOL, Code.ADDRESS_UNAVAILABLE)  # errors that changed annotations of the namespace may avoid


class BypassSource(AddressSource):
    """Addresses that annotations name. No datastore records them, so the author must avoid conflicts (rule R5)."""

    plugin = ""

    def mark(self, record: Record) -> None:
        record.unmanaged = True

    def assign(self, wanted: Assignment) -> AssignedAddresses:
        wanted.session.require_ready()  # no later write checks this
        addresses = wanted.addressing.addresses
        for address in addresses:
            _warn_of_conflict(wanted, str(address), *wanted.session.ipam.pool_and_handle(address))
        self.mark(wanted.record)
        interface = 1 if wanted.record.is_wired else None
        return AssignedAddresses(addresses, tuple(IpConfig(str(address.host()), interface) for address in addresses))

    def why_not_held(self, _session: DatastoreSession, _record: Record, _trace: CallTrace) -> str:
        return ""

    def release(self, held: Holdings, extra_write: Delete | None) -> bool:
        """Release only addresses that a failed ADD may have left under the handle."""
        return pool_release.release(held, extra_write, ())


BYPASS: Final = BypassSource()


def _warn_of_conflict(wanted: Assignment, address: str, pool: str, holder: str) -> None:
    if holder:
        wanted.trace.warning(f"address {address} bypasses IPAM, where {holder} holds it: both will answer for it")
    elif pool:
        remedy = "set it aside with an IPReservation"
        wanted.trace.warning(f"address {address} bypasses IPAM, which may assign it to others of pool {pool}: {remedy}")


class PoolSource(AddressSource):
    """Addresses that svc assigns from the pools. With `point_to_point`, the result has the form for the plugin ptp."""

    plugin = ""
    uses_pools = True

    def __init__(self, *, point_to_point: bool = False) -> None:
        self._point_to_point = point_to_point

    def require_own_handle(self, context: Context, session: DatastoreSession, record: Record) -> None:
        pool_release.require_own_handle(context, session, record)

    def assign(self, wanted: Assignment) -> AssignedAddresses:
        """Assign the addresses. If that fails, retry with a namespace that has changed since it was cached. Raise SvcError."""
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
            _add_annotations(refusal, wanted.addressing.annotation_settings)
            raise

    def adopt(self, session: DatastoreSession, record: Record, addressing: Addressing) -> tuple[Route, ...]:
        if record.unmanaged or addressing.annotation_settings.addresses:
            return ()
        allocations = session.ipam.allocations(record.handle, record.address_list())
        return tuple(Route(f"{each.address}/{each.block.length}") for each in allocations)

    def why_not_held(self, session: DatastoreSession, record: Record, _trace: CallTrace) -> str:
        if session.ipam.holds(record.handle, record.address_list()):
            return ""
        return f"the datastore does not say that {', '.join(record.addresses)} belong to {record.handle}"

    def plan_release(self, held: Holdings, extra_write: Delete | None) -> None:
        pool_release.plan(held, extra_write, held.record.address_list())

    def release(self, held: Holdings, extra_write: Delete | None) -> bool:
        return pool_release.release(held, extra_write, held.record.address_list())

    def run_gc(self, context: Context, session: DatastoreSession, network: str, valid: Valid, trace: CallTrace) -> list[str]:
        return pool_gc.release_unknown(context, session, network, valid, trace)

    def _assign(self, wanted: Assignment) -> AssignedAddresses:
        if wanted.addressing.annotation_settings.unmanaged:
            assigned = BYPASS.assign(wanted)
        elif wanted.addressing.annotation_settings.addresses:
            assigned = _assign_fixed(wanted)
        else:
            assigned = _assign_from_pools(wanted)
        return _point_to_point(wanted.session, assigned) if self._point_to_point else assigned


POOLS_OF_SVC: Final = PoolSource()


def _assign_fixed(wanted: Assignment) -> AssignedAddresses:
    """Assign the addresses that annotations name. Release those of previous sandboxes: a pod uses one, even without a DEL."""
    previous = _addresses_of_previous(wanted) if wanted.record.is_wired else ()
    try:
        assigned = _assign_from_pools(wanted)
    except SvcError as refusal:
        if not previous or refusal.code != Code.ADDRESS_UNAVAILABLE:
            raise
        _tear_down_previous(wanted, previous)
        assigned = _assign_from_pools(wanted)
    else:
        _tear_down_previous(wanted, previous)
    return replace(assigned, routes=()) if wanted.record.is_wired else assigned


def _addresses_of_previous(wanted: Assignment) -> tuple[ReleaseTarget, ...]:
    """Return the addresses of the pod's previous sandboxes with their handles, from journal and endpoint. Raise StoreError."""
    record, session = wanted.record, wanted.session
    found = [
        ReleaseTarget(address, other.handle)
        for other in wanted.context.journal.with_host_name(record.host_name)
        if other.id.container_id != record.id.container_id and not other.unmanaged
        for address in other.address_list()
    ]
    stored = stored_endpoint(session, record)
    if stored is not None and stored.container and not stored.is_of(record):
        handle = handle_of(session.names, record.id.network, stored.container)
        found += [ReleaseTarget(address, handle) for address in stored.addresses]
    return tuple(dict.fromkeys(found))


def _tear_down_previous(wanted: Assignment, held: tuple[ReleaseTarget, ...]) -> None:
    """Remove the interface, whose name the new sandbox needs, then release the addresses. Raise SvcError if either fails."""
    if held:
        wanted.context.remove_interface(wanted.record.host_name)
        wanted.session.ipam.release_addresses(held)


def _assign_from_pools(wanted: Assignment) -> AssignedAddresses:
    session, record, addressing = wanted.session, wanted.record, wanted.addressing
    assigned = session.ipam.assign(
        Assign(
            handle=record.handle,
            attributes=record.owner(),
            versions=addressing.versions,
            pools=dict(addressing.pools),
            addresses=addressing.addresses,
            namespace_labels=addressing.pod.namespace.labels,
            extra_write=wanted.extra_write,
        )
    )
    for error in assigned.errors:
        wanted.trace.warning(f"passed {error}")
    allocations, is_fixed = assigned.allocations, bool(addressing.addresses)
    return AssignedAddresses(
        assigned.addresses,
        tuple(_ip(record, allocation, is_fixed=is_fixed) for allocation in allocations),
        tuple(_route(record, allocation) for allocation in allocations),
        has_endpoint=assigned.has_extra,
    )


def _ip(record: Record, allocation: Allocation, *, is_fixed: bool) -> IpConfig:
    """Return the address for the result: for another main plugin with the length of its block, unless it was requested."""
    address = allocation.address
    if record.is_wired:
        return IpConfig(str(address.host()), interface=1)
    return IpConfig(f"{address}/{address.bits if is_fixed else allocation.block.length}")


def _route(record: Record, allocation: Allocation) -> Route:
    """Return the route to the block. Only other main plugins program it, and the kernel rejects one with host bits."""
    return Route(f"{allocation.address}/{allocation.block.length}" if record.is_wired else str(allocation.block))


def _point_to_point(session: DatastoreSession, assigned: AssignedAddresses) -> AssignedAddresses:
    """Return the result for ptp.

    ptp sets the gateway on the host interface, and routes the whole network of the address there. It programs routes before
    the next hop is reachable. Only a link-local IPv6 next hop needs no route, so the result has only an IPv6 route.
    """
    addresses: Sequence[Address] = assigned.addresses
    routes = (Route("::/0"),) if any(address.version == 6 for address in addresses) else ()
    return AssignedAddresses(assigned.addresses, tuple(_beyond_next_hop(session, address) for address in addresses), routes)


def _beyond_next_hop(session: DatastoreSession, address: Address) -> IpConfig:
    """Return the address with a gateway, in a network of at least two addresses.

    ptp replaces the kernel's route of the network, and the kernel adds no route for a single address.
    """
    pool = session.ipam.pool_of(address)
    length = address.bits if pool is None else pool.length
    gateway = GATEWAY4 if address.version == 4 else GATEWAY6
    return IpConfig(f"{address}/{min(length, address.bits - 1)}", gateway=str(gateway))


def _add_annotations(refusal: SvcError, settings: AnnotationSettings) -> None:
    """Add the annotations that caused an error to its details, because the user must correct these."""
    about = (ADDRESSES,) if settings.addresses else (*POOLS.values(), FAMILIES)
    places = [settings.sources[name] for name in about if name in settings.sources]
    if places and refusal.code in REFUSALS:
        refusal.details = f"{'; '.join(places)}: {refusal.details}"

"""Release the addresses of one attachment in the pools, and keep those of other attachments with the same handle."""

from collections.abc import Sequence
from contextlib import suppress

from svc._core.cidr import Address
from svc.attach.context import Context
from svc.attach.endpoints import stored_endpoint
from svc.attach.handles import is_ambiguous, pairs_of
from svc.attach.record import Record
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.base import Holdings
from svc.datastore.api import Delete, NotFound
from svc.ipam.requests import Release, ReleaseTarget
from svc.model.errors import Code, PeerError


def plan(held: Holdings, extra_write: Delete | None, addresses: tuple[Address, ...]) -> None:
    """Plan what `release` will do with the same arguments. Raise SvcError."""
    session, record = held.session, held.record
    if held.handle is not None and not (record.older_handle or record.recorded_only):
        held.planned = session.ipam.plan_release(_release_of(held, addresses, extra_write), held.handle)


def release(held: Holdings, extra_write: Delete | None, addresses: tuple[Address, ...]) -> bool:
    """Release the addresses of the handle, except those of other attachments with the same handle.

    `addresses` are the known addresses of the attachment. Return whether `extra_write` was written too. Raise KeyedError with
    the key of `extra_write` if that write conflicts, PeerError if the release fails.
    """
    session, record = held.session, held.record
    if record.older_handle or record.recorded_only:
        return _release_unrecorded(held, extra_write)
    planned = held.planned
    if planned is not None and held.handle is not None and planned.request.extra_write == extra_write:
        return session.ipam.carry_out(planned, held.handle) and session.backend.atomic
    return session.ipam.release(_release_of(held, addresses, extra_write), held.handle) and session.backend.atomic


def _release_of(held: Holdings, addresses: Sequence[Address], extra_write: Delete | None = None) -> Release:
    """Return the release of the handle, also of these addresses if the handle does not list them."""
    keep = _addresses_of_others(held, held.record.handle)
    return Release(held.record.handle, keep, tuple(address for address in addresses if address not in keep), extra_write)


def _release_unrecorded(held: Holdings, extra_write: Delete | None) -> bool:
    """Release the addresses that the datastore shows for an attachment without a row. Return whether `extra_write` is done."""
    session, record = held.session, held.record
    if extra_write is not None:
        with suppress(NotFound):
            session.backend.write([extra_write])
    if record.older_handle and not session.ipam.owners_of(record.handle):
        _release_older(held)
    if record.recorded_only:
        _release_addresses(session, record.handle, record.address_list())
    else:
        session.ipam.release(_release_of(held, record.address_list()))
    return extra_write is not None


def require_own_handle(context: Context, session: DatastoreSession, record: Record) -> None:
    """Raise PeerError if another attachment has the handle of the new one, by the journal or by the handle's allocations."""
    if not is_ambiguous(session.names, record.id.network, record.id.container_id):
        return
    own = (record.id.network, record.id.container_id)
    sharing = _sharing(context, record, record.handle)
    others = [f"container {each.id.container_id!r} of network {each.id.network!r}" for each in sharing if _pair(each) != own]
    if not others and session.names.plain_handles:
        known = {address for each in sharing for address in each.address_list()}
        others = [f"address {address}" for address in session.ipam.owners_of(record.handle) if address not in known]
    if others:
        raise PeerError(
            f"handle {record.handle!r} is in use by {others[0]}",
            details="a DEL of either attachment could release the other's addresses: use a network name or a container ID "
            "without dots, or DEL the other one first",
            code=Code.ADDRESS_UNAVAILABLE,
        )


def _release_older(held: Holdings) -> None:
    """Release the addresses that this node allocated for this workload under the older form of the handle.

    The endpoint of this attachment is already deleted. An existing one is of another sandbox, which may have these addresses.
    """
    session, record = held.session, held.record
    stored = stored_endpoint(session, record)
    if stored is not None and stored.container and not stored.is_of(record):
        return
    others = _addresses_of_others(held, record.older_handle)
    owners = session.ipam.owners_of(record.older_handle)
    found = [address for address, owner in owners.items() if address not in others and _is_owner(record, owner)]
    if found:
        held.trace.info(f"{', '.join(map(str, found))} of handle {record.older_handle} are released, its older form")
        _release_addresses(session, record.older_handle, tuple(found))


def _is_owner(record: Record, owner: dict[str, str]) -> bool:
    """Return whether the allocation is for the workload. Attributes that the allocation lacks are ignored."""
    given = {"node": record.node, "pod": record.pod, "namespace": record.namespace}
    return all(owner.get(name, text) == text for name, text in given.items())


def _release_addresses(session: DatastoreSession, handle: str, addresses: tuple[Address, ...]) -> None:
    freed = session.ipam.release_addresses([ReleaseTarget(address, handle) for address in addresses])
    for refusal in freed.refused.values():
        if isinstance(refusal, PeerError):  # any other: the handle does not have the address any more
            raise refusal


def _addresses_of_others(held: Holdings, handle: str) -> frozenset[Address]:
    others = (other for other in _sharing(held.context, held.record, handle) if not other.unmanaged)
    return frozenset(address for other in others for address in other.address_list())


def _sharing(context: Context, record: Record, handle: str) -> list[Record]:
    """Return the other attachments with the handle, of this container or of another pair with the same plain form."""
    own = _pair(record)
    found = context.journal.of_container(*own, except_for=record.id.ifname)
    for pair in pairs_of(handle):
        if pair != own:
            found += context.journal.of_container(*pair)
    return [row for row in found if row.handle == handle]


def _pair(record: Record) -> tuple[str, str]:
    return record.id.network, record.id.container_id

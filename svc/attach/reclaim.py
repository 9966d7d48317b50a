"""Claim the addresses, handles and endpoints of live attachments again in a datastore that has lost them."""

import time
from collections.abc import Iterable, Sequence

from svc.attach.conflict import Conflict
from svc.attach.context import Context
from svc.attach.endpoints import (
    drop_endpoints_of,
    endpoint_matches,
    endpoint_of,
    is_wired_elsewhere,
    needs_endpoint,
    stored_endpoint,
    write_endpoint,
)
from svc.attach.handles import container_of
from svc.attach.moved_store import avoid_others, move_rows
from svc.attach.record import ADDED, AttachmentId, Record
from svc.attach.request import AddCall
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.base import Addressing
from svc.attach.sources.select import source_of
from svc.call_trace import CallTrace
from svc.dataplane.wire import AddressInUse
from svc.datastore.api import NotFound, StoreError
from svc.ipam.requests import Assign, Release, ReleaseTarget
from svc.model.endpoint import PodFacts
from svc.model.errors import Code, SvcError
from svc.values import replace

ATTEMPTS = 4  # of one ADD, because routes of other programs may conflict with several addresses
MAX_KEYS = 50  # keys per read of endpoints


def lost(context: Context, session: DatastoreSession, records: Iterable[Record]) -> list[Record]:
    """Return the live attachments whose addresses are not allocated in the datastore. Raise StoreError if it fails."""
    live = [record for record in records if _is_claimable(context, record)]
    missing = session.ipam.not_held((record.handle, address) for record in live for address in record.address_list())
    return [record for record in live if any((record.handle, address) in missing for address in record.address_list())]


def without_endpoint(context: Context, session: DatastoreSession, records: Iterable[Record]) -> list[Record]:
    """Return the live attachments of the session's node that should have an endpoint but have none. Raise StoreError."""
    live = [record for record in records if is_restorable(context, record) and needs_endpoint(session, record)]
    missing = []
    for start in range(0, len(live), MAX_KEYS):
        part = live[start : start + MAX_KEYS]
        found = session.backend.get_all([record.endpoint_key(session.names) for record in part])
        missing += [record for record, each in zip(part, found, strict=True) if isinstance(each, NotFound)]
    return missing


def is_restorable(context: Context, record: Record) -> bool:
    """Return whether the attachment is live, and has addresses of its own: of the datastore's pools or of another source."""
    return bool(record.addresses) and not record.shares and context.is_live(record)


def _is_claimable(context: Context, record: Record) -> bool:
    """Return whether the attachment is live, and its addresses come from the pools of the datastore."""
    return source_of(record).uses_pools and is_restorable(context, record)


def restore(context: Context, key: AttachmentId, trace: CallTrace) -> bool:
    """Allocate the addresses of a live attachment again if they are of the pools, and write its endpoint if it is missing.

    Return False, and report the conflict, if another handle has one of the addresses. Raise SvcError if the restoration fails;
    all changes made before are correct. Idempotent. The caller must exclude concurrent calls of the same container.
    """
    record = context.journal.get(key)
    if record is None or not is_restorable(context, record):
        context.conflicts.pop(key, None)
        return True
    session = context.session(record.session_key)
    session.require_ready()
    session.require_claim()
    uses_pools = source_of(record).uses_pools
    try:
        if uses_pools:
            _claim(context, session, record, trace)
    except SvcError as refusal:
        if refusal.code != Code.ADDRESS_UNAVAILABLE:
            raise
        _report(context, record, refusal, trace)
        return False
    _require_row(context, session, record)
    context.conflicts.pop(key, None)
    if needs_endpoint(session, record):
        _write_endpoint_again(context, session, record, trace)
    context.metrics.count("restored_attachments_total", outcome="ok")
    done = "claimed" if uses_pools else "wrote the endpoint of"
    trace.info(f"{done} {', '.join(record.addresses)} again for {record.handle}")
    return True


def _claim(context: Context, session: DatastoreSession, record: Record, trace: CallTrace) -> None:
    request = Assign(record.handle, record.owner(), addresses=record.address_list(), restores=True)
    try:
        session.ipam.assign(request)
    except SvcError as refusal:
        if refusal.code != Code.ADDRESS_UNAVAILABLE or not _release_outdated(context, session, record, trace):
            raise
        session.ipam.assign(request)


def _release_outdated(context: Context, session: DatastoreSession, record: Record, trace: CallTrace) -> bool:
    """Release outdated allocations of the attachment's addresses. An older copy of the datastore may contain them.

    Their handles are of containers that this node had, in any of its networks, and that have no row any more. Return whether
    any was released.
    """
    if session.claim is not None and session.claim.had_recent_predecessor():
        return False
    rows = context.journal.all()
    networks = {row.id.network for row in rows}.union(network for _, network in context.networks.present)
    known = {handle for row in rows for handle in (row.handle, row.older_handle)}
    outdated = []
    for address in record.address_list():
        _, handle = session.ipam.pool_and_handle(address)
        container = next(filter(None, (container_of(session.names, network, handle) for network in networks)), "")
        owner = session.ipam.owners_of(handle).get(address, {}) if container and handle not in known else {}
        if owner.get("node") == session.node:
            outdated.append((container, ReleaseTarget(address, handle)))
    for container, held in outdated:
        trace.warning(f"{held.address} of {held.handle} is released: this node has no such attachment any more")
        if not any(row.id.container_id == container for row in rows):
            drop_endpoints_of(session, container)
    return bool(outdated and session.ipam.release_addresses([held for _, held in outdated]).freed)


def _write_endpoint_again(context: Context, session: DatastoreSession, record: Record, trace: CallTrace) -> None:
    """Write the endpoint as the ADDs did, if it is missing or differs and no other sandbox of the workload has it.

    Do nothing if the pod does not exist any more. Raise StoreError if the datastore fails.
    """
    facts = _facts(context, record)
    if not _is_endpoint_missing(session, record, facts.profiles):
        return
    try:
        write_endpoint(session, endpoint_of(session, record, record.address_list(), facts))
    except StoreError as refusal:
        if refusal.code != Code.ORCHESTRATOR:
            raise
        trace.info(f"no endpoint is written for {record.host_name}: {refusal.msg}")


def _facts(context: Context, record: Record) -> PodFacts:
    """Return the facts for the endpoint. Its profiles include the networks that share the interface."""
    facts = PodFacts.from_json(record.facts) if record.facts is not None else PodFacts(profiles=[record.id.network])
    others = context.journal.of_interface(record.id.container_id, record.id.ifname)
    shared = [other.id.network for other in others if other.shares and other.state == ADDED]
    return replace(facts, profiles=[*facts.profiles, *(name for name in shared if name not in facts.profiles)])


def _is_endpoint_missing(session: DatastoreSession, record: Record, profiles: Sequence[str]) -> bool:
    stored = stored_endpoint(session, record)
    if stored is None:
        return not is_wired_elsewhere(session, record)
    if not stored.is_of(record):
        return False
    lacking = set(profiles).difference(stored.profiles)
    return not endpoint_matches(session, record) or (bool(lacking) and not record.workload.is_pod)


def _require_row(context: Context, session: DatastoreSession, record: Record) -> None:
    """Raise IntentLost and release the addresses if the attachment's row does not exist any more."""
    try:
        context.journal.require(record)
    except SvcError:
        session.ipam.release(Release(record.handle))
        raise


def _report(context: Context, record: Record, refusal: SvcError, trace: CallTrace) -> None:
    earlier = context.conflicts.get(record.id)
    conflict = Conflict(record, str(refusal), earlier.since if earlier else time.time())
    context.conflicts[record.id] = conflict
    context.metrics.count("restored_attachments_total", outcome="conflict")
    trace.warning(str(conflict))


def avoid_lost(call: AddCall, addressing: Addressing, refusal: AddressInUse) -> bool:
    """Exclude addresses that the host uses but the datastore shows as free from the next attempt of an ADD.

    Restore the allocations of live attachments. Return False if the ADD requests fixed addresses, or another source assigns
    them.
    """
    context, trace = call.context, call.trace
    if addressing.addresses or not call.request.source.uses_pools:
        return False
    live = [record for record in context.journal.all() if _is_claimable(context, record)]
    held = {address: record for record in live for address in record.address_list()}
    call.session.ipam.avoid({*held, *refusal.addresses})
    for address in refusal.addresses:
        trace.warning(f"the datastore has {address} as free, but {_user(held.get(address))}: another address is assigned")
    if context.resident:
        context.suspects_loss = True
    else:
        restore_lost(call)
    return True


def adopt_rows(call: AddCall) -> None:
    """Before an ADD, compare the network's datastore with those that it had, and that rows of other networks have.

    If one has the same data, the network's rows move, and the addresses of other rows are not assigned. Raise StoreError if the
    datastore or the journal fails.
    """
    context, session, network = call.context, call.session, (call.request.where.profile, call.request.id.network)
    former = context.networks.former.get(network)
    if former is None:
        return
    session.held_seconds()  # reads the identity of the datastore
    for old in former.own:
        moving = [record.id for record in context.journal.of_network(network[1]) if record.session_key == old]
        move_rows(context, old, moving, session)
    avoid_others(context, session, former.others, context.journal.all)
    context.networks.settle(network)
    if session.identity.is_pending and not context.resident:
        restore_lost(call)


def restore_lost(call: AddCall) -> None:
    """Claim the addresses of all live attachments again, and write their endpoints, if no agent does it later. Log a failure.

    Addresses that could not be claimed are not assigned by this call either.
    """
    context, session, trace = call.context, call.session, call.trace
    where = call.request.where
    try:
        rows = [record for record in context.journal.all() if record.session_key.store == where.store]
        records = lost(context, session, rows)
        session.ipam.avoid(address for record in records for address in record.address_list())
        for key in dict.fromkeys(record.id for record in (*records, *without_endpoint(context, session, rows))):
            restore(context, key, trace)
        session.identity.on_restored()
    except SvcError as failure:
        trace.warning(f"live attachments cannot claim their addresses again now: {failure}")


def _user(record: Record | None) -> str:
    if record is None:
        return "the host has a route to it"
    return f"container {record.id.container_id!r} ({record.id.ifname}) of this node has it"

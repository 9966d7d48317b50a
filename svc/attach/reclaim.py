"""Claim the addresses, handles and endpoints of live attachments again in a datastore that has lost them."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from svc.attach.context import Context
from svc.attach.endpoints import drop_endpoints_of, endpoint_matches, is_wired_elsewhere, stored_endpoint, write_endpoint
from svc.attach.handles import container_of
from svc.attach.record import ADDED, AttachmentId, Record
from svc.attach.sessions import Session
from svc.attach.sources.select import source_of
from svc.call_trace import CallTrace
from svc.datastore.api import NotFound, StoreError
from svc.ipam.requests import Assign, Release, ReleaseTarget
from svc.model.endpoint import PodFacts, endpoint, has_endpoint
from svc.model.errors import Code, SvcError
from svc.timestamps import to_nanoseconds

MAX_KEYS = 50  # keys per read of endpoints


def lost(context: Context, session: Session, records: Iterable[Record]) -> list[Record]:
    """Return the live attachments whose addresses are not allocated in the datastore. Raise StoreError if it fails."""
    live = [record for record in records if is_restorable(context, record)]
    missing = session.ipam.not_held((record.handle, address) for record in live for address in record.address_list())
    return [record for record in live if any((record.handle, address) in missing for address in record.address_list())]


def without_endpoint(context: Context, session: Session, records: Iterable[Record]) -> list[Record]:
    """Return the live attachments of the session's node that should have an endpoint but have none. Raise StoreError."""
    live = [record for record in records if is_restorable(context, record) and _should_have_endpoint(session, record)]
    missing = []
    for start in range(0, len(live), MAX_KEYS):
        part = live[start : start + MAX_KEYS]
        found = session.backend.get_all([record.endpoint_key(session.names) for record in part])
        missing += [record for record, each in zip(part, found, strict=True) if isinstance(each, NotFound)]
    return missing


def _should_have_endpoint(session: Session, record: Record) -> bool:
    return record.is_wired and has_endpoint(session.names, record.workload, record.id.ifname)


def is_restorable(context: Context, record: Record) -> bool:
    """Return whether the attachment is live, and its addresses come from the pools of the datastore."""
    if record.state != ADDED or record.boot_id != context.boot_id or not record.addresses:
        return False
    if record.shares or not source_of(record).uses_pools:
        return False
    if not record.is_wired:
        return True  # another plugin has made the interface, which svc cannot check
    link = context.kernel.find_link(index=record.host_index)
    return link is not None and link["name"] == record.host_name


def restore(context: Context, key: AttachmentId, trace: CallTrace) -> bool:
    """Allocate the addresses of a live attachment again, and write its endpoint if it is missing.

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
    try:
        _claim(context, session, record, trace)
    except SvcError as refusal:
        if refusal.code != Code.ADDRESS_UNAVAILABLE:
            raise
        _report(context, record, refusal, trace)
        return False
    _demand_row(context, session, record)
    context.conflicts.pop(key, None)
    if _should_have_endpoint(session, record):
        write_endpoint_again(context, session, record, trace)
    context.metrics.count("restored_attachments_total", outcome="ok")
    trace.info(f"claimed {', '.join(record.addresses)} again for {record.handle}")
    return True


def _claim(context: Context, session: Session, record: Record, trace: CallTrace) -> None:
    try:
        session.ipam.assign(_request(record))
    except SvcError as refusal:
        if refusal.code != Code.ADDRESS_UNAVAILABLE or not _release_outdated(context, session, record, trace):
            raise
        session.ipam.assign(_request(record))


def _release_outdated(context: Context, session: Session, record: Record, trace: CallTrace) -> bool:
    """Release outdated allocations of the attachment's addresses. An older copy of the datastore may contain them.

    Their handles are of containers that this node had, and that have no row any more. Return whether any was released.
    """
    if session.claim is not None and session.claim.had_recent_predecessor():
        return False
    outdated = []
    for address in record.address_list():
        _, handle = session.ipam.pool_and_handle(address)
        container = container_of(session.names, record.id.network, handle)
        owner = session.ipam.owners_of(handle).get(address, {}) if container else {}
        if owner.get("node") == session.node and not context.journal.of_container(record.id.network, container):
            outdated.append((container, ReleaseTarget(address, handle)))
    for container, held in outdated:
        trace.warning(f"{held.address} of {held.handle} is released: this node has no such attachment any more")
        drop_endpoints_of(session, container)
    return bool(outdated and session.ipam.release_addresses([held for _, held in outdated]).freed)


def write_endpoint_again(context: Context, session: Session, record: Record, trace: CallTrace) -> None:
    """Write the endpoint as the ADDs did, if it is missing or differs and no other sandbox of the workload has it.

    Do nothing if the pod does not exist any more. Raise StoreError if the datastore fails.
    """
    facts = _facts(context, record)
    if not _is_endpoint_missing(session, record, facts.profiles):
        return
    spec = {
        "ipNetworks": [str(address.host()) for address in record.address_list()],
        "interfaceName": record.host_name,
        "mac": record.mac,
    }
    key = record.endpoint_key(session.names)
    resource = endpoint(
        session.names, key, record.node, record.workload, record.id.ifname, spec=spec, profiles=[], facts=facts
    )  # fmt: skip
    try:
        write_endpoint(session, resource)
    except StoreError as refusal:
        if refusal.code != Code.ORCHESTRATOR:
            raise
        trace.info(f"no endpoint is written for {record.host_name}: {refusal.msg}")


def _facts(context: Context, record: Record) -> PodFacts:
    """Return the facts for the endpoint. Its profiles include the networks that share the interface."""
    facts = PodFacts.from_json(record.facts) if record.facts is not None else PodFacts({}, "", "", [], [record.id.network])
    others = context.journal.of_interface(record.id.container_id, record.id.ifname)
    shared = [other.id.network for other in others if other.shares and other.state == ADDED]
    return replace(facts, profiles=[*facts.profiles, *(name for name in shared if name not in facts.profiles)])


def _is_endpoint_missing(session: Session, record: Record, profiles: Sequence[str]) -> bool:
    present = stored_endpoint(session, record)
    if present is None:
        return not is_wired_elsewhere(session, record)
    if present.spec.get("containerID") != record.id.container_id:
        return False
    lacking = set(profiles).difference(present.spec.get("profiles") or ())
    return not endpoint_matches(session, record) or (bool(lacking) and not record.workload.is_pod)


def _request(record: Record) -> Assign:
    owner = {"node": record.node, "timestamp": to_nanoseconds(time.time_ns())}
    if record.workload.is_pod:
        owner |= {"pod": record.pod, "namespace": record.namespace}
    return Assign(record.handle, owner, addresses=record.address_list(), restores=True)


def _demand_row(context: Context, session: Session, record: Record) -> None:
    """Raise IntentLost and release the addresses if the attachment's row does not exist any more."""
    try:
        context.journal.require(record)
    except SvcError:
        session.ipam.release(Release(record.handle))
        raise


def _report(context: Context, record: Record, refusal: SvcError, trace: CallTrace) -> None:
    told = f"address of live container {record.id.container_id!r} ({record.id.ifname}) is held by another: {refusal}"
    context.conflicts[record.id] = told
    context.metrics.count("restored_attachments_total", outcome="conflict")
    trace.warning(told)

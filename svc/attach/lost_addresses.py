"""Handling of an address that the host uses but the datastore shows as free, because its allocation was lost."""

from svc.attach.context import Context
from svc.attach.reclaim import is_restorable, lost, restore
from svc.attach.record import Record
from svc.attach.request import AddRequest
from svc.attach.sessions import Session
from svc.attach.sources.base import Addressing
from svc.call_trace import CallTrace
from svc.dataplane.wire import AddressInUse
from svc.model.errors import SvcError

ATTEMPTS = 4  # of one ADD, because routes of other programs may conflict with several addresses


def avoid_lost(
    context: Context, session: Session, request: AddRequest, addressing: Addressing, refusal: AddressInUse, trace: CallTrace
) -> bool:
    """Exclude the address from the next attempt, and restore the allocations of live attachments.

    Return False if the ADD requests fixed addresses, or another source assigns them.
    """
    if addressing.addresses or not request.source.uses_pools:
        return False
    live = [record for record in context.journal.all() if is_restorable(context, record)]
    held = {address: record for record in live for address in record.address_list()}
    session.ipam.avoid({*held, *refusal.addresses})
    for address in refusal.addresses:
        trace.warning(f"the datastore has {address} as free, but {_user(held.get(address))}: another address is assigned")
    if context.resident:
        context.suspects_loss = True
    else:  # no agent restores the allocations later
        _claim_again(context, session, [record for record in live if record.node == session.node], trace)
    return True


def _user(record: Record | None) -> str:
    if record is None:
        return "the host has a route to it"
    return f"container {record.id.container_id!r} ({record.id.ifname}) of this node has it"


def _claim_again(context: Context, session: Session, live: list[Record], trace: CallTrace) -> None:
    try:
        for record in lost(context, session, live):
            restore(context, record.id, trace)
    except SvcError as failure:
        trace.warning(f"live attachments cannot claim their addresses again now: {failure}")

"""After a start: broken-off attachments are undone, debts are paid, what an earlier boot held is freed."""

from svc.attach.context import Context
from svc.attach.record import ADDED, DELETING, AttachmentId, Record
from svc.attach.teardown import take_down
from svc.model.errors import SvcError
from svc.trace import Trace


def recover(context: Context, trace: Trace) -> int:
    """Takes down whatever did not survive. What cannot be taken down now stays in the journal; the number of those."""
    left = 0
    for record in context.journal.all():
        if _stands(context, record):
            continue
        trace.info(f"taking down {record.id.container_id} {record.id.ifname} of {record.id.network}, left {record.state}")
        left += not _taken_down(context, record, trace)
    return left


def pay_debt(context: Context, key: AttachmentId, trace: Trace) -> bool:
    """Takes down what an answered DEL has left owed, unless it was settled meanwhile; whether nothing is owed any more."""
    record = context.journal.get(key)
    return record is None or record.state != DELETING or _taken_down(context, record, trace)


def _stands(context: Context, record: Record) -> bool:
    return record.state == ADDED and record.boot_id == context.boot_id


def _taken_down(context: Context, record: Record, trace: Trace) -> bool:
    try:
        return take_down(context, record, trace)
    except SvcError as failure:
        trace.warning(f"{record.id.container_id} {record.id.ifname} cannot be taken down now: {failure}")
        return False

"""After a start: broken-off attachments are undone, debts are paid, what an earlier boot held is freed."""

from svc.attach.context import Context
from svc.attach.record import ADDED, DELETING, AttachmentId, Record
from svc.attach.teardown import put_off, take_down
from svc.model.errors import SvcError
from svc.trace import Trace

Store = tuple[str, tuple[tuple[str, str], ...], str]


def recover(context: Context, trace: Trace) -> int:
    """Takes down whatever did not survive. What cannot be taken down now stays in the journal; the number of those.

    Calls wait meanwhile: a datastore that has failed once, after a time-out perhaps, is not asked for the rest.
    """
    left = 0
    failing: set[Store] = set()
    for record in context.journal.all():
        if _stands(context, record):
            continue
        trace.info(f"taking down {record.id.container_id} {record.id.ifname} of {record.id.network}, left {record.state}")
        left += 1
        try:
            if store_of(record) in failing:
                put_off(context, record)
            elif take_down(context, record, trace):
                left -= 1
            else:
                failing.add(store_of(record))
        except SvcError as failure:
            _warn(record, failure, trace)
    return left


def store_of(record: Record) -> Store:
    """What must work to free it: its datastore session, but for the node, and the plugin that gave its addresses."""
    return record.profile, tuple(sorted(record.settings.items())), record.delegate["plugin"] if record.delegate else ""


def pay_debt(context: Context, key: AttachmentId, trace: Trace) -> bool:
    """Takes down what an answered DEL has left owed, unless it was settled meanwhile; whether nothing is owed any more."""
    record = context.journal.get(key)
    if record is None or record.state != DELETING:
        return True
    try:
        return take_down(context, record, trace)
    except SvcError as failure:
        _warn(record, failure, trace)
        return False


def _stands(context: Context, record: Record) -> bool:
    return record.state == ADDED and record.boot_id == context.boot_id


def _warn(record: Record, failure: SvcError, trace: Trace) -> None:
    trace.warning(f"{record.id.container_id} {record.id.ifname} cannot be taken down now: {failure}")

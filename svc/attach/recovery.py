"""Recovery after a start: undo interrupted attachments, retry pending releases, free what an earlier boot held."""

import time
from collections.abc import Sequence

from svc.attach.context import Context
from svc.attach.record import ADDED, DELETING, WAITING, AttachmentId, Record
from svc.attach.sources.select import source_of
from svc.attach.teardown import defer_release, take_down
from svc.call_trace import CallTrace
from svc.model.errors import SvcError

Store = tuple[str, tuple[tuple[str, str], ...], str]


def interrupted(context: Context) -> Sequence[Record]:
    """The rows that did not survive: what the last agent, or the last boot, left unfinished. StoreError.

    An ADD that waits at a gate, and goes on without the last agent, is not among them before its time is over."""
    return [record for record in context.journal.all() if not _stands(context, record)]


class Recovery:
    """Takes down interrupted attachments, each once, in any order and from any thread.

    A datastore that has failed once, after a time-out perhaps, is not asked for the rest: their releases stay pending.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failing: set[Store] = set()

    def take_down(self, record: Record, trace: CallTrace) -> bool:
        """Whether nothing of it is left, because it went or because a call has changed its row since."""
        current = self._context.journal.get(record.id)
        if current is None or current.generation != record.generation:
            return True
        trace.info(f"taking down {record.id.container_id} {record.id.ifname} of {record.id.network}, left {record.state}")
        try:
            if store_of(current) in self._failing:
                defer_release(self._context, current)
                return False
            if take_down(self._context, current, trace):
                return True
            self._failing.add(store_of(current))
        except SvcError as failure:
            _warn(record, failure, trace)
        return False


def store_of(record: Record) -> Store:
    """What must work to free it: its datastore session, but for the node, and the plugin that gave its addresses."""
    return record.profile, tuple(sorted(record.settings.items())), source_of(record).plugin


def retry_release(context: Context, key: AttachmentId, trace: CallTrace) -> bool:
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
    if record.boot_id != context.boot_id:
        return False
    return record.state == ADDED or (record.state == WAITING and record.outlives and record.waits_until > time.time())


def _warn(record: Record, failure: SvcError, trace: CallTrace) -> None:
    trace.warning(f"{record.id.container_id} {record.id.ifname} cannot be taken down now: {failure}")

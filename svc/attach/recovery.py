"""Recovery after a start: tear down interrupted attachments and those of earlier boots, and retry pending releases."""

import time
from collections.abc import Sequence

from svc.attach.context import Context
from svc.attach.moved_store import follow
from svc.attach.record import ADDED, ADDING, DELETING, WAITING, AttachmentId, Record, SessionKey, StoreSettings
from svc.attach.sources.select import source_of
from svc.attach.teardown import record_pending_release, tear_down, unwire
from svc.call_trace import CallTrace
from svc.model.errors import SvcError

CONTINUE_SECONDS = 30.0  # after the deadline of a parked call: its client still comes for the error

Store = tuple[StoreSettings, str]
"""The services that a release needs: the datastore of the record, and the plugin that assigned its addresses."""


def interrupted(context: Context) -> Sequence[Record]:
    """Return the rows that the last agent, or an earlier boot, left unfinished. Raise StoreError if the journal fails.

    Omit an ADD that waits for a gate until its client has had the time to continue it and report the timeout.
    """
    return [record for record in context.journal.all() if not _stands(context, record)]


class Teardowns:
    """Teardowns of several attachments. Thread-safe.

    After a datastore has failed, perhaps with a timeout, it gets no further request: its other releases use the settings of the
    call, if these reach the same datastore, or stay pending.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failing: dict[Store, str] = {}  # with the reason of the failure

    def tear_down(self, record: Record, trace: CallTrace, where: SessionKey | None = None) -> bool:
        """Tear the attachment down, and return whether no release is pending. Raise SvcError as `teardown.tear_down`."""
        store = store_of(record)
        if store in self._failing and follow(self._context, record, where, releases=True):
            store = store_of(record)
        if store in self._failing:
            unwire(self._context, record)
            record_pending_release(self._context, record, self._failing[store])
            return False
        failure = tear_down(self._context, record, trace, where=where)
        if store_of(record) != store:
            self._failing[store] = "its former datastore has failed"
        if failure is not None:
            self._failing[store_of(record)] = str(failure)
        return failure is None

    def recover(self, record: Record, trace: CallTrace) -> bool:
        """Tear an interrupted attachment down. Return whether that succeeded, or a call has replaced or removed the row."""
        current = self._context.journal.get(record.id)
        if current is None or current.generation != record.generation:
            return True
        trace.info(f"taking down {record.id.container_id} {record.id.ifname} of {record.id.network}, left {record.state}")
        try:
            return self.tear_down(current, trace)
        except SvcError as failure:
            _warn(record, failure, trace)
            return False


def store_of(record: Record) -> Store:
    """Return what the release of the attachment needs."""
    return record.session_key.store, source_of(record).plugin


def retry_release(context: Context, key: AttachmentId, trace: CallTrace) -> bool:
    """Retry the pending release of an attachment, or tear down what an ADD left. Return whether no release is pending any more.

    No other job of the container runs, so that no ADD of this process works on the row.
    """
    record = context.journal.get(key)
    if record is None or not (record.state in (ADDING, DELETING) or is_abandoned(record)):
        return True
    try:
        return tear_down(context, record, trace) is None
    except SvcError as failure:
        _warn(record, failure, trace)
        return False


def _stands(context: Context, record: Record) -> bool:
    if record.boot_id != context.boot_id:
        return False
    return record.state == ADDED or (record.state == WAITING and record.outlives and not is_abandoned(record))


def is_abandoned(record: Record) -> bool:
    """Return whether the row is of a parked ADD whose client does not come any more."""
    return record.state == WAITING and time.time() > record.waits_until + CONTINUE_SECONDS


def _warn(record: Record, failure: SvcError, trace: CallTrace) -> None:
    trace.warning(f"{record.id.container_id} {record.id.ifname} cannot be taken down now: {failure}")

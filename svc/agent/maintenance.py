"""Periodic retries of pending releases."""

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable

from svc.agent.lanes import Lane
from svc.agent.queue import Job
from svc.attach.context import Context
from svc.attach.record import ADDING, DELETING, Record
from svc.attach.recovery import Store, is_abandoned, retry_release, store_of
from svc.call_trace import CallTrace, new_request_id
from svc.retry import Backoff

RETRY_SECONDS = 30.0  # between rounds of releases, and before the first retry in a datastore that has failed
MAX_RETRY_SECONDS = 300.0  # limit of the delay, which doubles with each failure

log = logging.getLogger("svc.agent")


class Maintenance:
    """Retries of pending releases. `put` queues a job, which runs between the calls of its container. `is_parked` reports
    whether a call of a container is parked.

    The releases of one datastore are retried one after another, in random order, so that none blocks the others for ever. A
    round ends with the first failure, because the other releases would wait as long and occupy a worker each.
    """

    def __init__(self, context: Context, put: Callable[[Job], None], is_parked: Callable[[str], bool]) -> None:
        self._context = context
        self._put = put
        self._is_parked = is_parked
        self._stopping = False
        self._adding: set[int] = set()  # generations of the rows of ADDs in the last round
        self._in_flight: set[Store] = set()
        self._delays: dict[Store, tuple[Backoff, float]] = {}  # if the last attempt failed, with the time of the next one

    def stop(self) -> None:
        """Start no further release. A running one is finished."""
        self._stopping = True

    def retry_releases(self) -> None:
        """Queue the first pending release of each datastore that has none in the queue.

        Also queue a row "adding" that was there in the last round: the rollback of its ADD could not write to the journal.
        """
        self._context.journal.refill_reserve()
        pending: dict[Store, list[Record]] = defaultdict(list)
        adding = set()
        for record in self._context.journal.unsettled():
            if record.state == ADDING:
                adding.add(record.generation)
            if record.state == DELETING or record.generation in self._adding or is_abandoned(record):
                pending[store_of(record)].append(record)
        self._adding = adding
        now = time.monotonic()
        for store in pending.keys() - self._in_flight:
            if store not in self._delays or self._delays[store][1] <= now:
                self._in_flight.add(store)
                self._continue(store, random.sample(pending[store], len(pending[store])))

    def _continue(self, store: Store, records: list[Record]) -> None:
        while records and self._is_parked(records[-1].id.container_id):  # its release would delay all the others
            records.pop()
        if not records or self._stopping:
            self._in_flight.discard(store)
            return
        record = records.pop()
        self._put(Job(Lane("release-retry"), record.id.container_id, lambda _: self._retry_release(store, record, records)))

    def _retry_release(self, store: Store, record: Record, others: list[Record]) -> None:
        trace, is_released = CallTrace(new_request_id()), False
        try:
            with trace.activated():
                is_released = retry_release(self._context, record.id, trace)
        finally:
            self._schedule_next_attempt(store, succeeded=is_released)
            self._continue(store, others if is_released else [])
        if not is_released:
            log.warning(
                "the release of %s is still pending: %s", record.handle, "".join(text for _, text in trace.messages[-1:])
            )

    def _schedule_next_attempt(self, store: Store, *, succeeded: bool) -> None:
        """Delay the next attempt in a datastore that fails."""
        backoff, _ = self._delays.pop(store, (Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS, jitter=0), 0.0))  # rounds are periodic
        if not succeeded:
            self._delays[store] = backoff, time.monotonic() + backoff.next()

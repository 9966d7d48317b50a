"""Detect datastores that lost data, and queue the jobs that claim live attachments again."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from svc import deadline
from svc.agent.lanes import Lane
from svc.agent.queue import Job
from svc.attach.context import Context
from svc.attach.datastore_ready import KEY
from svc.attach.moved_store import avoid_others, move_rows
from svc.attach.reclaim import lost, restore, without_endpoint
from svc.attach.record import AttachmentId, Record, SessionKey
from svc.attach.sessions import DatastoreSession
from svc.call_trace import CallTrace, new_request_id
from svc.datastore.api import Backend
from svc.model.errors import SvcError
from svc.values import dataclass, field

LOOK_SECONDS = 2.0  # between two reads of the generation of ClusterInformation
VERIFY_SECONDS = 180.0  # between two comparisons of the node's attachments with their blocks
CONFLICT_SECONDS = 30.0  # the same interval while another handle holds an address of a live attachment
JOB_SECONDS = 10.0  # for one datastore, or one attachment

log = logging.getLogger("svc.agent")


@dataclass(slots=True)
class _State:
    """State of one datastore and node."""

    in_flight: bool = False
    failing: bool = False
    seen: tuple[Backend | None, tuple[int, ...]] = (None, ())
    verify_at: float = 0.0
    endpoints_after: int = -1  # number of data losses when endpoints were last compared; -1: never
    retry: set[AttachmentId] = field(default_factory=set)  # attachments that could not be claimed in full


class Restoring:
    """Detection of lost data. `put` queues a job for the agent's workers."""

    def __init__(self, context: Context, put: Callable[[Job], None]) -> None:
        self._context = context
        self._put = put
        self._states: dict[SessionKey, _State] = {}
        self._seen: tuple[int, dict[tuple[str, str], SessionKey]] = -1, {}
        self._former: dict[SessionKey, dict[SessionKey, list[AttachmentId]]] = {}

    def look(self) -> None:
        """Queue one job for each datastore and node with attachments, unless the last one is still in flight."""
        seen = self._context.journal.changes, dict(self._context.networks.present)
        if seen != self._seen:
            rows = self._context.journal.datastores()
            self._former = self._rows_with_former_settings(rows)
            stores = {own for _, own in rows} | self._former.keys()
            self._states = {store: self._states.get(store) or _State() for store in stores}
            self._drop_conflicts()
            self._seen = seen
        suspicious, self._context.suspects_loss = self._context.suspects_loss, False
        for store, state in self._states.items():
            if suspicious:
                state.verify_at = 0.0
            if not state.in_flight:
                state.in_flight = True
                self._put(Job(Lane("restore"), "", partial(self._check, store, state)))

    def _drop_conflicts(self) -> None:
        """Drop the conflicts of attachments that were deleted."""
        if self._context.conflicts:
            for key in self._context.conflicts.keys() - {record.id for record in self._context.journal.all()}:
                self._context.conflicts.pop(key, None)

    def _rows_with_former_settings(
        self, rows: Iterable[tuple[str, SessionKey]]
    ) -> dict[SessionKey, dict[SessionKey, list[AttachmentId]]]:
        """Return the rows whose network configuration has changed, by the present datastore of the network and their own.

        `rows` has their networks and datastores."""
        found: dict[SessionKey, dict[SessionKey, list[AttachmentId]]] = {}
        for network, own in rows:
            where = self._context.networks.present.get((own.profile, network), own)
            if where.store != own.store and where.node == own.node:
                records = self._context.journal.of_network(network)
                ids = [record.id for record in records if record.session_key == own]
                found.setdefault(where, {}).setdefault(own, []).extend(ids)
        return found

    def _check(self, store: SessionKey, state: _State, _job: Job) -> None:
        try:
            with deadline.limit(JOB_SECONDS):
                session = self._context.session(store)
                self._observe(session, state)
                for old, rows in self._former.get(store, {}).items():
                    if move_rows(self._context, old, rows, session):
                        self._context.suspects_loss = True
                self._avoid_others(store, session)
                if session.identity.is_pending or state.retry or time.monotonic() >= state.verify_at:
                    self._verify(store, session, state)
            state.failing = False
        except SvcError as failure:
            if not state.failing:
                log.warning("it is not known whether the datastore still has the attachments of this node: %s", failure)
            state.failing = True
        finally:
            state.in_flight = False

    def _avoid_others(self, store: SessionKey, session: DatastoreSession) -> None:
        """Keep addresses from being assigned whose rows name a datastore with the same data by other settings."""
        if len(self._states) > 1:
            others = {each for each in self._states if each.store != store.store and each.node == store.node}
            avoid_others(self._context, session, others, self._context.journal.all)

    def _observe(self, session: DatastoreSession, state: _State) -> None:
        """Read the datastore's identity again if it may have changed."""
        seen = session.backend, session.backend.generations((KEY.kind,))
        if seen != state.seen or session.identity.has_moved(session.backend):
            session.readiness.require()
            state.seen = seen

    def _verify(self, store: SessionKey, session: DatastoreSession, state: _State) -> None:
        session.readiness.require()
        records = [record for record in self._context.journal.all() if record.session_key == store]
        state.retry &= {record.id for record in records}
        wanted = {record.id for record in lost(self._context, session, records)} | state.retry
        if wanted <= self._context.conflicts.keys():
            wanted |= self._without_endpoint(session, state, records)
        for key in (self._context.conflicts.keys() & {record.id for record in records}) - wanted:
            self._context.conflicts.pop(key, None)
        for key in wanted:
            self._put(Job(Lane("restore"), key.container_id, partial(self._restore, key, state)))
        if wanted <= self._context.conflicts.keys():
            session.held_seconds()  # reads the pools, without which no address can be claimed
            session.identity.on_restored()
            session.identity.save(session.backend)
            state.verify_at = time.monotonic() + (CONFLICT_SECONDS if wanted else VERIFY_SECONDS)

    def _without_endpoint(self, session: DatastoreSession, state: _State, records: Sequence[Record]) -> set[AttachmentId]:
        """Return attachments without an endpoint, once after each loss: a killed agent may have written only the addresses."""
        if not session.identity.is_pending or state.endpoints_after == session.identity.changes:
            return set()
        missing = {record.id for record in without_endpoint(self._context, session, records)}
        state.endpoints_after = session.identity.changes
        return missing

    def _restore(self, key: AttachmentId, state: _State, _job: Job) -> None:
        trace = CallTrace(new_request_id())
        try:
            with deadline.limit(JOB_SECONDS):
                restore(self._context, key, trace)
            state.retry.discard(key)
        except SvcError as failure:
            if key not in state.retry:
                trace.warning(f"the addresses of {key.container_id} {key.ifname} cannot be claimed again now: {failure}")
            state.retry.add(key)
        for level, text in trace.messages:
            log.log(level, "%s", text)

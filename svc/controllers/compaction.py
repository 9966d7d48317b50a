"""Compaction of etcd: its history would otherwise grow for ever.

A datastore session reads the history to find out whether a write without an answer was applied. So the history of at least one
period is kept.
"""

import logging
import threading
from typing import TYPE_CHECKING

from svc import deadline
from svc.attach.datastore_ready import KEY
from svc.controllers.configuration import Live
from svc.leader.election import Election
from svc.model.errors import SvcError

if TYPE_CHECKING:
    from svc.datastore.etcd.store import EtcdStore  # loads gRPC

log = logging.getLogger("svc.controllers")


class Compaction:
    """The thread that compacts the history, once in a period while this process leads, to the revision of a period earlier."""

    def __init__(self, store: "EtcdStore", election: Election, live: Live) -> None:
        self._store = store
        self._election = election
        self._live = live
        self._stopping = threading.Event()
        self._changed = threading.Event()
        live.on_change(lambda _: self._changed.set())
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the request that it may be sending."""
        self._stopping.set()
        self._changed.set()

    def _run(self) -> None:
        earlier = 0
        while not self._stopping.is_set():
            seconds = self._live.now.compaction_seconds
            try:
                earlier = self._step(earlier) if seconds else 0
            except SvcError as failure:
                if not self._stopping.is_set():
                    log.warning("etcd was not compacted: %s", failure)
            if self._changed.wait(seconds or None):
                self._changed.clear()
                earlier = 0  # from less than one period earlier

    def _step(self, earlier: int) -> int:
        """Compact to the `earlier` revision, unless it is 0. Return the present revision. Raise SvcError."""
        if earlier and self._election.leads:
            with deadline.limit(self._election.require()):
                self._store.compact(earlier)
            log.debug("etcd is compacted to revision %d", earlier)
        self._store.find(KEY)  # the answer has the revision
        return self._store.position().revision

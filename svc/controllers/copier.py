"""Threads that keep the copies of one kind equal to their originals in the Kubernetes API.

Two watches fill two tables of digests: what each copy should be, and what it is. Keys whose digests differ go into a queue.
The worker reads the copy and the original of a key again before it writes. So a table is a hint, and a late event cannot make
the worker delete a copy whose original exists.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timezone

import orjson

from svc.controllers.copied_kind import CopiedKind, Json, Translation, Untranslatable
from svc.controllers.election import Election, NotLeading
from svc.controllers.retry_queue import RetryQueue
from svc.datastore.api import Backend, Create, Delete, Entry, Event, Update
from svc.datastore.orch.client import ApiError, Client
from svc.datastore.orch.watch import DELETED, LISTED, OPENED, PAGE, PagedWatch
from svc.datastore.watching import Reconnecting
from svc.model.errors import SvcError
from svc.model.keys import ResourceKey
from svc.model.object_metadata import bit_reversed_uid
from svc.model.resource import Resource, set_identity
from svc.retry import Backoff
from svc.values import dataclass

_POLL_SECONDS = 1.0  # maximum time until the worker sees that this process leads no longer
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 30.0  # seconds before the copies are listed again
_UNKNOWN = b""  # digest of an original that cannot be translated: different from every other one

log = logging.getLogger("svc.controllers")

Digests = dict[ResourceKey, bytes]


@dataclass(frozen=True, slots=True)
class Shared:
    """What the controllers of a process share. `store` refuses writes unless the process leads.

    `fail` is called with the reason if a thread ends because of a bug.
    """

    client: Client
    store: Backend
    election: Election
    round_seconds: float  # between full rounds
    fail: Callable[[str], None]


class Copier:
    """One controller. `start` starts its threads, `stop` ends them."""

    def __init__(self, kind: CopiedKind, shared: Shared) -> None:
        self._kind = kind
        self._shared = shared
        self._store = shared.store
        self._changed = threading.Condition()  # guards the queue and the tables
        self._queue: RetryQueue[ResourceKey] = RetryQueue()
        self._wanted: Digests | None = None  # None until all originals were listed
        self._stored: Digests | None = None  # None until all copies were listed
        self._round_due = 0.0
        self._stopping = threading.Event()
        self._originals: Reconnecting[tuple[str, object]] = PagedWatch(shared.client, kind.path)
        self._close_copies = self._stopping.set
        threads = {"worker": self._work, "originals": self._follow_originals, "copies": self._follow_copies}
        self._threads = [
            threading.Thread(target=self._run, args=(run,), name=f"{kind.controller}-{name}", daemon=True)
            for name, run in threads.items()
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def begin_round(self) -> None:
        """Compare all copies now."""
        with self._changed:
            self._round_due = 0.0
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin no further write, and end the watches."""
        self._stopping.set()
        self._originals.close()
        self._close_copies()
        with self._changed:
            self._changed.notify_all()

    def await_writes(self, seconds: float) -> bool:
        """Wait after `stop` until no write is in flight. Return False if one still is after this time."""
        self._threads[0].join(seconds)
        return not self._threads[0].is_alive()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as bug:  # otherwise the process would lead on, and this controller would write nothing
            log.exception("controller %s has failed", self._kind.controller)
            self._shared.fail(f"controller {self._kind.controller}: {bug!r}")

    # what the copies should be

    def _follow_originals(self) -> None:
        listed: Digests = {}
        for step in self._originals.steps():
            if step is None:
                listed = {}  # an interrupted list begins again
                continue
            kind, data = step
            if kind == PAGE:
                assert isinstance(data, list)
                listed |= {self._kind.key(each): self._digest(each) for each in data}
                data.clear()  # the page is not needed while the next one is read
            elif kind == LISTED:
                self._replace_wanted(listed)
                listed = {}
            elif kind != OPENED:
                assert isinstance(data, dict)
                self._note_original(data, deleted=kind == DELETED)

    def _replace_wanted(self, listed: Digests) -> None:
        with self._changed:
            before, self._wanted = self._wanted or {}, listed
            self._compare(before.keys() | listed.keys())

    def _note_original(self, original: Json, *, deleted: bool) -> None:
        key, digest = self._kind.key(original), None if deleted else self._digest(original)
        with self._changed:
            assert self._wanted is not None
            _set(self._wanted, key, digest)
            self._compare((key,))

    def _digest(self, original: Json) -> bytes:
        try:
            return _digest(self._kind.translate(original).spec)
        except Untranslatable:
            return _UNKNOWN  # the worker reports it

    # what the copies are

    def _follow_copies(self) -> None:
        backoff, interrupted = Backoff(_MIN_BACKOFF, _MAX_BACKOFF), False
        while not self._stopping.is_set():
            try:
                self._list_copies()
                interrupted = False
                backoff.reset()
                self._watch_copies()
            except SvcError as failure:
                if not interrupted and not self._stopping.is_set():
                    log.warning("controller %s cannot read its copies, and tries again: %s", self._kind.controller, failure)
                interrupted = True
                self._stopping.wait(backoff.next())

    def _list_copies(self) -> None:
        """Fill the table page by page. The watch that follows reports all copies again, and does not say when it has."""
        listed: Digests = {}
        for page in self._store.pages(self._kind.query):
            listed |= {
                key: _digest(value.spec) for key, value in ((each.key, each.value) for each in page) if self._kind.owns(key)
            }
        with self._changed:
            before, self._stored = self._stored or {}, listed
            self._compare(before.keys() | listed.keys() | (self._wanted or {}).keys())

    def _watch_copies(self) -> None:
        watch = self._store.watch(self._kind.query)
        self._close_copies = watch.close
        if self._stopping.is_set():
            watch.close()
        for event in watch:
            self._note_copy(event)

    def _note_copy(self, event: Event) -> None:
        if self._kind.owns(event.key):
            digest = None if event.entry is None else _digest(event.entry.value.spec)
            with self._changed:
                assert self._stored is not None
                _set(self._stored, event.key, digest)
                self._compare((event.key,))

    # writes

    def _compare(self, keys: Iterable[ResourceKey]) -> None:
        """Put the keys into the queue whose copies are not as they should be. The caller holds the lock."""
        if self._wanted is None or self._stored is None:
            return
        now, size = time.monotonic(), len(self._queue)
        for key in keys:
            if self._wanted.get(key) != self._stored.get(key):
                self._queue.add(key, now)
        if len(self._queue) > size:
            self._changed.notify_all()

    def _work(self) -> None:
        while not self._stopping.is_set():
            key = self._next()
            if key is not None:
                self._attempt(key)

    def _next(self) -> ResourceKey | None:
        """Return a key that is due. Wait at most _POLL_SECONDS for one, and return None then."""
        with self._changed:
            if self._shared.election.leads:
                now = time.monotonic()
                if now >= self._round_due and self._wanted is not None and self._stored is not None:
                    self._round_due = now + self._shared.round_seconds
                    self._compare(self._wanted.keys() | self._stored.keys())
                if (key := self._queue.take(now)) is not None:
                    return key
            self._changed.wait(_POLL_SECONDS)
            return None

    def _attempt(self, key: ResourceKey) -> None:
        """Write the copy at a key if it is not as it should be. After a failure, put the key back."""
        reason: Exception
        try:
            self._settle(key)
        except NotLeading:
            with self._changed:
                self._queue.add(key, time.monotonic())
            return
        except (SvcError, Untranslatable) as failure:
            reason = failure
        else:
            with self._changed:
                has_failed = self._queue.done(key)
            if has_failed:
                log.info("controller %s: %s is up to date after failures", self._kind.controller, _shown(key))
            return
        with self._changed:
            delay = self._queue.failed(key, time.monotonic())
        log.warning("controller %s: %s is tried again in %.0f s: %s", self._kind.controller, _shown(key), delay, reason)

    def _settle(self, key: ResourceKey) -> None:
        """Read copy and original, and write the difference. Raise Untranslatable, NotLeading, SvcError.

        The copy is read first: if another leader writes it before this process does, the write fails with a conflict.
        """
        entry = self._store.find(key)
        original = self._original(key)
        wanted = None if original is None else self._kind.translate(original)
        write = _write(key, original, wanted, entry)
        if write is None:
            return
        self._store.write([write], durable=True)
        done = {Create: "created", Update: "updated", Delete: "deleted"}[type(write)]
        log.info("controller %s: %s %s", self._kind.controller, done, _shown(key))
        for reason in wanted.left_out if wanted else ():
            log.warning("controller %s: %s lacks a rule: %s", self._kind.controller, _shown(key), reason)

    def _original(self, key: ResourceKey) -> Json | None:
        try:
            return self._shared.client.get(self._kind.original_path(key))
        except ApiError as error:
            if error.status == 404 and error.reason == "NotFound":  # another reason: the kind is not served
                return None
            raise


def _write(
    key: ResourceKey, original: Json | None, wanted: Translation | None, entry: Entry[Resource] | None
) -> Create | Update | Delete | None:
    """Return the write that makes a copy what it should be; None if it is."""
    if original is None or wanted is None:
        return None if entry is None else Delete(key, entry.revision)
    if entry is None:
        place = {"namespace": key.namespace} if key.namespace else {}
        copy = Resource(key.kind, {"name": key.name, **place}, wanted.spec)
        set_identity(copy, datetime.now(timezone.utc), bit_reversed_uid(str(original["metadata"].get("uid") or "")))
        return Create(key, copy)
    if _digest(entry.value.spec) == _digest(wanted.spec):
        return None
    return Update(key, replace(entry.value, spec=wanted.spec), entry.revision)


def _set(table: Digests, key: ResourceKey, digest: bytes | None) -> None:
    if digest is None:
        table.pop(key, None)
    else:
        table[key] = digest


def _digest(spec: Json) -> bytes:
    return hashlib.blake2b(orjson.dumps(spec, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _shown(key: ResourceKey) -> str:
    return f"{key.namespace}/{key.name}" if key.namespace else key.name

"""etcd v3 store: keys and documents in the encoding of `svc.model.kv_codec`; a revision is etcd's ModRevision.

1. A call is one round trip: a get is one Range, a list one Range per PAGE entries, a write one transaction.
2. If a server does not answer a read, the store retries it at the next server.
3. It retries a write as well, although the first server may have applied it. The retry is safe, because it changes nothing
   unless its keys are in the expected state. If they are not, the history of the keys shows whether an earlier attempt
   changed them. If etcd has compacted the history, the store raises OutcomeUnknown. One case cannot be detected: if an
   attempt created a key and another client deleted it, the retry creates it again.
4. If two writers make the same change at the same state of a key, both may get the result that it was applied.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from svc.atomic_file import file_version
from svc.datastore.api import Backend, Entries, Entry, Event, Found, NotFound, Position, UndecodableEntry, Write, found_by
from svc.datastore.etcd import txn
from svc.datastore.etcd.connection import PROBE, Compacted, EtcdConnection, RetryBudget
from svc.datastore.etcd.messages import Message, rpc
from svc.datastore.etcd.settings import read_settings
from svc.datastore.etcd.watch import Deletions, QueryWatch, Span, SpanWatch
from svc.datastore.generations import Generations
from svc.datastore.watching import EventStream, OpenWatches
from svc.metrics import StoreMeter
from svc.model.keys import IPAM_CONFIG, BlockQuery, IpamConfigKey, Key, Query, ResourceQuery
from svc.model.kv_codec import Codec, matches
from svc.names import Names

PAGE = 2000  # entries per request; a block of 64 addresses has 1 to 10 KB
SMALL_PAGE = 500  # the same if the caller reads page by page to save memory
BLOCK_PAGE = 200  # the same for blocks, which are the largest documents
DECODED_BLOCKS = 16  # of these, decoded at a time: they take ten times as much memory then

_log = logging.getLogger(__name__)


class EtcdStore(Backend):
    """Session with an etcd cluster. Raise CallerError if the settings are invalid. The first call opens the connection."""

    atomic = True
    requires_node = True

    def __init__(self, settings: dict[str, str], names: Names) -> None:
        cluster = read_settings(settings)
        self.meter = StoreMeter()
        self._codec = Codec(names)
        self._origin = cluster.origin
        self._files = {path: file_version(path) for path in cluster.files}
        self._connection = EtcdConnection(cluster, lambda: read_settings(settings), self.meter)
        self._watches: OpenWatches[EventStream] = OpenWatches()
        self._generations = Generations(lambda kind: SpanWatch(self._connection, self._counted(kind), kind))

    @property
    def place(self) -> str:
        return self._connection.place

    def is_current(self) -> bool:
        """Return False if a certificate or key file was replaced or changed."""
        return all(file_version(path) == version for path, version in self._files.items())

    def get(self, key: Key) -> Entry:
        request = rpc.RangeRequest(key=self._codec.path(key).encode())
        answer = self._connection.budget().range(request)
        return self._valid(key, txn.first(answer.kvs))

    def get_all(self, keys: Sequence[Key]) -> Sequence[Found]:
        request = txn.reading(self._codec.path(key).encode() for key in keys)
        answer = self._connection.budget().txn(request)
        stored = dict(zip(keys, txn.states(answer), strict=True))
        return [found_by(lambda key: self._valid(key, stored[key]), key) for key in keys]

    def list(self, query: Query) -> Entries:
        budget, entries = self._connection.budget(), Entries()
        for _, kvs in self._ranges(query, PAGE, lambda: budget):
            self._gather(query, kvs, entries)
        return entries

    def pages(self, query: Query) -> Iterator[Entries]:
        """Yield the entries of a query at one revision. The caller may take long between the pages."""
        yield from (entries for _, entries in self._numbered_pages(query))

    def history(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield the present revision, and path and document of every key at it. Raise Compacted if it is discarded."""
        root = self._codec.root.encode()
        request = rpc.RangeRequest(key=root, range_end=root[:-1] + bytes([root[-1] + 1]), limit=PAGE)
        for revision, kvs in self._pages(request, self._connection.budget):
            yield from ((revision, kv.key.decode(errors="replace"), kv.value) for kv in kvs)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:  # noqa: ARG002
        """Apply all writes or none. Writes are always durable, because etcd syncs before it answers."""
        if not writes:
            return ()
        changes = [txn.change(self._codec, write) for write in writes]
        revision = txn.Commit(self._connection, changes).run(self._decoded)
        return [change.entry(revision) for change in changes]

    def check_writable(self) -> None:
        """Send a write whose condition is never true. etcd refuses even such a write if its space is exceeded."""
        self._connection.budget().txn(txn.impossible(self._codec.path(IpamConfigKey()).encode()), PROBE)

    def compact(self, revision: int) -> None:
        """Discard the history before a revision. If another client has discarded more, do nothing. Raise StoreError."""
        with suppress(Compacted):
            self._connection.budget().repeat(lambda seconds: self._connection.compact(revision, seconds))

    def revision(self) -> int:
        """Return the present revision of the cluster, without reading a document."""
        request = rpc.RangeRequest(key=self._codec.root.encode(), limit=1, keys_only=True)
        return next(revision for revision, _ in self._pages(request, self._connection.budget))

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self._generations.current, kinds))

    def position(self) -> Position:
        return self._connection.position

    def watch(self, query: Query, listed: Callable[[], None] | None = None) -> EventStream:
        """Return a watch of the changes of all processes. It continues after broken connections and restarts of servers."""
        watch = QueryWatch(
            self._connection, self._span(query), lambda: self._numbered_pages(query), lambda kv: self._event(query, kv)
        )
        return self._watches.add(EventStream(watch, lambda events: events, lambda step: isinstance(step, Deletions), listed))

    def close(self) -> None:
        self._watches.close()
        self._generations.close()
        self._connection.close()

    # reading

    def _valid(self, key: Key, kv: Message | None) -> Entry:
        if kv is None:
            raise NotFound(key)
        try:
            return self._entry(key, kv)
        except ValueError as error:
            message = f"etcd ({self._origin}) holds no valid document at {self._codec.path(key)}: {error}"
            raise UndecodableEntry(message, details="delete the key, or restore it from a copy") from error

    def _numbered_pages(self, query: Query) -> Iterator[tuple[int, Entries]]:
        """Yield a revision, and the entries of a query at it in parts. The caller may take long between them."""
        limit, size = (BLOCK_PAGE, DECODED_BLOCKS) if isinstance(query, BlockQuery) else (SMALL_PAGE, SMALL_PAGE)
        for revision, kvs in self._ranges(query, limit, self._connection.budget):
            for first in range(0, len(kvs) or 1, size):  # also one without entries, for its revision
                entries = Entries()
                self._gather(query, kvs[first : first + size], entries)
                yield revision, entries

    def _ranges(self, query: Query, limit: int, budget: Callable[[], RetryBudget]) -> Iterator[tuple[int, Any]]:
        """Yield a revision, and the KeyValues of a query at it in parts."""
        first, end = self._span(query)
        yield from self._pages(rpc.RangeRequest(key=first, range_end=end, limit=limit), budget)

    def _pages(self, request: Message, budget: Callable[[], RetryBudget]) -> Iterator[tuple[int, Any]]:
        """Yield the revision of the first answer, and the KeyValues of a range at it in parts."""
        while True:
            answer = budget().range(request)
            request.revision = request.revision or answer.header.revision
            yield request.revision, answer.kvs
            if not answer.more:
                return
            request.key = answer.kvs[-1].key + b"\0"

    def _counted(self, kind: str) -> Span:
        """Return the span of the keys whose changes advance the generation of this kind."""
        if kind == IPAM_CONFIG:
            path = self._codec.path(IpamConfigKey()).encode()
            return path, path + b"\0"
        return self._span(ResourceQuery(kind))

    def _span(self, query: Query) -> Span:
        """Return the first key of a query's range, and the key after the last. The last byte of a prefix is never 0xff."""
        prefix = self._codec.prefix(query).encode()
        return prefix, prefix[:-1] + bytes([prefix[-1] + 1])

    def _gather(self, query: Query, kvs: Any, entries: Entries) -> None:
        for kv in kvs:
            key = self._key(query, kv)
            if key is not None:
                try:
                    entries.append(self._entry(key, kv))
                except ValueError as error:
                    entries.skip(self._codec.path(key), error)
            elif self._codec.is_misnamed(query, path := kv.key.decode(errors="replace")):
                entries.skip_misnamed(path)

    def _event(self, query: Query, kv: Message) -> Event | None:
        """Return the event for a KeyValue; None if the key does not match the query. A deleted key has version 0."""
        key = self._key(query, kv)
        return None if key is None else Event(key, self._decoded(key, kv) if kv.version else None)

    def _key(self, query: Query, kv: Message) -> Key | None:
        path = kv.key.decode(errors="replace")
        key = self._codec.key(path)
        if key is None:
            _log.debug("left out %s: not a key of svc", path)
        return key if key is not None and matches(query, key) else None

    def _decoded(self, key: Key, kv: Message) -> Entry | None:
        try:
            return self._entry(key, kv)
        except ValueError as error:
            _log.warning("left out %s: %s", self._codec.path(key), error)
            return None

    def _entry(self, key: Key, kv: Message) -> Entry:
        return Entry(key, self._codec.decode(key, kv.value), str(kv.mod_revision))

"""Watches of collections of the Kubernetes API, which continue after broken connections and expired revisions."""

import logging
import socket
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import orjson
import urllib3

from svc.datastore.api import Entry, Event
from svc.datastore.orch.client import CALL_SECONDS, METADATA_ONLY, SMALL_PAGE, WATCH_SECONDS, ApiError, Client, Unreachable
from svc.datastore.orch.resource_store import Collection, name_of, revision_of
from svc.datastore.watching import PresentKeys, Reconnecting
from svc.model.errors import SvcError
from svc.model.keys import Query
from svc.model.kv_codec import matches
from svc.retry import Backoff

Json = dict[str, Any]
Change = tuple[str, Any]  # type and object; for LISTED, all objects

MAX_BACKOFF = 30.0  # seconds
BEGUN, PAGE, LISTED, OPENED, DELETED = "BEGUN", "PAGE", "LISTED", "OPENED", "DELETED"
_EXPIRED = 410  # the revision is too old to continue from
_REFUSED = (401, 403, 404)  # a retry cannot resolve these

_log = logging.getLogger(__name__)


class Stream:
    """Stream of changes. One thread iterates; `close`, from any thread, ends the iteration."""

    def __init__(self, reply: urllib3.BaseHTTPResponse) -> None:
        self._reply = reply
        self._socket: socket.socket | None = getattr(reply.connection, "sock", None)
        if self._socket is not None:  # the server ends the stream earlier, unless the connection is dead
            self._socket.settimeout(WATCH_SECONDS + CALL_SECONDS)

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """Yield type and object of each change, until the server ends the stream or the connection breaks."""
        rest = b""
        with suppress(urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            for chunk in self._reply.stream():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = orjson.loads(line)
                    yield event["type"], event["object"]

    def close(self) -> None:
        """Shut the socket down, which wakes the reading thread; closing the socket would not."""
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # the method of SSLSocket would discard TLS state

    def release(self) -> None:
        """Close the reply. The reading thread calls it after its last read."""
        self._reply.close()


class CollectionWatch(Reconnecting[Change]):
    """Watch of a collection, with the metadata of its objects.

    It yields LISTED at first and after an expired revision, OPENED for each stream, and then the changes.
    """

    accept = METADATA_ONLY

    def __init__(self, client: Client, what: str, collection: Callable[[], Collection]) -> None:
        super().__init__(what, MAX_BACKOFF)
        self._client = client
        self._collection = collection
        self._revision = ""  # to continue from; empty to read the collection first

    def list_again(self) -> None:
        self._revision = ""

    def _is_refusal(self, failure: SvcError) -> bool:
        return failure.status in _REFUSED if isinstance(failure, ApiError) else not isinstance(failure, Unreachable)

    def _attempt(self) -> Iterator[Change]:
        collection = self._collection()
        if self._revision and self._is_restored(collection):
            self._revision = ""
        if not self._revision:
            yield from self._begin(collection)
        stream = self._open(collection)
        try:
            with self._closing(stream.close):
                yield OPENED, {}
                yield from self._changes(collection, stream)
        finally:
            stream.release()

    def _is_restored(self, collection: Collection) -> bool:  # noqa: ARG002
        """Return whether the server has older data than this watch has seen."""
        return False

    def _begin(self, collection: Collection) -> Iterator[Change]:
        listing = self._client.list(collection.path, **collection.params)
        self._revision = listing.revision
        yield LISTED, listing.items

    def _open(self, collection: Collection) -> Stream:
        try:
            return Stream(self._client.watch(collection.path, self._revision, accept=self.accept, **collection.params))
        except ApiError:
            self._revision = ""
            raise

    def _changes(self, collection: Collection, stream: Stream) -> Iterator[Change]:
        for kind, data in stream:
            if kind == "ERROR":
                self._revision = ""
                if data.get("code") != _EXPIRED:
                    _log.warning("watch of %s: %s", collection.path, data.get("message"))
                return
            self._revision = revision_of(data)
            if kind != "BOOKMARK":
                yield kind, data


class WholeObjectWatch(CollectionWatch):
    """Watch of a collection, with whole objects, for callers that must not hold all of them.

    It yields BEGUN, PAGE for each page of a list, then LISTED without objects, and otherwise the steps of CollectionWatch.
    """

    accept = "application/json"

    def __init__(self, client: Client, what: str, collection: Callable[[], Collection], page_objects: int) -> None:
        super().__init__(client, what, collection)
        self._page_objects = page_objects
        self._newest = 0  # the highest revision of a list or a change
        self.setbacks = 0
        """The number of lists whose revision was below an earlier one: the data of the server were replaced by older ones."""

    def is_contact(self, step: Change) -> bool:
        """A listing that begins has not asked the server, and one that has not ended is not complete."""
        return step[0] not in (BEGUN, PAGE)

    def _is_restored(self, collection: Collection) -> bool:
        """Ask the server before a stream continues: from a later revision than the present one, it would report nothing."""
        self._newest = max(self._newest, _number(self._revision))
        first = self._client.get(collection.path, **{**collection.params, "limit": "1"})
        return 0 < _number(revision_of(first)) < self._newest

    def _begin(self, collection: Collection) -> Iterator[Change]:
        yield BEGUN, ()
        revision = ""
        for page in self._client.pages(collection.path, limit=str(self._page_objects), **collection.params):
            if not revision:
                self._observe_list(page.revision)
            revision = page.revision
            yield PAGE, page.items
        self._revision = revision
        yield LISTED, ()

    def _changes(self, collection: Collection, stream: Stream) -> Iterator[Change]:
        for change in super()._changes(collection, stream):
            self._newest = max(self._newest, _number(self._revision))
            yield change

    def _observe_list(self, revision: str) -> None:
        """Compare the revision of a list, which is that of all objects, with the earlier ones."""
        number = _number(revision)
        if 0 < number < self._newest:
            self.setbacks += 1
        self._newest = number


class PagedWatch(WholeObjectWatch):
    """Watch of the objects of a path. An interrupted list begins again."""

    def __init__(self, client: Client, path: str) -> None:
        super().__init__(client, path, lambda: Collection(path, lambda _: ()), SMALL_PAGE)
        self._unopened = Backoff(1.0, MAX_BACKOFF)

    def _open(self, collection: Collection) -> Stream:
        """Open the stream. If it is refused, wait, because the list that follows has succeeded and resets the back-off."""
        try:
            stream = super()._open(collection)
        except ApiError:
            self._closed.wait(self._unopened.next())
            raise
        self._unopened.reset()
        return stream


class QueryWatch(WholeObjectWatch):
    """Watch of the events of a query."""

    raises_refusals = True

    def __init__(self, client: Client, query: Query, collection: Collection, page_objects: int) -> None:
        super().__init__(client, collection.path, lambda: collection, page_objects)
        self._query = query
        self._present = PresentKeys()

    def events(self, change: Change) -> Sequence[Event]:
        """Return the events of one change."""
        kind, data = change
        match kind:
            case "BEGUN":
                self._present.begin_listing()
                return ()
            case "PAGE":
                return self._present.page((name_of(each), self._entries(each)) for each in data)
            case "LISTED":
                return self._present.end_listing()
            case "OPENED":
                return ()
        return self._present.changed(name_of(data), () if kind == DELETED else self._entries(data))

    def _entries(self, data: Json) -> Sequence[Entry]:
        return [entry for entry in self._collection().entries([data]) if matches(self._query, entry.key)]


class KindWatch(CollectionWatch):
    """Watch for the generation of a kind. It does not list the objects, and yields the changes after the present revision."""

    def __init__(self, client: Client, kind: str, collection: Callable[[], Collection]) -> None:
        super().__init__(client, kind, collection)
        self._fingerprints: dict[tuple[str, str], Hashable] = {}

    def is_change(self, step: Change) -> bool:
        """Return False for changes of other parts of an object than its entries, such as the status of a node."""
        kind, data = step
        if kind == OPENED:
            return True
        name = name_of(data)
        if kind == DELETED:
            self._fingerprints.pop(name, None)
            return True
        before, now = self._fingerprints.get(name), self._collection().fingerprint(data)
        self._fingerprints[name] = now
        return before != now

    def _begin(self, collection: Collection) -> Iterator[Change]:
        first = self._client.get(collection.path, limit="1", **collection.params)
        self._revision = str(first["metadata"]["resourceVersion"])
        return iter(())


def _number(revision: str) -> int:
    """Return a revision as a number; 0 for one of another form."""
    return int(revision) if revision.isdecimal() else 0

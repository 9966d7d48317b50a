"""Watches of etcd that continue when connections break, servers restart and history is compacted.

The watch of a query lists the present entries and continues from the next revision. After a broken connection it continues
after the last revision that it has received. If etcd has compacted that revision, it lists again. It does so too if etcd has
the data of an earlier snapshot: such an etcd would report nothing before its revisions reach the former ones again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from svc.datastore.api import Entry, Event
from svc.datastore.etcd.connection import Compacted, EtcdConnection, NoResponse
from svc.datastore.etcd.messages import Message, rpc
from svc.datastore.watching import PresentKeys, Reconnecting
from svc.model.errors import SvcError

MAX_BACKOFF = 5.0  # seconds

Span = tuple[bytes, bytes]  # first key, and the key after the last one
Origin = tuple[int, int]  # the cluster ID, and how often the session has seen its revisions run backwards
Read = Callable[[Message], Event | None]
Pages = Callable[[], Iterator[tuple[int, Sequence[Entry]]]]  # a revision, and the entries at it in parts


class SpanWatch(Reconnecting[Any]):
    """Watch of the changes of a span of keys from now on, which yields the WatchResponses of etcd."""

    def __init__(self, connection: EtcdConnection, span: Span, what: str) -> None:
        super().__init__(what, MAX_BACKOFF)
        self._connection = connection
        self._span = span

    def is_change(self, step: Message) -> bool:
        """Return whether keys may have changed: the answer has events, or the watch has just been created."""
        return bool(step.created or step.events)

    def _is_refusal(self, failure: SvcError) -> bool:
        return not isinstance(failure, NoResponse)

    def _before_retry(self, seconds: float) -> None:
        self._connection.connect(seconds)

    def _attempt(self) -> Iterator[Any]:
        return self._answers()

    def _answers(self, *, revision: int = 0) -> Iterator[Message]:
        """Yield WatchResponses from a revision on; by default from the present one."""
        key, end = self._span
        create = rpc.WatchCreateRequest(key=key, range_end=end, start_revision=revision, progress_notify=bool(revision))
        stream = self._connection.watch(create)
        with self._closing(stream.close):
            while True:
                yield stream.receive()


class Deletions(list[Event]):
    """The last step of a listing: the events of the keys that were deleted since the one before."""


class QueryWatch(SpanWatch):
    """Watch of a query, which yields the events of each step. `read` returns None for a KeyValue that does not match."""

    raises_refusals = True

    def __init__(self, connection: EtcdConnection, span: Span, pages: Pages, read: Read) -> None:
        super().__init__(connection, span, span[0].decode())
        self._pages = pages
        self._read = read
        self._next = 0  # the revision to continue from; 0 to list first
        self._origin: Origin | None = None  # of the data that were listed
        self._present = PresentKeys()

    def is_contact(self, step: Sequence[Event]) -> bool:  # noqa: ARG002 it depends on the steps before
        """A listing that has not ended is not complete."""
        return self._next > 0

    def list_again(self) -> None:
        self._next = 0

    def _attempt(self) -> Iterator[Sequence[Event]]:
        if not self._next:
            self._origin = None
            yield from self._list()
        try:
            for answer in self._answers(revision=self._next):
                if answer.created and self._is_restored(answer):
                    self._next = 0
                    return
                yield self._events(answer)
        except Compacted:
            self._next = 0

    def _is_restored(self, answer: Message) -> bool:
        """Return whether the data are others than those that were listed. A server that lags behind has an old revision too."""
        origin = (int(answer.header.cluster_id), self._connection.position.setbacks)
        before, self._origin = self._origin or origin, origin
        if origin != before:
            return True
        if answer.header.revision + 1 >= self._next:
            return False
        request = rpc.RangeRequest(key=self._span[0], count_only=True)
        return bool(self._connection.budget().range(request).header.revision + 1 < self._next)

    def _list(self) -> Iterator[Sequence[Event]]:
        self._present.begin_listing()
        revision = 0
        for present, entries in self._pages():
            revision = present
            yield self._present.page((entry.key, (entry,)) for entry in entries)
        yield Deletions(self._present.end_listing())
        self._next = revision + 1

    def _events(self, answer: Message) -> Sequence[Event]:
        if answer.events:
            self._next = answer.events[-1].kv.mod_revision + 1
        elif not answer.created:  # a progress notification
            self._next = max(self._next, answer.header.revision + 1)
        read = [event for each in answer.events if (event := self._read(each.kv)) is not None]
        found = ((event.key, (event.entry,) if event.entry else ()) for event in read)
        return [change for key, entries in found for change in self._present.changed(key, entries)]

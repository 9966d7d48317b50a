"""Numbers that move when resources of a kind change: a watch for each kind, and a thread that counts what it tells.

A number that nobody could have moved is worth nothing, so while a watch is not open, every call gets another one.
"""

import threading
from collections.abc import Callable

from svc.datastore.api import StoreError
from svc.datastore.etcd.link import Link, Stream
from svc.datastore.etcd.messages import WatchCreateRequest
from svc.datastore.etcd.outage import Outage

Span = tuple[bytes, bytes]  # first key, and the key after the last one


class Generations:
    """Of all kinds. From any thread."""

    def __init__(self, link: Link, span: Callable[[str], Span]) -> None:
        self._link = link
        self._span = span
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._counters: dict[str, _Counter] = {}
        self._closed = False

    def number(self, kind: str) -> int:
        """A kind is watched from the second call on: whoever asks only once has no cache to keep."""
        counter = self._counters.get(kind)
        return counter.number() if counter is not None else self._begin(kind)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            counters = tuple(self._counters.values())
        for counter in counters:
            counter.close()

    def _begin(self, kind: str) -> int:
        with self._lock:
            if kind not in self._asked or self._closed:
                self._asked.add(kind)
                return 0
            if kind not in self._counters:
                self._counters[kind] = _Counter(self._link, kind, self._span(kind))
            return self._counters[kind].number()


class _Counter:
    """The number of one kind."""

    def __init__(self, link: Link, kind: str, span: Span) -> None:
        self._link = link
        self._kind = kind
        self._span = span
        self._lock = threading.Lock()
        self._number = 1
        self._watching = False
        self._stream: Stream | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"etcd-{kind}", daemon=True)
        self._thread.start()

    def number(self) -> int:
        with self._lock:
            if not self._watching:
                self._number += 1
            return self._number

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            if self._stream is not None:
                self._stream.cancel()
        self._thread.join()

    def _run(self) -> None:
        outage = Outage(self._link, self._kind)
        while not self._closed.is_set():
            try:
                self._follow(outage)
            except StoreError as failure:
                self._count(watching=False)
                outage.wait(failure, self._closed)

    def _follow(self, outage: Outage) -> None:
        """Until the watch breaks, and that is a StoreError."""
        stream = self._open()
        while True:
            answer = stream.receive()
            outage.over()
            if answer.created or answer.events:
                self._count(watching=True)

    def _open(self) -> Stream:
        key, end = self._span
        with self._lock:
            self._stream = self._link.watch(WatchCreateRequest(key=key, range_end=end))
            if self._closed.is_set():
                self._stream.cancel()
            return self._stream

    def _count(self, *, watching: bool) -> None:
        with self._lock:
            self._watching = watching
            self._number += 1

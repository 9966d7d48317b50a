"""Information from several places, each read by a thread of its own, so that one that does not answer delays no other."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from svc.model.errors import PeerError, SvcError, reason_of

PREPARE_SECONDS: Final = 2.0  # that the preparation may take longer than the reading, on a busy processor
READ_SECONDS: Final = 0.15  # that a source has after its preparation, also if that took long on a busy processor


def _nothing() -> None:
    pass


class Source:
    """A place to read. `value` is the last result, None before the first; `failure` is the error of the last attempt.

    `prepare` runs before `read`, to load packages. It raises nothing.
    """

    def __init__(self, name: str, read: Callable[[], Any], prepare: Callable[[], None] = _nothing) -> None:
        self.name = name
        self.value: Any = None
        self.failure: SvcError | None = None
        self._read = read
        self._prepare = prepare
        self._prepared = threading.Event()
        self._prepared_at = 0.0
        self._began = 0.0
        self._ended = threading.Event()
        self._ended.set()

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    def begin(self) -> None:
        """Start to read, unless the last attempt still runs."""
        if self.is_running:
            return
        self._began = time.monotonic()
        self._ended.clear()
        try:
            threading.Thread(target=self._run, name=self.name, daemon=True).start()
        except RuntimeError as failure:
            self.failure = PeerError(f"{self.name} cannot be read: {failure}", details="end other processes")
            self._prepared.set()
            self._ended.set()

    def wait(self, until: float) -> None:
        """Wait for the result until a point of the monotonic clock. If it is late, set a failure that says so."""
        now = time.monotonic()
        if self._prepared.wait(max(0.0, until - now) + PREPARE_SECONDS):
            until = max(until, self._prepared_at + READ_SECONDS)
        if not self._ended.wait(max(0.0, until - time.monotonic())):
            self.value = None
            seconds = time.monotonic() - self._began
            self.failure = PeerError(f"{self.name} has not answered in {seconds:.1f} s", details="see whether it runs")

    def _run(self) -> None:
        value, failure = None, None
        if not self._prepared.is_set():
            self._prepare()
            self._prepared_at = time.monotonic()
            self._prepared.set()
        try:
            value = self._read()
        except SvcError as error:
            failure = error
        except Exception as error:  # a bug in one source must not hide the others
            failure = PeerError(f"{self.name} cannot be read: {type(error).__name__}: {reason_of(error)}")
        self.value, self.failure = value, failure
        self._ended.set()


def read_all(sources: Iterable[Source], seconds: float) -> None:
    """Read all sources in parallel, for at most this time."""
    found = list(sources)
    until = time.monotonic() + seconds
    for source in found:
        source.begin()
    for source in found:
        source.wait(until)

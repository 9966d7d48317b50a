"""What one call did: its identity, how long each phase took, and its log lines.

A trace belongs to one call and one thread. It writes nothing by itself: whoever answers the call decides where its lines go.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}


def new_request_id() -> str:
    """Eight hex digits: unique enough to find one call in a log."""
    return os.urandom(4).hex()


class Trace:
    """`fields` (verb, container, ...) stand in every line after the request id; phases are milliseconds by name."""

    def __init__(self, request_id: str, level: str = "INFO") -> None:
        self.request_id = request_id
        self.fields: dict[str, str] = {}
        self.phases: dict[str, float] = {}
        self.lines: list[str] = []
        self._threshold = LEVELS[level]

    def set_level(self, level: str) -> None:
        self._threshold = LEVELS[level]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + (time.perf_counter() - started) * 1000

    def debug(self, text: str) -> None:
        self._add("DEBUG", text)

    def info(self, text: str) -> None:
        self._add("INFO", text)

    def warning(self, text: str) -> None:
        self._add("WARNING", text)

    def error(self, text: str) -> None:
        self._add("ERROR", text)

    def phases_text(self) -> str:
        return " ".join(f"{name}={milliseconds:.2f}" for name, milliseconds in self.phases.items())

    def _add(self, level: str, text: str) -> None:
        if LEVELS[level] < self._threshold:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}"
        fields = "".join(f" {name}={value}" for name, value in self.fields.items())
        self.lines.append(f"{stamp} {level} [{self.request_id}]{fields} {text}\n")

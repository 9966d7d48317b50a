"""Trace of one call: its request ID, the duration of each phase, and its log lines.

A trace belongs to one call and one thread. It only collects lines; the process that answers the call writes them.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar, Token

from svc.timestamps import date_and_time

_active: ContextVar["CallTrace | None"] = ContextVar("trace", default=None)

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}


def new_request_id() -> str:
    """Return eight random hex digits, which identify a call in a log."""
    return os.urandom(4).hex()


def active() -> "CallTrace | None":
    """Return the trace of the call that this thread works for; None without a call."""
    return _active.get()


def add_request_id(record: logging.LogRecord) -> bool:
    """Filter log records: set `%(request)s` to the request ID in brackets, or to an empty text without a call. Return True."""
    trace = _active.get()
    record.request = f"[{trace.request_id}] " if trace is not None else ""
    return True


def explain(text: Callable[[], str]) -> None:
    """Log a DEBUG line for the call of this thread. Call `text` only if DEBUG lines are kept."""
    trace = _active.get()
    if trace is not None and trace.is_debug:
        trace.debug(text())


def log_to_stderr(level: str) -> None:
    """Log the lines of all modules to stderr, each with the time, the level, the logger and the request ID of its call."""
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(request)s%(message)s", force=True
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(add_request_id)


class CallTrace:
    """Trace of one call. Each line has `fields` (verb, container, ...) after its request ID. `phases` has milliseconds."""

    def __init__(self, request_id: str, level: str = "INFO") -> None:
        self.request_id = request_id
        self.fields: dict[str, str] = {}
        self.phases: dict[str, float] = {}
        self.spans: list[tuple[str, float, float]] | None = None  # phases with begin and end (`time.perf_counter`), if traced
        self.decisions: list[str] = []  # why the call did what it did: recorded at each log level
        self.lines: list[str] = []
        self.messages: list[tuple[int, str]] = []  # the lines as level and text, for a logger that adds time and level
        self._threshold = LEVELS[level]

    def set_level(self, level: str) -> None:
        self._threshold = LEVELS[level]

    @property
    def keeps_info(self) -> bool:
        """Return whether INFO lines are kept. The line of a success is one."""
        return self._threshold <= LEVELS["INFO"]

    @property
    def is_debug(self) -> bool:
        """Return whether DEBUG lines are kept, so that callers can skip expensive formatting."""
        return self._threshold <= LEVELS["DEBUG"]

    def activated(self) -> "Activated":
        """Return a block in which this thread works for the call, so that its log lines have the request ID."""
        return Activated(self)

    def phase(self, name: str) -> "Phase":
        """Return a block that is timed. The times of phases with the same name are added."""
        return Phase(self.phases, name) if self.spans is None else SpanPhase(self.phases, name, self.spans)

    def decide(self, text: str) -> None:
        """Record a decision, and log it with level DEBUG."""
        self.decisions.append(text)
        self.debug(text)

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

    def info_line(self, text: str) -> str:
        """Return an INFO line with this text. Do not add it."""
        other = CallTrace(self.request_id)
        other.fields = self.fields
        other.info(text)
        return other.lines[0]

    def _add(self, level: str, text: str) -> None:
        if LEVELS[level] < self._threshold:
            return
        now = time.time()
        stamp = f"{date_and_time(now)}.{int(now * 1000) % 1000:03d}"
        fields = "".join(f" {name}={value}" for name, value in self.fields.items())
        for line in text.splitlines():
            message = f"[{self.request_id}]{fields} {line}"
            self.lines.append(f"{stamp} {level} {message}\n")
            self.messages.append((LEVELS[level], message))


class Activated:
    """Block in which a thread works for a call."""

    __slots__ = ("_token", "_trace")

    _token: "Token[CallTrace | None]"

    def __init__(self, trace: CallTrace) -> None:
        self._trace = trace

    def __enter__(self) -> None:
        self._token = _active.set(self._trace)

    def __exit__(self, *_: object) -> None:
        _active.reset(self._token)


class Phase:
    """Block that is timed. It is a class, because a generator-based context manager takes several times as long."""

    __slots__ = ("_name", "_phases", "_started")

    def __init__(self, phases: dict[str, float], name: str) -> None:
        self._phases = phases
        self._name = name
        self._started = time.perf_counter()

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        elapsed = (time.perf_counter() - self._started) * 1000
        self._phases[self._name] = self._phases.get(self._name, 0.0) + elapsed


class SpanPhase(Phase):
    """Block that is timed, and recorded with its begin and end."""

    __slots__ = ("_spans",)

    def __init__(self, phases: dict[str, float], name: str, spans: list[tuple[str, float, float]]) -> None:
        super().__init__(phases, name)
        self._spans = spans

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._spans.append((self._name, self._started, time.perf_counter()))

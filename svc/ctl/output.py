"""Standard output, whose errors differ from those of other files."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class OutputError(Exception):
    """Standard output cannot be written. The message says why."""


class _Output:
    """A text stream whose errors, as on a full disk, differ from those of other files."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        if isinstance(text, str) and not text:  # click tries this, and ignores the error, after which the output is discarded
            return 0
        with _output_errors(self._stream):
            return self._stream.write(text)

    def flush(self) -> None:
        with _output_errors(self._stream):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _output_errors(stream: Any) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        discard(stream)
        raise
    except OSError as error:
        discard(stream)
        raise OutputError(f"the answer cannot be written to standard output: {error.strerror}") from None


def discard(stream: Any) -> None:
    """Discard what a stream has buffered: Python would write it again at exit, and fail."""
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), stream.fileno())


def discard_unread(stream: Any) -> None:
    """Discard what a stream has buffered if its pipe is full: Python would wait at exit for a reader."""
    with suppress(ValueError):  # a stream of a test has no descriptor
        if not select.select([], [stream], [], 0)[1]:
            discard(stream)


@contextmanager
def checked_output() -> Iterator[None]:
    """Raise OutputError if standard output cannot be written, BrokenPipeError if a pipe has no reader.

    An output that is closed already is an error before anything is done."""
    stream: Any = sys.stdout
    if stream is None:
        raise OutputError("the answer cannot be written to standard output: it is closed")
    stream.reconfigure(errors="backslashreplace")  # its encoding may lack characters
    sys.stdout = _Output(stream)
    try:
        yield
    finally:
        sys.stdout = stream

"""Standard output, whose errors differ from those of other files."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OutputError(Exception):
    """Standard output cannot be written. The message says why."""


class _Output:
    """A text stream whose errors, as on a full disk, differ from those of other files."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        with _output_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with _output_errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"the answer cannot be written to standard output: {error.strerror}") from None


@contextmanager
def checked_output() -> Iterator[None]:
    """Raise OutputError if standard output cannot be written, BrokenPipeError if a pipe has no reader.

    Discard its buffer then, because Python would write it again at exit, and fail. An output that is closed already is an
    error before anything is done."""
    stream: Any = sys.stdout
    if stream is None:
        raise OutputError("the answer cannot be written to standard output: it is closed")
    stream.reconfigure(errors="backslashreplace")  # its encoding may lack characters
    sys.stdout = _Output(stream)
    try:
        yield
    except OutputError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise
    finally:
        sys.stdout = stream

"""Standard output whose errors, as on a full disk, are told from those of other files."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class OutputError(Exception):
    """Standard output cannot be written. The message says why."""


class _Output:
    """A text stream that raises OutputError."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        return _written(lambda: self._stream.write(text))

    def flush(self) -> None:
        _written(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def checked_output() -> Iterator[None]:
    """Raise OutputError if standard output cannot be written, BrokenPipeError if a pipe has no reader.

    Discard its buffer then, because Python would write it again at exit, and fail."""
    stream = sys.stdout
    if stream is not None:  # a closed one
        sys.stdout = _Output(stream)
    try:
        yield
    except OutputError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise
    finally:
        sys.stdout = stream


def _written(write: Callable[[], Any]) -> Any:
    try:
        return write()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"the answer cannot be written to standard output: {error.strerror}") from None

"""Standard output that may refuse what is written to it, as on a full disk."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class OutputError(Exception):
    """Standard output refused the answer. The message says why."""


class _Output:
    """A text stream whose errors can be told from those of other files."""

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
    """Within, what cannot be written to standard output raises OutputError; a pipe without a reader raises BrokenPipeError.

    What standard output still holds is dropped then: Python would write it again, and fail, at its end."""
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

"""Errors of a start that name the option to change."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from svc.model.errors import CallerError, Code

DIRECTORY: Final = "name a directory that root can write with {option}, or move the file of this name away"
SOCKET: Final = (
    "name a path of at most 107 bytes with {option}, in a directory that root can write, and not that of another file"
)
ADDRESS: Final = "name an address of this node and a port that is free with {option}; `ss -ltnp` shows which program has a port"


@contextmanager
def blaming(option: str, value: object, remedy: str) -> Iterator[None]:
    """Raise CallerError, with the option and its value, for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise CallerError(
            f"{option} {str(value)!r} cannot be used: {error.strerror or error}",
            details=remedy.format(option=option),
            code=Code.IO_FAILURE,
        ) from error

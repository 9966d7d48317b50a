"""The mark of a stopped agent beside its socket. For a moment after it, the executable expects the next agent.

Without it, each call in a restart would start a one-shot process, and these would keep the processors from the new agent.
"""

from contextlib import suppress
from pathlib import Path


def leave_mark(socket: Path) -> None:
    """Leave a mark with the present time. A directory that cannot be written is not an error."""
    with suppress(OSError):
        mark_of(socket).touch(0o600)


def remove_mark(socket: Path) -> None:
    """Remove the mark: no agent is expected. A missing one is not an error."""
    with suppress(OSError):
        mark_of(socket).unlink()


def mark_of(socket: Path) -> Path:
    """Return the path of the mark."""
    return socket.with_name(f"{socket.name}.stopped")

"""The file that says which datastore has assigned the addresses of tunnels, so that a new process notices lost data."""

import json
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from svc.atomic_file import File, write
from svc.datastore.api import StoreError

_NAME: Final = "datastore.routes"  # in the state directory


class FileNotes:
    """Texts by name in the file. For one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME

    def note(self, name: str) -> str:
        """Return the text of a name, or an empty string."""
        return self._read().get(name, "")

    def notes(self, pattern: str) -> dict[str, str]:
        """Return the texts whose names match the pattern, by name."""
        return {name: text for name, text in self._read().items() if fnmatchcase(name, pattern)}

    def put_note(self, name: str, text: str) -> None:
        """Store a text in place of all others: the node has one datastore. Raise StoreError."""
        try:
            write(File(self._path, f"{json.dumps({name: text})}\n".encode(), 0o644))
        except OSError as failure:
            details = "make room, or have the state directory writable"
            raise StoreError(f"{self._path} cannot be written: {failure.strerror}", details=details) from None

    def _read(self) -> dict[str, str]:
        """Return all texts; none if the file is not there, or cannot be read."""
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def remove_notes(directory: Path) -> None:
    """Remove the file. Raise OSError."""
    with suppress(FileNotFoundError):
        (directory / _NAME).unlink()

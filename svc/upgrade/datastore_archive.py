"""The content of a datastore as an entry of a backup."""

import gzip
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from svc.admin.ipam_check.observation import Place
from svc.move import snapshot, steps

_FILE = "archive.jsonl"


def archived(place: Place) -> str:
    """Return all documents of a datastore as a text."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / _FILE
        steps.write_file(place, snapshot.take(place), file)
        return b64encode(gzip.compress(file.read_bytes())).decode()


@contextmanager
def unpacked(text: str | None) -> Iterator[Path]:
    """Yield a file with the documents of a text, if there is one."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / _FILE
        if text is not None:
            file.write_bytes(gzip.decompress(b64decode(text)))
        yield file

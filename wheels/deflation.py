"""Compressed files of wheels, kept for the next wheel and the next build: all Python sources take a minute of a processor."""

import hashlib
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wheels.assembly import Deflate


class Kept:
    """A compressor that keeps its streams in a folder."""

    def __init__(self, folder: Path, deflate: Deflate) -> None:
        self._folder, self._deflate = folder, deflate
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, data: bytes) -> bytes:
        """Return a file compressed."""
        path = self._folder / hashlib.sha256(data).hexdigest()
        if path.exists():
            return path.read_bytes()
        stream = self._deflate(data)
        draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            draft.write_bytes(stream)
            draft.rename(path)  # a build that is interrupted leaves no part of a stream under this name
        finally:
            draft.unlink(missing_ok=True)  # and on a full disk nothing that takes room
        return stream

    def prepare(self, files: Iterable[bytes]) -> None:
        """Compress files ahead, on all processors."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self, files))

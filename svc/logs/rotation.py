"""Compress rotated log files, and remove those that are too old or too many."""

import gzip
import os
import re
import shutil
import time
from contextlib import suppress
from typing import BinaryIO, Final

from svc.logs.log_file import SEALED_MODE, is_loose, seal
from svc.timestamps import date_and_time

_PARTIAL: Final = ".gz.partial"
_FINISHED: Final = (".gz", ".zst", _PARTIAL)  # another program may have written the log before svc and compressed with zstd
_CHUNK: Final = 1 << 16
_STAMP: Final = r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3})"
_FASTEST: Final = 1  # twice the size of the best level, in a fifth of the time
_DAY: Final = 86400


def prune(path: str, max_age: int, max_count: int) -> None:
    """Tidy the rotated files of one log; `max_age` is in days. Several processes may do so in parallel. Raise OSError."""
    path = os.path.realpath(path)
    oldest = date_and_time(time.time() - max_age * _DAY).replace(" ", "T").replace(":", "-")
    for number, (stamp, names) in enumerate(sorted(_rotated(path).items(), reverse=True)):
        gone = number >= max_count or stamp < oldest
        for name in names:
            with suppress(FileNotFoundError):  # another process removed it first
                os.unlink(name) if gone else _compress(name)


def _rotated(path: str) -> dict[str, list[str]]:
    """Return the rotated files by their timestamp. An interrupted compression leaves two files with one timestamp."""
    directory, base = os.path.split(path)
    stem, extension = os.path.splitext(base)
    known = re.compile(f"{re.escape(stem)}-{_STAMP}{re.escape(extension)}({'|'.join(map(re.escape, _FINISHED))})?")
    found: dict[str, list[str]] = {}
    for name in os.listdir(directory):
        if match := known.fullmatch(name):
            found.setdefault(match[1], []).append(os.path.join(directory, name))
    return found


def _compress(name: str) -> None:
    """Compress a rotated file under its lock. A compression that a killed process left unfinished starts again."""
    if is_loose(os.lstat(name)):  # an older version rotated it
        os.chmod(name, SEALED_MODE)
    if name.endswith(_FINISHED):
        return
    with open(name, "rb") as source:
        if not seal(source.fileno()) or not os.path.samestat(os.stat(name), os.fstat(source.fileno())):
            return  # another process compresses it, or has finished
        partial = name + _PARTIAL
        try:
            _pack(source, partial)
        except OSError:
            os.unlink(partial)
            raise
        os.replace(partial, f"{name}.gz")
        os.unlink(name)


def _pack(source: BinaryIO, target: str) -> None:
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file, gzip.GzipFile("", "wb", _FASTEST, file) as packed:
        os.fchmod(file.fileno(), os.fstat(source.fileno()).st_mode)
        shutil.copyfileobj(source, packed, _CHUNK)

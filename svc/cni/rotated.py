"""What becomes of rotated log files: they are compressed, and removed when they are too old or too many."""

import gzip
import os
import re
import shutil
import time
from contextlib import suppress
from typing import BinaryIO, Final

from svc.cni.logfile import SEALED_MODE, is_loose, seal
from svc.timestamps import date_and_time

_PARTIAL: Final = ".gz.partial"
_FINISHED: Final = (".gz", ".zst", _PARTIAL)  # whoever wrote the log before us may have left the second
_CHUNK: Final = 1 << 16
_STAMP: Final = r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3})"
_FASTEST: Final = 1  # twice the size of the best, in a fifth of the time
_DAY: Final = 86400


def tidy(path: str, max_age: int, max_count: int) -> None:
    """For the rotated files of one log: `max_age` in days. Several processes may do so at a time. OSError."""
    path = os.path.realpath(path)
    oldest = date_and_time(time.time() - max_age * _DAY).replace(" ", "T").replace(":", "-")
    for number, (stamp, names) in enumerate(sorted(_rotated(path).items(), reverse=True)):
        gone = number >= max_count or stamp < oldest
        for name in names:
            with suppress(FileNotFoundError):  # somebody else was faster
                os.unlink(name) if gone else _keep(name)


def _rotated(path: str) -> dict[str, list[str]]:
    """By the moment of their rotation; two files where a compression was broken off."""
    directory, base = os.path.split(path)
    stem, extension = os.path.splitext(base)
    known = re.compile(f"{re.escape(stem)}-{_STAMP}{re.escape(extension)}({'|'.join(map(re.escape, _FINISHED))})?")
    found: dict[str, list[str]] = {}
    for name in os.listdir(directory):
        if match := known.fullmatch(name):
            found.setdefault(match[1], []).append(os.path.join(directory, name))
    return found


def _keep(name: str) -> None:
    if is_loose(os.lstat(name)):  # rotated by an older version
        os.chmod(name, SEALED_MODE)
    _compress(name)


def _compress(name: str) -> None:
    """The lock keeps others from doing the same; what a killed process has begun is begun anew."""
    if name.endswith(_FINISHED):
        return
    with open(name, "rb") as source:
        if not seal(source.fileno()) or not os.path.samestat(os.stat(name), os.fstat(source.fileno())):
            return  # somebody else is at it, or has done it
        partial = name + _PARTIAL
        try:
            _pack(source, partial)
        except OSError:
            os.unlink(partial)
            raise
        os.replace(partial, f"{name}.gz")
        os.unlink(name)


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _pack(source: BinaryIO, target: str) -> None:
    with open(target, "wb", opener=_open_own) as file, gzip.GzipFile("", "wb", _FASTEST, file) as packed:
        os.fchmod(file.fileno(), os.fstat(source.fileno()).st_mode)
        shutil.copyfileobj(source, packed, _CHUNK)

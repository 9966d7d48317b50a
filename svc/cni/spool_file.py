"""Files of the spool: requests of DELs that no agent accepted (`_core/shim_spool.c`).

The spool is a directory in the state directory that only root can enter. A name has 16 hexadecimal digits, a hash of profile,
network, container and interface: a repeated DEL replaces its file. A file that is being written has a name that begins with a
dot. An agent adds `.refused` to the name of a file that it cannot use.

A file begins with a header of 64 bytes, little-endian: `SVCS`, the version 1 (u32), the boot ID of the kernel (36 bytes), the
size of the request (u32), the time since the boot in nanoseconds (u64, CLOCK_BOOTTIME), and the CRC-32 of all this and of the
request (u64). Then follows the request as the socket would have got it, which `frame.py` describes.
"""

import os
import re
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc.cni.call_io import CallInput
from svc.cni.frame import (
    CONTINUATION_BYTES,
    ENVIRONMENT_LIMIT,
    NAME_LIMIT,
    PROFILE_LIMIT,
    STDIN_LIMIT,
    FrameError,
    OtherVersion,
    RequestReader,
)
from svc.values import dataclass

DIRECTORY: Final = "spool"  # in the state directory
REFUSED: Final = ".refused"
MAX_FILES: Final = 4096  # the executable writes no more
MAX_BYTES: Final = 64 << 20
NAME: Final = re.compile(r"[0-9a-f]{16}")
DRAFT: Final = re.compile(r"\.[0-9a-f]{16}")

_VERSION: Final = 1
_MAGIC: Final = b"SVCS"
_HEADER: Final = struct.Struct("<4sI36sIQQ")
_CHECKED: Final = _HEADER.size - 8  # bytes of the header before the checksum
_BOOT_ID: Final = re.compile(rb"[0-9a-f-]{36}")
FILE_LIMIT: Final = (
    _HEADER.size + 256 + CONTINUATION_BYTES + NAME_LIMIT + PROFILE_LIMIT + ENVIRONMENT_LIMIT + STDIN_LIMIT
)  # bytes


@dataclass(frozen=True, slots=True)
class Spooled:
    """A DEL of the spool, and when it was spooled: the boot, and nanoseconds since its begin."""

    boot_id: str
    nanoseconds: int
    call: CallInput


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many DELs wait in the spool, since when (Unix time; 0 if none does), and how many files an agent has refused."""

    number: int
    since: float
    refused: int


def pack(request: bytes, boot_id: str, nanoseconds: int) -> bytes:
    """Return the content of a file with the frame of a request."""
    header = _HEADER.pack(_MAGIC, _VERSION, boot_id.encode(), len(request), nanoseconds, 0)[:_CHECKED]
    return header + struct.pack("<Q", zlib.crc32(request, zlib.crc32(header))) + request


def read(data: bytes) -> Spooled:
    """Return the DEL in the content of a file. Raise OtherVersion for one of a later release, else FrameError."""
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise FrameError("it is not a file of the spool, or it is cut")
    _, version, boot, size, nanoseconds, checksum = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise OtherVersion(str(version), "")
    request = data[_HEADER.size :]
    if size != len(request) or checksum != zlib.crc32(request, zlib.crc32(data[:_CHECKED])):
        raise FrameError("its size or its checksum is wrong")
    if not _BOOT_ID.fullmatch(boot):
        raise FrameError("it has no boot ID")
    call = RequestReader().feed(request)
    if call is None:
        raise FrameError("its request is not complete")
    if call.environment.get("CNI_COMMAND") != "DEL" or not call.environment.get("CNI_CONTAINERID"):
        raise FrameError("its request is not the DEL of a container")
    return Spooled(boot.decode(), nanoseconds, call)


def waiting(state_dir: Path) -> Waiting:
    """Return what waits in the spool of a state directory. Raise OSError if it cannot be read."""
    times, refused = list[float](), 0
    with suppress(FileNotFoundError), os.scandir(state_dir / DIRECTORY) as entries:
        for entry in entries:
            if entry.name.endswith(REFUSED):
                refused += 1
            elif NAME.fullmatch(entry.name):
                with suppress(FileNotFoundError):  # done meantime
                    times.append(entry.stat(follow_symlinks=False).st_mtime)
    return Waiting(len(times), min(times, default=0.0), refused)

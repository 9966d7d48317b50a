"""Files of the spool: requests of DELs that no agent accepted (`_core/shim_spool.c`).

The spool is a directory in the state directory that only root can enter. A name has 16 hexadecimal digits, a hash of profile,
network, container and interface: a repeated DEL replaces its file. A file that is being written has a name that begins with a
dot. An agent adds `.refused` to the name of a file that it cannot use; those have no part in the limits of the spool.

A file begins with a header of 64 bytes, little-endian: `SVCS`, the version 1 (u32), the boot ID of the kernel (36 bytes), the
size of the request (u32), the time since the boot in nanoseconds (u64, CLOCK_BOOTTIME), and the CRC-32 of all this and of the
request (u64). Then follows the request as the socket would have got it, which `frame.py` describes.
"""

import os
import re
import stat
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
MAX_SHOWN: Final = 3  # paths of refused files
MAX_REFUSED: Final = 64  # an agent keeps no more, the newest
NAME: Final = re.compile(r"[0-9a-f]{16}")
DRAFT: Final = re.compile(r"\.[0-9a-f]{16}")

_VERSION: Final = 1
_MAGIC: Final = b"SVCS"
_HEADER: Final = struct.Struct("<4sI36sIQQ")
_CHECKED: Final = _HEADER.size - 8  # bytes of the header before the checksum
_NAME_LENGTH: Final = 17  # of the longest name that counts, a draft's
_FNV_BEGIN: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_TOKEN: Final = re.compile(rb'[{\[]|[}\]]|"((?:\\.|[^"])*)(?:"([ \t\r\n]*:)?|\Z)', re.DOTALL)  # a bracket, or a string
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
    """How many DELs wait in the spool, since when (Unix time; 0 if none does), and how many files an agent has refused.

    `refused_files` are the paths of the newest of these. Nothing more can be spooled if the spool `is_full`."""

    number: int
    since: float
    refused: int
    refused_files: tuple[str, ...] = ()
    is_full: bool = False


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


def file_name(call: CallInput) -> str:
    """Return the name that the executable gives to the file of a DEL: the hash of its bytes as they are in the request."""
    texts = call.profile, call.environment.get("CNI_CONTAINERID", ""), call.environment.get("CNI_IFNAME", "")
    profile, *names = (text.encode(errors="surrogateescape") for text in texts)
    number = _FNV_BEGIN
    for byte in b"\0".join((profile, _network(call.stdin), *names, b"")):
        number = (number ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return f"{number:016x}"


def _network(stdin: bytes) -> bytes:
    """Return the string that follows the key "name" in the outermost object, whether or not the text is JSON."""
    depth, is_next = 0, False
    for token in _TOKEN.finditer(stdin.partition(b"\0")[0]):
        text = token[1]
        if text is None:
            depth += 1 if token[0] in b"{[" else -1
        elif is_next:
            return text
        else:
            is_next = depth == 1 and text == b"name" and token[2] is not None
    return b""


def waiting(state_dir: Path) -> Waiting:
    """Return what waits in the spool of a state directory. Raise OSError if it cannot be read."""
    times, refused, sizes = list[float](), list[tuple[float, str]](), list[int]()
    with suppress(FileNotFoundError), os.scandir(state_dir / DIRECTORY) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # done meantime
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(REFUSED):
                    refused.append((status.st_mtime, entry.path))
                if NAME.fullmatch(entry.name):
                    times.append(status.st_mtime)
                if len(entry.name) <= _NAME_LENGTH and stat.S_ISREG(status.st_mode):
                    sizes.append(status.st_size)
    is_full = len(sizes) >= MAX_FILES or sum(sizes) >= MAX_BYTES
    shown = tuple(path for _, path in sorted(refused, reverse=True)[:MAX_SHOWN])
    return Waiting(len(times), min(times, default=0.0), len(refused), shown, is_full)

"""Frames of introspection requests on the agent's socket, as bytes, without I/O.

Request and reply have the same form: `SVCI`, the program version of the sender (28 bytes, padded with NUL), the length of the
document (little-endian u32), and the document, a JSON object. A connection carries one request and one reply.

An agent that does not know introspection refuses the magic as it refuses the layout of another version (see `frame.py`): its
reply begins with `SVC2`, and has the agent's version in the same place.
"""

import struct
from typing import Final

from svc.cni.frame import INTROSPECTION, FrameError, OtherVersion, own_version

REQUEST_LIMIT: Final = 64 << 10  # bytes of the document
REPLY_LIMIT: Final = 16 << 20  # bytes of the document
TOO_LARGE: Final = "is larger than {limit} bytes"

_FAMILY: Final = b"SVC"
_MAGIC: Final = _FAMILY + INTROSPECTION.encode()
_HEADER: Final = struct.Struct("<4s28sI")


class TooLarge(FrameError):
    """The length in a header exceeds the limit."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"document of {length} bytes {TOO_LARGE.format(limit=limit)}")
        self.length = length
        self.limit = limit


def pack_document(document: bytes, limit: int) -> bytes:
    """Return the frame of a document. Raise TooLarge."""
    if len(document) > limit:
        raise TooLarge(len(document), limit)
    return _HEADER.pack(_MAGIC, own_version(), len(document)) + document


class DocumentReader:
    """An incremental parser for one frame. `version` is that of the sender, empty until the header is complete."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.version = ""

    def feed(self, data: bytes) -> bytes | None:
        """Return the document when its frame is complete, else None.

        Raise OtherVersion for the frame of an agent that does not know introspection, TooLarge, or FrameError for other bytes.
        """
        self._data += data
        if len(self._data) < _HEADER.size:
            _require_family(bytes(self._data[: len(_MAGIC)]))
            return None
        magic, version, length = _HEADER.unpack_from(self._data)
        self.version = _text(version)
        _require_family(magic)
        if magic != _MAGIC:
            raise OtherVersion(chr(magic[-1]), self.version)
        if length > self._limit:
            raise TooLarge(length, self._limit)
        surplus = len(self._data) - _HEADER.size - length
        if surplus > 0:
            raise FrameError(f"{surplus} bytes follow the end of the document")
        return None if surplus else bytes(self._data[_HEADER.size :])


def _require_family(start: bytes) -> None:
    if start[: len(_FAMILY)] != _FAMILY[: len(start)]:
        raise FrameError(f"frame starts with {start!r}, not {_MAGIC.decode()}")


def _text(version: bytes) -> str:
    text = version.rstrip(b"\0").decode("ascii", "replace")
    return text if text.isprintable() else ""

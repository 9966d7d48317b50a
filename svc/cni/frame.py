"""The frames between the executable (`_core/shim.c`) and the agent, as bytes; no I/O.

One request and one reply per connection. All integers are little-endian u32.

Request: `SVC1`, lengths of name, profile, environment and stdin, flags (bit 0: a descriptor comes with the first byte), then
name, profile, environment (`KEY=VALUE` strings, each ended by a NUL) and stdin. The profile is that of the installation, never
of the call.
Reply: `SVC1`, exit status, lengths of stdout and stderr, then stdout and stderr.
Before it, any number of times: `SVC1`, 256, milliseconds, 0. The call waits for something, and its reply may take so long from
now on, rather than what is usual for its verb.

Name and values are whatever the runtime passed: what is not UTF-8 survives as surrogate escapes, as in `os.environ`.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from svc.cni.inputs import Reply

MAGIC: Final = b"SVC1"
NAME_LIMIT: Final = 256  # bytes
PROFILE_LIMIT: Final = 4096  # bytes: a path, in a record of that size
ENVIRONMENT_LIMIT: Final = 128 << 10  # bytes
STDIN_LIMIT: Final = 1 << 20  # bytes
REPLY_LIMIT: Final = 16 << 20  # bytes, stdout and stderr together

PATIENCE_LIMIT: Final = 2**31 - 1  # milliseconds

_DESCRIPTOR: Final = 1
_PATIENCE: Final = 256  # in place of an exit status, which has a byte
_TEXT: Final = ("utf-8", "surrogateescape")
_ENVIRONMENT: Final = re.compile(rb"(?:[^=\0]+=[^\0]*\0)*")


class FrameError(ValueError):
    """The other end does not speak this protocol, or a value has no place in it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One call as the executable received it."""

    name: str
    environment: dict[str, str]
    stdin: bytes
    has_descriptor: bool
    profile: str = ""


class _Layout:
    """A header: its format, the largest value of each field, and which fields are sizes of the parts that follow."""

    def __init__(self, header: str, limits: dict[str, int], sizes: slice) -> None:
        self._header, self._limits, self._sizes = struct.Struct(header), limits, sizes

    @property
    def size(self) -> int:
        """Of the header, in bytes."""
        return self._header.size

    def pack(self, fields: Sequence[int], parts: Sequence[bytes]) -> bytes:
        self._check(fields)
        return b"".join((self._header.pack(MAGIC, *fields), *parts))

    def unpack(self, data: bytearray) -> tuple[Sequence[int], list[bytes]] | None:
        """Fields and parts, or None while bytes are missing."""
        if not MAGIC.startswith(data[: len(MAGIC)]):
            raise FrameError(f"frame starts with {bytes(data[: len(MAGIC)])!r}, not {MAGIC!r}")
        if len(data) < self._header.size:
            return None
        fields = self._header.unpack_from(data)[1:]
        self._check(fields)
        ends = list(accumulate(fields[self._sizes], initial=self._header.size))
        if len(data) > ends[-1]:
            raise FrameError(f"{len(data) - ends[-1]} bytes follow the end of the frame")
        return None if len(data) < ends[-1] else (fields, [bytes(data[start:end]) for start, end in pairwise(ends)])

    def _check(self, fields: Sequence[int]) -> None:
        for (name, limit), field in zip(self._limits.items(), fields, strict=True):
            if not 0 <= field <= limit:
                raise FrameError(f"{name} {field} is not 0 to {limit}")
        if sum(fields[self._sizes]) > REPLY_LIMIT:
            raise FrameError(f"frame of {sum(fields[self._sizes])} bytes is larger than {REPLY_LIMIT}")


_REQUEST_LIMITS: Final = {
    "name": NAME_LIMIT,
    "profile": PROFILE_LIMIT,
    "environment": ENVIRONMENT_LIMIT,
    "stdin": STDIN_LIMIT,
    "flags": _DESCRIPTOR,
}
_REQUEST: Final = _Layout("<4s5I", _REQUEST_LIMITS, slice(0, 4))
_REPLY: Final = _Layout("<4s3I", {"status": 255, "stdout": REPLY_LIMIT, "stderr": REPLY_LIMIT}, slice(1, 3))
_WAITING: Final = MAGIC + struct.pack("<I", _PATIENCE)


class RequestReader:
    """Collects the chunks of one request."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Frame | None:
        """The frame, once it is whole. What cannot become one is refused without waiting for the rest."""
        self._data += data
        if (whole := _REQUEST.unpack(self._data)) is None:
            return None
        (*_, flags), (name, profile, environment, stdin) = whole
        variables = _unpack_environment(environment)
        return Frame(name.decode(*_TEXT), variables, stdin, flags == _DESCRIPTOR, profile.decode(*_TEXT))


class ReplyReader:
    """Collects the chunks of one reply."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.asked = 0.0  # seconds, from the last chunk on, that the agent has asked to be given, if any

    def feed(self, data: bytes) -> Reply | None:
        """The reply, once it is whole."""
        self._data += data
        self.asked = 0.0
        while self._data.startswith(_WAITING):
            if len(self._data) < _REPLY.size:
                return None
            self.asked = int.from_bytes(self._data[8:12], "little") / 1000
            del self._data[: _REPLY.size]
        whole = _REPLY.unpack(self._data)
        return None if whole is None else Reply(whole[0][0], *whole[1])


def parse_reply(data: bytes) -> Reply:
    """A whole reply; FrameError when it is cut short."""
    if (reply := ReplyReader().feed(data)) is None:
        raise FrameError(f"reply ends early, after {len(data)} bytes")
    return reply


def pack_request(frame: Frame) -> bytes:
    """As the executable sends it; FrameError for a variable that has no place in an environment."""
    environment = b"".join(_pack_variable(key, value) for key, value in frame.environment.items())
    parts = frame.name.encode(*_TEXT), frame.profile.encode(*_TEXT), environment, frame.stdin
    return _REQUEST.pack([*map(len, parts), _DESCRIPTOR if frame.has_descriptor else 0], parts)


def pack_reply(status: int, stdout: bytes, stderr: bytes) -> bytes:
    """As the executable takes it; FrameError when it is too large."""
    return _REPLY.pack([status, len(stdout), len(stderr)], (stdout, stderr))


def pack_patience(seconds: float) -> bytes:
    """What asks the executable to wait so long."""
    return _WAITING + struct.pack("<2I", min(round(seconds * 1000), PATIENCE_LIMIT), 0)


def _pack_variable(key: str, value: str) -> bytes:
    if not key or "=" in key or "\0" in key + value:
        raise FrameError(f"environment cannot have {key!r} = {value[:64]!r}")
    return key.encode() + b"=" + value.encode(*_TEXT) + b"\0"


def _unpack_environment(data: bytes) -> dict[str, str]:
    if not _ENVIRONMENT.fullmatch(data):
        raise FrameError("environment is not made of KEY=VALUE strings, each ended by a NUL")
    entries = [entry.partition(b"=") for entry in data.split(b"\0")[:-1]]
    try:  # of two with one name the first counts, as for getenv
        return {key.decode(): value.decode(*_TEXT) for key, _, value in reversed(entries)}
    except UnicodeDecodeError as error:
        raise FrameError(f"environment has the name {error.object!r}") from error

"""Frames between the executable (`_core/shim_agent.c`) and the agent, as bytes, without I/O.

A connection carries one request and one reply. All integers are little-endian u32. Both sides use the layout of the request.

Layout 2: both headers begin with `SVC2` and the program version of the sender (28 bytes, padded with NUL). Every later layout
begins in the same way, so that each side can name the other's version when it refuses a frame.
Request: a continuation (20 digits, padded with NUL, or zeros), the lengths of name, profile, environment and stdin, and flags
(bit 0: a descriptor comes with the first byte). Then follow name, profile, environment (`KEY=VALUE` strings, each ended by a
NUL) and stdin. The profile is that of the installation, never of the call.
Reply: exit status, lengths of stdout and stderr, then stdout and stderr.
Frames before the reply, any number of them:
    256, milliseconds, 0    The call waits. Its reply may take this long from now on, instead of the usual limit.
    257, 0, 0               A sign of life, every 2 s. The executable gives up after 5 s without any frame.
Frame in place of the reply:
    258, milliseconds, 0    The agent stops while the call waits. A continuation follows (20 bytes). The executable waits for
                            the next agent for at most this time and repeats the request with the continuation. If no agent
                            answers, the executable serves the call itself.

Layout 1 begins with `SVC1` and has neither version nor continuation. Of the frames besides the reply it has only 256.

Requests that begin with `SVCI` are not calls, but introspection (`introspection_frame.py`).

Name and values are passed on unchanged: bytes that are not UTF-8 become surrogate escapes, as in `os.environ`.
"""

import re
import struct
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Final

import svc
from svc.cni.call_io import PROTOCOL, CallInput, Reply

NAME_LIMIT: Final = 256  # bytes
PROFILE_LIMIT: Final = 4096  # bytes; the record of the installation is at most as large
ENVIRONMENT_LIMIT: Final = 128 << 10  # bytes
STDIN_LIMIT: Final = 1 << 20  # bytes
REPLY_LIMIT: Final = 16 << 20  # bytes, stdout and stderr together
CONTINUATION_BYTES: Final = 20

EXTENSION_LIMIT: Final = 2**31 - 1  # milliseconds
INTROSPECTION: Final = "I"  # in place of the layout number of a call, in requests of `introspection_frame.py`

_FAMILY: Final = b"SVC"  # every layout begins so; the layout number follows, as one digit
_VERSION_BYTES: Final = 28
_DESCRIPTOR: Final = 1
_TIMEOUT_EXTENSION, _ALIVE, _HANDOVER = 256, 257, 258  # in place of an exit status, which is at most 255
_BEFORE_REPLY: Final = ((_TIMEOUT_EXTENSION,), (_ALIVE,))
_TEXT: Final = ("utf-8", "surrogateescape")
_ENVIRONMENT: Final = re.compile(rb"(?:[^=\0]+=[^\0]*\0)*")


class FrameError(ValueError):
    """An error of the protocol: a malformed frame, or a value that a frame cannot hold."""


class OtherVersion(FrameError):
    """A frame of a layout that this version does not support."""

    def __init__(self, layout: str, version: str) -> None:
        super().__init__(f"layout {layout} of version {version or 'unknown'}; this is layout {PROTOCOL} of {svc.__version__}")
        self.layout = layout
        self.version = version


class Handover(Exception):  # an answer of the agent, not an error
    """The agent stops: the client repeats the call with `continuation` at an agent that serves within `seconds`."""

    def __init__(self, continuation: bytes, seconds: float) -> None:
        super().__init__("the agent stops while the call waits")
        self.continuation = continuation
        self.seconds = seconds


class _Layout:
    """A header: magic, texts of fixed lengths, and numbers with limits. `sizes` selects the sizes of the parts that follow."""

    def __init__(self, magic: bytes, texts: str, limits: dict[str, int], sizes: slice) -> None:
        self._magic, self._limits, self._sizes = magic, limits, sizes
        self._header = struct.Struct(f"<4s{texts}{len(limits)}I")
        self.size = self._header.size  # of the header, in bytes

    def pack(self, texts: Sequence[bytes], fields: Sequence[int], parts: Sequence[bytes]) -> bytes:
        self._check(fields)
        return b"".join((self.header(texts, fields), *parts))

    def header(self, texts: Sequence[bytes], fields: Sequence[int]) -> bytes:
        """Return the packed header, without a check of the numbers."""
        return self._header.pack(self._magic, *texts, *fields)

    def fields(self, data: bytearray) -> tuple[int, ...]:
        """Return the numbers of the header; empty while it is incomplete."""
        return self._header.unpack_from(data)[-len(self._limits) :] if len(data) >= self.size else ()

    def unpack(self, data: bytearray) -> tuple[Sequence[int], list[bytes]] | None:
        """Return numbers and parts, or None while bytes are missing. Raise FrameError for invalid numbers or surplus bytes."""
        if not (fields := self.fields(data)):
            return None
        self._check(fields)
        ends = list(accumulate(fields[self._sizes], initial=self.size))
        if len(data) > ends[-1]:
            raise FrameError(f"{len(data) - ends[-1]} bytes follow the end of the frame")
        return None if len(data) < ends[-1] else (fields, [bytes(data[start:end]) for start, end in pairwise(ends)])

    def _check(self, fields: Sequence[int]) -> None:
        for (name, limit), number in zip(self._limits.items(), fields, strict=True):
            if not 0 <= number <= limit:
                raise FrameError(f"{name} {number} is not 0 to {limit}")
        if sum(fields[self._sizes]) > REPLY_LIMIT:
            raise FrameError(f"frame of {sum(fields[self._sizes])} bytes is larger than {REPLY_LIMIT}")


_REQUEST_LIMITS: Final = {
    "name": NAME_LIMIT,
    "profile": PROFILE_LIMIT,
    "environment": ENVIRONMENT_LIMIT,
    "stdin": STDIN_LIMIT,
    "flags": _DESCRIPTOR,
}
_REPLY_LIMITS: Final = {"status": 255, "stdout": REPLY_LIMIT, "stderr": REPLY_LIMIT}
_VERSION_AND_CONTINUATION: Final = f"{_VERSION_BYTES}s{CONTINUATION_BYTES}s"
_REQUESTS: Final = {
    1: _Layout(b"SVC1", "", _REQUEST_LIMITS, slice(0, 4)),
    PROTOCOL: _Layout(b"SVC2", _VERSION_AND_CONTINUATION, _REQUEST_LIMITS, slice(0, 4)),
}
_REPLIES: Final = {
    1: _Layout(b"SVC1", "", _REPLY_LIMITS, slice(1, 3)),
    PROTOCOL: _Layout(b"SVC2", f"{_VERSION_BYTES}s", _REPLY_LIMITS, slice(1, 3)),
}


class RequestReader:
    """An incremental parser for one request."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def received(self) -> bytes:
        """All bytes that `feed` got."""
        return bytes(self._data)

    def feed(self, data: bytes) -> CallInput | None:
        """Return the call when its frame is complete, else None. Raise FrameError as soon as it is known to be invalid."""
        self._data += data
        protocol = _protocol_of(self._data)
        if protocol is None or (whole := _REQUESTS[protocol].unpack(self._data)) is None:
            return None
        (*_, flags), (name, profile, environment, stdin) = whole
        variables = _unpack_environment(environment)
        continuation, version = b"", ""
        if protocol != 1:
            version = _version_in(self._data)
            continuation = bytes(self._data[4 + _VERSION_BYTES : 4 + _VERSION_BYTES + CONTINUATION_BYTES]).rstrip(b"\0")
        return CallInput(
            name.decode(*_TEXT), variables, stdin, flags == _DESCRIPTOR, profile.decode(*_TEXT),
            continuation, protocol, version,
        )  # fmt: skip


class ReplyReader:
    """An incremental parser for one reply."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.extension_seconds = 0.0  # seconds from the last chunk on that the agent asks for; 0 if it does not ask

    def feed(self, data: bytes) -> Reply | None:
        """Return the reply when it is complete, else None. Raise Handover if the agent hands the call over."""
        self._data += data
        self.extension_seconds = 0.0
        protocol = _protocol_of(self._data)
        if protocol is None:
            return None
        layout = _REPLIES[protocol]
        while (fields := layout.fields(self._data))[:1] in _BEFORE_REPLY:
            if fields[0] == _TIMEOUT_EXTENSION:
                if fields[1] > EXTENSION_LIMIT:
                    raise FrameError(f"timeout extension {fields[1]} is not 0 to {EXTENSION_LIMIT}")
                self.extension_seconds = fields[1] / 1000 or self.extension_seconds
            del self._data[: layout.size]
        if fields[:1] == (_HANDOVER,):
            continuation = bytes(self._data[layout.size : layout.size + CONTINUATION_BYTES])
            if len(continuation) == CONTINUATION_BYTES:
                raise Handover(continuation.rstrip(b"\0"), fields[1] / 1000)
            return None
        whole = layout.unpack(self._data)
        return None if whole is None else Reply(whole[0][0], whole[1][0], whole[1][1])


def pack_request(call: CallInput) -> bytes:
    """Return the frame of a request. Raise FrameError for a variable that an environment cannot hold."""
    environment = b"".join(_pack_variable(key, value) for key, value in call.environment.items())
    parts = call.name.encode(*_TEXT), call.profile.encode(*_TEXT), environment, call.stdin
    texts = () if call.protocol == 1 else (own_version(), call.continuation)
    return _REQUESTS[call.protocol].pack(texts, [*map(len, parts), _DESCRIPTOR if call.has_descriptor else 0], parts)


def pack_reply(status: int, stdout: bytes, stderr: bytes, protocol: int = PROTOCOL) -> bytes:
    """Return the frame of a reply. Raise FrameError if it is too large."""
    return _REPLIES[protocol].pack(_reply_texts(protocol), [status, len(stdout), len(stderr)], (stdout, stderr))


def pack_timeout_extension(seconds: float, protocol: int = PROTOCOL) -> bytes:
    """Return the frame that asks the executable to wait `seconds` from now."""
    return _REPLIES[protocol].header(_reply_texts(protocol), (_TIMEOUT_EXTENSION, _milliseconds(seconds), 0))


def pack_alive() -> bytes:
    """Return a sign of life. Layout 1 has no such frame."""
    return _REPLIES[PROTOCOL].header(_reply_texts(PROTOCOL), (_ALIVE, 0, 0))


def pack_handover(continuation: bytes, seconds: float) -> bytes:
    """Return the frame that sends the executable to the next agent. Layout 1 has no such frame."""
    header = _REPLIES[PROTOCOL].header(_reply_texts(PROTOCOL), (_HANDOVER, _milliseconds(seconds), 0))
    return header + continuation.ljust(CONTINUATION_BYTES, b"\0")


@cache
def own_version() -> bytes:
    """Return the version of svc as headers contain it. The first call reads the distribution's metadata from disk."""
    return svc.__version__.encode()[:_VERSION_BYTES]


def _milliseconds(seconds: float) -> int:
    return min(round(seconds * 1000), EXTENSION_LIMIT)


def _reply_texts(protocol: int) -> tuple[bytes, ...]:
    return () if protocol == 1 else (own_version(),)


def _protocol_of(data: bytearray) -> int | None:
    """Return the layout of a frame, or None while its magic is incomplete. Raise FrameError for any other start."""
    if _FAMILY.startswith(data[: len(_FAMILY)]):
        if len(data) <= len(_FAMILY):
            return None
        layout = chr(data[len(_FAMILY)])
        if ord(layout) - ord("0") in _REQUESTS:
            return ord(layout) - ord("0")
        if layout.isascii() and layout.isalnum():
            raise OtherVersion(layout, _version_in(data))
    raise FrameError(f"frame starts with {bytes(data[:4])!r}, not {_FAMILY.decode()}{PROTOCOL}")


def _version_in(data: bytearray) -> str:
    """Return the version after the magic, which every layout from 2 on has. Return "" if it is not printable."""
    text = bytes(data[4 : 4 + _VERSION_BYTES]).rstrip(b"\0").decode("ascii", "replace")
    return text if text.isprintable() else ""


def _pack_variable(key: str, value: str) -> bytes:
    if not key or "=" in key or "\0" in key + value:
        raise FrameError(f"environment cannot have {key!r} = {value[:64]!r}")
    return key.encode() + b"=" + value.encode(*_TEXT) + b"\0"


def _unpack_environment(data: bytes) -> dict[str, str]:
    if not _ENVIRONMENT.fullmatch(data):
        raise FrameError("environment is not made of KEY=VALUE strings, each ended by a NUL")
    entries = [entry.partition(b"=") for entry in data.split(b"\0")[:-1]]
    try:  # of two variables with one name the first counts, as in getenv(3)
        return {key.decode(): value.decode(*_TEXT) for key, _, value in reversed(entries)}
    except UnicodeDecodeError as error:
        raise FrameError(f"environment has the name {error.object!r}") from error

"""The frames between executable and agent: packed frames are unpacked unchanged, and other bytes are refused."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.frames import parse_reply
from svc.cni.call_io import CallInput, Reply
from svc.cni.frame import (
    ENVIRONMENT_LIMIT,
    EXTENSION_LIMIT,
    NAME_LIMIT,
    PROFILE_LIMIT,
    REPLY_LIMIT,
    STDIN_LIMIT,
    FrameError,
    Handover,
    OtherVersion,
    ReplyReader,
    RequestReader,
    own_version,
    pack_alive,
    pack_handover,
    pack_reply,
    pack_request,
    pack_timeout_extension,
)

CONTINUATION = b"12345678901234567890"
FRAME = CallInput(
    "svc", {"CNI_COMMAND": "ADD", "CNI_ARGS": "", "TRACEPARENT": "a=b"}, b'{"name":"net"}', True, "other", CONTINUATION
)
FRAME_REST = (
    b'\x03\0\0\0\x05\0\0\0\x2a\0\0\0\x0e\0\0\0\x01\0\0\0svcotherCNI_COMMAND=ADD\0CNI_ARGS=\0TRACEPARENT=a=b\0{"name":"net"}'
)
VERSION = b"1.2.3" + bytes(23)
FRAME_BYTES = b"SVC2" + VERSION + CONTINUATION + FRAME_REST
REPLY = Reply(1, b'{"code":7}', b"refused\n")
REPLY_REST = b'\x01\0\0\0\x0a\0\0\0\x08\0\0\0{"code":7}refused\n'
REPLY_BYTES = b"SVC2" + VERSION + REPLY_REST

names = st.binary(max_size=NAME_LIMIT).map(lambda name: name.decode("utf-8", "surrogateescape"))
keys = st.text(st.characters(codec="utf-8", exclude_characters="=\0"), min_size=1, max_size=20)
values = st.binary(max_size=50).map(lambda value: value.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
frames = st.builds(
    CallInput, names, st.dictionaries(keys, values, max_size=8), st.binary(max_size=500), st.booleans(), names,
    protocol=st.sampled_from([1, 2]),
)  # fmt: skip
replies = st.builds(Reply, st.integers(0, 255), st.binary(max_size=500), st.binary(max_size=500))


def request_header(name: int = 0, profile: int = 0, environment: int = 0, stdin: int = 0, flags: int = 0) -> bytes:
    return struct.pack("<4s5I", b"SVC1", name, profile, environment, stdin, flags)


def reply_header(status: int = 0, stdout: int = 0, stderr: int = 0) -> bytes:
    return struct.pack("<4s3I", b"SVC1", status, stdout, stderr)


def with_environment(environment: bytes) -> bytes:
    return request_header(environment=len(environment)) + environment


@pytest.fixture(autouse=True)
def _version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("svc.__version__", "1.2.3", raising=False)
    own_version.cache_clear()
    yield
    own_version.cache_clear()


def test_request_has_a_fixed_layout() -> None:
    """The order of parts and the width of lengths are fixed."""
    assert pack_request(FRAME) == FRAME_BYTES
    frame = RequestReader().feed(FRAME_BYTES)
    assert frame == FRAME
    assert frame.version == "1.2.3"


def test_reply_has_a_fixed_layout() -> None:
    """The order of parts and the width of lengths are fixed."""
    assert pack_reply(REPLY.status, REPLY.stdout, REPLY.stderr) == REPLY_BYTES
    assert parse_reply(REPLY_BYTES) == REPLY


def test_layout_of_protocol_1_is_supported() -> None:
    """Earlier builds have only this layout, without version and continuation."""
    released = replace(FRAME, continuation=b"", protocol=1)
    assert pack_request(released) == b"SVC1" + FRAME_REST
    assert RequestReader().feed(b"SVC1" + FRAME_REST) == released
    assert pack_reply(REPLY.status, REPLY.stdout, REPLY.stderr, 1) == b"SVC1" + REPLY_REST
    assert parse_reply(b"SVC1" + REPLY_REST) == REPLY
    assert ReplyReader().feed(pack_timeout_extension(2, 1) + b"SVC1" + REPLY_REST) == REPLY


@pytest.mark.parametrize("digit", [b"0", b"3", b"9", b"A"])
def test_error_about_another_layout_has_its_version(digit: bytes) -> None:
    """The error is raised before the rest of the frame arrives, so that the agent can reply."""
    for reader in (RequestReader(), ReplyReader()):
        with pytest.raises(OtherVersion, match=r"9\.8\.7.*1\.2\.3") as caught:
            reader.feed(b"SVC" + digit + b"9.8.7" + bytes(23))
        assert caught.value.version == "9.8.7"


@pytest.mark.parametrize("piece", [1, 7, 44, 1000])
def test_call_is_handed_over(piece: int) -> None:
    data, reader = pack_alive() + pack_handover(CONTINUATION, 12.5), ReplyReader()
    pieces = [data[start : start + piece] for start in range(0, len(data), piece)]
    assert [reader.feed(each) for each in pieces[:-1]] == [None] * (len(pieces) - 1)
    with pytest.raises(Handover) as caught:
        reader.feed(pieces[-1])
    assert (caught.value.continuation, caught.value.seconds) == (CONTINUATION, 12.5)


@given(frames)
def test_any_request_is_unpacked_unchanged(frame: CallInput) -> None:
    """Names and values can have any bytes except NUL."""
    assert RequestReader().feed(pack_request(frame)) == frame


@given(replies)
def test_any_reply_is_unpacked_unchanged(reply: Reply) -> None:
    """Output is bytes, not text."""
    assert parse_reply(pack_reply(reply.status, reply.stdout, reply.stderr)) == reply


@given(st.sets(st.integers(0, len(FRAME_BYTES))))
def test_request_can_arrive_in_any_chunks(cuts: set[int]) -> None:
    """Only the last chunk completes the frame."""
    edges = [0, *sorted(cuts), len(FRAME_BYTES)]
    chunks = [FRAME_BYTES[start:end] for start, end in pairwise(edges) if end > start]
    reader = RequestReader()
    assert [reader.feed(chunk) for chunk in chunks] == [None] * (len(chunks) - 1) + [FRAME]


def test_reply_can_arrive_byte_by_byte() -> None:
    """Only the last byte completes the reply."""
    reader = ReplyReader()
    answers = [reader.feed(bytes([byte])) for byte in REPLY_BYTES]
    assert answers == [None] * (len(REPLY_BYTES) - 1) + [REPLY]


@pytest.mark.parametrize("size", range(len(FRAME_BYTES)))
def test_truncated_request_is_not_a_frame(size: int) -> None:
    """A connection that ends early has sent no request."""
    assert RequestReader().feed(FRAME_BYTES[:size]) is None


@pytest.mark.parametrize("size", range(len(REPLY_BYTES)))
def test_truncated_reply_is_refused(size: int) -> None:
    """Half a result must not be accepted as a result."""
    with pytest.raises(FrameError, match="ends early"):
        parse_reply(REPLY_BYTES[:size])


@pytest.mark.parametrize("size", range(1, 5))
def test_other_magic_is_refused_at_once(size: int) -> None:
    """The first different byte is enough."""
    start = b"SVC2"[: size - 1] + b"\xff"
    with pytest.raises(FrameError, match="starts with"):
        RequestReader().feed(start)
    with pytest.raises(FrameError, match="starts with"):
        ReplyReader().feed(start)


@given(st.binary(min_size=4, max_size=100).filter(lambda data: not data.startswith((b"SVC1", b"SVC2"))))
def test_garbage_is_refused(data: bytes) -> None:
    """Executable and agent refuse it because of its first bytes."""
    with pytest.raises(FrameError):
        RequestReader().feed(data)
    with pytest.raises(FrameError):
        ReplyReader().feed(data)


@given(st.lists(st.floats(0, 1e9), max_size=3), st.integers(1, 40))
def test_timeout_extension_is_not_a_reply(seconds: list[float], piece: int) -> None:
    data = b"".join(pack_timeout_extension(each) + pack_alive() for each in seconds) + pack_reply(1, b"out", b"err")
    reader = ReplyReader()
    replies = [reader.feed(data[start : start + piece]) for start in range(0, len(data), piece)]
    assert replies[:-1] == [None] * (len(replies) - 1)
    assert replies[-1] == Reply(1, b"out", b"err")


def test_timeout_extension_is_limited_as_in_the_executable() -> None:
    frame, reader = pack_timeout_extension(EXTENSION_LIMIT / 1000), ReplyReader()
    assert reader.feed(frame) is None
    assert reader.extension_seconds == EXTENSION_LIMIT / 1000
    longer = frame[:-8] + (EXTENSION_LIMIT + 1).to_bytes(4, "little") + frame[-4:]
    with pytest.raises(FrameError, match="timeout extension 2147483648 is not"):
        ReplyReader().feed(longer)


@given(st.sampled_from([b"SVC1", b"SVC2"]), st.binary(max_size=200))
def test_garbage_after_the_magic_raises_only_frame_errors(magic: bytes, data: bytes) -> None:
    """Any bytes after the magic are a frame, the beginning of a frame, or a FrameError."""
    for reader in (RequestReader(), ReplyReader()):
        try:
            reader.feed(magic + data)
        except (FrameError, Handover):
            continue


@pytest.mark.parametrize(
    ("part", "limit"),
    [("name", NAME_LIMIT), ("profile", PROFILE_LIMIT), ("environment", ENVIRONMENT_LIMIT), ("stdin", STDIN_LIMIT)],
)
def test_request_part_over_its_limit_is_refused(part: str, limit: int) -> None:
    """The header alone causes the error. The limit itself is allowed."""
    assert RequestReader().feed(request_header(**{part: limit})) is None
    with pytest.raises(FrameError, match=f"{part} {limit + 1}"):
        RequestReader().feed(request_header(**{part: limit + 1}))


@pytest.mark.parametrize("flags", [2, 3, 0x80000000])
def test_unknown_flags_are_refused(flags: int) -> None:
    """A flag may change the meaning of the bytes after it."""
    with pytest.raises(FrameError, match="flags"):
        RequestReader().feed(request_header(flags=flags))


@pytest.mark.parametrize(("stdout", "stderr"), [(REPLY_LIMIT + 1, 0), (0, REPLY_LIMIT + 1), (REPLY_LIMIT, 1)])
def test_reply_over_its_limit_is_refused(stdout: int, stderr: int) -> None:
    """The limit applies to the sum of both parts."""
    assert ReplyReader().feed(reply_header(stdout=REPLY_LIMIT)) is None
    with pytest.raises(FrameError):
        ReplyReader().feed(reply_header(stdout=stdout, stderr=stderr))


def test_exit_status_over_a_byte_is_refused() -> None:
    """512 would reach the runtime as success; 256 is not an exit status."""
    with pytest.raises(FrameError, match="status 512"):
        parse_reply(reply_header(status=512))
    with pytest.raises(FrameError, match="status -1"):
        pack_reply(-1, b"", b"")


def test_trailing_bytes_are_refused() -> None:
    """A connection carries one request and one reply. The extra bytes may arrive later."""
    with pytest.raises(FrameError, match="1 bytes follow"):
        RequestReader().feed(FRAME_BYTES + b"x")
    reader = RequestReader()
    reader.feed(FRAME_BYTES)
    with pytest.raises(FrameError, match="1 bytes follow"):
        reader.feed(b"x")
    with pytest.raises(FrameError, match="2 bytes follow"):
        parse_reply(REPLY_BYTES + b"xx")


@pytest.mark.parametrize(
    "environment",
    [b"CNI_A=1", b"CNI_A\0", b"=1\0", b"\0", b"CNI_A=1\0\0", b"CNI_A=1\0CNI_B\0", b"CNI_\xff=1\0"],
    ids=["unended", "without =", "without a name", "empty", "empty last", "second without =", "name not UTF-8"],
)
def test_malformed_environment_is_refused(environment: bytes) -> None:
    """Only NUL-terminated KEY=VALUE strings are an environment."""
    with pytest.raises(FrameError, match="environment"):
        RequestReader().feed(with_environment(environment))


def test_value_that_is_not_utf8_is_kept() -> None:
    """A file name in CNI_NETNS may have any bytes."""
    frame = RequestReader().feed(with_environment(b"CNI_NETNS=/\xff\xc3\xa4\0"))
    assert frame is not None
    assert frame.environment["CNI_NETNS"].encode("utf-8", "surrogateescape") == b"/\xff\xc3\xa4"


def test_first_of_two_equal_variables_counts() -> None:
    """The executable uses getenv, which returns the first one."""
    frame = RequestReader().feed(with_environment(b"CNI_A=1\0CNI_A=2\0"))
    assert frame is not None
    assert frame.environment == {"CNI_A": "1"}


@pytest.mark.parametrize("variable", [("", "1"), ("A=B", "1"), ("A\0", "1"), ("A", "1\0B=2")])
def test_variable_that_would_change_is_not_packed(variable: tuple[str, str]) -> None:
    """It would be unpacked as another variable."""
    with pytest.raises(FrameError, match="environment"):
        pack_request(CallInput("svc", dict([variable]), b""))


def test_too_large_parts_are_not_packed() -> None:
    """Executable and agent have the same limits."""
    for frame in (
        CallInput("n" * (NAME_LIMIT + 1), {}, b""),
        CallInput("svc", {"CNI_ARGS": "a" * ENVIRONMENT_LIMIT}, b""),
        CallInput("svc", {}, bytes(STDIN_LIMIT + 1)),
    ):
        with pytest.raises(FrameError):
            pack_request(frame)
    with pytest.raises(FrameError):
        pack_reply(0, bytes(REPLY_LIMIT), b"x")

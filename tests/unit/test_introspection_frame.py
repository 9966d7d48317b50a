"""Frames of introspection requests: pieces, limits, and peers of other versions."""

import pytest

import svc
from svc.cni.call_io import CallInput
from svc.cni.frame import FrameError, OtherVersion, pack_reply, pack_request
from svc.cni.introspection_frame import REPLY_LIMIT, REQUEST_LIMIT, DocumentReader, TooLarge, pack_document

DOCUMENT = b'{"kind": "state"}'
HEADER_BYTES = 36


def test_frame_is_read_in_any_pieces() -> None:
    frame = pack_document(DOCUMENT, REQUEST_LIMIT)
    for size in (1, 3, HEADER_BYTES, len(frame)):
        reader = DocumentReader(REQUEST_LIMIT)
        pieces = [frame[start : start + size] for start in range(0, len(frame), size)]
        assert [reader.feed(piece) for piece in pieces] == [None] * (len(pieces) - 1) + [DOCUMENT]
        assert reader.version == svc.__version__


def test_frame_has_the_documented_layout() -> None:
    """An agent of another version reads the magic and the version, and ignores the rest."""
    version = svc.__version__.encode().ljust(28, b"\0")
    assert pack_document(b"{}", 2) == b"SVCI" + version + b"\x02\0\0\0" + b"{}"


@pytest.mark.parametrize("limit", [REQUEST_LIMIT, REPLY_LIMIT])
def test_largest_document_fits(limit: int) -> None:
    document = b"x" * limit
    assert DocumentReader(limit).feed(pack_document(document, limit)) == document
    with pytest.raises(TooLarge, match=f"document of {limit + 1} bytes is larger than {limit} bytes"):
        pack_document(document + b"x", limit)


def test_too_large_document_is_refused_before_it_is_read() -> None:
    frame = pack_document(b"x" * (REQUEST_LIMIT + 1), REPLY_LIMIT)
    with pytest.raises(TooLarge) as caught:
        DocumentReader(REQUEST_LIMIT).feed(frame[:HEADER_BYTES])
    assert (caught.value.length, caught.value.limit) == (REQUEST_LIMIT + 1, REQUEST_LIMIT)


def test_surplus_bytes_are_refused() -> None:
    with pytest.raises(FrameError, match="1 bytes follow the end"):
        DocumentReader(REQUEST_LIMIT).feed(pack_document(DOCUMENT, REQUEST_LIMIT) + b"x")


def test_reply_of_an_agent_without_introspection_names_its_version() -> None:
    with pytest.raises(OtherVersion) as caught:
        DocumentReader(REPLY_LIMIT).feed(pack_reply(1, b'{"code": 5}', b""))
    assert (caught.value.layout, caught.value.version) == ("2", svc.__version__)


@pytest.mark.parametrize("start", [b"H", b"HTTP/1.1 400", b"SVX", b"\0" * 40])
def test_other_bytes_are_refused_at_once(start: bytes) -> None:
    with pytest.raises(FrameError, match="frame starts with"):
        DocumentReader(REPLY_LIMIT).feed(start)


def test_unprintable_version_is_not_shown() -> None:
    reader = DocumentReader(REQUEST_LIMIT)
    reader.feed(b"SVCI" + b"\x1b[31m".ljust(28, b"\0") + b"\x05\0\0\0")
    assert reader.version == ""


def test_call_is_not_an_introspection_request() -> None:
    with pytest.raises(OtherVersion):
        DocumentReader(REQUEST_LIMIT).feed(pack_request(CallInput("svc", {}, b"{}")))

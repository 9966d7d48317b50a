"""The head of a readiness gate's response: the final status, and the target of a redirect."""

import pytest

from svc.waits.probe import Head, NotHttp, parse_head


@pytest.mark.parametrize(
    ("data", "head"),
    [
        (b"HTTP/1.1 200 OK\r\n", Head(200)),
        (b"HTTP/1.0 503\n", Head(503)),
        (b"HTTP/1.1 304 Not Modified\r\nLocation: /x\r\n\r\n", Head(304)),
        (b"HTTP/1.1 302 Found\r\nlocation:\t/x \r\nX: y\r\n\r\nLocation: /y", Head(302, "/x")),
        (b"HTTP/1.1 301 Moved\r\nX-Location: /x\r\n\r\n", Head(301)),
        (
            b"HTTP/1.1 103 Early\r\nLocation: /x\r\n\r\nHTTP/1.1 308 P\r\nLOCATION: http://a/b?c\r\n\r\n",
            Head(308, "http://a/b?c"),
        ),
        (b"", None),
        (b"HTTP/1.1 20", None),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\n", None),
        (b"HTTP/1.1 100 Continue\r\n", None),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1", None),
    ],
)
def test_head_is_parsed_as_far_as_it_is_needed(data: bytes, head: Head | None) -> None:
    assert parse_head(data) == head


@pytest.mark.parametrize("data", [b"SSH-2.0\r\n", b"HTTP/2 200\r\n", b"x" * 20_000, b"HTTP/1.1 302 F\r\n" + b"X: y\r\n" * 4000])
def test_other_data_is_not_http(data: bytes) -> None:
    with pytest.raises(NotHttp):
        parse_head(data)

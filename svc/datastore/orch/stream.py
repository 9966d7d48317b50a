"""The answer to a watch: one JSON document a line, for as long as the server has something to tell."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson
import urllib3

Json = dict[str, Any]


class Stream:
    """Iterate in one thread; close from any, which ends the iteration."""

    def __init__(self, reply: urllib3.BaseHTTPResponse, seconds: float) -> None:
        """`seconds` without a word from the server end it."""
        self._reply = reply
        self._socket: socket.socket | None = getattr(reply.connection, "sock", None)
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """Type and object of each change. A broken connection ends it like a server that has nothing more to say."""
        rest = b""
        with suppress(urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            for chunk in self._reply.stream():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = orjson.loads(line)
                    yield event["type"], event["object"]

    def close(self) -> None:
        """Wakes the thread that reads: closing alone would not."""
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not of SSLSocket: that one drops what the reader uses

    def release(self) -> None:
        """By the thread that reads, when it has done."""
        self._reply.close()

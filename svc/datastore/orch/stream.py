"""Answer to a watch: a stream of JSON documents, one per line."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson
import urllib3

Json = dict[str, Any]


class Stream:
    """Stream of changes. One thread iterates; `close`, from any thread, ends the iteration."""

    def __init__(self, reply: urllib3.BaseHTTPResponse, seconds: float) -> None:
        """Set the timeout in seconds: the stream ends if the server sends nothing for that long."""
        self._reply = reply
        self._socket: socket.socket | None = getattr(reply.connection, "sock", None)
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """Yield type and object of each change, until the server ends the stream or the connection breaks."""
        rest = b""
        with suppress(urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            for chunk in self._reply.stream():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = orjson.loads(line)
                    yield event["type"], event["object"]

    def close(self) -> None:
        """Shut the socket down, which wakes the reading thread; closing the socket would not."""
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # SSLSocket's own discards state that the reader uses

    def release(self) -> None:
        """Close the reply. The reading thread calls it after its last read."""
        self._reply.close()

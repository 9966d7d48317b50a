"""Introspection requests: each is served by a short-lived thread, outside the admission queue and its workers.

So neither a full queue nor stuck workers delay them. The kinds of requests (`introspection.py`) are imported by the first one.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import orjson

import svc
from svc.cni.frame import FrameError
from svc.cni.introspection_frame import REPLY_LIMIT, REQUEST_LIMIT, DocumentReader, TooLarge, pack_document
from svc.imports import is_package_changed, whole_imports

MAX_REQUESTS: Final = 8  # that are served in parallel
READ_SECONDS: Final = 5.0  # limit for a client to send its request
REPLY_SECONDS: Final = 10.0  # limit for a client to read its reply
_CHUNK: Final = 1 << 16

Json = dict[str, Any]
Answer = Callable[[bytes], Json]

log = logging.getLogger("svc.agent")


class IntrospectionServer:
    """Threads that serve introspection requests. `load` returns the function that answers a document.

    If MAX_REQUESTS are being served, a further one ends the oldest that waits for its client, so that slow clients do not
    block others.
    """

    def __init__(self, load: Callable[[], Answer]) -> None:
        self._load = load
        self._loaded: Answer | None = None
        self._lock = threading.Lock()
        self._served = 0
        self._transfers: dict[socket.socket, None] = {}  # connections of threads that wait for their client, oldest first

    def accept(self, connection: socket.socket, received: bytes) -> None:
        """Serve the request that begins with the received bytes. Close the connection afterwards. Return at once."""
        with self._lock:
            refusal = self._reserve()
            if not refusal:
                try:
                    threading.Thread(target=self._run, args=(connection, received), name="introspection", daemon=True).start()
                except RuntimeError:
                    self._served -= 1
                    refusal = "the system has no further thread"
        if refusal:
            with connection, suppress(OSError):
                connection.send(_packed(error("", None, refusal, "try again later")))

    def _reserve(self) -> str:
        """Count a request. If there are too many, end the oldest transfer, or return why the request is refused."""
        if self._served >= MAX_REQUESTS:
            if not self._transfers:
                return f"{MAX_REQUESTS} introspection requests are being served"
            oldest = next(iter(self._transfers))
            del self._transfers[oldest]
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        self._served += 1
        return ""

    def _run(self, connection: socket.socket, received: bytes) -> None:
        try:
            with connection, suppress(OSError):  # the client is late or has disconnected
                self._serve(connection, received)
        finally:
            with self._lock:
                self._transfers.pop(connection, None)
                self._served -= 1

    def _serve(self, connection: socket.socket, received: bytes) -> None:
        self._begin_transfer(connection)
        try:
            document = _read(connection, received)
        except FrameError as failure:
            reply = _refusal(failure)
        else:
            self._end_transfer(connection)
            reply = self._answer(document)
        frame = _packed(reply)
        self._begin_transfer(connection)
        connection.settimeout(REPLY_SECONDS)  # for the whole reply
        connection.sendall(frame)

    def _begin_transfer(self, connection: socket.socket) -> None:
        with self._lock:
            self._transfers[connection] = None

    def _end_transfer(self, connection: socket.socket) -> None:
        with self._lock:
            self._transfers.pop(connection, None)

    def _answer(self, document: bytes) -> Json:
        try:
            if self._loaded is None:
                with whole_imports():
                    self._loaded = self._load()
            return self._loaded(document)
        except Exception as failure:
            if is_package_changed():
                return error("", None, "svc was replaced or removed on disk since its agent started", "restart svc-agent")
            log.exception("an introspection request failed")
            remedy = "see the agent's log; if it shows no lack of resources, report it as a defect of svc"
            return error("", None, f"internal error: {type(failure).__name__}: {failure}", remedy)


def error(field: str, value: object, problem: str, remedy: str) -> Json:
    """Return the reply to a request that is refused. An empty field means the whole request."""
    return {"version": svc.__version__, "error": {"field": field, "value": value, "problem": problem, "remedy": remedy}}


def _refusal(failure: FrameError) -> Json:
    if isinstance(failure, TooLarge):
        problem = f"is more than {failure.limit} bytes"
        return error("length", failure.length, problem, "send a shorter request: it needs a kind and few options")
    return error("", None, str(failure), "send one frame as docs/reference/introspection.md describes")


def _read(connection: socket.socket, received: bytes) -> bytes:
    """Return the document of the request. Raise FrameError, or OSError if the client disconnects or is late."""
    reader, until = DocumentReader(REQUEST_LIMIT), time.monotonic() + READ_SECONDS
    while (document := reader.feed(received)) is None:
        connection.settimeout(max(0.001, until - time.monotonic()))
        received = connection.recv(_CHUNK)
        if not received:
            raise ConnectionResetError("the client closed before its request was whole")
    return document


def _packed(reply: Json) -> bytes:
    """Return the frame of a reply. In place of a reply that is too large, return an error."""
    try:
        return pack_document(orjson.dumps(reply, default=str, option=orjson.OPT_NON_STR_KEYS), REPLY_LIMIT)
    except TooLarge as failure:
        problem = f"the reply has {failure.length} bytes, more than {failure.limit}"
        return pack_document(orjson.dumps(error("", None, problem, "ask for one container")), REPLY_LIMIT)

"""Client for one call to a running agent, with the protocol of the executable: for tools, tests and benchmarks."""

import array
import math
import socket
import time
from contextlib import suppress

from svc.cni.call_io import CallInput, Reply
from svc.cni.frame import ReplyReader, pack_request
from svc.values import replace

SILENCE_SECONDS = 5.0  # the executable waits as long
_CHUNK = 64 << 10  # bytes


def call(socket_path: str, inputs: CallInput, *, netns_fd: int = -1, timeout: float) -> Reply:
    """Send a call to the agent and return its reply. The caller keeps `netns_fd`; -1 means none.

    Raise TimeoutError after `timeout` seconds, unless the agent asks for more, or after 5 s without a frame (layout 2 only).
    Raise Handover if the agent hands the call over, FrameError for an invalid reply, ConnectionError if the agent closes the
    connection early, and other OSErrors of the socket.
    """
    until = time.monotonic() + timeout
    request = pack_request(replace(inputs, has_descriptor=netns_fd >= 0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _allow(connection, until)
        connection.connect(socket_path)
        with suppress(BrokenPipeError, ConnectionResetError):  # an agent that refuses a call may answer before it has read all
            _send(connection, request, netns_fd, until)
        return _receive(connection, until, math.inf if inputs.protocol == 1 else SILENCE_SECONDS)


def _allow(connection: socket.socket, until: float, silence: float = math.inf) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the agent did not answer in time")
    connection.settimeout(min(left, silence))


def _send(connection: socket.socket, request: bytes, netns_fd: int, until: float) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [netns_fd]))] if netns_fd >= 0 else []
    _allow(connection, until)
    sent = connection.sendmsg([request], rights)
    if sent < len(request):
        _allow(connection, until)
        connection.sendall(request[sent:])


def _receive(connection: socket.socket, until: float, silence: float) -> Reply:
    reader = ReplyReader()
    while True:
        _allow(connection, until, silence)
        try:
            data = connection.recv(_CHUNK)
        except ConnectionResetError:
            data = b""
        except TimeoutError:
            _allow(connection, until)
            raise TimeoutError("the agent does not respond: it is stopped or hung") from None
        if not data:
            raise ConnectionError("the agent closed the connection before the end of its reply")
        if (reply := reader.feed(data)) is not None:
            return reply
        if reader.extension_seconds:
            until = time.monotonic() + reader.extension_seconds

"""The agent's socket: accept connections of root, read one request from each, and pass it on when it is complete.

No thread blocks on one connection. A client that sends nothing, or an incomplete request, occupies its connection and is
dropped at its deadline.
"""

import array
import errno
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import orjson

import svc
from svc.cni.call_io import CallInput
from svc.cni.frame import INTROSPECTION, FrameError, OtherVersion, RequestReader, pack_reply
from svc.cni.results import render_error
from svc.model.cni_versions import LATEST
from svc.model.errors import Code, PeerError
from svc.private_directory import create_directories
from svc.values import dataclass, field

READ_SECONDS = 5.0  # from accept to a complete request
LAST_SECONDS = 1.0  # the same during the drain
WARNING_SECONDS = 10.0  # between two log lines on dropped clients
_BACKLOG = 4096
_MAX_PATH = 107  # bytes, the limit of a client's connect
_ONCE = select.EPOLLIN | select.EPOLLONESHOT
_NO_DESCRIPTORS_SECONDS = 0.01  # pause until calls in flight close descriptors; clients wait in the backlog
_CHUNK = 1 << 16
_DESCRIPTORS = 4  # room for more than the expected one, so that surplus ones are seen and closed
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid

log = logging.getLogger("svc.agent")

OnRequest = Callable[[socket.socket, CallInput], None]
OnIntrospection = Callable[[socket.socket, bytes], None]


@dataclass(slots=True)
class _Client:
    socket: socket.socket
    deadline: float
    reader: RequestReader = field(default_factory=RequestReader)
    netns_fd: int = -1

    def drop(self) -> None:
        self.socket.close()
        self.drop_descriptor()

    def drop_descriptor(self) -> None:
        if self.netns_fd >= 0:
            os.close(self.netns_fd)


class Listener:
    """The agent's socket and its clients. Threads call `poll` in a loop; an event wakes one of them.

    `on_request` receives and owns the connection and the request with its descriptor. Each descriptor is watched for one
    event at a time (EPOLLONESHOT), and again after that event. So no two threads handle the same descriptor.

    `on_introspection` receives and owns the connection of an introspection request, with the bytes that were read. It must
    return at once, because the listener is locked.
    """

    def __init__(self, path: Path, on_request: OnRequest, on_introspection: OnIntrospection) -> None:
        self._path = path
        self._on_request = on_request
        self._on_introspection = on_introspection
        self._lock = threading.Lock()
        self._clients: dict[int, _Client] = {}
        self._dropped = _Dropped()
        self._refusing = False
        self._released = False
        self._socket = bind_socket(path)
        self._file = path.stat()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._socket, _ONCE)
        self._epoll.register(self._wake_read, _ONCE)

    def stands(self) -> bool:
        """Return True if clients that connect to the path reach this listener."""
        try:
            return os.path.samestat(self._path.stat(), self._file)
        except OSError:
            return False

    def bind(self) -> None:
        """Bind the path again if `stands` is false. Raise OSError."""
        with self._lock:
            if self._refusing:
                return
            listening = bind_socket(self._path)
            self._epoll.unregister(self._socket)
            self._socket.close()
            self._socket, self._file = listening, self._path.stat()
            self._epoll.register(self._socket, _ONCE)
        self.wake()

    def poll(self, *, wait: bool) -> bool:
        """Handle pending events. Return True if an event came. With `wait`, block until an event, a deadline or `wake`."""
        events = self._epoll.poll(self._until_next_deadline() if wait else 0, 1)
        for number, _ in events:
            with self._lock:
                self._handle(number)
        if self._clients:
            with self._lock:
                self._drop_late()
        return bool(events)

    def wake(self) -> None:
        """End one waiting `poll`, from any thread. If a wake-up is already pending, or the listener is closed, do nothing."""
        with suppress(OSError):
            self._wake_write.send(b"x")

    def wake_all(self) -> None:
        """End every waiting `poll`. From now on none waits: one thread could consume the wake-ups of several."""
        self._released = True
        self.wake()

    def stop_accepting(self) -> None:
        """Refuse new clients, which then run without the agent. Requests of accepted clients are still passed on."""
        with self._lock:
            self._refusing = True
            self._epoll.unregister(self._socket)
            self._socket.shutdown(socket.SHUT_RD)
            self._unlink()
            while self._accept():
                pass
            until = time.monotonic() + LAST_SECONDS
            for client in self._clients.values():
                client.deadline = min(client.deadline, until)
        while self._clients:
            self.poll(wait=True)

    def close(self) -> None:
        """Close the listener, after the last `poll` has returned."""
        self._unlink()
        for client in self._clients.values():
            client.drop()
        self._clients.clear()
        for own in (self._epoll, self._socket, self._wake_read, self._wake_write):
            own.close()

    def _unlink(self) -> None:
        """Remove the path, unless another listener has replaced it."""
        if self.stands():
            self._path.unlink(missing_ok=True)

    def _handle(self, number: int) -> None:
        if number == self._socket.fileno():
            self._accept()
            if not self._refusing:
                self._epoll.modify(self._socket, _ONCE)
        elif number == self._wake_read.fileno():
            if not self._released:
                with suppress(BlockingIOError):
                    self._wake_read.recv(1)
            self._epoll.modify(self._wake_read, _ONCE)
        elif number in self._clients:
            self._go_on(number)

    def _accept(self) -> bool:
        """Accept one pending client, and read from it. Return False if there is none.

        Another thread accepts the next one: a short call must not wait until the requests behind it are read.
        """
        try:
            connection, _ = self._socket.accept()
        except OSError as failure:
            if failure.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(_NO_DESCRIPTORS_SECONDS)
            return False  # no connection is pending, or the peer has closed it
        if _peer(connection)[1] not in (0, os.geteuid()):
            connection.close()
            return True
        connection.setblocking(False)
        client = _Client(connection, time.monotonic() + READ_SECONDS)
        if not self._finished(client):
            self._clients[connection.fileno()] = client
            self._epoll.register(connection, _ONCE)
            self.wake()  # a waiting thread must recompute its deadline
        return True

    def _go_on(self, number: int) -> None:
        """Read from a client. It is removed meantime: the receiver of its request may close the connection at once."""
        client = self._clients.pop(number)
        if not self._finished(client):
            self._clients[number] = client
            self._epoll.modify(number, _ONCE)

    def _finished(self, client: _Client) -> bool:
        """Read available data. Return True if the request is complete or the client was dropped."""
        try:
            inputs = _receive(client)
        except BlockingIOError:
            return False
        except FrameError as error:
            self._on_other_frame(client, error)
            return True
        except OSError:
            client.drop()
            return True
        inputs.netns_fd = client.netns_fd
        self._on_request(client.socket, inputs)
        return True

    def _on_other_frame(self, client: _Client, error: FrameError) -> None:
        """Pass an introspection request on, and refuse any other frame that is not a call."""
        if isinstance(error, OtherVersion) and error.layout == INTROSPECTION:
            client.drop_descriptor()
            self._on_introspection(client.socket, client.reader.received)
            return
        self._dropped.report(client.socket, error)
        if isinstance(error, OtherVersion):
            with suppress(OSError):
                client.socket.send(_refusal(error))
        client.drop()

    def _until_next_deadline(self) -> float | None:
        """Return the seconds to wait. Return 0 if clients are refused and none is left, because no further event can come."""
        with self._lock:
            if not self._clients:
                return 0.0 if self._refusing else None
            return max(0.0, min(client.deadline for client in self._clients.values()) - time.monotonic())

    def _drop_late(self) -> None:
        now = time.monotonic()
        for number, client in list(self._clients.items()):
            if client.deadline <= now:
                del self._clients[number]
                client.drop()


class _Dropped:
    """Log of refused clients: one line for the first, and one for all that follow within WARNING_SECONDS."""

    def __init__(self) -> None:
        self._due = 0.0
        self._number = 0

    def report(self, connection: socket.socket, error: FrameError) -> None:
        self._number += 1
        if (now := time.monotonic()) >= self._due:
            more = f" ({self._number} since the last such line)" if self._number > 1 else ""
            log.warning("refused a request of process %d: %s%s", _peer(connection)[0], error, more)
            self._due, self._number = now + WARNING_SECONDS, 0


def _refusal(other: OtherVersion) -> bytes:
    """Return the reply to a request in an unsupported layout, in this version's layout. It names both versions and the fix."""
    error = PeerError(
        f"the executable is of version {other.version or 'unknown'}, the agent of {svc.__version__}:"
        " they have no protocol in common",
        details="install the newer version of both, and restart the agent",
        code=Code.IO_FAILURE,
    )
    return pack_reply(1, orjson.dumps(render_error(error, LATEST)), b"")


def _receive(client: _Client) -> CallInput:
    """Return a complete request. Raise BlockingIOError if data is missing, OSError at the end of the connection; FrameError."""
    while True:
        data, ancillary, _, _ = client.socket.recvmsg(_CHUNK, socket.CMSG_SPACE(_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC)
        for fd in _descriptors(ancillary):
            if client.netns_fd < 0:
                client.netns_fd = fd
            else:
                os.close(fd)
        if not data:
            raise ConnectionResetError("the client closed before its request was whole")
        if (inputs := client.reader.feed(data)) is not None:
            return inputs


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return PID and user ID of the peer."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)


def bind_socket(path: Path) -> socket.socket:
    """Bind and listen under a temporary name, then rename the socket: clients find it only when it serves, for root only.

    Raise OSError if that fails, or if another kind of file has the path.
    """
    create_directories(path.parent)
    if len(os.fsencode(path)) > _MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, f"the path is longer than {_MAX_PATH} bytes", str(path))
    if path.exists() and not path.is_socket():
        raise FileExistsError(errno.EEXIST, "another kind of file is there", str(path))
    draft = path.with_name(f".{os.getpid()}")  # not longer than the name: socket paths have at most 107 bytes
    with suppress(FileNotFoundError):
        draft.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.bind(str(draft))
        draft.chmod(0o600)
        listening.listen(_BACKLOG)
        draft.rename(path)
    except BaseException:
        listening.close()
        draft.unlink(missing_ok=True)
        raise
    return listening

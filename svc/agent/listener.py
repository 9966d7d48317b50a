"""The agent's socket: accepts root's connections, reads one request from each, hands whole requests on.

No thread ever blocks on one connection: a client that says nothing, or half of something, costs its connection and is
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
from dataclasses import dataclass, field
from pathlib import Path

from svc.cni.frame import Frame, FrameError, OtherVersion, RequestReader
from svc.cni.refusal import refusal

READ_SECONDS = 5.0  # from accept to a whole request
LAST_SECONDS = 1.0  # the same at the end
WARNING_SECONDS = 10.0  # between two lines on clients that were dropped
_BACKLOG = 4096
_MAX_PATH = 107  # bytes, what a client can connect to
_ONCE = select.EPOLLIN | select.EPOLLONESHOT
_NO_DESCRIPTORS_SECONDS = 0.01  # until calls under way have closed some; whoever waits stays in the backlog
_CHUNK = 1 << 16
_DESCRIPTORS = 4  # room for more than the one that is wanted, so that surplus ones are seen and closed
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid

log = logging.getLogger("svc.agent")

OnRequest = Callable[[socket.socket, Frame, int], None]


@dataclass(slots=True)
class _Client:
    socket: socket.socket
    deadline: float
    reader: RequestReader = field(default_factory=RequestReader)
    netns_fd: int = -1

    def drop(self) -> None:
        self.socket.close()
        if self.netns_fd >= 0:
            os.close(self.netns_fd)


class Listener:
    """`turn` again and again, from any number of threads: what comes wakes one of them.

    `on_request` gets the connection, the request and its descriptor (-1: none), to keep. Everything is watched for one event
    at a time (EPOLLONESHOT) and again when that was handled, so that no two threads handle the same.
    """

    def __init__(self, path: Path, on_request: OnRequest) -> None:
        self._path = path
        self._on_request = on_request
        self._lock = threading.Lock()
        self._clients: dict[int, _Client] = {}
        self._dropped = _Dropped()
        self._refusing = False
        self._released = False
        self._socket = _bind(path)
        self._file = path.stat()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._socket, _ONCE)
        self._epoll.register(self._wake_read, _ONCE)

    def stands(self) -> bool:
        """Whether clients that connect to the path reach this listener."""
        try:
            return os.path.samestat(self._path.stat(), self._file)
        except OSError:
            return False

    def bind(self) -> None:
        """Bind the path again, where `stands` is false. OSError."""
        with self._lock:
            if self._refusing:
                return
            listening = _bind(self._path)
            self._epoll.unregister(self._socket)
            self._socket.close()
            self._socket, self._file = listening, self._path.stat()
            self._epoll.register(self._socket, _ONCE)
        self.wake()

    def turn(self, *, wait: bool) -> bool:
        """Handles what has come; with `wait` it waits for something to come, for a deadline, or for `wake`. Whether something
        has come."""
        events = self._epoll.poll(self._until_next_deadline() if wait else 0, 1)
        for number, _ in events:
            with self._lock:
                self._handle(number)
        if self._clients:
            with self._lock:
                self._drop_late()
        return bool(events)

    def wake(self) -> None:
        """Ends one waiting `turn`; from any thread. One that is told already, or closed, needs no telling."""
        with suppress(OSError):
            self._wake_write.send(b"x")

    def release(self) -> None:
        """Ends every `turn` that waits, and from now on none waits: a wake for each thread might be used up by one of them."""
        self._released = True
        self.wake()

    def refuse(self) -> None:
        """Refuses clients from now on (they do without the agent), but hands on what those send who were in time."""
        with self._lock:
            self._refusing = True
            self._epoll.unregister(self._socket)
            self._socket.shutdown(socket.SHUT_RD)
            self._unlink()
            self._accept()
            until = time.monotonic() + LAST_SECONDS
            for client in self._clients.values():
                client.deadline = min(client.deadline, until)
        while self._clients:
            self.turn(wait=True)

    def close(self) -> None:
        """When nobody takes turns any more."""
        self._unlink()
        for client in self._clients.values():
            client.drop()
        self._clients.clear()
        for own in (self._epoll, self._socket, self._wake_read, self._wake_write):
            own.close()

    def _unlink(self) -> None:
        """Not another listener's, which has taken the path over."""
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

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as failure:
                if failure.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(_NO_DESCRIPTORS_SECONDS)
                return  # nobody left, or the peer has gone already
            if _peer_uid(connection) not in (0, os.geteuid()):
                connection.close()
                continue
            connection.setblocking(False)
            client = _Client(connection, time.monotonic() + READ_SECONDS)
            if not self._finished(client):
                self._clients[connection.fileno()] = client
                self._epoll.register(connection, _ONCE)
                self.wake()  # whoever waits must now mind the deadline

    def _go_on(self, number: int) -> None:
        """Not known while it is read: who takes a whole request may close its connection at once."""
        client = self._clients.pop(number)
        if not self._finished(client):
            self._clients[number] = client
            self._epoll.modify(number, _ONCE)

    def _finished(self, client: _Client) -> bool:
        """Reads what is there; whether the client is done with: its request is whole, or it is dropped."""
        try:
            frame = _receive(client)
        except BlockingIOError:
            return False
        except FrameError as error:
            self._dropped.report(client.socket, error)
            if isinstance(error, OtherVersion):
                with suppress(OSError):
                    client.socket.send(refusal(error))
            client.drop()
            return True
        except OSError:
            client.drop()
            return True
        self._on_request(client.socket, frame, client.netns_fd)
        return True

    def _until_next_deadline(self) -> float | None:
        """When clients are refused and none is left, there is nothing to wait for: another thread has taken the last one."""
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
    """The log of clients whose frames were refused: a line for the first, and one for all that come soon after."""

    def __init__(self) -> None:
        self._due = 0.0
        self._number = 0

    def report(self, connection: socket.socket, error: FrameError) -> None:
        self._number += 1
        if (now := time.monotonic()) >= self._due:
            more = f" ({self._number} since the last such line)" if self._number > 1 else ""
            log.warning("refused a request of process %d: %s%s", _peer(connection)[0], error, more)
            self._due, self._number = now + WARNING_SECONDS, 0


def _receive(client: _Client) -> Frame:
    """A whole request. BlockingIOError when there is no more to read yet; FrameError, or OSError at the end."""
    while True:
        data, ancillary, _, _ = client.socket.recvmsg(_CHUNK, socket.CMSG_SPACE(_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC)
        for fd in _descriptors(ancillary):
            if client.netns_fd < 0:
                client.netns_fd = fd
            else:
                os.close(fd)
        if not data:
            raise ConnectionResetError("the client closed before its request was whole")
        frame = client.reader.feed(data)
        if frame is not None:
            return frame


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _peer_uid(connection: socket.socket) -> int:
    return _peer(connection)[1]


def _peer(connection: socket.socket) -> tuple[int, int]:
    """The process at the other end, and its user."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)


def _bind(path: Path) -> socket.socket:
    """Appears under its name only when it listens and is root's alone: a client never sees it half made."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if len(os.fsencode(path)) > _MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, f"the path is longer than {_MAX_PATH} bytes", str(path))
    if path.exists() and not path.is_socket():
        raise FileExistsError(errno.EEXIST, "another kind of file is there", str(path))
    draft = path.with_name(f".{os.getpid()}")  # no longer than the name: paths of sockets have 107 bytes at most
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

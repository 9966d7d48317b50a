"""The request to end a resident program, by a signal or by the program itself."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class EndRequest:
    """The request to end the program, by a signal or, with a reason, by the program itself."""

    def __init__(self, reader: socket.socket, writer: socket.socket) -> None:
        self._reader = reader
        self._writer = writer
        self.reason = ""

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the request, at most for `seconds`. Return whether there is one."""
        self._reader.settimeout(seconds)
        with suppress(TimeoutError):
            return bool(self._reader.recv(1))
        return False

    def request(self, reason: str) -> None:
        self.reason = reason
        with suppress(BlockingIOError):
            self._writer.send(b"x")


@contextmanager
def end_signals() -> Iterator[EndRequest]:
    """Convert SIGTERM and SIGINT to the request to end. The descriptor wakes the main thread, whichever thread gets them."""

    def ignore(_number: int, _frame: FrameType | None) -> None:
        return

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        before = {number: signal.signal(number, ignore) for number in (signal.SIGTERM, signal.SIGINT)}
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield EndRequest(reader, writer)
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)

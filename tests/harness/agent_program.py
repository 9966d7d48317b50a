"""A program on the socket of the agent, for tests of its clients."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Reply = Callable[[socket.socket], object]

TIMEOUT_SECONDS = 20.0


class Program:
    """A program that listens in place of an agent, and does the same with each connection."""

    def __init__(self, path: Path, reply: Reply) -> None:
        path.parent.mkdir(exist_ok=True)
        self.path = path
        self._reply = reply
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # it is shut down
                return
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                self._reply(connection)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_SECONDS)
        self._listening.close()

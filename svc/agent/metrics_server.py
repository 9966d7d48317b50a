"""Metrics of the agent over HTTP, on TCP addresses and Unix sockets. Imported only if metrics are enabled."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from svc.agent.listener import bind_socket
from svc.metrics.server import TextServer

Address = tuple[str, int] | Path
"""An address of the server: host and port, or the path of a Unix socket for root alone."""


class MetricsServer(TextServer):
    """Server for `GET /metrics` on some addresses, until `close`. `write` returns the text; it must not wait.

    `listen` raises OSError if it cannot listen on the address.
    """

    def __init__(self, write: Callable[[], str]) -> None:
        super().__init__(write)
        self._paths: list[tuple[Path, os.stat_result]] = []

    def listen(self, address: Address) -> socket.socket:
        """Listen on an address. Call it before `start`. Return the socket."""
        if not isinstance(address, Path):
            return self.listen_on(*address)
        listening = bind_socket(address)
        self._paths.append((address, address.stat()))
        return self.add(listening)

    def close(self) -> None:
        """End the server. Remove the Unix sockets that are still those of this server."""
        super().close()
        for path, status in self._paths:
            with suppress(OSError):
                if os.path.samestat(path.stat(), status):
                    path.unlink()
        self._paths.clear()

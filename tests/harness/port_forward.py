"""A way out of a network namespace: what connects to a port inside reaches a port of the test's own loopback.

A process of its own, so that a node that outlives a test leaves no threads and sockets in it:

    python port_forward.py DESCRIPTOR PORT       (the descriptor listens inside)
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys

from harness.enter_netns import entered
from harness.netns import Netns

_HOST = "127.0.0.1"
_CHUNK = 1 << 16
_STOP_SECONDS = 10.0


class PortForward:
    """To one port, from the same one inside unless another one is named; while it is closed, connections are refused inside."""

    def __init__(self, netns: Netns, port: int, inside: int = 0) -> None:
        with entered(netns):
            listening = socket.create_server((_HOST, inside or port), backlog=128)
        with listening:
            command = [sys.executable, __file__, str(listening.fileno()), str(port)]
            path = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(
                command, pass_fds=[listening.fileno()], env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL
            )

    def stop(self) -> None:
        """From now on who connects is not answered, and neither is who is connected."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_STOP_SECONDS)


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()


async def _lead(listening: socket.socket, port: int) -> None:
    async def connected(inner: asyncio.StreamReader, to_inner: asyncio.StreamWriter) -> None:
        try:
            outer, to_outer = await asyncio.open_connection(_HOST, port)
        except OSError:
            to_inner.close()
            return
        await asyncio.gather(_carry(inner, to_outer), _carry(outer, to_inner))

    server = await asyncio.start_server(connected, sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_lead(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))

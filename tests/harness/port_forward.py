"""A port inside a network namespace that is forwarded to a port on the test's own loopback."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

from harness.enter_netns import entered
from harness.netns import Netns
from harness.stopped import stop

_HOST = "127.0.0.1"
_FORWARDER = Path(__file__).with_name("forwarder.py")
_STOP_SECONDS = 10.0


class PortForward:
    """A forwarded port, by default to the same port as inside. While it is closed, connections are refused inside.

    It is a process, because a node may outlive a test, and a process leaves no threads and sockets in the test.
    """

    def __init__(self, netns: Netns, port: int, inside: int = 0, host: str = _HOST) -> None:
        with entered(netns):
            listening = socket.create_server((host, inside or port), backlog=128)
        with listening:
            command = [sys.executable, "-IS", str(_FORWARDER), str(listening.fileno()), str(port)]
            self._process = subprocess.Popen(
                command, pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
            )
        assert self._process.stdout is not None
        with self._process.stdout as ready:  # an earlier client would wait for an answer, or reach its timeout
            assert ready.read(1), "the forwarder did not start"

    def stop(self) -> None:
        """Stop answering connected and later clients."""
        stop(self._process.pid)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_STOP_SECONDS)

"""Metrics of an agent, read as Prometheus does."""

import http.client
import socket
from contextlib import closing
from pathlib import Path

from harness.node import Node

Samples = dict[str, float]


class Unix(http.client.HTTPConnection):
    """A connection to the Unix socket of the metrics."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))


def path_of(node: Node) -> Path:
    """Return the path of the Unix socket on which an agent of `restart` serves its metrics."""
    return node.directory / "metrics.sock"


def text_of(node: Node) -> str:
    """Return the metrics as text."""
    with closing(Unix(path_of(node))) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def scrape(node: Node) -> Samples:
    """Return the samples of the agent by name and labels, without the prefix."""
    lines = [line for line in text_of(node).splitlines() if not line.startswith("#")]
    return {name.removeprefix("svc_"): float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def restart(node: Node, *program: str) -> None:
    """Restart the agent, so that it serves metrics."""
    node.stop_agent()
    node.start_agent(*program, options=("--metrics", f"unix:{path_of(node)}"))

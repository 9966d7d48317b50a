"""Stubs that an ADD waits for: a readiness gate, and the agent of a data plane, which programs the policy of endpoints."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.enter_netns import Place, entered
from harness.kube import Kube
from harness.workloads import list_pods
from svc.names import DEFAULT

_PERIOD = 0.05  # seconds
_TIMEOUT_SECONDS = 10.0
_ADDRESSES = f"{DEFAULT.annotation_prefix}/podIPs"


class StubGate:
    """Answers 200 while `is_open` is set, otherwise 503. `request_count` is the number of requests."""

    def __init__(self) -> None:
        self.is_open = True
        self.request_count = 0
        self.url = ""


@contextmanager
def serve_stub_gate(place: Place) -> Iterator[StubGate]:
    """Serve the gate on the loopback of the place."""
    opened = StubGate()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            opened.request_count += 1
            self.send_response(200 if opened.is_open else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with entered(place):
        server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    opened.url = f"http://127.0.0.1:{server.server_port}/ready"
    thread = threading.Thread(target=server.serve_forever, args=(_PERIOD,), name="serve_stub_gate")
    thread.start()
    try:
        yield opened
    finally:
        server.shutdown()
        thread.join(_TIMEOUT_SECONDS)
        server.server_close()


class DataPlane:
    """Writes a status file for each endpoint on the node, and removes those of deleted endpoints.

    While `is_idle` is set it does nothing. `programmed` has the names of all pods with a file so far.
    """

    def __init__(self, directory: Path, kube: Kube) -> None:
        self.directory = directory
        self.is_idle = False
        self.programmed: set[str] = set()
        self._kube = kube
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="data plane")
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(_TIMEOUT_SECONDS)

    def _work(self) -> None:
        self.directory.mkdir()
        while not self._over.wait(_PERIOD):
            if not self.is_idle:
                self._reconcile()

    def _reconcile(self) -> None:
        wanted = {}
        for pod in list_pods(self._kube):
            metadata = pod["metadata"]
            if addresses := metadata.get("annotations", {}).get(_ADDRESSES):
                wanted[f"k8s {quote(metadata['namespace'] + '/' + metadata['name'], safe='')} eth0"] = addresses.split(",")
                self.programmed.add(metadata["name"])
        for name, addresses in wanted.items():
            self._write(name, addresses)
        for path in self.directory.iterdir():
            if path.name not in wanted:
                path.unlink()

    def _write(self, name: str, addresses: list[str]) -> None:
        """Write the file slowly and without a rename, as a real policy agent does."""
        status = {
            "ipv4Nets": [address for address in addresses if ":" not in address],
            "ipv6Nets": [address for address in addresses if ":" in address],
        }
        text, path = json.dumps(status), self.directory / name
        with suppress(FileNotFoundError):
            if path.read_text() == text:
                return
        path.write_text(text)


@contextmanager
def data_plane(directory: Path, kube: Kube) -> Iterator[DataPlane]:
    running = DataPlane(directory, kube)
    try:
        yield running
    finally:
        running.close()

"""Metrics of the agent over HTTP, in the Prometheus text format 0.0.4. Imported only if metrics are enabled."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from svc.metrics import COUNTERS, Metrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CLIENT_SECONDS: Final = 5.0  # limit for a client to send its request and to read the reply
_PREFIX: Final = "svc_"


class MetricsServer(ThreadingHTTPServer):
    """Server for `GET /metrics`, from construction to `close`. Raise OSError if it cannot listen on the address."""

    daemon_threads = True

    def __init__(self, host: str, port: int, metrics: Metrics) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.metrics = metrics
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = _CLIENT_SECONDS

    def do_GET(self) -> None:
        found = self.path == "/metrics"
        body = exposition(self.server.metrics).encode() if found else b"see /metrics\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Do not log scrapes."""


def exposition(metrics: Metrics) -> str:
    """Return the metrics as text. A counter with labels has no sample before its first event."""
    read = metrics.read()
    lines = []
    for name, meaning in COUNTERS.items():
        lines += [f"# HELP {_PREFIX}{name} {meaning}", f"# TYPE {_PREFIX}{name} counter"]
        lines += [
            f"{_PREFIX}{name}{_braces(labels)} {value!r}" for (found, labels), value in sorted(read.items()) if found == name
        ]
    return "\n".join([*lines, ""])


def _braces(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in labels)
    return f"{{{inside}}}" if inside else ""

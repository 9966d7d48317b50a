"""The agent's figures over HTTP, in the text format of Prometheus (version 0.0.4). Loaded only where they are asked for."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from svc.metrics import FAMILIES, Metrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CLIENT_SECONDS: Final = 5.0  # for a client to ask, and to take its answer
_PREFIX: Final = "svc_"


class MetricsServer:
    """Serves `GET /metrics` from its construction to `close`. OSError when it cannot listen there."""

    def __init__(self, host: str, port: int, metrics: Metrics) -> None:
        self._server = _server_of(host)((host, port), _handler(metrics))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def exposition(metrics: Metrics) -> str:
    """A line for each sum. Families that have none yet are told without a value."""
    read = metrics.read()
    lines = []
    for name, meaning in FAMILIES.items():
        lines += [f"# HELP {_PREFIX}{name} {meaning}", f"# TYPE {_PREFIX}{name} counter"]
        lines += [
            f"{_PREFIX}{name}{_braces(labels)} {value!r}" for (found, labels), value in sorted(read.items()) if found == name
        ]
    return "\n".join([*lines, ""])


def _braces(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in labels)
    return f"{{{inside}}}" if inside else ""


def _server_of(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    return Server


def _handler(metrics: Metrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_SECONDS

        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = exposition(metrics).encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Who reads figures every few seconds is no news."""

    return Handler

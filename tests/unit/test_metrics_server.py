"""The server of metrics: what it answers, and clients that are slow."""

import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from svc.agent.metrics_server import MetricsServer
from svc.metrics import server
from svc.metrics.server import CONTENT_TYPE, MAX_CLIENTS

TEXT = "# HELP a b\na 1\n"


class Served:
    """A server on a free port and on a Unix socket."""

    def __init__(self, path: Path) -> None:
        self.text = TEXT
        self.path = path
        self.server = MetricsServer(lambda: self.text)
        self.port: int = self.server.listen(("127.0.0.1", 0)).getsockname()[1]
        self.server.listen(path)
        self.server.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def ask(self, request: bytes) -> bytes:
        with self.connect() as client:
            client.sendall(request)
            return rest(client)

    def get(self, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()


def rest(client: socket.socket) -> bytes:
    data = b""
    while part := client.recv(1 << 16):
        data += part
    return data


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "metrics.sock")
    with closing(served.server):
        yield served


def test_metrics_are_served(served: Served) -> None:
    assert served.get() == (200, CONTENT_TYPE, TEXT)
    assert served.get("/metrics?name=a")[0] == 200


def test_metrics_are_served_on_a_unix_socket_of_root(served: Served) -> None:
    assert served.path.stat().st_mode & 0o777 == 0o600
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(str(served.path))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert rest(client).endswith(TEXT.encode())
    served.server.close()
    assert not served.path.exists()


@pytest.mark.root
def test_other_users_are_not_served_on_the_unix_socket(served: Served) -> None:
    served.path.chmod(0o666)
    served.path.parent.chmod(0o755)
    pid = os.fork()
    if not pid:
        os.chdir(served.path.parent)
        os.setuid(65534)
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(10)
        try:
            client.connect(served.path.name)
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            os._exit(1 if rest(client) else 0)
        except ConnectionError:
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_head_has_no_body(served: Served) -> None:
    assert served.get(method="HEAD") == (200, CONTENT_TYPE, "")


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics/x HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20000, b"431 Request Header Fields Too Large"),
    ],
)
def test_other_requests_are_refused(served: Served, request_text: bytes, status: bytes) -> None:
    assert served.ask(request_text).startswith(b"HTTP/1.1 " + status)


def test_failure_to_compute_the_metrics_is_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.server, "_write", lambda: 1 // 0)
    assert served.get()[0] == 500
    monkeypatch.setattr(served.server, "_write", lambda: TEXT)
    assert served.get()[2] == TEXT


def test_slow_reader_does_not_delay_others(served: Served) -> None:
    """It reads one byte at a time, and the text is larger than the buffers of its connection."""
    served.text = "a 1\n" * 4_000_000
    with served.connect() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert slow.recv(1) == b"H"
        served.text = TEXT
        began = time.monotonic()
        for _ in range(20):
            assert served.get()[2] == TEXT
            slow.recv(1)
        assert time.monotonic() - began < 5


def test_slow_clients_are_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sends a byte of its request now and then, the other does not read its reply."""
    monkeypatch.setattr(server, "CLIENT_SECONDS", 0.3)
    served.text = "a 1\n" * 4_000_000
    with served.connect() as sender, served.connect() as reader:
        reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        until = time.monotonic() + 10
        with suppress(ConnectionError):
            while time.monotonic() < until:
                sender.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() < until
        assert len(rest_or_reset(reader)) < len(served.text)


def rest_or_reset(client: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionError):
        while part := client.recv(1 << 20):
            data += part
    return data


def test_number_of_clients_is_bounded(served: Served) -> None:
    """The oldest one has to leave. A scraper is served even if others keep connections open."""
    clients = [served.connect() for _ in range(MAX_CLIENTS + 8)]
    try:
        assert served.get()[2] == TEXT
        assert clients[0].recv(1) == b""
        clients[-1].sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert rest(clients[-1]).endswith(TEXT.encode())
    finally:
        for client in clients:
            client.close()


def test_close_ends_the_thread_and_all_connections(served: Served) -> None:
    with served.connect() as client:
        assert served.get()[0] == 200
        served.server.close()
        assert rest_or_reset(client) == b""
    assert "metrics" not in {thread.name for thread in threading.enumerate()}

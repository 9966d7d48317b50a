"""Request of the connection test to the API server, against a small server on the loopback."""

import base64
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from svc.cni import connection_test
from svc.cni.connection_test import server_version
from svc.model.errors import CallerError, PeerError


class _Handler(BaseHTTPRequestHandler):
    """Server that sends its version to every client with the token."""

    protocol_version = "HTTP/1.1"
    silent: threading.Event | None = None

    def do_GET(self) -> None:
        if self.silent:
            self.silent.wait(20)
        allowed = self.path == "/version" and self.headers.get("Authorization") == "Bearer secret-1"
        body = json.dumps({"gitVersion": "v1.30.0"}).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_: Any) -> None:
        return


@contextmanager
def serving(handler: type[_Handler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run the server, and yield its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write(folder: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> str:
    document = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret-1"} if user is None else user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(document))
    return str(folder / "kubeconfig")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a certificate of 127.0.0.1, its key, and a file with both."""
    folder = tmp_path_factory.mktemp("certificate")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    subprocess.run([*command, *names], capture_output=True, check=True)
    (folder / "both").write_bytes((folder / "key").read_bytes() + (folder / "cert").read_bytes())
    return folder


def test_version_of_the_server_is_returned(tmp_path: Path) -> None:
    """The token is in the kubeconfig or in a file beside it."""
    (tmp_path / "token").write_text("secret-1\n")
    with serving(_Handler) as port:
        for user in ({"token": "secret-1"}, {"tokenFile": "token"}, {"tokenFile": str(tmp_path / "token")}):
            assert server_version(write(tmp_path, {"server": f"http://127.0.0.1:{port}"}, user)) == "v1.30.0"


def test_certificate_of_the_server_is_verified(tmp_path: Path, certificate: Path) -> None:
    """The CA is inline or in a file, unless the kubeconfig disables the verification."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "both")
    with serving(_Handler, context) as port:
        cluster = {"server": f"https://127.0.0.1:{port}"}
        authority = (certificate / "cert").read_bytes()
        for trust in (
            {"certificate-authority-data": base64.b64encode(authority).decode()},
            {"certificate-authority": str(certificate / "cert")},
            {"insecure-skip-tls-verify": True},
        ):
            assert server_version(write(tmp_path, cluster | trust)) == "v1.30.0"
        user = {
            "token": "secret-1",
            "client-certificate-data": base64.b64encode(authority).decode(),
            "client-key": str(certificate / "key"),
        }
        assert server_version(write(tmp_path, cluster | {"insecure-skip-tls-verify": True}, user)) == "v1.30.0"
        with pytest.raises(PeerError, match="does not answer"):
            server_version(write(tmp_path, cluster))


def test_error_of_a_refusal_does_not_show_the_token(tmp_path: Path) -> None:
    """It has the status."""
    with serving(_Handler) as port, pytest.raises(PeerError, match="GET /version: 401") as caught:
        server_version(write(tmp_path, {"server": f"http://127.0.0.1:{port}"}, {"token": "secret-2"}))
    assert "secret" not in str(caught.value)


def test_silent_server_is_reported_after_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server itself may never answer."""
    monkeypatch.setattr(connection_test, "LIMIT", 0.4)
    silent = threading.Event()
    with serving(type("Silent", (_Handler,), {"silent": silent})) as port:
        try:
            with pytest.raises(PeerError, match="does not answer: no answer in time"):
                server_version(write(tmp_path, {"server": f"http://127.0.0.1:{port}"}))
        finally:
            silent.set()


def test_error_of_an_unreachable_server_has_its_address(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"http://127\.0\.0\.1:1"):
        server_version(write(tmp_path, {"server": "http://127.0.0.1:1"}))


def test_error_of_an_invalid_kubeconfig_has_its_path(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="'c' has no server") as caught:
        server_version(write(tmp_path, {}))
    assert str(tmp_path / "kubeconfig") in caught.value.msg

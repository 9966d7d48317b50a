"""TLS to servers that reset connections, and to servers with simple certificates."""

import gc
import os
import socket
import ssl
import struct
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from urllib3.connection import HTTPSConnection

from harness.certificates import Authority
from svc.datastore.orch.auth import ApiAuth
from svc.datastore.orch.client import Client, Unreachable
from svc.model.waits import TlsTrust, parse_gate
from svc.tls import prepare
from svc.waits.probe import Probe


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def reset(listener: socket.socket, connection: socket.socket) -> None:
    """Reset the connection like a killed server, and return when the client side has detected it."""
    accepted, _ = listener.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()
    while True:
        try:
            connection.getpeername()
        except OSError:
            return
        time.sleep(0.001)


@contextmanager
def no_unclosed_socket() -> Iterator[None]:
    """Fail if a socket that was not closed is garbage-collected."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in found] == []


def test_socket_is_closed_after_a_reset_before_the_handshake(listener: socket.socket) -> None:
    """The socket is closed at once, even while the exception still exists. The error is that of the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    prepare(context)
    with closing(socket.create_connection(listener.getsockname())) as connection:
        reset(listener, connection)
        number = connection.fileno()
        with no_unclosed_socket(), pytest.raises(ConnectionResetError) as caught:
            context.wrap_socket(connection, server_hostname="localhost")
        assert caught.value.strerror == "Connection reset by peer"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_reset_by_the_api_server_leaves_no_open_socket(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is reset before the handshake, and the caller gets the error."""
    original = HTTPSConnection._new_conn

    def connect_too_late(self: HTTPSConnection) -> socket.socket:
        connection = original(self)
        reset(listener, connection)
        return connection

    monkeypatch.setattr(HTTPSConnection, "_new_conn", connect_too_late)
    root = f"https://127.0.0.1:{listener.getsockname()[1]}"
    with closing(Client(ApiAuth({"orch_api_root": root, "k8s_auth_token": "t"}))) as client:
        with no_unclosed_socket(), pytest.raises(Unreachable, match="the connection broke off"):
            client.watch("/api/v1/nodes", "1")


@pytest.mark.parametrize("verify", [True, False])
def test_reset_by_a_readiness_gate_leaves_no_open_socket(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    """The connection is reset before the handshake, and the gate is not ready."""
    original = Probe._connect

    def connect_too_late(self: Probe, *arguments: Any) -> socket.socket:
        connection = original(self, *arguments)
        reset(listener, connection)
        return connection

    monkeypatch.setattr(Probe, "_connect", connect_too_late)
    gate = parse_gate(f"https://127.0.0.1:{listener.getsockname()[1]}/")
    with no_unclosed_socket():
        answer = Probe(gate, TlsTrust(verify)).run()
    assert (answer.ready, answer.text) == (False, "connection closed without an answer")


@pytest.mark.parametrize("is_prepared", [True, False])
def test_certificates_without_a_key_identifier_are_accepted(tmp_path: Path, is_prepared: bool) -> None:
    """This holds also for versions of Python that are strict by default."""
    authority = Authority(tmp_path, "simple")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("server", "localhost"))
    client = ssl.create_default_context(cafile=str(authority.root))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    if not is_prepared:
        with pytest.raises(ssl.SSLCertVerificationError, match="Missing Authority Key Identifier"):
            handshake(client, server)
        return
    prepare(client)
    handshake(client, server)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Exchange messages until both sides have completed the handshake."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(down, up, server_hostname="localhost")
    server_end = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client_end, server_end):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert client_end.cipher() == server_end.cipher() is not None

"""Pooled clients of the Kubernetes API: which calls share a client, and when it is closed."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from svc.attach.api_clients import Access, ApiClientPool
from svc.model.errors import PeerError

NO_SERVER = "http://127.0.0.1:9"


def access(token: str) -> Access:
    return (("k8s_auth_token", token), ("orch_api_root", NO_SERVER))


@pytest.fixture
def clients() -> Iterator[ApiClientPool]:
    with closing(ApiClientPool()) as clients:
        yield clients


def read_pod(clients: ApiClientPool, token: str) -> None:
    with pytest.raises(PeerError):
        clients.pods(access(token)).read("default", "", "", lambda: None)


def threads() -> int:
    return sum(thread.name.startswith(("namespaces", "pods")) for thread in threading.enumerate())


def test_equal_access_shares_a_client(clients: ApiClientPool) -> None:
    first = clients.pods(access("a"))
    assert clients.pods(access("a")) is first
    assert clients.pods(access("b")) is not first


def test_idle_clients_of_old_tokens_end_with_their_threads(clients: ApiClientPool) -> None:
    for token in ("a", "b"):
        read_pod(clients, token)
    assert threads() > 0
    clients.close_idle(60.0)
    assert threads() > 0
    clients.close_idle(0.0)
    assert threads() == 0
    read_pod(clients, "b")

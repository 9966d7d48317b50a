"""Warm clients of the Kubernetes API: which calls share one, when one is closed."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from svc.attach.api_clients import Access, ApiClientPool
from svc.model.errors import PeerError

NOBODY = "http://127.0.0.1:9"


def access(token: str) -> Access:
    return (("k8s_auth_token", token), ("orch_api_root", NOBODY))


@pytest.fixture
def orchestrators() -> Iterator[ApiClientPool]:
    with closing(ApiClientPool()) as orchestrators:
        yield orchestrators


def ask(orchestrators: ApiClientPool, token: str) -> None:
    with pytest.raises(PeerError):
        orchestrators.pods(access(token)).read("default", "", "", lambda: None)


def threads() -> int:
    return sum(thread.name.startswith(("namespaces", "pods")) for thread in threading.enumerate())


def test_equal_access_shares_a_client(orchestrators: ApiClientPool) -> None:
    first = orchestrators.pods(access("a"))
    assert orchestrators.pods(access("a")) is first
    assert orchestrators.pods(access("b")) is not first


def test_clients_of_old_tokens_go_with_their_threads(orchestrators: ApiClientPool) -> None:
    for token in ("a", "b"):
        ask(orchestrators, token)
    assert threads() > 0
    orchestrators.close_idle(60.0)
    assert threads() > 0
    orchestrators.close_idle(0.0)
    assert threads() == 0
    ask(orchestrators, "b")

"""Cache of namespaces: it answers while its watch is open; otherwise the server is asked."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.polling import wait_until
from svc.datastore.api import StoreError
from svc.datastore.watching import Reconnecting
from svc.orch.namespaces import NamespaceCache

TIMEOUT_SECONDS = 20.0
Json = dict[str, Any]
END: tuple[str, Json] = ("", {})


class Server:
    """API server that records the requested names; `events` has the changes."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, str]] = {"blue": {"tier": "1"}}
        self.requested: list[str] = []
        self.events: queue.Queue[tuple[str, Json]] = queue.Queue()
        self.gate = threading.Event()
        self.gate.set()
        self.refuse = False

    def ask(self, name: str) -> Json:
        self.requested.append(name)
        assert self.gate.wait(TIMEOUT_SECONDS)
        if name not in self.stored:
            raise StoreError(f"namespace {name} does not exist")
        return namespace(name, **self.stored[name])


class Changes(Reconnecting[tuple[str, Any]]):
    """Watch of the server."""

    def __init__(self, server: Server) -> None:
        super().__init__("namespaces", 1.0)
        self._server = server

    def _attempt(self) -> Iterator[tuple[str, Any]]:
        if self._server.refuse:
            raise StoreError("forbidden")
        yield "LISTED", [namespace(name, **labels) for name, labels in self._server.stored.items()]
        yield "OPENED", {}
        while (event := self._server.events.get()) != END:
            yield event


def namespace(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def namespaces(server: Server) -> Iterator[NamespaceCache]:
    namespaces = NamespaceCache(server.ask, Changes(server), lambda: "the API server")
    yield namespaces
    server.refuse = True
    server.events.put(END)
    namespaces.close()


def is_cached(server: Server, namespaces: NamespaceCache, name: str) -> bool:
    before = len(server.requested)
    namespaces.get(name)
    return len(server.requested) == before


def test_server_is_asked_before_the_watch_is_open(server: Server, namespaces: NamespaceCache) -> None:
    server.refuse = True
    assert namespaces.get("blue").labels == {"tier": "1"}
    assert namespaces.get("blue").labels == {"tier": "1"}
    assert server.requested == ["blue", "blue"]


def test_watched_namespaces_come_from_the_cache(server: Server, namespaces: NamespaceCache) -> None:
    wait_until(lambda: is_cached(server, namespaces, "blue"))
    server.events.put(("MODIFIED", namespace("blue", tier="2")))
    wait_until(lambda: namespaces.get("blue").labels == {"tier": "2"})
    assert is_cached(server, namespaces, "blue")


def test_read_always_asks_the_server(server: Server, namespaces: NamespaceCache) -> None:
    wait_until(lambda: is_cached(server, namespaces, "blue"))
    server.stored["blue"] = {"tier": "9"}
    assert namespaces.read("blue").labels == {"tier": "9"}


def test_server_is_asked_for_new_and_deleted_namespaces(server: Server, namespaces: NamespaceCache) -> None:
    wait_until(lambda: is_cached(server, namespaces, "blue"))
    server.stored["green"] = {}
    assert namespaces.get("green").labels == {}
    assert server.requested[-1] == "green"
    del server.stored["blue"]
    server.events.put(("DELETED", namespace("blue")))

    def is_missing() -> bool:
        try:
            namespaces.get("blue")
        except StoreError:
            return True
        return False

    wait_until(is_missing)


def test_cache_is_invalid_while_the_watch_is_closed(server: Server, namespaces: NamespaceCache) -> None:
    """The cache answers again after the watch was opened again."""
    wait_until(lambda: is_cached(server, namespaces, "blue"))
    server.stored["blue"] = {"tier": "3"}
    server.events.put(END)
    wait_until(lambda: namespaces.get("blue").labels == {"tier": "3"})
    wait_until(lambda: is_cached(server, namespaces, "blue"))
    assert namespaces.get("blue").labels == {"tier": "3"}


def test_waiting_callers_share_one_request(server: Server, namespaces: NamespaceCache) -> None:
    """No caller gets the reply to a request that was sent before its call."""
    server.refuse = True
    server.gate.clear()
    found: list[dict[str, str]] = []
    threads = [threading.Thread(target=lambda: found.append(namespaces.read("blue").labels)) for _ in range(8)]
    threads[0].start()
    wait_until(lambda: server.requested == ["blue"])
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(namespaces._readers["blue"]._waiting) == 7)
    server.gate.set()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert found == [{"tier": "1"}] * 8
    assert server.requested == ["blue", "blue"]


def test_only_annotations_that_svc_reads_are_cached(server: Server, namespaces: NamespaceCache) -> None:
    """They may have any prefix, because several names profiles can use one server."""
    annotations = {"cni.svc.internal/ipv4pools": "[]", "other/ipAddrs": "[]", "other/hwAddr": "x", "text": "x" * 200_000}
    wait_until(lambda: is_cached(server, namespaces, "blue"))
    server.events.put(("MODIFIED", {"metadata": {"name": "blue", "annotations": annotations}}))
    wait_until(lambda: bool(namespaces.get("blue").annotations))
    assert namespaces.get("blue").annotations == {"cni.svc.internal/ipv4pools": "[]", "other/ipAddrs": "[]"}

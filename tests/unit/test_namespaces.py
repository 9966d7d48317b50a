"""Labels of namespaces: from a watch while it is open, from the server otherwise."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.polling import wait_until
from svc.datastore.api import StoreError
from svc.datastore.watching import Reconnecting
from svc.orch.namespaces import NamespaceCache

TIMEOUT_SECONDS = 20.0  # seconds
Json = dict[str, Any]
END: tuple[str, Json] = ("", {})


class Server:
    """Requests are counted; changes come from `news`."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, str]] = {"blue": {"tier": "1"}}
        self.asked: list[str] = []
        self.news: queue.Queue[tuple[str, Json]] = queue.Queue()
        self.gate = threading.Event()
        self.gate.set()
        self.refuses = False

    def ask(self, name: str) -> Json:
        self.asked.append(name)
        assert self.gate.wait(TIMEOUT_SECONDS)
        if name not in self.stored:
            raise StoreError(f"namespace {name} does not exist")
        return namespace(name, **self.stored[name])


class Changes(Reconnecting[tuple[str, Any]]):
    """The watch of that server."""

    def __init__(self, server: Server) -> None:
        super().__init__("namespaces", 1.0)
        self._server = server

    def _attempt(self) -> Iterator[tuple[str, Any]]:
        if self._server.refuses:
            raise StoreError("forbidden")
        yield "LISTED", [namespace(name, **labels) for name, labels in self._server.stored.items()]
        yield "OPENED", {}
        while (event := self._server.news.get()) != END:
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
    server.refuses = True
    server.news.put(END)
    namespaces.close()


def is_remembered(server: Server, namespaces: NamespaceCache, name: str) -> bool:
    before = len(server.asked)
    namespaces.get(name)
    return len(server.asked) == before


def test_first_question_goes_to_the_server(server: Server, namespaces: NamespaceCache) -> None:
    server.refuses = True
    assert namespaces.get("blue").labels == {"tier": "1"}
    assert namespaces.get("blue").labels == {"tier": "1"}
    assert server.asked == ["blue", "blue"]


def test_watched_namespaces_are_not_asked_for(server: Server, namespaces: NamespaceCache) -> None:
    wait_until(lambda: is_remembered(server, namespaces, "blue"))
    server.news.put(("MODIFIED", namespace("blue", tier="2")))
    wait_until(lambda: namespaces.get("blue").labels == {"tier": "2"})
    assert is_remembered(server, namespaces, "blue")


def test_strict_reading_asks(server: Server, namespaces: NamespaceCache) -> None:
    wait_until(lambda: is_remembered(server, namespaces, "blue"))
    server.stored["blue"] = {"tier": "9"}
    assert namespaces.read("blue").labels == {"tier": "9"}


def test_new_and_deleted_namespaces_are_asked_for(server: Server, namespaces: NamespaceCache) -> None:
    wait_until(lambda: is_remembered(server, namespaces, "blue"))
    server.stored["green"] = {}
    assert namespaces.get("green").labels == {}
    assert server.asked[-1] == "green"
    del server.stored["blue"]
    server.news.put(("DELETED", namespace("blue")))

    def is_gone() -> bool:
        try:
            namespaces.get("blue")
        except StoreError:
            return True
        return False

    wait_until(is_gone)


def test_broken_watch_is_not_trusted(server: Server, namespaces: NamespaceCache) -> None:
    """And begun again."""
    wait_until(lambda: is_remembered(server, namespaces, "blue"))
    server.stored["blue"] = {"tier": "3"}
    server.news.put(END)
    wait_until(lambda: namespaces.get("blue").labels == {"tier": "3"})
    wait_until(lambda: is_remembered(server, namespaces, "blue"))
    assert namespaces.get("blue").labels == {"tier": "3"}


def test_who_waits_together_asks_once(server: Server, namespaces: NamespaceCache) -> None:
    """But no caller gets an answer that was on its way before the question."""
    server.refuses = True
    server.gate.clear()
    found: list[dict[str, str]] = []
    threads = [threading.Thread(target=lambda: found.append(namespaces.read("blue").labels)) for _ in range(8)]
    threads[0].start()
    wait_until(lambda: server.asked == ["blue"])
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(namespaces._readers["blue"]._waiting) == 7)
    server.gate.set()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert found == [{"tier": "1"}] * 8
    assert server.asked == ["blue", "blue"]


def test_no_annotations_are_kept_but_those_that_are_read(server: Server, namespaces: NamespaceCache) -> None:
    """Under any prefix: one server may be asked for deployments of several names."""
    notes = {"cni.svc.internal/ipv4pools": "[]", "other/ipAddrs": "[]", "other/hwAddr": "x", "text": "x" * 200_000}
    wait_until(lambda: is_remembered(server, namespaces, "blue"))
    server.news.put(("MODIFIED", {"metadata": {"name": "blue", "annotations": notes}}))
    wait_until(lambda: bool(namespaces.get("blue").annotations))
    assert namespaces.get("blue").annotations == {"cni.svc.internal/ipv4pools": "[]", "other/ipAddrs": "[]"}

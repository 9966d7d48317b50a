"""Session pool: shared sessions, opening, and closing when idle."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc.attach.sessions import SessionPool
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import load_profile

TIMEOUT_SECONDS = 20.0
HERE = {"kind": "embedded"}


class Opener:
    """Opener of stores in one folder, one for each `kind` of settings; it records which were opened and closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.opening_events: dict[str, threading.Event] = {}

    def __call__(self, settings: dict[str, str], names: Names) -> Backend:
        kind = settings["kind"]
        if kind in self.opening_events:
            assert self.opening_events[kind].wait(TIMEOUT_SECONDS)
        self.opened.append(kind)
        opener = self

        class Store(EmbeddedStore):
            def close(self) -> None:
                super().close()
                opener.closed.append(kind)

        return Store(self._folder / f"{kind}.db", names)


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


@pytest.fixture
def sessions(opener: Opener) -> Iterator[SessionPool]:
    sessions = SessionPool(opener)
    yield sessions
    sessions.close()
    assert sorted(opener.closed) == sorted(opener.opened)


def test_equal_settings_share_a_session(sessions: SessionPool, opener: Opener) -> None:
    first = sessions.get(DEFAULT, {"kind": "embedded", "other": "x"}, "node1")
    assert sessions.get(DEFAULT, {"other": "x", "kind": "embedded"}, "node1") is first
    assert opener.opened == ["embedded"]


def test_nodes_share_a_datastore(sessions: SessionPool, opener: Opener) -> None:
    first, second = sessions.get(DEFAULT, HERE, "node1"), sessions.get(DEFAULT, HERE, "node2")
    assert first is not second
    assert first.backend is second.backend
    assert (first.node, second.node) == ("node1", "node2")


def test_other_names_or_settings_have_another_datastore(sessions: SessionPool, opener: Opener) -> None:
    found = {
        id(sessions.get(names, settings, "node1").backend)
        for names in (DEFAULT, load_profile("calico"))
        for settings in (HERE, {"kind": "other"})
    }
    assert len(found) == 4


def test_replaced_store_is_opened_again(sessions: SessionPool, opener: Opener, tmp_path: Path) -> None:
    """The old one stays open until it is idle, because calls may still use it."""
    first = sessions.get(DEFAULT, HERE, "node1")
    (tmp_path / "embedded.db").unlink()
    second = sessions.get(DEFAULT, HERE, "node1")
    assert second.backend is not first.backend
    assert opener.closed == []
    sessions.close_idle(0.0)
    assert len(opener.closed) == 2


def test_idle_sessions_are_closed_and_opened_again(sessions: SessionPool, opener: Opener) -> None:
    first = sessions.get(DEFAULT, HERE, "node1")
    sessions.close_idle(TIMEOUT_SECONDS)
    assert sessions.get(DEFAULT, HERE, "node1") is first
    sessions.close_idle(0.0)
    assert opener.closed == ["embedded"]
    assert sessions.get(DEFAULT, HERE, "node1") is not first


def test_slow_opening_does_not_block_other_stores(sessions: SessionPool, opener: Opener) -> None:
    may_open = opener.opening_events["slow"] = threading.Event()
    waiting = [
        threading.Thread(target=sessions.get, args=(DEFAULT, {"kind": "slow"}, f"node{number % 2}")) for number in range(4)
    ]
    for thread in waiting:
        thread.start()
    assert sessions.get(DEFAULT, HERE, "node1").node == "node1"
    may_open.set()
    for thread in waiting:
        thread.join(TIMEOUT_SECONDS)
    assert opener.opened == ["embedded", "slow"]

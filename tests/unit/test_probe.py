"""The connection test, where servers hang or fail."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.node import netconf
from svc.attach.sessions import SessionPool
from svc.cni import connection_test
from svc.cni.call_io import CallInput
from svc.datastore.api import Backend, StoreError
from svc.datastore.embedded import EmbeddedStore
from svc.names import DEFAULT


def probed(open_backend: Callable[..., Backend], **changes: Any) -> tuple[int, list[str]]:
    with closing(SessionPool(open_backend)) as sessions:
        inputs = CallInput("svc", {}, orjson.dumps(netconf(**changes)))
        status, text = connection_test.probe(lambda _: DEFAULT, sessions, inputs)
        return status, text.splitlines()


def test_each_thing_has_its_line(tmp_path: Path) -> None:
    """In the order in which an ADD needs them."""
    status, lines = probed(lambda *_: EmbeddedStore(tmp_path / "store.db"))
    assert (status, lines) == (0, ["network configuration: ok", "datastore embedded: ok, ready"])


def test_failing_datastore_is_told_in_one_line() -> None:
    """What follows is not tested."""

    def refuse(*_: object) -> Backend:
        raise StoreError("the store is down", details="start\nit")

    assert probed(refuse) == (1, ["network configuration: ok", "the store is down: start it"])


def test_hanging_datastore_costs_no_more_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left behind."""
    monkeypatch.setattr(connection_test, "LIMIT", 0.05)
    go_on = threading.Event()
    before = threading.active_count()

    def hang(*_: object) -> Backend:
        go_on.wait(20)
        return EmbeddedStore(tmp_path / "store.db")

    sessions = SessionPool(hang)
    try:
        inputs = CallInput("svc", {}, orjson.dumps(netconf()))
        status, text = connection_test.probe(lambda _: DEFAULT, sessions, inputs)
        assert (status, text.splitlines()[1:]) == (
            1,
            ["datastore embedded: no answer within 0.05 s: see whether it runs, and whether the address is right"],
        )
    finally:
        go_on.set()
        while threading.active_count() > before:
            go_on.wait(0.01)
            threading.Event().wait(0.01)
        sessions.close()


@pytest.mark.parametrize("section", ["orch", "kubernetes"])
def test_kubeconfig_is_found_by_any_word(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The specification's, or the orchestrator's."""
    monkeypatch.setattr(connection_test, "server_version", lambda kubeconfig: f"version of {kubeconfig}")
    _, lines = probed(lambda *_: EmbeddedStore(tmp_path / "store.db"), **{section: {"kubeconfig": "/a"}})
    assert lines[-1] == "API server: ok, version of /a"

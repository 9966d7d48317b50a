"""Connection test, also with servers that hang or fail."""

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


def test_each_check_has_a_line(tmp_path: Path) -> None:
    """The order is that in which an ADD needs them."""
    status, lines = probed(lambda *_: EmbeddedStore(tmp_path / "store.db"))
    assert (status, lines) == (0, ["network configuration: ok", "datastore embedded: ok, ready"])


def test_failing_datastore_is_reported_in_one_line() -> None:
    """The checks after it are skipped."""

    def refuse(*_: object) -> Backend:
        raise StoreError("the store is down", details="start\nit")

    assert probed(refuse) == (1, ["network configuration: ok", "the store is down: start it"])


def test_field_error_is_said_once(tmp_path: Path) -> None:
    """Several errors have a line each."""

    def lines(**changes: Any) -> list[str]:
        wrong = {"type": "svc-ipam", "assign_ipv4": 1}
        return probed(lambda *_: EmbeddedStore(tmp_path / "store.db"), ipam=wrong, **changes)[1]

    (line,) = lines()
    assert "ipam.assign_ipv4 = 1 is a number: write" in line
    assert line.count("ipam.assign_ipv4 = 1") == 1
    first, *others = lines(mtu=1)
    assert (first.endswith(": 2 errors"), len(others)) == (True, 2)
    assert "assign_ipv4" in "".join(others)


def test_hanging_datastore_is_reported_after_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test does not wait for its thread."""
    monkeypatch.setattr(connection_test, "LIMIT", 0.05)
    unblock = threading.Event()
    before = threading.active_count()

    def hang(*_: object) -> Backend:
        unblock.wait(20)
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
        unblock.set()
        while threading.active_count() > before:
            unblock.wait(0.01)
            threading.Event().wait(0.01)
        sessions.close()


@pytest.mark.parametrize("section", ["orch", "kubernetes"])
def test_kubeconfig_is_read_from_either_section(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The section has the name in the specification, or that of Kubernetes."""
    monkeypatch.setattr(connection_test, "server_version", lambda kubeconfig: f"version of {kubeconfig}")
    _, lines = probed(lambda *_: EmbeddedStore(tmp_path / "store.db"), **{section: {"kubeconfig": "/a"}})
    assert lines[-1] == "API server: ok, version of /a"

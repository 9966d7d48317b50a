"""Counts of a datastore session's requests, and the end of its token."""

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter

import pytest

from svc.datastore.api import Conflict, Create, Delete, NotFound, StoreError, Update
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.orch.auth import ApiAuth
from svc.datastore.sqlite import LockWait
from svc.metrics import GET, StoreMeter
from svc.model.ipam import IpamConfig
from svc.model.keys import BlockQuery, IpamConfigKey

KEY = IpamConfigKey()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with closing(EmbeddedStore(tmp_path / "store.db")) as store:
        store.meter.__init__()  # type: ignore[misc]  # without the requests of the opening
        yield store


def counted(meter: StoreMeter) -> dict[str, float]:
    """Return the requests that were counted, as `operation outcome`."""
    found = {}
    for name, labels, value in meter.samples("s"):
        if name == "store_requests_total" and value:
            found[" ".join(text for label, text in labels if label != "store")] = value
    return found


def test_requests_of_the_embedded_store_are_counted(store: EmbeddedStore) -> None:
    assert store.find(KEY) is None
    store.write([Create(KEY, IpamConfig())])
    store.list(BlockQuery())
    store.get_all([KEY])
    assert counted(store.meter) == {"get ok": 2, "list ok": 1, "write ok": 1}
    assert store.meter.is_up


def test_conflicts_of_the_embedded_store_are_counted(store: EmbeddedStore) -> None:
    """They are not failures of the store."""
    store.write([Create(KEY, IpamConfig())])
    for write, error in (
        (Create(KEY, IpamConfig()), Conflict),
        (Update(KEY, IpamConfig(), "999"), Conflict),
        (Delete(KEY, "999"), Conflict),
    ):
        with pytest.raises(error):
            store.write([write])
    store.write([Delete(KEY)])
    with pytest.raises(NotFound):
        store.write([Delete(KEY)])
    assert counted(store.meter) == {"write ok": 2, "write conflict": 4}
    assert store.meter.is_up


def test_failures_of_the_embedded_store_are_counted(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed one serves nothing. A successful request of each kind shows that it is up again."""

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LockWait, "run", fails)
    store._readers.run(lambda connection: connection.close())
    with pytest.raises(StoreError):
        store.find(KEY)
    with pytest.raises(StoreError):
        store.write([Create(KEY, IpamConfig())])
    assert counted(store.meter) == {"get error": 1, "write error": 1}
    assert not store.meter.is_up
    monkeypatch.undo()
    store.write([Create(KEY, IpamConfig())])
    assert not store.meter.is_up
    store.meter.ended(GET, perf_counter())
    assert store.meter.is_up


def token(**fields: object) -> str:
    """Return an unsigned JSON web token."""
    parts = ({"alg": "none"}, fields)
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts), "sig"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (token(exp=1893456000), 1893456000.0),
        (token(exp=1893456000.5, sub="system:serviceaccount:kube-system:svc-ä"), 1893456000.5),
        (token(sub="x"), None),
        (token(exp="soon"), None),
        ("opaque", None),
        ("a.b.c", None),
        ("é.é.é", None),
        ("", None),
    ],
)
def test_end_of_a_token_is_read(text: str, expected: float | None, tmp_path: Path) -> None:
    """It comes from the settings, or from a file that is read each time."""
    settings = {"orch_api_root": "http://127.0.0.1:1"}
    with closing(ApiAuth({**settings, **({"k8s_auth_token": text} if text else {})})) as auth:
        assert auth.token_expires() == expected


def test_end_of_a_token_in_a_file_follows_the_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token(exp=100))
    user = {"name": "u", "user": {"tokenFile": "token"}}
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    document = {"current-context": "x", "users": [user], "clusters": [cluster], "contexts": [context]}
    (tmp_path / "config").write_text(json.dumps(document))
    with closing(ApiAuth({"kubeconfig": str(tmp_path / "config")})) as auth:
        assert auth.token_expires() == 100
        (tmp_path / "token").write_text(token(exp=200))
        assert auth.token_expires() == 200
        (tmp_path / "token").unlink()
        assert auth.token_expires() is None

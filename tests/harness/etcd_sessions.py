"""Sessions with etcd for tests, and helpers that write handles."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from svc.datastore.api import Backend, Create, Entry, Update
from svc.datastore.etcd import connection
from svc.datastore.etcd.store import EtcdStore
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, Key
from svc.names import DEFAULT

COUNTED = "10.0.0.0/26"
HANDLES = f"{DEFAULT.key_root}/ipam/v2/handle/"


@contextmanager
def session(endpoints: str, **settings: Any) -> Iterator[EtcdStore]:
    """Open a session. `settings` are the fields of a network configuration without the prefix "etcd_"."""
    given = {"etcd_endpoints": endpoints} | {f"etcd_{name}": str(value) for name, value in settings.items()}
    store = EtcdStore({"kind": "etcdv3", **given}, DEFAULT)
    try:
        yield store
    finally:
        store.close()


def handle(count: int) -> Handle:
    return Handle({COUNTED: count})


def create(store: Backend, name: str, count: int = 1) -> Entry:
    (entry,) = store.write([Create(HandleKey(name), handle(count))])
    assert entry is not None
    return entry


def update(store: Backend, entry: Entry, count: int) -> Entry:
    (updated,) = store.write([Update(entry.key, handle(count), entry.revision)])
    assert updated is not None
    return updated


def value(store: Backend, key: Key) -> Handle:
    found = store.get(key).value
    assert isinstance(found, Handle)
    return found


ShortenTimeouts = Callable[[float, float], None]


@pytest.fixture
def shorten_timeouts(monkeypatch: pytest.MonkeyPatch) -> ShortenTimeouts:
    """Return a function that sets the timeouts of later sessions, in seconds: of a whole call, and of one attempt."""

    def shorten(call: float, one_try: float) -> None:
        monkeypatch.setattr(connection, "CALL_SECONDS", call)
        monkeypatch.setattr(connection, "TRY_SECONDS", one_try)

    return shorten

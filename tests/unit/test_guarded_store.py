"""Reads of the readiness before writes, if the datastore has no transactions, and the count of what was written."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.backend_wrappers import NonAtomic
from harness.datastores import set_ready
from svc.attach.datastore_ready import KEY, DatastoreLocked, DatastoreReadiness
from svc.controllers.guarded_store import READY_SECONDS, CountedStore, ReadyReadStore
from svc.datastore.api import Backend, Check, Conflict, Create, Delete, PartialWrite
from svc.datastore.embedded import EmbeddedStore
from svc.model.keys import ResourceKey
from svc.model.resource import Resource


class Counting(NonAtomic):
    """A store without transactions that counts the reads of the readiness."""

    reads = 0

    def get(self, key: Any) -> Any:
        self.reads += key == KEY
        return super().get(key)


class Case:
    """A session of the controllers, with a clock that the test moves. `inner` is the same store, without the count."""

    def __init__(self, inner: Backend) -> None:
        self.now = 100.0
        self.inner = inner
        self.store = Counting(inner)
        self.guarded = ReadyReadStore(DatastoreReadiness(self.store), lambda: self.now)
        self._number = 0

    def write(self, after: float = 0.0) -> None:
        self.now += after
        self._number += 1
        name = f"n{self._number}"
        self.guarded.write([Create(ResourceKey("Node", name), Resource("Node", {"name": name}))])


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with closing(EmbeddedStore(tmp_path / "store.db")) as store:
        set_ready(store)
        yield Case(store)


def test_writes_of_a_short_time_share_one_read(case: Case) -> None:
    for _ in range(5):
        case.write(READY_SECONDS / 8)
    assert case.store.reads == 1
    case.write(READY_SECONDS / 2)
    assert case.store.reads == 2


def test_lock_applies_after_this_time(case: Case) -> None:
    case.write()
    set_ready(case.inner, ready=False)
    with pytest.raises(DatastoreLocked):
        case.write(READY_SECONDS)


def test_locked_datastore_is_read_again_with_each_write(case: Case) -> None:
    set_ready(case.inner, ready=False)
    for _ in range(2):
        with pytest.raises(DatastoreLocked):
            case.write()
    set_ready(case.inner)
    case.write()
    assert case.store.reads == 3


def test_applied_writes_are_counted_and_no_others(case: Case) -> None:
    """Checks change nothing, a refused write neither, and without transactions a part of a call may have been applied."""
    numbers: list[int] = []
    counted = CountedStore(case.inner, numbers.append)
    ready = case.inner.get(KEY)
    a, b = (ResourceKey("Node", name) for name in "ab")
    node = Resource("Node", {"name": "a"}, {})
    counted.write([Check(ready.key, ready.revision), Create(a, node)])
    with pytest.raises(Conflict):
        counted.write([Create(a, node)])
    counted.update(a, lambda found: found)
    counted.update(a, lambda _: Resource("Node", {"name": "a"}, {"bgp": {}}))
    assert numbers == [1, 1]
    partial = CountedStore(NonAtomic(case.inner), numbers.append)
    with pytest.raises(PartialWrite):
        partial.write([Create(b, Resource("Node", {"name": "b"}, {})), Create(a, node)])
    partial.write([Delete(a), Delete(b)])
    assert numbers == [1, 1, 1, 2]

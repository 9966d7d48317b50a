"""`Backend.find`, and the retries of `Backend.update`."""

import pytest

from contract.samples import COUNTED, create, handle
from svc.datastore.api import Backend, Conflict, Contended, Delete, Update
from svc.model.errors import Code
from svc.model.ipam import Handle
from svc.model.keys import HandleKey
from svc.retry import ATTEMPTS

KEY = HandleKey("net1.c1")


def one_more(present: Handle | None) -> Handle:
    return (present or Handle({})).changed(COUNTED, 1)


def test_find_returns_the_entry_or_none(backend: Backend) -> None:
    assert backend.find(KEY) is None
    entry = create(backend, KEY, handle(1))
    assert backend.find(KEY) == entry == backend.get(KEY)


def test_update_creates_changes_and_deletes(backend: Backend) -> None:
    """Each call returns the resulting entry."""
    created = backend.update(KEY, one_more)
    assert created is not None
    assert created.value == handle(1)
    changed = backend.update(KEY, one_more)
    assert changed is not None
    assert backend.get(KEY) == changed
    assert changed.value == handle(2)
    assert backend.update(KEY, lambda _: None) is None
    assert backend.find(KEY) is None


def test_update_writes_nothing_for_the_same_object(backend: Backend) -> None:
    assert backend.update(KEY, lambda present: present) is None
    entry = create(backend, KEY, handle(1))
    assert backend.update(KEY, lambda present: present) == entry
    assert backend.get(KEY).revision == entry.revision


def test_update_retries_after_concurrent_changes(backend: Backend) -> None:
    """The key is changed, created or deleted between the read and the write."""
    seen: list[Handle | None] = []

    def change(present: Handle | None) -> Handle:
        seen.append(present)
        if len(seen) == 1:
            create(backend, KEY, handle(5))
        elif len(seen) == 2:
            backend.write([Update(KEY, handle(7), backend.get(KEY).revision)])
        elif len(seen) == 3:
            backend.write([Delete(KEY)])
        return one_more(present)

    entry = backend.update(KEY, change)
    assert seen == [None, handle(5), handle(7), None]
    assert entry is not None
    assert entry.value == handle(1)


def test_update_gives_up_after_many_attempts(backend: Backend) -> None:
    """The error names the key. Other errors of the change are not retried."""
    calls = 0

    def conflicting(_: Handle | None) -> Handle:
        nonlocal calls
        calls += 1
        raise Conflict(KEY)

    with pytest.raises(Contended, match=r"net1\.c1") as refusal:
        backend.update(KEY, conflicting)
    assert (calls, refusal.value.code) == (ATTEMPTS, Code.CONCURRENCY)

    def failing(_: Handle | None) -> Handle:
        raise ValueError("the caller's own")

    with pytest.raises(ValueError, match="the caller's own"):
        backend.update(KEY, failing)

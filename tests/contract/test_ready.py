"""Whether a datastore is unlocked, checked alone and by the writes that depend on it."""

import threading
from dataclasses import replace

import pytest

from contract.samples import create, handle
from svc.attach.datastore_ready import KEY, DatastoreLocked, DatastoreReadiness, ready_checked
from svc.datastore.api import Backend, Conflict, Create, Delete, NotFound, Update
from svc.model.errors import Code
from svc.model.keys import HandleKey
from svc.model.move_mark import LEFT, STATES, Mark, annotation
from svc.model.resource import Resource
from svc.names import DEFAULT


def put_ready(backend: Backend, ready: bool | None, **spec: str) -> None:
    value = Resource(KEY.kind, {"name": KEY.name}, {**spec, **({} if ready is None else {"datastoreReady": ready})})
    try:
        present = backend.get(KEY)
    except NotFound:
        backend.write([Create(KEY, value)])
        return
    value.metadata = present.value.metadata
    backend.write([Update(KEY, value, present.revision)])


def exists(backend: Backend, name: str) -> bool:
    try:
        backend.get(HandleKey(name))
    except NotFound:
        return False
    return True


@pytest.mark.parametrize("ready", [False, None])
def test_locked_store_is_refused(backend: Backend, ready: bool | None) -> None:
    put_ready(backend, ready)
    with pytest.raises(DatastoreLocked) as caught:
        DatastoreReadiness(backend).require()
    assert caught.value.code == Code.DATASTORE_LOCKED


@pytest.mark.parametrize("state", STATES)
def test_lock_of_a_move_says_whether_the_content_has_left(backend: Backend, state: str) -> None:
    """A CHECK then reads no old content. Until then, it may answer."""
    put_ready(backend, False)
    entry = backend.get(KEY)
    notes = {annotation(DEFAULT): Mark("run", state, "there").text()}
    backend.write([Update(KEY, replace(entry.value, metadata=entry.value.metadata | {"annotations": notes}), entry.revision)])
    with pytest.raises(DatastoreLocked) as caught:
        DatastoreReadiness(backend).require()
    assert caught.value.has_left is (state == LEFT)
    assert ("has moved to there" in caught.value.msg) is (state == LEFT)


def test_store_without_the_flag_is_refused(backend: Backend) -> None:
    put_ready(backend, True)
    backend.write([Delete(KEY, backend.get(KEY).revision)])
    with pytest.raises(DatastoreLocked, match="not initialised"):
        DatastoreReadiness(backend).require()


def test_flag_is_read_for_each_call(backend: Backend) -> None:
    readiness = DatastoreReadiness(backend)
    for ready in (True, False, True):
        put_ready(backend, ready)
        if ready:
            readiness.require()
        else:
            with pytest.raises(DatastoreLocked):
                readiness.require()


def test_guarded_writes_detect_a_concurrent_lock(backend: Backend) -> None:
    """The last read said that the datastore is unlocked. Nothing is written."""
    put_ready(backend, True)
    store = ready_checked(DatastoreReadiness(backend))
    if not backend.atomic:  # it cannot check within a write
        assert store is backend
        return
    assert store.write([Create(HandleKey("a"), handle(1))]) == [backend.get(HandleKey("a"))]
    put_ready(backend, False)
    with pytest.raises(DatastoreLocked):
        store.write([Create(HandleKey("b"), handle(1))])
    assert not exists(backend, "b")
    put_ready(backend, True)
    store.write([Create(HandleKey("b"), handle(1))])
    assert exists(backend, "b")


def test_other_changes_of_the_resource_are_not_a_lock(backend: Backend) -> None:
    put_ready(backend, True)
    store = ready_checked(DatastoreReadiness(backend))
    create(store, HandleKey("a"), handle(1))
    put_ready(backend, True, clusterType="x")
    create(store, HandleKey("b"), handle(1))


def test_other_conflicts_are_raised_unchanged(backend: Backend) -> None:
    put_ready(backend, True)
    store = ready_checked(DatastoreReadiness(backend))
    create(store, HandleKey("a"), handle(1))
    with pytest.raises(Conflict) as caught:
        create(store, HandleKey("a"), handle(1))
    assert caught.value.key == HandleKey("a")


def test_concurrent_checks_succeed(backend: Backend) -> None:
    put_ready(backend, True)
    readiness, failures = DatastoreReadiness(backend), list[BaseException]()

    def ask() -> None:
        try:
            for _ in range(5):
                readiness.require()
                assert readiness.expected().key == KEY
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

"""Changes of objects of several kinds, on every store, beside other writers."""

from collections.abc import Sequence
from datetime import datetime, timezone

import pytest

from harness.backend_wrappers import Interfering, Through
from harness.documents import EVERY, pool
from harness.skips import OTHER_STORES
from svc.admin import changes, kinds
from svc.admin.changes import Change, Options, Wanted, applied
from svc.admin.objects import check_deletable, delete_all, read
from svc.datastore.api import MAX_WRITES, Backend, Entries, Entry, StoreError, Update, Write
from svc.model.errors import CallerError, PeerError, SvcError
from svc.model.keys import Query, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT

NOW = datetime(2026, 11, 20, 18, 2, 53, tzinfo=timezone.utc)
TABLE = kinds.table(DEFAULT, "")
ENDPOINTS = kinds.find(TABLE, "hep")
CLUSTER = ResourceKey("ClusterInformation", "default")


def wanted(*documents: dict[str, object], revision: str = "") -> list[Wanted]:
    found = []
    for each in documents:
        resource = Resource.from_json({name: each[name] for name in ("kind", "metadata", "spec")})
        kind = kinds.of_manifest(TABLE, resource.kind)
        assert kind is not None
        found.append(applied(kind, resource, revision=revision))
    return found


def endpoint(name: str, interface: str = "eth0") -> dict[str, object]:
    return {"kind": "HostEndpoint", "metadata": {"name": name}, "spec": {"node": "node1", "interfaceName": interface}}


def apply(backend: Backend, *documents: dict[str, object], while_locked: bool = True) -> list[Change]:
    return changes.apply(backend, wanted(*documents), Options(NOW, while_locked=while_locked))


def outcomes(done: list[Change]) -> list[str]:
    return [each.outcome for each in done]


def names(backend: Backend) -> list[str]:
    return [each.resource.name for each in read(backend, ENDPOINTS).found]


def test_objects_of_several_kinds_are_created_and_updated(backend: Backend) -> None:
    assert outcomes(apply(backend, *EVERY)) == ["created"] * 4
    assert outcomes(apply(backend, *EVERY, endpoint("more"))) == ["unchanged"] * 4 + ["created"]


def test_more_objects_than_a_write_can_have_are_applied(backend: Backend) -> None:
    """They are read and written in several requests."""
    documents = [endpoint(f"n{number:03}") for number in range(MAX_WRITES + 3)]
    assert outcomes(apply(backend, *documents)) == ["created"] * len(documents)
    assert outcomes(apply(backend, *documents)) == ["unchanged"] * len(documents)
    assert len(list(delete_all(backend, read(backend, ENDPOINTS).found))) == len(documents)
    assert names(backend) == []


def test_changes_are_worked_out_again_after_those_of_others(backend: Backend) -> None:
    """The label of the other writer stays."""
    apply(backend, endpoint("h"))
    key = ResourceKey("HostEndpoint", "h")

    def other() -> None:
        entry = backend.get(key)
        metadata = entry.value.metadata | {"labels": {"other": "writer"}}
        backend.write([Update(key, Resource("HostEndpoint", metadata, entry.value.spec), entry.revision)])

    interfering = Interfering(backend, 1, other)
    assert outcomes(apply(interfering, endpoint("g"), endpoint("h", "eth1"))) == ["created", "updated"]
    stored = backend.get(key).value
    assert (stored.labels, stored.spec["interfaceName"]) == ({"other": "writer"}, "eth1")


def test_revision_of_a_document_is_compared_when_it_is_written(backend: Backend) -> None:
    """Another writer changes the object between the check and the write."""
    apply(backend, endpoint("h"))
    (found,) = read(backend, ENDPOINTS).found
    interfering = Interfering(backend, 1, lambda: apply(backend, endpoint("h", "eth1")))
    with pytest.raises(CallerError, match="resourceVersion"):
        changes.apply(interfering, wanted(endpoint("h", "eth2"), revision=found.revision), Options(NOW))
    assert backend.get(found.key).value.spec["interfaceName"] == "eth1"


def test_objects_that_were_changed_before_an_error_are_named(backend: Backend) -> None:
    """A store with transactions has changed none of them."""
    key = ResourceKey("HostEndpoint", "b")
    apply(backend, endpoint("b"))
    revision = backend.get(key).revision
    interfering = Interfering(backend, 1, lambda: apply(backend, endpoint("b", "eth1")))
    pair = [*wanted(endpoint("a")), *wanted(endpoint("b", "eth2"), revision=revision)]
    with pytest.raises(SvcError) as refusal:
        changes.apply(interfering, pair, Options(NOW))
    assert ("hostendpoint/a" in refusal.value.as_text()) == (not backend.atomic)
    assert ("nothing was changed" in refusal.value.as_text()) == backend.atomic
    assert names(backend) == (["b"] if backend.atomic else ["a", "b"])


def test_interrupted_call_names_what_was_changed(backend: Backend) -> None:
    """A store with transactions changes all objects of a write, or none."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    pair = wanted(endpoint("a"), endpoint("b"))
    number, error = (1, KeyboardInterrupt) if backend.atomic else (2, CallerError)
    with pytest.raises(error) as stop:
        changes.apply(Interfering(backend, number, interrupt), pair, Options(NOW))
    if isinstance(stop.value, CallerError):
        assert "interrupted after 1 of 2 objects: already changed: hostendpoint/a" in stop.value.as_text()
    assert names(backend) == ([] if backend.atomic else ["a"])
    assert outcomes(changes.apply(backend, pair, Options(NOW))) == ["created" if backend.atomic else "unchanged", "created"]


def test_overlapping_pool_that_appears_after_the_check_is_found(backend: Backend) -> None:
    """Another process creates it between the reading of the pools and the write."""
    if backend.find(CLUSTER) is None:
        apply(backend, {"kind": CLUSTER.kind, "metadata": {"name": CLUSTER.name}, "spec": {"clusterGUID": "0" * 32}})

    class Late(Through):
        def list(self, query: Query) -> Entries:
            found = super().list(query)
            if query == ResourceQuery("IPPool") and not read(self.inner, kinds.POOLS).found:
                apply(self.inner, pool("other", "10.65.0.128/25"))
            return found

    late = Late(backend)
    with pytest.raises(CallerError, match="overlaps IP pool 'other'"):
        apply(late, pool("pods", "10.65.0.0/24"))
    assert [each.resource.name for each in read(backend, kinds.POOLS).found] == ["other"]


def test_lock_that_is_set_during_the_work_is_respected(backend: Backend) -> None:
    """A store without transactions reads the lock once, before its first write."""
    info: dict[str, object] = {"kind": CLUSTER.kind, "metadata": {"name": CLUSTER.name}}
    locked = info | {"spec": {"datastoreReady": False}}
    identity = {} if backend.find(CLUSTER) else {"clusterGUID": "0" * 32}
    apply(backend, info | {"spec": {"datastoreReady": True, **identity}})
    if backend.atomic:
        interfering = Interfering(backend, 1, lambda: apply(backend, locked))
        with pytest.raises(CallerError, match="locked"):
            apply(interfering, endpoint("h"), while_locked=False)
    else:
        apply(backend, locked)
        with pytest.raises(CallerError, match="locked"):
            apply(backend, endpoint("h"), while_locked=False)
    assert names(backend) == []


def test_lock_that_is_set_between_two_writes_is_respected(backend: Backend) -> None:
    """A call with more objects than a write can have compares the lock in each."""
    if not backend.atomic:
        pytest.skip(OTHER_STORES + "the store has no transactions: it reads the lock once")
    info: dict[str, object] = {"kind": CLUSTER.kind, "metadata": {"name": CLUSTER.name}}
    identity = {} if backend.find(CLUSTER) else {"clusterGUID": "0" * 32}
    apply(backend, info | {"spec": {"datastoreReady": True, **identity}})
    locked = info | {"spec": {"datastoreReady": False}}
    for first in (endpoint("n000"), pool("pods", "10.65.0.0/24")):
        documents = [first, *(endpoint(f"n{number:03}") for number in range(1, MAX_WRITES + 3))]
        interfering = Interfering(backend, 2, lambda: apply(backend, locked))
        with pytest.raises(CallerError, match="locked") as refusal:
            apply(interfering, *documents, while_locked=False)
        assert "already changed: " in refusal.value.as_text()
        assert len(names(backend)) < MAX_WRITES
        apply(backend, info | {"spec": {"datastoreReady": True}})
        list(delete_all(backend, read(backend, ENDPOINTS).found))


def test_object_that_was_changed_since_it_was_read_is_not_deleted(backend: Backend) -> None:
    """The others are deleted, and one that another program has deleted is not an error."""
    apply(backend, endpoint("a"), endpoint("b"), endpoint("c"))
    chosen = read(backend, ENDPOINTS).found
    apply(backend, endpoint("b", "eth1"))
    list(delete_all(backend, [each for each in read(backend, ENDPOINTS).found if each.resource.name == "c"]))
    assert list(check_deletable(backend, chosen)) == []
    with pytest.raises(PeerError, match="host endpoint 'b': was changed since it was read"):
        list(delete_all(backend, chosen))
    assert names(backend) == ["b"]


def test_object_that_others_keep_changing_is_an_error(backend: Backend) -> None:
    apply(backend, endpoint("h"))
    count = iter(range(1, 10_000))

    def other() -> None:
        apply(backend, endpoint("h", f"eth{next(count)}"))

    class Busy(Through):
        def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
            other()
            return super().write(writes, durable=durable)

    with pytest.raises(StoreError, match="the list of host endpoints keeps changing"):
        apply(Busy(backend), endpoint("h", "veth"))

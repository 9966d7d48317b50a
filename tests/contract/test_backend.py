"""The contract of a datastore, as documented in svc/datastore/api.py."""

import threading
from collections.abc import Callable

import pytest

from contract.samples import COUNTED, block, create, handle, pool, without_server_fields
from harness.ipam import wait_for_stable_generations
from svc._core.cidr import Cidr
from svc.datastore.api import (
    MAX_WRITES,
    Backend,
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    KeyedError,
    NotFound,
    PartialWrite,
    StoreError,
    Update,
    Write,
)
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.etcd.store import EtcdStore
from svc.model.ipam import CONFIRMED, PENDING, Affinity, Handle, IpamConfig
from svc.model.keys import (
    AffinityKey,
    AffinityQuery,
    BlockKey,
    BlockQuery,
    HandleKey,
    HandleQuery,
    IpamConfigKey,
    Key,
    LegacyHostKey,
    NodeClaimKey,
    NodeFenceKey,
    Query,
    ResourceKey,
    ResourceQuery,
    describe,
)
from svc.model.kv_codec import Value
from svc.model.resource import Resource

SAMPLES: list[tuple[Key, Value, Value]] = [
    (BlockKey(Cidr("10.0.0.0/30")), block(), block(holder="net1.c2")),
    (AffinityKey("node1", Cidr("10.0.0.0/30")), Affinity(PENDING), Affinity(CONFIRMED)),
    (HandleKey("net1.c1"), handle(1), handle(2)),
    (IpamConfigKey(), IpamConfig(strict_affinity=True), IpamConfig(max_blocks_per_host=3)),
    (ResourceKey("IPPool", "a"), pool("a"), pool("a", "10.1.0.0/24")),
]
EVERY_KIND = pytest.mark.parametrize(("key", "value", "other"), SAMPLES, ids=[type(value).__name__ for _, value, _ in SAMPLES])


def keys(backend: Backend, query: Query) -> list[Key]:
    return [entry.key for entry in backend.list(query)]


def test_pages_have_every_entry(backend: Backend) -> None:
    """Stores of bytes decode a few at a time. A query without entries has none in its pages."""
    query = BlockQuery(4)
    assert [entry for page in backend.pages(query) for entry in page] == []
    for number in range(20):
        create(backend, BlockKey(Cidr(f"10.0.0.{4 * number}/30")), block(f"10.0.0.{4 * number}/30"))
    found = list(backend.pages(query))
    assert sorted((entry for page in found for entry in page), key=str) == sorted(backend.list(query), key=str)
    if isinstance(backend, EmbeddedStore | EtcdStore):
        assert max(map(len, found)) < 20


@EVERY_KIND
def test_values_are_read_as_they_were_written(backend: Backend, key: Key, value: Value, other: Value) -> None:
    """Values of every kind keep their content and revision through create and update."""
    created = create(backend, key, value)
    assert backend.get(key) == created
    assert without_server_fields(created.value) == without_server_fields(value)
    (updated,) = backend.write([Update(key, other, created.revision)])
    assert updated is not None
    assert backend.get(key) == updated
    assert without_server_fields(updated.value) == without_server_fields(other)


@EVERY_KIND
def test_get_update_and_delete_of_a_missing_key_raise_not_found(backend: Backend, key: Key, value: Value, other: Value) -> None:
    """The key is missing before its creation and after its deletion."""
    attempts: list[Callable[[], object]] = [
        lambda: backend.get(key),
        lambda: backend.write([Update(key, value, "1")]),
        lambda: backend.write([Delete(key, "1")]),
        lambda: backend.write([Delete(key)]),
    ]
    entry = None
    for _ in range(2):
        for attempt in attempts:
            with pytest.raises(NotFound) as caught:
                attempt()
            assert caught.value.key == key
        if entry is None:
            entry = create(backend, key, value)
            assert backend.write([Delete(key, entry.revision)]) == [None]


@EVERY_KIND
def test_creating_an_existing_key_is_a_conflict(backend: Backend, key: Key, value: Value, other: Value) -> None:
    """The failed write changes nothing."""
    entry = create(backend, key, value)
    with pytest.raises(Conflict) as caught:
        backend.write([Create(key, other)])
    assert caught.value.key == key
    assert list(caught.value.observed) in ([], [entry])
    assert backend.get(key) == entry


@EVERY_KIND
def test_update_or_delete_at_another_revision_is_a_conflict(backend: Backend, key: Key, value: Value, other: Value) -> None:
    """The failed write changes nothing."""
    stale = create(backend, key, value).revision
    (entry,) = backend.write([Update(key, other, stale)])
    attempts: list[Write] = [Update(key, value, stale), Delete(key, stale)]
    for write in attempts:
        with pytest.raises(Conflict) as caught:
            backend.write([write])
        assert caught.value.key == key
        assert list(caught.value.observed) in ([], [entry])
    assert backend.get(key) == entry


@EVERY_KIND
def test_delete_without_revision_deletes_any_revision(backend: Backend, key: Key, value: Value, other: Value) -> None:
    """The key can be created again after the deletion."""
    create(backend, key, value)
    assert backend.write([Delete(key)]) == [None]
    assert without_server_fields(create(backend, key, other).value) == without_server_fields(other)


def test_conflict_says_what_happened_and_what_to_do(backend: Backend) -> None:
    key = ResourceKey("IPPool", "a")
    (entry,) = backend.write([Create(key, pool("a"))])
    assert entry
    with pytest.raises(Conflict) as caught:
        backend.write([Update(key, entry.value, "1" if entry.revision != "1" else "2")])
    sentence = "IPPool 'a' was changed by another program at the same time"
    assert str(caught.value) == f"{sentence}: repeat the command or the call"
    backend.write([Delete(key)])
    with pytest.raises(NotFound) as missing:
        backend.write([Delete(key)])
    assert missing.value.msg == "IPPool 'a' does not exist: another program may have deleted it"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (ResourceKey("WorkloadEndpoint", "web", "shop"), "WorkloadEndpoint 'shop/web'"),
        (BlockKey(Cidr("10.65.0.0/26")), "block 10.65.0.0/26"),
        (AffinityKey("n1", Cidr("10.65.0.0/26")), "the affinity of node 'n1' to block 10.65.0.0/26"),
        (HandleKey("net.c1"), "handle 'net.c1'"),
        (NodeClaimKey("n1"), "the claim on node 'n1'"),
        (NodeFenceKey("n1"), "the claim on node 'n1'"),
        (LegacyHostKey("n1"), "the record of host 'n1'"),
        (IpamConfigKey(), "the object of the IPAM settings"),
    ],
)
def test_keys_are_described_to_users(key: Key, text: str) -> None:
    assert describe(key) == text


def test_errors_are_store_errors() -> None:
    assert issubclass(KeyedError, StoreError)
    assert {NotFound, Conflict} <= set(KeyedError.__subclasses__())
    assert issubclass(PartialWrite, StoreError)


def test_revisions_never_repeat(backend: Backend) -> None:
    """A key that is created again after a deletion never gets an old revision."""
    key, seen = HandleKey("h"), []
    for count in range(1, 4):
        entry = create(backend, key, handle(1))
        seen.append(entry.revision)
        (updated,) = backend.write([Update(key, handle(1 + count), entry.revision)])
        assert updated is not None
        seen.append(updated.revision)
        backend.write([Delete(key, updated.revision)])
    assert all(isinstance(revision, str) for revision in seen)
    assert len(set(seen)) == len(seen)


def test_write_returns_current_entries_in_order(backend: Backend) -> None:
    """The result of a delete is None. The next write can use the returned revisions."""
    old = create(backend, HandleKey("old"), handle(1))
    changed = create(backend, HandleKey("changed"), handle(1))
    written = backend.write(
        [Delete(old.key, old.revision), Create(HandleKey("new"), handle(2)), Update(changed.key, handle(3), changed.revision)]
    )
    assert written[0] is None
    assert written[1:] == [backend.get(HandleKey("new")), backend.get(HandleKey("changed"))]


def test_write_of_nothing_succeeds(backend: Backend) -> None:
    assert list(backend.write([])) == []


@pytest.mark.parametrize(
    "failing", [Create(HandleKey("b"), Handle({})), Update(HandleKey("x"), Handle({}), "1"), Delete(HandleKey("x"))]
)
def test_failing_write_applies_nothing_or_reports_a_partial_write(backend: Backend, failing: Write) -> None:
    """An atomic store changes nothing. Any other store stops at the failure, and its error lists the applied writes."""
    present, last = create(backend, HandleKey("b"), handle(1)), create(backend, HandleKey("c"), handle(1))
    writes: list[Write] = [Create(HandleKey("a"), handle(1)), failing, Update(last.key, handle(2), last.revision)]
    with pytest.raises(StoreError) as caught:
        backend.write(writes)
    assert [backend.get(present.key), backend.get(last.key)] == [present, last]
    if backend.atomic:
        assert isinstance(caught.value, KeyedError)
        assert caught.value.key == failing.key
        assert keys(backend, HandleQuery()) == [present.key, last.key]
    else:
        assert isinstance(caught.value, PartialWrite)
        assert isinstance(caught.value.cause, KeyedError)
        assert caught.value.cause.key == failing.key
        assert caught.value.done == (backend.get(HandleKey("a")),)


@pytest.mark.parametrize("state", ["changed", "gone", "never there"])
def test_failed_check_prevents_other_writes(backend: Backend, state: str) -> None:
    """A check requires that a key still has the revision that was read. Otherwise it is a conflict, and nothing is written."""
    guard = create(backend, HandleKey("guard"), handle(1))
    if state == "changed":
        backend.write([Update(guard.key, handle(2), guard.revision)])
    else:
        backend.write([Delete(guard.key)])
    key = HandleKey("other") if state == "never there" else guard.key
    writes: list[Write] = [Create(HandleKey("a"), handle(1)), Check(key, guard.revision)]
    with pytest.raises(StoreError) as caught:
        backend.write(writes)
    cause = caught.value.cause if isinstance(caught.value, PartialWrite) else caught.value
    assert isinstance(cause, Conflict)
    assert cause.key == key
    assert HandleKey("a") not in keys(backend, HandleQuery())


def test_checks_do_not_change_the_key(backend: Backend) -> None:
    """The result of a check is None, alone and beside other writes, including a write of the same key."""
    guard = create(backend, ResourceKey("IPPool", "a"), pool("a"))
    assert list(backend.write([Check(guard.key, guard.revision)])) == [None]
    entries = backend.write([Check(guard.key, guard.revision), Create(HandleKey("a"), handle(1))])
    assert entries == [None, backend.get(HandleKey("a"))]
    assert backend.get(guard.key) == guard
    (none, entry) = backend.write(
        [Check(guard.key, guard.revision), Update(guard.key, pool("a", "10.1.0.0/24"), guard.revision)]
    )
    assert none is None
    assert entry == backend.get(guard.key)


def test_checks_do_not_change_the_generation(backend: Backend) -> None:
    guard = create(backend, ResourceKey("IPPool", "a"), pool("a"))
    wait_for_stable_generations(backend, "IPPool")
    before = backend.generations(("IPPool",))
    backend.write([Check(guard.key, guard.revision), Create(HandleKey("a"), handle(1))])
    assert backend.generations(("IPPool",)) == before


def test_maximum_number_of_writes_is_accepted(backend: Backend) -> None:
    writes: list[Write] = [Create(HandleKey(f"h.{number:03}"), handle(number)) for number in range(MAX_WRITES)]
    entries = backend.write(writes)
    assert list(backend.list(HandleQuery())) == list(entries)


def test_durable_writes_apply(backend: Backend) -> None:
    """The flag changes only when the call returns."""
    (entry,) = backend.write([Create(HandleKey("h"), handle(1))], durable=True)
    assert backend.get(HandleKey("h")) == entry
    with pytest.raises(Conflict):
        backend.write([Create(HandleKey("h"), handle(2))], durable=True)


def test_values_are_stored_as_they_are_at_the_call(backend: Backend) -> None:
    """If the caller changes the value after the call, the stored value stays."""
    value = block()
    create(backend, BlockKey(value.cidr), value)
    value.ordinals.allocate(0)
    value.sequence += 1
    assert backend.get(BlockKey(value.cidr)).value == block()


def test_read_values_belong_to_the_caller(backend: Backend) -> None:
    """If the caller changes a value that it read, neither the store nor other readers see the change."""
    key = ResourceKey("IPPool", "a")
    create(backend, key, pool("a"))
    reads: list[Callable[[], Entry]] = [lambda: backend.get(key), lambda: backend.list(ResourceQuery("IPPool"))[0]]
    for read in reads:
        value = read().value
        assert isinstance(value, Resource)
        value.spec["cidr"] = "changed"
        value.metadata.clear()
        assert without_server_fields(read().value) == without_server_fields(pool("a"))


def fill(backend: Backend) -> None:
    """Write several keys of each kind, in random order."""
    for cidr in ("10.0.0.8/30", "10.0.0.0/30"):
        create(backend, BlockKey(Cidr(cidr)), block(cidr))
    create(backend, BlockKey(Cidr("fd00::/126")), block("fd00::/126"))
    for host, cidr, kind in (
        ("node2", "10.0.0.8/30", "host"),
        ("node1", "fd00::/126", "host"),
        ("node1", "10.0.0.0/30", "host"),
        ("node10", "10.0.0.4/30", "host"),
        ("node1", "10.0.0.12/30", "virtual"),
    ):
        create(backend, AffinityKey(host, Cidr(cidr), kind), Affinity())
    for name in ("net1.c2", "net1.c1"):
        create(backend, HandleKey(name), handle(1))
    for name in ("b", "a", "ab"):
        create(backend, ResourceKey("IPPool", name), pool(name))
    create(backend, ResourceKey("Node", "a"), Resource("Node", {"name": "a"}, {}, {}))


ANSWERS: list[tuple[Query, list[Key]]] = [
    (BlockQuery(), [BlockKey(Cidr(cidr)) for cidr in ("10.0.0.0/30", "10.0.0.8/30", "fd00::/126")]),
    (BlockQuery(4), [BlockKey(Cidr(cidr)) for cidr in ("10.0.0.0/30", "10.0.0.8/30")]),
    (BlockQuery(6), [BlockKey(Cidr("fd00::/126"))]),
    (
        AffinityQuery(),
        [
            AffinityKey("node1", Cidr("10.0.0.0/30")),
            AffinityKey("node1", Cidr("fd00::/126")),
            AffinityKey("node10", Cidr("10.0.0.4/30")),
            AffinityKey("node2", Cidr("10.0.0.8/30")),
        ],
    ),
    (AffinityQuery("node1"), [AffinityKey("node1", Cidr("10.0.0.0/30")), AffinityKey("node1", Cidr("fd00::/126"))]),
    (AffinityQuery("node1", 6), [AffinityKey("node1", Cidr("fd00::/126"))]),
    (AffinityQuery("node"), []),
    (AffinityQuery(kind="virtual"), [AffinityKey("node1", Cidr("10.0.0.12/30"), "virtual")]),
    (HandleQuery(), [HandleKey("net1.c1"), HandleKey("net1.c2")]),
    (ResourceQuery("IPPool"), [ResourceKey("IPPool", name) for name in ("a", "ab", "b")]),
    (ResourceQuery("IPPool", prefix="a"), [ResourceKey("IPPool", name) for name in ("a", "ab")]),
    (ResourceQuery("IPPool", prefix="c"), []),
    (ResourceQuery("IPReservation"), []),
]


@pytest.mark.parametrize(("query", "expected"), ANSWERS, ids=[str(query) for query, _ in ANSWERS])
def test_list_returns_matching_entries_in_key_order(backend: Backend, query: Query, expected: list[Key]) -> None:
    """Each entry equals the one that `get` returns."""
    fill(backend)
    listed = backend.list(query)
    assert [entry.key for entry in listed] == expected
    assert list(listed) == [backend.get(key) for key in expected]


def test_concurrent_updates_are_not_lost(backend: Backend) -> None:
    """Eight threads increment one key with compare-and-swap."""
    threads, rounds, key = 8, 25 if backend.atomic else 10, HandleKey("counter")
    create(backend, key, handle(0))

    def count() -> None:
        for _ in range(rounds):
            while True:
                entry = backend.get(key)
                assert isinstance(entry.value, Handle)
                try:
                    backend.write([Update(key, entry.value.changed(COUNTED, 1), entry.revision)])
                    break
                except Conflict as conflict:
                    assert conflict.key == key  # noqa: PT017 a lost race is not a failure

    workers = [threading.Thread(target=count) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert backend.get(key).value == handle(threads * rounds)

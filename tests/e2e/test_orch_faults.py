"""The API server as a datastore when it is busy, breaks off, forgets or is started again; and how few requests it is asked."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from contract.samples import bare, block, handle, pool
from harness.api_proxy import ApiProxy, Fate, Order
from harness.ipam import in_threads, settle
from harness.kube import ADMIN_TOKEN, Kube, Refused, running
from harness.orch import install, put_core_node, put_pod
from svc._core.cidr import Cidr
from svc.datastore.api import Conflict, Create, Delete, Entry, NotFound, PartialWrite, StoreError, Update, Write
from svc.datastore.orch import client
from svc.datastore.orch.store import OrchStore
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key
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
    Query,
    ResourceKey,
    ResourceQuery,
)
from svc.model.kv_codec import Value
from svc.names import DEFAULT

KEY = HandleKey("net1.c1")
PATH = f"/apis/{DEFAULT.crd_api_version}"
SAMPLES: list[tuple[Key, Value, Value]] = [
    (BlockKey(Cidr("10.0.0.0/30")), block(), block(holder="net1.c2")),
    (AffinityKey("node1", Cidr("10.0.0.0/30")), Affinity(PENDING), Affinity(CONFIRMED)),
    (KEY, handle(1), handle(2)),
    (IpamConfigKey(), IpamConfig(strict_affinity=True), IpamConfig(max_blocks_per_host=3)),
    (ResourceKey("IPPool", "a"), pool("a"), pool("a", "10.1.0.0/24")),
]
EVERY_KIND = pytest.mark.parametrize(("key", "value", "other"), SAMPLES, ids=[type(value).__name__ for _, value, _ in SAMPLES])
BROKEN = pytest.mark.parametrize("fate", [Fate.NEVER_SENT, Fate.REPLY_LOST])


@pytest.fixture
def front(clean_kube: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(clean_kube) as front:
        yield front


@pytest.fixture
def store(front: ApiProxy) -> Iterator[OrchStore]:
    """A session through the front, which has found out its API group."""
    settings = {"kind": "orch", "orch_api_root": front.url + "/api/", "k8s_auth_token": ADMIN_TOKEN}
    with closing(OrchStore(settings, DEFAULT)) as store:
        store.list(ResourceQuery("IPPool"))
        front.calls.clear()
        yield store


def write(store: OrchStore, one: Write) -> Entry:
    (entry,) = store.write([one])
    assert entry is not None
    return entry


@EVERY_KIND
def test_no_request_is_made_in_vain(store: OrchStore, front: ApiProxy, key: Key, value: Value, other: Value) -> None:
    """A get is one GET, a create one POST, an update one PUT; what is deleted in two steps takes two, and a block's mark needs
    its content."""
    created = write(store, Create(key, value))
    updated = write(store, Update(key, other, created.revision))
    store.get(key)
    assert [call.split()[0] for call in front.calls] == ["POST", "PUT", "GET"]
    front.calls.clear()
    store.write([Delete(key, updated.revision)])
    steps = {BlockKey: ["GET", "PUT", "DELETE"], AffinityKey: ["PUT", "DELETE"], HandleKey: ["PUT", "DELETE"]}
    assert [call.split()[0] for call in front.calls] == steps.get(type(key), ["DELETE"])


def test_endpoints_are_one_request_each(store: OrchStore, front: ApiProxy, clean_kube: Kube) -> None:
    """And the list of one pod's is a GET of that pod, which needs no right to list."""
    put_core_node(clean_kube, "node1")
    put_pod(clean_kube, "web-0")
    workload = Workload("c1", "web-0", "default")
    key = endpoint_key(DEFAULT, "node1", workload, "eth0")
    spec = {"ipNetworks": ["10.0.0.1/32"], "interfaceName": "svc1", "mac": "x"}
    wanted = endpoint(DEFAULT, key, "node1", workload, "eth0", spec=spec, facts=PodFacts())
    entry = write(store, Create(key, wanted))
    assert entry == store.get(key)
    assert store.list(ResourceQuery("WorkloadEndpoint", "default", "node1-k8s-web--0-")) == [entry]
    store.write([Delete(key, store.get(key).revision)])
    with pytest.raises(NotFound):
        store.get(key)
    assert [call.split()[0] for call in front.calls] == ["PATCH", "GET", "GET", "GET", "PATCH", "GET"]
    assert all("/pods/web-0" in call for call in front.calls)


@BROKEN
@EVERY_KIND
def test_a_broken_create_is_made_once(
    store: OrchStore, front: ApiProxy, fate: Fate, key: Key, value: Value, other: Value
) -> None:
    """Whether the server has seen it or not: what is there afterwards is what was wanted, and its revision is known."""
    front.arm(Order(fate, "^POST"))
    entry = write(store, Create(key, value))
    assert bare(entry.value) == bare(value)
    assert store.get(key) == entry
    assert len([call for call in front.calls if call.startswith("POST")]) == (1 if fate is Fate.REPLY_LOST else 2)


@BROKEN
@EVERY_KIND
def test_a_broken_update_is_made_once(
    store: OrchStore, front: ApiProxy, fate: Fate, key: Key, value: Value, other: Value
) -> None:
    """As a create."""
    created = write(store, Create(key, value))
    front.arm(Order(fate, "^PUT"))
    entry = write(store, Update(key, other, created.revision))
    assert bare(entry.value) == bare(other)
    assert store.get(key) == entry
    assert entry.revision != created.revision


@BROKEN
@pytest.mark.parametrize("verb", ["PUT", "DELETE"])
@EVERY_KIND
def test_a_broken_delete_deletes(
    store: OrchStore, front: ApiProxy, fate: Fate, verb: str, key: Key, value: Value, other: Value
) -> None:
    """In whichever of its steps, at a revision or at any; a reader finishes what was begun."""
    for revision in (True, False):
        created = write(store, Create(key, value))
        front.arm(Order(fate, f"^{verb}"))
        store.write([Delete(key, created.revision if revision else None)])
        with pytest.raises(NotFound):
            store.get(key)
        assert front._kube.call("GET", next(call.split()[1] for call in front.calls if call.startswith("POST")))["items"] == []
        front.hang_up()


@EVERY_KIND
def test_a_write_that_comes_late_is_ours(store: OrchStore, front: ApiProxy, key: Key, value: Value, other: Value) -> None:
    """Its answer is lost, the look-up comes before it is carried out, and the second try finds it done."""
    front.arm(Order(Fate.REPLY_LOST, "^POST"))
    missing = b'{"kind":"Status","status":"Failure","reason":"NotFound","message":"not there yet","code":404}'
    status, body = (200, b'{"metadata":{},"items":[]}') if isinstance(key, ResourceKey) else (404, missing)  # a pool is listed
    front.arm(Order(Fate.ANSWERED, "^GET", status=status, body=body))
    assert write(store, Create(key, value)) == store.get(key)


def test_a_lost_answer_to_a_refused_write_is_a_conflict(store: OrchStore, front: ApiProxy) -> None:
    """Another client's object has the name: our create was not applied."""
    mine = write(store, Create(KEY, handle(1)))
    front.arm(Order(Fate.REPLY_LOST, "^POST"))
    with pytest.raises(Conflict):
        store.write([Create(KEY, handle(2))])
    theirs = write(store, Update(KEY, handle(3), mine.revision))
    front.arm(Order(Fate.REPLY_LOST, "^PUT"))
    with pytest.raises(StoreError, match="had no answer"):
        store.write([Update(KEY, handle(4), mine.revision)])
    assert store.get(KEY) == theirs


def test_an_uncertain_answer_counts_as_none(store: OrchStore, front: ApiProxy) -> None:
    """A time-out inside the server does not say whether the write was made."""
    front.arm(Order(Fate.ANSWERED, "^POST", status=504, body=b"Timeout"))
    assert write(store, Create(KEY, handle(1))) == store.get(KEY)
    assert [call.split()[0] for call in front.calls[:3]] == ["POST", "GET", "POST"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(store: OrchStore, front: ApiProxy, status: int) -> None:
    """When it says so, reads and writes alike; not before the time that it names."""
    front.arm(Order(Fate.ANSWERED, "^(GET|POST)", times=3, status=status))
    front.arm(Order(Fate.ANSWERED, "^(GET|POST)", status=status, headers={"Retry-After": "1"}))
    assert write(store, Create(KEY, handle(1))) == store.get(KEY)
    assert [call.split()[0] for call in front.calls] == ["POST"] * 5 + ["GET"]


def test_a_server_that_stays_busy_is_given_up(store: OrchStore, front: ApiProxy) -> None:
    """With its own status, when the time that it names is longer than a call may take."""
    front.arm(Order(Fate.ANSWERED, "^GET", status=429, headers={"Retry-After": "60"}))
    with pytest.raises(client.ApiError, match="429") as refusal:
        store.get(KEY)
    assert refusal.value.status == 429
    assert len(front.calls) == 1


def test_pages_make_a_whole_list(store: OrchStore, front: ApiProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred handles in pages of a hundred, in key order; created side by side."""
    monkeypatch.setattr(client, "PAGE", 100)
    wanted = [HandleKey(f"net1.c{number:03}") for number in range(500)]
    store.write([Create(key, handle(1)) for key in wanted])
    front.calls.clear()
    assert [entry.key for entry in store.list(HandleQuery())] == wanted
    assert front.calls == [f"GET {PATH}/ipamhandles"] * 5


def test_an_expired_page_begins_the_list_again(store: OrchStore, front: ApiProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is reported twice, nothing is omitted."""
    monkeypatch.setattr(client, "PAGE", 2)
    wanted = [HandleKey(f"net1.c{number}") for number in range(5)]
    store.write([Create(key, handle(1)) for key in wanted])
    expired = b'{"kind":"Status","status":"Failure","reason":"Expired","message":"too old","code":410}'
    front.arm(Order(Fate.ANSWERED, "^GET .*continue=", status=410, body=expired))
    assert [entry.key for entry in store.list(HandleQuery())] == wanted


def test_a_group_stops_at_its_first_failure(store: OrchStore, front: ApiProxy) -> None:
    """What was created in parallel is rolled back."""
    write(store, Create(HandleKey("c2"), handle(9)))
    names = [f"c{number}" for number in range(6)]
    with pytest.raises(PartialWrite) as partial:
        store.write([Create(HandleKey(name), handle(1)) for name in names])
    assert [entry.key for entry in partial.value.done if entry] == [HandleKey("c0"), HandleKey("c1")]
    assert isinstance(partial.value.cause, Conflict)
    assert [entry.key for entry in store.list(HandleQuery())] == [HandleKey("c0"), HandleKey("c1"), HandleKey("c2")]


def test_a_group_of_deletions_tells_of_its_first_failure(store: OrchStore, front: ApiProxy) -> None:
    """They are made side by side: what comes after it is gone as well, and is not told of."""
    entries = [write(store, Create(HandleKey(f"c{number}"), handle(1))) for number in range(5)]
    front.calls.clear()
    writes: list[Write] = [Delete(entry.key, entry.revision) for entry in entries]
    writes[3] = Delete(HandleKey("none"), "1")
    with pytest.raises(PartialWrite) as partial:
        store.write(writes)
    assert partial.value.done == (None, None, None)
    assert isinstance(partial.value.cause, NotFound)
    assert Counter(call.split()[0] for call in front.calls) == {"PUT": 5, "DELETE": 4}
    assert store.list(HandleQuery()) == entries[3:4]


def test_everything_before_a_block_is_written_before_it(store: OrchStore, front: ApiProxy) -> None:
    """Handles first, all of them, then the block."""
    writes: list[Write] = [Create(HandleKey(f"c{number}"), handle(1)) for number in range(5)]
    store.write([*writes, Create(BlockKey(Cidr("10.0.0.0/30")), block()), Create(HandleKey("late"), handle(1))])
    plurals = [call.rpartition("/")[2] for call in front.calls]
    assert plurals == ["ipamhandles"] * 5 + ["ipamblocks", "ipamhandles"]


def marked(store: OrchStore, clean_kube: Kube, key: Key, value: Value) -> str:
    """The path of an object that another client has begun to delete."""
    write(store, Create(key, value))
    path = store._crds._path(key)
    mark = "true" if isinstance(key, AffinityKey) else True
    clean_kube.call("PATCH", path, {"spec": {"deleted": mark}}, "application/merge-patch+json")
    return path


@pytest.mark.parametrize("sample", SAMPLES[:3], ids=["block", "affinity", "handle"])
def test_a_marked_object_is_gone_for_everybody(store: OrchStore, clean_kube: Kube, sample: tuple[Key, Value, Value]) -> None:
    """For lists; for a get, which removes it; for a delete; for a create, which takes its place."""
    key, value, other = sample
    path = marked(store, clean_kube, key, value)
    queries: list[Query] = [BlockQuery(), AffinityQuery(), HandleQuery()]
    assert [entry for query in queries for entry in store.list(query)] == []
    for reader in (lambda: store.get(key), lambda: store.write([Delete(key)])):
        with pytest.raises(NotFound):
            reader()
        with pytest.raises(Refused):
            clean_kube.call("GET", path)
        marked(store, clean_kube, key, value)
    assert write(store, Create(key, other)) == store.get(key)


def test_handles_that_differ_in_case_only_are_told_apart(store: OrchStore) -> None:
    """There is room for one of them, and the other one is never mistaken for it."""
    write(store, Create(KEY, handle(1)))
    with pytest.raises(NotFound):
        store.get(HandleKey("Net1.C1"))
    with pytest.raises(StoreError, match=r"cannot be kept beside 'net1\.c1'"):
        store.write([Create(HandleKey("Net1.C1"), handle(1))])


def test_who_asks_once_for_generations_watches_nothing(store: OrchStore, front: ApiProxy) -> None:
    before = len(front.calls)
    assert store.generations(("IPPool", "Node")) == (0, 0)
    assert front.calls[before:] == []
    assert store.generations(("IPPool",)) != (0,)
    settle(store, "IPPool")
    assert any("ippools" in call for call in front.calls[before:])
    assert not any("/nodes" in call for call in front.calls[before:])


def test_generations_are_doubted_while_nobody_watches(store: OrchStore, front: ApiProxy) -> None:
    """Every call gives another number, until the watch is back."""
    settle(store, "IPPool", "Node")
    before = store.generations(("IPPool",))
    assert store.generations(("IPPool",)) == before
    front.arm(Order(Fate.NEVER_SENT, "^GET .*/ippools", times=1000))
    front.hang_up()
    seen = set()
    for _ in range(1000):
        seen.add(store.generations(("IPPool",)))
        if len(seen) > 5:
            break
        threading.Event().wait(0.01)
    assert len(seen) > 5
    front._orders.clear()
    settle(store, "IPPool")
    assert store.generations(("IPPool",)) > before


def test_nodes_that_only_report_themselves_leave_caches_good(store: OrchStore, clean_kube: Kube) -> None:
    """A node's status changes all the time; its labels do not."""
    put_core_node(clean_kube, "node1", {"rack": "a"})
    settle(store, "IPPool", "Node")
    clean_kube.call("PATCH", "/api/v1/nodes/node1/status", {"status": {"nodeInfo": None}}, "application/merge-patch+json")
    patch = {"metadata": {"annotations": {"other": "1"}}}
    clean_kube.call("PATCH", "/api/v1/nodes/node1", patch, "application/merge-patch+json")
    (first_told,) = store.generations(("Node",))
    write(store, Create(ResourceKey("IPPool", "marker"), pool("marker")))
    for number in range(5):
        patch = {"metadata": {"annotations": {"other": f"{number}"}}}
        clean_kube.call("PATCH", "/api/v1/nodes/node1", patch, "application/merge-patch+json")
    assert store.generations(("Node",)) <= (first_told + 1,)  # the first word on a node counts, for nothing is known of it
    settled = store.generations(("Node",))
    clean_kube.call("PATCH", "/api/v1/nodes/node1", {"metadata": {"labels": {"rack": "b"}}}, "application/merge-patch+json")
    deadline = threading.Event()
    for _ in range(500):
        if store.generations(("Node",)) > settled:
            break
        deadline.wait(0.01)
    assert store.generations(("Node",)) > settled


def test_a_watch_survives_broken_connections(store: OrchStore, front: ApiProxy) -> None:
    """Changes during the interruption are reported, and deletions as well."""
    first = write(store, Create(HandleKey("a"), handle(1)))
    with closing(store.watch(HandleQuery())) as watch:
        assert next(watch).entry == first
        second = write(store, Create(HandleKey("b"), handle(1)))
        assert next(watch).entry == second
        front.arm(Order(Fate.NEVER_SENT, "^GET .*watch=true", times=2))
        front.hang_up()
        store.write([Delete(HandleKey("a"))])
        third = write(store, Create(HandleKey("c"), handle(1)))
        told: dict[Key, Entry | None] = {}
        while told.get(third.key) != third or told.get(first.key, first) is not None:
            event = next(watch)
            told[event.key] = event.entry
    assert told[first.key] is None


def test_a_server_started_again_loses_nothing(tmp_path: Path) -> None:
    """Four threads count while it is killed and started: an error is an error, a success is a success."""
    with running(tmp_path) as server:
        install(server)
        with closing(OrchStore({"kubeconfig": str(server.kubeconfig(tmp_path / "kubeconfig"))}, DEFAULT)) as store:
            _count_over_a_restart(server, store)


def _count_over_a_restart(server: Kube, store: OrchStore) -> None:
    settle(store, "IPPool", "Node")
    write(store, Create(KEY, handle(0)))
    stop = threading.Event()

    def restart() -> tuple[int, int]:
        try:
            server.stop_server()
            server.start_server()
            threading.Event().wait(0.5)
        finally:
            stop.set()
        return 0, 0

    outcomes = in_threads([*(_counter(store, KEY, stop) for _ in range(4)), restart])
    assert [outcome for outcome in outcomes if isinstance(outcome, BaseException)] == []
    counted = store.get(KEY).value
    assert isinstance(counted, Handle)
    sure, unsure = (sum(column) for column in zip(*outcomes, strict=True))
    assert 0 < sure <= sum(counted.blocks.values()) <= sure + unsure
    settle(store, "IPPool", "Node")


def _counter(store: OrchStore, key: Key, stop: threading.Event) -> Callable[[], tuple[int, int]]:
    """Counts in a key; how often it was certain of success, and how often it could not know."""

    def count() -> tuple[int, int]:
        sure = unsure = 0
        while not stop.is_set():
            try:
                entry = store.get(key)
                assert isinstance(entry.value, Handle)
                store.write([Update(key, entry.value.changed("10.0.0.0/26", 1), entry.revision)])
                sure += 1
            except Conflict:
                continue
            except StoreError:
                unsure += 1
        return sure, unsure

    return count

"""The API server as a datastore: it is busy, breaks connections, loses replies or restarts, and gets few requests."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from contract.samples import block, handle, pool, without_server_fields
from harness.api_proxy import ApiProxy, Fate, Order
from harness.ipam import handles, in_threads, put_block, put_pool, take, wait_for_stable_generations
from harness.kube import ADMIN_TOKEN, Kube, Refused, running
from harness.orch import install, put_core_node, put_pod
from harness.polling import wait_until
from svc._core.cidr import Cidr
from svc.admin import block_release, pools, resources, usage
from svc.datastore.api import Conflict, Create, Delete, Entry, NotFound, PartialWrite, StoreError, Update, Write
from svc.datastore.orch import client
from svc.datastore.orch.crd_store import CrdStore
from svc.datastore.orch.store import OrchStore
from svc.ipam.service import IpamService
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

pytestmark = pytest.mark.server

KEY = HandleKey("net1.c1")
EXPIRED = b'{"kind":"Status","status":"Failure","reason":"Expired","message":"too old","code":410}'
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
def proxy(clean_kube: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(clean_kube) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: ApiProxy) -> Iterator[OrchStore]:
    """A session through the proxy that has already found its API group."""
    settings = {"kind": "orch", "orch_api_root": proxy.url + "/api/", "k8s_auth_token": ADMIN_TOKEN}
    with closing(OrchStore(settings, DEFAULT)) as store:
        store.list(ResourceQuery("IPPool"))
        proxy.calls.clear()
        yield store


def write(store: OrchStore, one: Write) -> Entry:
    (entry,) = store.write([one])
    assert entry is not None
    return entry


@EVERY_KIND
def test_each_operation_needs_the_fewest_requests(
    store: OrchStore, proxy: ApiProxy, key: Key, value: Value, other: Value
) -> None:
    """A get is one GET, a create one POST, an update one PUT.

    A deletion in two steps takes two requests. That of a block takes another one, because its tombstone needs the content.
    """
    created = write(store, Create(key, value))
    updated = write(store, Update(key, other, created.revision))
    store.get(key)
    assert [call.split()[0] for call in proxy.calls] == ["POST", "PUT", "GET"]
    proxy.calls.clear()
    store.write([Delete(key, updated.revision)])
    steps = {BlockKey: ["GET", "PUT", "DELETE"], AffinityKey: ["PUT", "DELETE"], HandleKey: ["PUT", "DELETE"]}
    assert [call.split()[0] for call in proxy.calls] == steps.get(type(key), ["DELETE"])


def test_each_operation_on_an_endpoint_is_one_request(store: OrchStore, proxy: ApiProxy, clean_kube: Kube) -> None:
    """The list of a pod's endpoints is a GET of that pod, which needs no right to list."""
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
    assert [call.split()[0] for call in proxy.calls] == ["PATCH", "GET", "GET", "GET", "PATCH", "GET"]
    assert all("/pods/web-0" in call for call in proxy.calls)


@BROKEN
@EVERY_KIND
def test_create_is_applied_once_if_the_connection_breaks(
    store: OrchStore, proxy: ApiProxy, fate: Fate, key: Key, value: Value, other: Value
) -> None:
    """The server may have received the request or not. In both cases svc returns the stored object."""
    proxy.arm(Order(fate, "^POST"))
    entry = write(store, Create(key, value))
    assert without_server_fields(entry.value) == without_server_fields(value)
    assert store.get(key) == entry
    assert len([call for call in proxy.calls if call.startswith("POST")]) == (1 if fate is Fate.REPLY_LOST else 2)


@BROKEN
@EVERY_KIND
def test_update_is_applied_once_if_the_connection_breaks(
    store: OrchStore, proxy: ApiProxy, fate: Fate, key: Key, value: Value, other: Value
) -> None:
    created = write(store, Create(key, value))
    proxy.arm(Order(fate, "^PUT"))
    entry = write(store, Update(key, other, created.revision))
    assert without_server_fields(entry.value) == without_server_fields(other)
    assert store.get(key) == entry
    assert entry.revision != created.revision


@BROKEN
@pytest.mark.parametrize("verb", ["PUT", "DELETE"])
@EVERY_KIND
def test_delete_is_completed_if_the_connection_breaks(
    store: OrchStore, proxy: ApiProxy, fate: Fate, verb: str, key: Key, value: Value, other: Value
) -> None:
    """The connection breaks in either step, with and without an expected revision. A reader completes the deletion."""
    for revision in (True, False):
        created = write(store, Create(key, value))
        proxy.arm(Order(fate, f"^{verb}"))
        store.write([Delete(key, created.revision if revision else None)])
        with pytest.raises(NotFound):
            store.get(key)
        assert proxy._kube.call("GET", next(call.split()[1] for call in proxy.calls if call.startswith("POST")))["items"] == []
        proxy.hang_up()


@EVERY_KIND
def test_late_write_is_recognised(store: OrchStore, proxy: ApiProxy, key: Key, value: Value, other: Value) -> None:
    """The reply is lost, and a look-up precedes the execution of the write. The second attempt finds it applied."""
    proxy.arm(Order(Fate.REPLY_LOST, "^POST"))
    missing = b'{"kind":"Status","status":"Failure","reason":"NotFound","message":"not there yet","code":404}'
    status, body = (200, b'{"metadata":{},"items":[]}') if isinstance(key, ResourceKey) else (404, missing)  # a pool is listed
    proxy.arm(Order(Fate.ANSWERED, "^GET", status=status, body=body))
    assert write(store, Create(key, value)) == store.get(key)


def test_lost_reply_to_a_refused_write_is_an_error(store: OrchStore, proxy: ApiProxy) -> None:
    """Another client's object has the name, so the write was not applied."""
    first = write(store, Create(KEY, handle(1)))
    proxy.arm(Order(Fate.REPLY_LOST, "^POST"))
    with pytest.raises(Conflict):
        store.write([Create(KEY, handle(2))])
    second = write(store, Update(KEY, handle(3), first.revision))
    proxy.arm(Order(Fate.REPLY_LOST, "^PUT"))
    with pytest.raises(StoreError, match="had no answer"):
        store.write([Update(KEY, handle(4), first.revision)])
    assert store.get(KEY) == second


def test_timeout_inside_the_server_counts_as_a_lost_reply(store: OrchStore, proxy: ApiProxy) -> None:
    """The answer does not say whether the server applied the write."""
    proxy.arm(Order(Fate.ANSWERED, "^POST", status=504, body=b"Timeout"))
    assert write(store, Create(KEY, handle(1))) == store.get(KEY)
    assert [call.split()[0] for call in proxy.calls[:3]] == ["POST", "GET", "POST"]


@pytest.mark.parametrize("status", [429, 503])
def test_request_to_a_busy_server_is_retried(store: OrchStore, proxy: ApiProxy, status: int) -> None:
    """This applies to reads and writes, with and without Retry-After."""
    proxy.arm(Order(Fate.ANSWERED, "^(GET|POST)", times=3, status=status))
    proxy.arm(Order(Fate.ANSWERED, "^(GET|POST)", status=status, headers={"Retry-After": "1"}))
    assert write(store, Create(KEY, handle(1))) == store.get(KEY)
    assert [call.split()[0] for call in proxy.calls] == ["POST"] * 5 + ["GET"]


def test_server_that_stays_busy_is_an_error(store: OrchStore, proxy: ApiProxy) -> None:
    """The error has the server's status. Retry-After is longer than a call may take."""
    proxy.arm(Order(Fate.ANSWERED, "^GET", status=429, headers={"Retry-After": "60"}))
    with pytest.raises(client.ApiError, match="429") as refusal:
        store.get(KEY)
    assert refusal.value.status == 429
    assert len(proxy.calls) == 1


def test_list_joins_all_pages(store: OrchStore, proxy: ApiProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred handles come in pages of a hundred, in the order of their keys."""
    monkeypatch.setattr(client, "PAGE", 100)
    wanted = [HandleKey(f"net1.c{number:03}") for number in range(500)]
    store.write([Create(key, handle(1)) for key in wanted])
    proxy.calls.clear()
    assert [entry.key for entry in store.list(HandleQuery())] == wanted
    assert proxy.calls == [f"GET {PATH}/ipamhandles"] * 5


def test_expired_page_restarts_the_list(store: OrchStore, proxy: ApiProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry is missing, and none is repeated."""
    monkeypatch.setattr(client, "PAGE", 2)
    wanted = [HandleKey(f"net1.c{number}") for number in range(5)]
    store.write([Create(key, handle(1)) for key in wanted])
    proxy.arm(Order(Fate.ANSWERED, "^GET .*continue=", status=410, body=EXPIRED))
    assert [entry.key for entry in store.list(HandleQuery())] == wanted


@pytest.mark.parametrize("times", [1, 4, 5])
def test_expired_page_restarts_the_search_for_a_block(
    store: OrchStore, proxy: ApiProxy, clean_kube: Kube, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The ADD claims the only free block. A server that keeps no revision as long as a page takes ends it."""
    monkeypatch.setattr(CrdStore, "page_objects", 2)
    put_pool(store, "pool4", "10.65.0.0/28", blockSize=30)
    put_core_node(clean_kube, "node1")
    for cidr in ("10.65.0.0/30", "10.65.0.4/30", "10.65.0.12/30"):
        put_block(store, cidr, "host:node2", ["net.far"])
    proxy.arm(Order(Fate.ANSWERED, "^GET .*blocks.*continue=", times=times, status=410, body=EXPIRED))
    ipam = IpamService(store, "node1")
    if times == 5:
        with pytest.raises(StoreError, match="410 too old"):
            take(ipam, "net.c1")
        assert handles(store) == {}
    assert take(ipam, "net.c1") == ("10.65.0.8",)


@pytest.mark.parametrize(
    "ask",
    [
        usage.usage,
        usage.read_borrowed,
        lambda store: pools.count_taken(store, Cidr("10.65.0.0/28")),
        lambda store: pools.check(store, [], []),
        lambda store: pools.remove_blocks(store, Cidr("10.65.0.0/28")),
        lambda store: resources.require_unused_node(store, "node9"),
        lambda store: block_release.release_host(store, "node9"),
    ],
)
def test_expired_page_restarts_a_question_about_all_blocks(
    store: OrchStore, proxy: ApiProxy, monkeypatch: pytest.MonkeyPatch, ask: Callable[[OrchStore], Any]
) -> None:
    """Its answer is that of pages that do not expire."""
    monkeypatch.setattr(CrdStore, "page_objects", 2)
    put_pool(store, "pool4", "10.65.0.0/28", blockSize=30)
    for cidr in ("10.65.0.0/30", "10.65.0.4/30", "10.65.0.12/30"):
        put_block(store, cidr, "host:node2", ["net.far"])
    wanted = ask(store)
    order = Order(Fate.ANSWERED, "^GET .*blocks.*continue=", status=410, body=EXPIRED)
    proxy.arm(order)
    assert ask(store) == wanted
    assert not order.times


def test_a_group_stops_at_its_first_failure(store: OrchStore, proxy: ApiProxy) -> None:
    """Objects that were created in parallel with the failure are rolled back."""
    write(store, Create(HandleKey("c2"), handle(9)))
    names = [f"c{number}" for number in range(6)]
    with pytest.raises(PartialWrite) as partial:
        store.write([Create(HandleKey(name), handle(1)) for name in names])
    assert [entry.key for entry in partial.value.done if entry] == [HandleKey("c0"), HandleKey("c1")]
    assert isinstance(partial.value.cause, Conflict)
    assert [entry.key for entry in store.list(HandleQuery())] == [HandleKey("c0"), HandleKey("c1"), HandleKey("c2")]


def test_a_group_of_deletions_reports_its_first_failure(store: OrchStore, proxy: ApiProxy) -> None:
    """Deletions run in parallel. Those after the failure are also applied, but not reported."""
    entries = [write(store, Create(HandleKey(f"c{number}"), handle(1))) for number in range(5)]
    proxy.calls.clear()
    writes: list[Write] = [Delete(entry.key, entry.revision) for entry in entries]
    writes[3] = Delete(HandleKey("none"), "1")
    with pytest.raises(PartialWrite) as partial:
        store.write(writes)
    assert partial.value.done == (None, None, None)
    assert isinstance(partial.value.cause, NotFound)
    assert Counter(call.split()[0] for call in proxy.calls) == {"PUT": 5, "DELETE": 4}
    assert store.list(HandleQuery()) == entries[3:4]


def test_writes_before_a_block_precede_it(store: OrchStore, proxy: ApiProxy) -> None:
    """All handles before the block are written first."""
    writes: list[Write] = [Create(HandleKey(f"c{number}"), handle(1)) for number in range(5)]
    store.write([*writes, Create(BlockKey(Cidr("10.0.0.0/30")), block()), Create(HandleKey("late"), handle(1))])
    plurals = [call.rpartition("/")[2] for call in proxy.calls]
    assert plurals == ["ipamhandles"] * 5 + ["ipamblocks", "ipamhandles"]


def marked(store: OrchStore, clean_kube: Kube, key: Key, value: Value) -> str:
    """Write an object, set its tombstone as another client does, and return its path."""
    write(store, Create(key, value))
    path = store._crds._path(key)
    mark = "true" if isinstance(key, AffinityKey) else True
    clean_kube.call("PATCH", path, {"spec": {"deleted": mark}}, "application/merge-patch+json")
    return path


@pytest.mark.parametrize("sample", SAMPLES[:3], ids=["block", "affinity", "handle"])
def test_object_with_a_tombstone_does_not_exist_for_readers(
    store: OrchStore, clean_kube: Kube, sample: tuple[Key, Value, Value]
) -> None:
    """Lists omit it, a get and a delete remove it, and a create replaces it."""
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


def test_handles_that_differ_only_in_case_are_distinguished(store: OrchStore) -> None:
    """Only one of them can be stored, and svc does not read it under the other name."""
    write(store, Create(KEY, handle(1)))
    with pytest.raises(NotFound):
        store.get(HandleKey("Net1.C1"))
    with pytest.raises(StoreError, match=r"cannot be kept beside 'net1\.c1'"):
        store.write([Create(HandleKey("Net1.C1"), handle(1))])


def test_only_a_second_request_for_generations_starts_a_watch(store: OrchStore, proxy: ApiProxy) -> None:
    before = len(proxy.calls)
    assert store.generations(("IPPool", "Node")) == (0, 0)
    assert proxy.calls[before:] == []
    assert store.generations(("IPPool",)) != (0,)
    wait_for_stable_generations(store, "IPPool")
    assert any("ippools" in call for call in proxy.calls[before:])
    assert not any("/nodes" in call for call in proxy.calls[before:])


def test_generations_change_at_every_call_while_no_watch_is_open(store: OrchStore, proxy: ApiProxy) -> None:
    """They are stable again when the watch is back."""
    wait_for_stable_generations(store, "IPPool", "Node")
    before = store.generations(("IPPool",))
    assert store.generations(("IPPool",)) == before
    proxy.arm(Order(Fate.NEVER_SENT, "^GET .*/ippools", times=1000))
    proxy.hang_up()
    seen = set()
    for _ in range(1000):
        seen.add(store.generations(("IPPool",)))
        if len(seen) > 5:
            break
        threading.Event().wait(0.01)
    assert len(seen) > 5
    proxy._orders.clear()
    wait_for_stable_generations(store, "IPPool")
    assert store.generations(("IPPool",)) > before


def test_status_updates_of_nodes_do_not_invalidate_caches(store: OrchStore, clean_kube: Kube) -> None:
    """Caches depend on the labels of nodes, which rarely change."""
    put_core_node(clean_kube, "node1", {"rack": "a"})
    wait_for_stable_generations(store, "IPPool", "Node")
    clean_kube.call("PATCH", "/api/v1/nodes/node1/status", {"status": {"nodeInfo": None}}, "application/merge-patch+json")
    patch = {"metadata": {"annotations": {"other": "1"}}}
    clean_kube.call("PATCH", "/api/v1/nodes/node1", patch, "application/merge-patch+json")
    (first,) = store.generations(("Node",))
    write(store, Create(ResourceKey("IPPool", "marker"), pool("marker")))
    for number in range(5):
        patch = {"metadata": {"annotations": {"other": f"{number}"}}}
        clean_kube.call("PATCH", "/api/v1/nodes/node1", patch, "application/merge-patch+json")
    # The first event of a node counts, because its labels are not known before.
    assert store.generations(("Node",)) <= (first + 1,)
    settled = store.generations(("Node",))
    clean_kube.call("PATCH", "/api/v1/nodes/node1", {"metadata": {"labels": {"rack": "b"}}}, "application/merge-patch+json")
    deadline = threading.Event()
    for _ in range(500):
        if store.generations(("Node",)) > settled:
            break
        deadline.wait(0.01)
    assert store.generations(("Node",)) > settled


def test_a_watch_survives_broken_connections(store: OrchStore, proxy: ApiProxy) -> None:
    """It reports changes and deletions that happen during the interruption."""
    first = write(store, Create(HandleKey("a"), handle(1)))
    with closing(store.watch(HandleQuery())) as watch:
        assert next(watch).entry == first
        second = write(store, Create(HandleKey("b"), handle(1)))
        assert next(watch).entry == second
        proxy.arm(Order(Fate.NEVER_SENT, "^GET .*watch=true", times=2))
        proxy.hang_up()
        store.write([Delete(HandleKey("a"))])
        third = write(store, Create(HandleKey("c"), handle(1)))
        seen_entries: dict[Key, Entry | None] = {}
        while seen_entries.get(third.key) != third or seen_entries.get(first.key, first) is not None:
            event = next(watch)
            seen_entries[event.key] = event.entry
    assert seen_entries[first.key] is None


def test_restart_of_the_server_loses_no_write(tmp_path: Path) -> None:
    """Four threads increment a counter during the restart. Each successful write must be in the final value."""
    with running(tmp_path) as server:
        install(server)
        with closing(OrchStore({"kubeconfig": str(server.kubeconfig(tmp_path / "kubeconfig"))}, DEFAULT)) as store:
            _count_over_a_restart(server, store)


def _count_over_a_restart(server: Kube, store: OrchStore) -> None:
    wait_for_stable_generations(store, "IPPool", "Node")
    write(store, Create(KEY, handle(0)))
    stop = threading.Event()

    def restart() -> tuple[int, int]:
        try:
            wait_until(lambda: sum(store.get(KEY).value.blocks.values()) > 0)
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
    wait_for_stable_generations(store, "IPPool", "Node")


def _counter(store: OrchStore, key: Key, stop: threading.Event) -> Callable[[], tuple[int, int]]:
    """Increment a counter until `stop` is set. Return how many writes succeeded, and how many may have succeeded."""

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

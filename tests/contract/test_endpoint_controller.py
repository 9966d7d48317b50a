"""The controller `workloadendpoint` on a real etcd and a real API server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import EtcdSite, session, set_ready
from harness.kube import Kube
from harness.orch import PODS, put_pod
from harness.polling import eventually, wait_until
from harness.running_controller import Running, running
from svc.controllers.copies.workload_endpoints import Endpoints
from svc.datastore.api import Create, Delete, NotFound, Update
from svc.datastore.etcd.store import EtcdStore
from svc.datastore.orch.client import Client
from svc.model.endpoint import Workload, endpoint, endpoint_key
from svc.model.keys import ResourceKey
from svc.model.pod_endpoint import policy_facts
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.server

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
FIXED = {
    "svc.internal/namespace": "default",
    "svc.internal/orchestrator": "k8s",
}


@pytest.fixture
def store(etcd_site: EtcdSite) -> Iterator[EtcdStore]:
    with session(etcd_site) as made:
        assert isinstance(made, EtcdStore)
        set_ready(made)
        yield made
    etcd_site.clear()


@pytest.fixture
def pods(kube: Kube) -> Iterator[Kube]:
    yield kube
    kube.forget("pods/default/")


@pytest.fixture
def run(client: Client, store: EtcdStore, pods: Kube) -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(running(client, store, Endpoints, **options))


def add(store: EtcdStore, pod: Json, node: str = "node1", ifname: str = "eth0", container: str = "c1") -> ResourceKey:
    """Write the endpoint of a pod as an ADD on this node does."""
    workload = Workload(container, pod["metadata"]["name"], "default")
    key = endpoint_key(DEFAULT, node, workload, ifname)
    spec = {"ipNetworks": ["10.0.0.1/32"], "interfaceName": f"svc{ifname}", "mac": "02:00:00:00:00:01"}
    made = endpoint(DEFAULT, key, node, workload, ifname, spec=spec, facts=policy_facts(DEFAULT, pod))
    with suppress(NotFound):
        store.write([Delete(key)])
    store.write([Create(key, made)])
    return key


def relabel(kube: Kube, name: str = "web", **labels: str | None) -> None:
    kube.call("PATCH", f"{PODS}/{name}", {"metadata": {"labels": labels}}, MERGE)


def labels(store: EtcdStore, key: ResourceKey) -> Any:
    entry = store.find(key)
    return entry and {
        name: text for name, text in entry.value.metadata["labels"].items() if not name.startswith("svc.internal/")
    }


def await_labels(store: EtcdStore, key: ResourceKey, **wanted: str) -> None:
    assert eventually(lambda: labels(store, key), lambda found: found == wanted) == wanted


def barrier(found: Running, store: EtcdStore, kube: Kube) -> None:
    """Wait until the controller has settled a change that is newer than those before."""
    key = add(store, put_pod(kube, "barrier"))
    relabel(kube, "barrier", app="passed")
    await_labels(store, key, app="passed")
    kube.uproot("pods/default/barrier")
    store.write([Delete(key)])
    assert found.failures == []


def test_changed_labels_reach_all_interfaces_and_nothing_else(
    run: Callable[..., Running], pods: Kube, store: EtcdStore
) -> None:
    pod = put_pod(pods, "web", serviceAccountName="shop")
    keys = [add(store, pod, ifname=ifname) for ifname in ("eth0", "net1")]
    before = [store.get(key) for key in keys]
    found = run()
    relabel(pods, tier="front", app=None)
    for key, entry in zip(keys, before, strict=True):
        await_labels(store, key, tier="front")
        now = store.get(key).value
        assert now.metadata["labels"] == {**FIXED, "svc.internal/serviceaccount": "shop", "tier": "front"}
        assert now.spec == entry.value.spec
        assert {**now.metadata, "labels": 0} == {**entry.value.metadata, "labels": 0}
    barrier(found, store, pods)


def test_service_account_and_profiles_are_corrected(run: Callable[..., Running], pods: Kube, store: EtcdStore) -> None:
    """A pod that was created again with another account, under the same name on the same node, has the same endpoint."""
    key = add(store, put_pod(pods, "web", serviceAccountName="old"))
    run()
    pods.uproot("pods/default/web")
    put_pod(pods, "web", serviceAccountName="new")
    spec = eventually(lambda: store.get(key).value.spec, lambda spec: spec["serviceAccountName"] == "new")
    assert spec["profiles"] == ["kns.default", "ksa.default.new"]
    assert store.get(key).value.metadata["labels"]["svc.internal/serviceaccount"] == "new"


def test_endpoints_are_neither_created_nor_deleted(run: Callable[..., Running], pods: Kube, store: EtcdStore) -> None:
    gone = add(store, {"metadata": {"name": "gone", "namespace": "default"}})
    before = store.get(gone).revision
    put_pod(pods, "unwired")
    key = add(store, put_pod(pods, "web"))
    found = run()
    relabel(pods, "unwired", app="new")
    pods.uproot("pods/default/web")
    barrier(found, store, pods)
    found.part.begin_round()
    barrier(found, store, pods)
    assert store.get(gone).revision == before
    assert labels(store, key) == {"app": "web"}
    assert store.find(endpoint_key(DEFAULT, "node1", Workload("c", "unwired", "default"), "eth0")) is None


def test_endpoint_of_an_earlier_pod_on_another_node_stays(run: Callable[..., Running], pods: Kube, store: EtcdStore) -> None:
    """The pod of the same name runs on another node now, and the DEL of the earlier one has not come."""
    pod = put_pod(pods, "web", "node2")
    old, new = add(store, pod, "node1"), add(store, pod, "node2", container="c2")
    found = run()
    relabel(pods, app="new")
    await_labels(store, new, app="new")
    barrier(found, store, pods)
    assert labels(store, old) == {"app": "web"}


def test_endpoint_of_another_container_than_the_stated_one_stays(
    run: Callable[..., Running], pods: Kube, store: EtcdStore
) -> None:
    pod = put_pod(pods, "web", annotations={"cni.svc.internal/containerID": "c2"})
    stated, second = add(store, pod, container="c1"), add(store, pod, ifname="net1")
    found = run()
    relabel(pods, app="new")
    await_labels(store, second, app="new")
    barrier(found, store, pods)
    assert labels(store, stated) == {"app": "web"}


@pytest.mark.parametrize("kube_name", ["node1", "node9"])
def test_node_may_have_another_name_in_the_datastore(
    kube_name: str, run: Callable[..., Running], pods: Kube, store: EtcdStore
) -> None:
    key = add(store, put_pod(pods, "web"), "first")
    reference = {"orchestrator": "k8s", "nodeName": kube_name}
    store.write([Create(ResourceKey("Node", "first"), Resource("Node", {"name": "first"}, {"orchRefs": [reference]}))])
    found = run()
    relabel(pods, app="new")
    if kube_name == "node1":
        await_labels(store, key, app="new")
    barrier(found, store, pods)
    assert labels(store, key) == {"app": "new" if kube_name == "node1" else "web"}


def test_unreadable_name_of_a_node_is_reported(
    run: Callable[..., Running], pods: Kube, store: EtcdStore, caplog: pytest.LogCaptureFixture
) -> None:
    add(store, put_pod(pods, "web"), "first")
    store.write([Create(ResourceKey("Node", "first"), Resource("Node", {"name": "first"}, {"orchRefs": ["x"]}))])
    run()
    relabel(pods, app="new")
    wait_until(lambda: "Node 'first': spec.orchRefs has an item that is not an object: correct it" in caplog.text)


def test_endpoint_of_a_network_without_policy_stays(run: Callable[..., Running], pods: Kube, store: EtcdStore) -> None:
    """Its labels come from the call, and its profile is that of the network."""
    key = add(store, put_pod(pods, "web"))
    entry = store.get(key)
    entry.value.spec["profiles"] = ["pods"]
    store.write([Update(key, entry.value, entry.revision)])
    found = run()
    relabel(pods, app="new")
    barrier(found, store, pods)
    assert labels(store, key) == {"app": "web"}


class _Meddling:
    """Have `meddle` called after each GET of the pod `web`, so before the write that follows from it."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch, meddle: Callable[[], object]) -> None:
        get = client.get
        self.calls = 0

        def get_and_meddle(path: str, **params: str) -> Any:
            found = get(path, **params)
            if path.endswith("/pods/web"):
                self.calls += 1
                meddle()
            return found

        monkeypatch.setattr(client, "get", get_and_meddle)


def test_deleted_endpoint_is_not_created_again(
    run: Callable[..., Running], pods: Kube, store: EtcdStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DEL comes between the read and the write."""
    key = add(store, put_pod(pods, "web"))

    def delete() -> None:
        with suppress(NotFound):
            store.write([Delete(key)])

    meddling = _Meddling(client, monkeypatch, delete)
    found = run()
    relabel(pods, app="new")
    wait_until(lambda: meddling.calls > 0)
    barrier(found, store, pods)
    assert store.find(key) is None


def test_conflict_is_tried_again_with_the_newer_endpoint(
    run: Callable[..., Running], pods: Kube, store: EtcdStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ADD of a newer sandbox comes between the read and the write. Its content stays."""
    pod = put_pod(pods, "web")
    key = add(store, pod)
    newer = iter(["c2"])
    _Meddling(client, monkeypatch, lambda: [add(store, pod, container=each) for each in newer])
    run()
    relabel(pods, app="new")
    await_labels(store, key, app="new")
    assert store.get(key).value.spec["containerID"] == "c2"


def test_change_while_the_watch_is_down_is_seen_later(
    run: Callable[..., Running], pods: Kube, store: EtcdStore, proxy: ApiProxy
) -> None:
    key = add(store, put_pod(pods, "web"))
    run()
    proxy.arm(Order(Fate.NEVER_SENT, "^GET .*pods/web", times=3))
    proxy.hang_up()
    relabel(pods, app="new")
    await_labels(store, key, app="new")


def test_locked_datastore_is_not_changed(
    run: Callable[..., Running], pods: Kube, store: EtcdStore, caplog: pytest.LogCaptureFixture
) -> None:
    key = add(store, put_pod(pods, "web"))
    run()
    set_ready(store, ready=False)
    relabel(pods, app="new")
    wait_until(lambda: f"{key.name} is tried again in 1 s: the datastore is locked" in caplog.text)
    assert labels(store, key) == {"app": "web"}
    set_ready(store)
    await_labels(store, key, app="new")


def test_only_the_leader_writes(run: Callable[..., Running], pods: Kube, store: EtcdStore) -> None:
    key = add(store, put_pod(pods, "web"))
    relabel(pods, app="new")
    found = run(leads=False)
    wait_until(lambda: found.part.is_ready)
    assert labels(store, key) == {"app": "web"}
    found.lead()
    await_labels(store, key, app="new")


def test_round_without_differences_sends_no_request(
    run: Callable[..., Running], pods: Kube, store: EtcdStore, proxy: ApiProxy
) -> None:
    for number in range(20):
        add(store, put_pod(pods, f"p{number}"))
    found = run()
    wait_until(lambda: found.part.is_ready)
    barrier(found, store, pods)
    wait_until(
        lambda: found.part.waiting == 0 and list(found.part.round_items()) == []
    )  # the tables show the end of the barrier
    calls = len(proxy.calls)
    assert list(found.part.round_items()) == []
    assert len(proxy.calls) == calls

"""A cluster in which the incumbent has been at work: what it left is read, gone on with, and written as it writes."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.calico import INCUMBENT, captured, captured_pod, without_servers
from harness.datastores import set_ready
from harness.kube import Kube
from harness.orch import PODS, install, put_core_node, put_pod, wipe
from svc.datastore.api import Create, Delete, Update
from svc.datastore.orch.store import OrchStore
from svc.model.custom_resources import kind_plural
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key
from svc.model.ipam import Affinity, Block, Handle
from svc.model.keys import AffinityQuery, BlockQuery, HandleQuery, Query
from svc.model.resource import Resource

Json = dict[str, Any]

GROUP = f"/apis/{INCUMBENT.crd_api_version}"
QUERIES: list[Query] = [BlockQuery(), AffinityQuery("node1"), HandleQuery()]


@pytest.fixture(scope="session")
def installed(kube: Kube) -> Kube:
    install(kube, INCUMBENT)
    return kube


@pytest.fixture
def cluster(installed: Kube) -> Iterator[Kube]:
    """With what is there after an ADD of the incumbent's."""
    for item in captured("orch-1-add-dual"):
        installed.call("POST", f"{GROUP}/{kind_plural(item['kind'])}", without_servers(item))
    put_core_node(installed, "node1")
    put_pod(installed, "web-0", annotations=captured_pod("orch-1-add-dual")["metadata"]["annotations"])
    yield installed
    wipe(installed, INCUMBENT)


@pytest.fixture
def store(cluster: Kube, tmp_path: Path) -> Iterator[OrchStore]:
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
    with closing(OrchStore({"kubeconfig": str(kubeconfig)}, INCUMBENT)) as store:
        yield store


def kept(cluster: Kube) -> dict[str, Json]:
    """Every object of ours, without what changes by itself."""
    found = {}
    for kind in ("IPAMBlock", "BlockAffinity", "IPAMHandle"):
        for item in cluster.call("GET", f"{GROUP}/{kind_plural(kind)}")["items"]:
            item["metadata"].pop("managedFields")
            found[item["metadata"]["name"]] = without_servers(item)
    return found


def test_everything_is_read(store: OrchStore) -> None:
    """Blocks of both versions, the node's claims on them, the handle."""
    values = [[entry.value for entry in store.list(query)] for query in QUERIES]
    assert [str(value.cidr) for value in values[0] if isinstance(value, Block)] == ["10.77.0.128/26", "fd77::a680/122"]
    assert values[1] == [Affinity("confirmed")] * 2
    assert values[2] == [Handle({"10.77.0.128/26": 1, "fd77::a680/122": 1})]


def test_what_is_written_back_is_the_same(store: OrchStore, cluster: Kube) -> None:
    """Field for field; only the counter of a block has gone on."""
    wanted = {item["metadata"]["name"]: without_servers(item) for item in captured("orch-1-add-dual")}
    for query in QUERIES:
        for entry in store.list(query):
            if isinstance(entry.value, Block):
                entry.value.sequence += 1
            store.write([Update(entry.key, entry.value, entry.revision)])
    for item in wanted.values():
        if item["kind"] == "IPAMBlock":
            item["spec"]["sequenceNumber"] += 1
    assert kept(cluster) == wanted


def test_an_endpoint_is_given_up_as_the_incumbent_does(store: OrchStore, cluster: Kube) -> None:
    """The same annotations, and again when the pod is attached again."""
    key = endpoint_key(INCUMBENT, "node1", Workload("c3", "web-0", "default"), "eth0")
    entry = store.get(key)
    store.write([Delete(key, entry.revision)])
    wanted = captured_pod("orch-2-del")["metadata"]["annotations"]
    assert cluster.call("GET", f"{PODS}/web-0")["metadata"]["annotations"] == wanted
    assert isinstance(entry.value, Resource)
    assert entry.value.spec["interfaceName"] == "cali0d7763386da"
    networks = {"ipNetworks": entry.value.spec["ipNetworks"], "interfaceName": "cali0d7763386da", "mac": ""}
    workload = Workload("c3", "web-0", "default")
    again = endpoint(INCUMBENT, key, "node1", workload, "eth0", spec=networks, facts=PodFacts())
    assert store.write([Create(key, again)])[0] == store.get(key)
    wanted = captured_pod("orch-1-add-dual")["metadata"]["annotations"]
    assert cluster.call("GET", f"{PODS}/web-0")["metadata"]["annotations"] == wanted


def test_nothing_is_left_after_everything_is_deleted(store: OrchStore, cluster: Kube) -> None:
    """By the two steps that the incumbent knows."""
    for query in QUERIES:
        for entry in store.list(query):
            store.write([Delete(entry.key, entry.revision)])
    assert kept(cluster) == {}


def test_affinities_without_labels_get_them(store: OrchStore, cluster: Kube) -> None:
    """Those of the node alone, when its session sees them first; none while the datastore is locked."""
    wanted, plural = kept(cluster), f"{GROUP}/blockaffinities"
    names = [item["metadata"]["name"] for item in cluster.call("GET", plural)["items"]]
    for name in names:
        cluster.call("PATCH", f"{plural}/{name}", {"metadata": {"labels": None}}, "application/merge-patch+json")
    set_ready(store, ready=False)
    assert store.list(AffinityQuery("node1")) == []
    set_ready(store)
    assert store.list(AffinityQuery("node2")) == []
    assert [entry.value for entry in store.list(AffinityQuery("node1"))] == [Affinity("confirmed")] * len(names)
    assert kept(cluster) == wanted


def test_labels_and_annotations_of_others_stay_at_affinities(store: OrchStore, cluster: Kube) -> None:
    plural = f"{GROUP}/blockaffinities"
    before = {item["metadata"]["name"]: item["metadata"] for item in cluster.call("GET", plural)["items"]}
    foreign = {"mine": "x"}
    for name, metadata in before.items():
        metadata["labels"] |= foreign
        metadata["annotations"] = (metadata.get("annotations") or {}) | foreign
        labels = dict.fromkeys(metadata["labels"]) | foreign
        change = {"metadata": {"labels": labels, "annotations": foreign}}
        cluster.call("PATCH", f"{plural}/{name}", change, "application/merge-patch+json")
    set_ready(store)
    assert len(store.list(AffinityQuery("node1"))) == len(before)
    for item in cluster.call("GET", plural)["items"]:
        wanted = before[item["metadata"]["name"]]
        assert item["metadata"]["labels"] == wanted["labels"]
        assert item["metadata"]["annotations"].items() >= foreign.items()

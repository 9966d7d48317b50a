"""A cluster that Calico has managed: svc reads the objects of Calico, and writes them as Calico does."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.calico import CALICO_NAMES, captured, captured_pod, without_server_metadata
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

pytestmark = pytest.mark.server

Json = dict[str, Any]

GROUP = f"/apis/{CALICO_NAMES.crd_api_version}"
QUERIES: list[Query] = [BlockQuery(), AffinityQuery("node1"), HandleQuery()]


@pytest.fixture(scope="session")
def installed(kube: Kube) -> Kube:
    install(kube, CALICO_NAMES)
    return kube


@pytest.fixture
def cluster(installed: Kube) -> Iterator[Kube]:
    """Create the objects that exist after an ADD of Calico."""
    for item in captured("orch-1-add-dual"):
        installed.call("POST", f"{GROUP}/{kind_plural(item['kind'])}", without_server_metadata(item))
    put_core_node(installed, "node1")
    put_pod(installed, "web-0", annotations=captured_pod("orch-1-add-dual")["metadata"]["annotations"])
    yield installed
    wipe(installed, CALICO_NAMES)


@pytest.fixture
def store(cluster: Kube, tmp_path: Path) -> Iterator[OrchStore]:
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
    with closing(OrchStore({"kubeconfig": str(kubeconfig)}, CALICO_NAMES)) as store:
        yield store


def stored_objects(cluster: Kube) -> dict[str, Json]:
    """Return every IPAM object, without the fields that the server sets."""
    found = {}
    for kind in ("IPAMBlock", "BlockAffinity", "IPAMHandle"):
        for item in cluster.call("GET", f"{GROUP}/{kind_plural(kind)}")["items"]:
            item["metadata"].pop("managedFields")
            found[item["metadata"]["name"]] = without_server_metadata(item)
    return found


def test_all_objects_are_read(store: OrchStore) -> None:
    """These are the blocks of both IP versions, the node's affinities, and the handle."""
    values = [[entry.value for entry in store.list(query)] for query in QUERIES]
    assert [str(value.cidr) for value in values[0] if isinstance(value, Block)] == ["10.77.0.128/26", "fd77::a680/122"]
    assert values[1] == [Affinity("confirmed")] * 2
    assert values[2] == [Handle({"10.77.0.128/26": 1, "fd77::a680/122": 1})]


def test_objects_are_written_back_unchanged(store: OrchStore, cluster: Kube) -> None:
    """Only the sequence number of a block changes."""
    wanted = {item["metadata"]["name"]: without_server_metadata(item) for item in captured("orch-1-add-dual")}
    for query in QUERIES:
        for entry in store.list(query):
            if isinstance(entry.value, Block):
                entry.value.sequence += 1
            store.write([Update(entry.key, entry.value, entry.revision)])
    for item in wanted.values():
        if item["kind"] == "IPAMBlock":
            item["spec"]["sequenceNumber"] += 1
    assert stored_objects(cluster) == wanted


def test_endpoint_is_deleted_as_calico_does(store: OrchStore, cluster: Kube) -> None:
    """The annotations of the pod are those of Calico, after the deletion and after the next creation."""
    key = endpoint_key(CALICO_NAMES, "node1", Workload("c3", "web-0", "default"), "eth0")
    entry = store.get(key)
    store.write([Delete(key, entry.revision)])
    wanted = captured_pod("orch-2-del")["metadata"]["annotations"]
    assert cluster.call("GET", f"{PODS}/web-0")["metadata"]["annotations"] == wanted
    assert isinstance(entry.value, Resource)
    assert entry.value.spec["interfaceName"] == "cali0d7763386da"
    networks = {"ipNetworks": entry.value.spec["ipNetworks"], "interfaceName": "cali0d7763386da", "mac": ""}
    workload = Workload("c3", "web-0", "default")
    again = endpoint(CALICO_NAMES, key, "node1", workload, "eth0", spec=networks, facts=PodFacts())
    assert store.write([Create(key, again)])[0] == store.get(key)
    wanted = captured_pod("orch-1-add-dual")["metadata"]["annotations"]
    assert cluster.call("GET", f"{PODS}/web-0")["metadata"]["annotations"] == wanted


def test_deletion_of_all_objects_leaves_nothing(store: OrchStore, cluster: Kube) -> None:
    """The writes are the two steps of a deletion that Calico uses."""
    for query in QUERIES:
        for entry in store.list(query):
            store.write([Delete(entry.key, entry.revision)])
    assert stored_objects(cluster) == {}


def test_missing_labels_of_affinities_are_added(store: OrchStore, cluster: Kube) -> None:
    """A session adds them when it first lists the affinities of a node, unless the datastore is locked."""
    wanted, plural = stored_objects(cluster), f"{GROUP}/blockaffinities"
    names = [item["metadata"]["name"] for item in cluster.call("GET", plural)["items"]]
    for name in names:
        cluster.call("PATCH", f"{plural}/{name}", {"metadata": {"labels": None}}, "application/merge-patch+json")
    set_ready(store, ready=False)
    assert store.list(AffinityQuery("node1")) == []
    set_ready(store)
    assert store.list(AffinityQuery("node2")) == []
    assert [entry.value for entry in store.list(AffinityQuery("node1"))] == [Affinity("confirmed")] * len(names)
    assert stored_objects(cluster) == wanted


def test_foreign_labels_and_annotations_of_affinities_are_kept(store: OrchStore, cluster: Kube) -> None:
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

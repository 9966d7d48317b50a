"""The version of svc in ClusterInformation, on each datastore: it never becomes older, and other fields stay."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from itertools import permutations
from random import Random

import pytest
from packaging.version import Version

from harness.datastores import EtcdSite, OrchSite, Site, session
from harness.etcd import Cluster
from harness.kube import Kube
from svc.admin.cluster_version import note_version, version_annotation
from svc.admin.resources import CLUSTER, CREATED, UNCHANGED, UPDATED
from svc.datastore.api import StoreError
from svc.model.resource import Resource
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import load_profile

pytestmark = pytest.mark.server

CALICO = load_profile("calico")
NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)
VERSIONS = ("0.9.0", "1.0.0.dev2", "1.0.0rc1", "1.0.0", "1.0.1rc2", "1.10.0")


def spec_of(site: Site) -> dict[str, object]:
    with session(site) as store:
        return dict(store.get(CLUSTER).value.spec)


@pytest.fixture(autouse=True)
def _empty(site: Site) -> Iterator[None]:
    site.clear()
    yield
    site.clear()


def note(site: Site, version: str, *types: str, names: Names = DEFAULT) -> str:
    with session(site) as store:
        return note_version(store, names, types, version, NOW)


def test_first_node_makes_the_datastore_ready(site: Site) -> None:
    assert note(site, "v1.0.0", "k8s", "overlay") == CREATED
    found = spec_of(site)
    assert (found["svcVersion"], found["clusterType"], found["datastoreReady"]) == ("v1.0.0", "k8s,overlay", True)
    assert note(site, "v1.0.0", "k8s") == UNCHANGED
    assert spec_of(site) == found


def test_version_becomes_newer_and_never_older(site: Site) -> None:
    """The obvious twin is the greatest version so far."""
    order = list(VERSIONS) * 2
    for seed in range(3):
        Random(seed).shuffle(order)
        site.clear()
        for number, version in enumerate(order, 1):
            note(site, f"v{version}")
            assert spec_of(site)["svcVersion"] == f"v{max(order[:number], key=Version)}"


def test_lock_identity_and_unknown_fields_stay(site: Site) -> None:
    fields = {"clusterGUID": "b" * 32, "clusterType": "k8s,bgp", "datastoreReady": False, "variant": "v"}
    with session(site) as store:
        store.update(CLUSTER, lambda _: Resource(CLUSTER.kind, {"name": CLUSTER.name, "uid": "u"}, fields))
    assert note(site, "v1.0.0", "k8s", "overlay") == UPDATED
    assert spec_of(site) == fields | {"svcVersion": "v1.0.0", "clusterType": "k8s,bgp,overlay"}


@pytest.mark.parametrize("stored", ["unknown", "1.x"])
def test_version_that_cannot_be_compared_stays(site: Site, stored: str) -> None:
    with session(site) as store:
        store.update(CLUSTER, lambda _: Resource(CLUSTER.kind, {"name": CLUSTER.name, "uid": "u"}, {"svcVersion": stored}))
    with pytest.raises(
        StoreError, match=f"has '{stored}', and '{stored}' cannot be compared: put it right: `svcctl clusterinfo init"
    ):
        note(site, "v1.0.0", "k8s")
    assert spec_of(site) == {"svcVersion": stored}


def test_nodes_of_two_versions_that_write_at_once_leave_the_newer(site: Site) -> None:
    """A conflict is tried again."""
    orders = list(permutations(VERSIONS[:4]))[:6]
    for order in orders:
        site.clear()
        with ExitStack() as stack:
            stores = [stack.enter_context(session(site)) for _ in order]
            threads = [
                threading.Thread(target=note_version, args=(store, DEFAULT, [f"t{number}"], f"v{each}", NOW))
                for number, (store, each) in enumerate(zip(stores, order, strict=True))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        found = spec_of(site)
        assert found["svcVersion"] == "v1.0.0"
        assert set(str(found["clusterType"]).split(",")) == {"t0", "t1", "t2", "t3"}


# a cluster whose definitions belong to another product


@pytest.fixture(scope="module", params=["etcdv3", "orch"])
def foreign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    if request.param == "etcdv3":
        running: Cluster = request.getfixturevalue("etcd")
        return EtcdSite(running, CALICO)
    kube: Kube = request.getfixturevalue("kube")
    return OrchSite(kube, tmp_path_factory.mktemp("foreign"), CALICO)


def test_other_products_fields_stay(foreign: Site) -> None:
    """Only an annotation is written, and it never becomes older either."""
    fields = {"clusterGUID": "c" * 32, "clusterType": "k8s,bgp", "datastoreReady": True, "calicoVersion": "v3.29.3"}
    theirs = {"their.example/key": "1"}
    own = {"name": CLUSTER.name, "labels": {"a": "b"}, "annotations": theirs}
    try:
        with session(foreign) as store:
            store.update(CLUSTER, lambda _: Resource(CLUSTER.kind, own, fields))
            before = store.get(CLUSTER).value
        for version, expected in (("1.0.0rc1", "1.0.0rc1"), ("1.0.0", "1.0.0"), ("0.9.9", "1.0.0"), ("1.0.0.dev1", "1.0.0")):
            note(foreign, f"v{version}", "other", names=CALICO)
            with closing(foreign.open()) as store:
                found = store.get(CLUSTER).value
            assert found.spec == fields
            assert found.labels == {"a": "b"}
            assert found.metadata["annotations"] == theirs | {"projectcalico.org/svc-version": f"v{expected}"}
            assert {name: value for name, value in found.metadata.items() if name != "annotations"} == {
                name: value for name, value in before.metadata.items() if name != "annotations"
            }
        assert note(foreign, "v1.0.0", names=CALICO) == UNCHANGED
    finally:
        foreign.clear()


def test_other_products_object_is_not_made(foreign: Site) -> None:
    with pytest.raises(StoreError, match="ClusterInformation default does not exist: install the product"):
        note(foreign, "v1.0.0", names=CALICO)
    with session(foreign) as store:
        assert store.find(CLUSTER) is None


def test_annotation_has_the_prefix_of_the_names() -> None:
    assert version_annotation(CALICO) == "projectcalico.org/svc-version"
    assert version_annotation(DEFAULT) == "svc.internal/svc-version"

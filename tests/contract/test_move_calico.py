"""A move of documents that Calico wrote, to the custom resources of Calico and back."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.calico import CALICO_NAMES
from harness.calico_states import etcd_state
from harness.datastores import EtcdSite, OrchSite
from harness.etcd import Cluster
from harness.kube import Kube
from harness.move_sites import Sites, move, open_sites
from harness.orch import PODS
from svc.model.endpoint import KIND
from svc.model.keys import BlockQuery, IpamConfigKey, ResourceQuery
from svc.move import marks
from svc.move.preflight import preflight

pytestmark = pytest.mark.server

ADDRESSES = ("10.77.0.129", "fd77::a680")
CLUSTER = "/calico/resources/v3/projectcalico.org/clusterinformations/default"


@pytest.fixture
def site(etcd: Cluster) -> EtcdSite:
    """Return an etcd in which a pod has two addresses."""
    found = EtcdSite(etcd, CALICO_NAMES)
    for key, text in etcd_state("etcd-3-del-ipv4.jsonl").items():
        found.running.put(key, text)
    found.running.put("/calico/ipam/v2/config", '{"strict_affinity":false,"auto_allocate_blocks":true}')
    return found


@pytest.fixture
def sites(site: EtcdSite, kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    target = OrchSite(kube, tmp_path, CALICO_NAMES)
    with open_sites(site, target, tmp_path) as made:
        target.add_node("node1", zone="a")
        target.add_pod("web-0")
        status = {"podIP": ADDRESSES[0], "podIPs": [{"ip": address} for address in ADDRESSES]}
        kube.call("PATCH", f"{PODS}/web-0/status", {"status": status}, "application/merge-patch+json")
        yield made


def test_documents_of_calico_are_there_and_back(sites: Sites, site: EtcdSite) -> None:
    """A null in place of an empty list of attributes, and settings that are absent, come back as they were."""
    before = site.running.texts("/calico/")
    assert preflight(sites.etcd, sites.kube, "there", wait=lambda _seconds, _counts: False) == []
    move(sites.etcd, sites.kube, "there", sites.archive)
    (endpoint,) = sites.kube.backend.list(ResourceQuery(KIND))
    assert endpoint.value.spec["ipNetworks"] == ["10.77.0.129/32", "fd77::a680/128"]
    assert endpoint.value.spec["containerID"] == "c2"
    assert len(sites.kube.backend.list(BlockQuery())) == 2
    assert sites.kube.backend.get(IpamConfigKey()).value.auto_allocate_blocks
    assert preflight(sites.kube, sites.etcd, "back", wait=lambda _seconds, _counts: False) == []
    move(sites.kube, sites.etcd, "back", sites.archive)
    after = site.running.texts("/calico/")
    info = json.loads(after.pop(CLUSTER))
    assert info["metadata"].pop("annotations").keys() == {"projectcalico.org/datastore-move"}
    assert info == json.loads(before.pop(CLUSTER))
    assert after == before

"""A move from etcd to the Kubernetes API and back, with real servers: what is there then, and how it looks."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import EtcdSite, OrchSite
from harness.ipam import holdings, put, put_pool
from harness.ipam_check import put_endpoint, result
from harness.move_sites import ETCD_NODE, KUBE_NODE, NETWORK, Sites, contents, furnish, move, open_sites
from harness.orch import AdministratorStore, install, wipe
from harness.policies import definition
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.endpoint import KIND
from svc.model.keys import AffinityQuery, BlockQuery, HandleKey, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.move import marks, steps
from svc.move.convert import identity_annotation
from svc.move.preflight import preflight

pytestmark = pytest.mark.server


@pytest.fixture
def sites(etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    with open_sites(etcd_site, orch_site, tmp_path) as made:
        furnish(etcd_site, orch_site, made.etcd.backend)
        yield made


def no_wait(_seconds: float, _counts: object) -> bool:
    return False


def stored(etcd_site: EtcdSite) -> dict[str, str]:
    """Return the stored documents, byte for byte, without ClusterInformation, whose mark changes."""
    found = etcd_site.running.texts(f"{etcd_site.names.key_root}/")
    return {path: text for path, text in found.items() if "clusterinformations" not in path}


def test_everything_is_there_and_back(sites: Sites, etcd_site: EtcdSite) -> None:
    """Unchanged documents are not written again, so they are equal in each byte."""
    before, data = contents(sites.etcd), stored(etcd_site)
    assert preflight(sites.etcd, sites.kube, "there", wait=no_wait) == []
    move(sites.etcd, sites.kube, "there", sites.archive)
    assert preflight(sites.kube, sites.etcd, "back", wait=no_wait) == []
    move(sites.kube, sites.etcd, "back", sites.archive)
    assert contents(sites.etcd) == before
    assert stored(etcd_site) == data


def test_everything_goes_back_to_a_new_etcd(sites: Sites, etcd_site: EtcdSite) -> None:
    """Identities are restored, and Nodes are made from those of Kubernetes, with whose names they are known from then on."""
    before = contents(sites.etcd)
    move(sites.etcd, sites.kube, "there", sites.archive)
    etcd_site.clear()
    assert preflight(sites.kube, sites.etcd, "back", wait=no_wait) == []
    move(sites.kube, sites.etcd, "back", sites.archive)
    after = contents(sites.etcd)
    renamed = json.loads(json.dumps(before).replace("node--a.etcd", "node1").replace("node--b.etcd", "node2"))
    renamed = json.loads(json.dumps(renamed).replace(ETCD_NODE, KUBE_NODE).replace("node-b.etcd", "node2"))
    own = ("/nodes/", "/workloadendpoints/")
    assert {path: comparable(after[path]) for path in after if not any(part in path for part in own)} == {
        path: comparable(renamed[path]) for path in renamed if not any(part in path for part in own)
    }
    assert after.keys() == renamed.keys()


def comparable(document: Any) -> Any:
    """Return a document with an empty list of attributes in place of null: both mean the same."""
    return document | {"attributes": document["attributes"] or []} if "attributes" in document else document


def test_nodes_have_their_names_in_kubernetes(sites: Sites) -> None:
    held = holdings(sites.etcd.backend)
    move(sites.etcd, sites.kube, "run", sites.archive)
    kube = sites.kube.backend
    tunnel = held.pop(f"vxlan-tunnel-addr-{ETCD_NODE}")
    assert holdings(kube) == held | {f"vxlan-tunnel-addr-{KUBE_NODE}": tunnel}
    assert {entry.key.host for entry in kube.list(AffinityQuery())} == {"node1", "node2"}  # type: ignore[attr-defined]
    texts = [json.dumps(entry.value.to_json()) for entry in kube.list(BlockQuery())]
    assert not any(".etcd" in text for text in texts)
    assert kube.get(ResourceKey("HostEndpoint", "hep")).value.spec["node"] == KUBE_NODE


def test_sequences_queues_and_unknown_fields_are_kept(sites: Sites) -> None:
    before = {entry.value.cidr: entry.value for entry in sites.etcd.backend.list(BlockQuery())}
    move(sites.etcd, sites.kube, "run", sites.archive)
    after = {entry.value.cidr: entry.value for entry in sites.kube.backend.list(BlockQuery())}
    assert before.keys() == after.keys()
    for cidr, block in before.items():
        assert (after[cidr].sequence, after[cidr].ordinal_sequences) == (block.sequence, block.ordinal_sequences)
        assert after[cidr].ordinals.unallocated() == block.ordinals.unallocated()
        assert (after[cidr].extra, after[cidr].claimed_at) == (block.extra, block.claimed_at)
    assert any(block.extra for block in after.values())
    assert sites.kube.backend.get(HandleKey(f"{NETWORK}.c-web")).value.extra == {"newer": [1]}


def test_pools_are_enabled_at_the_end_as_they_were(sites: Sites) -> None:
    marks.lock(sites.etcd, sites.kube, "run")
    steps.admit(sites.etcd, sites.kube, "run", sites.archive)
    documents = steps.export_at_one_revision(sites.etcd).decoded(sites.etcd.names)
    steps.import_(documents, sites.kube)
    pools = sites.kube.backend.list(ResourceQuery("IPPool"))
    assert {entry.value.spec.get("disabled") for entry in pools} == {True}
    steps.enable_pools(documents, sites.kube)
    pools = sites.kube.backend.list(ResourceQuery("IPPool"))
    assert {entry.value.name for entry in pools if entry.value.spec.get("disabled")} == {"off"}


def test_source_and_target_say_where_the_content_is(sites: Sites) -> None:
    move(sites.etcd, sites.kube, "run", sites.archive)
    source, target = (marks.present(place) for place in (sites.etcd, sites.kube))
    assert source is not None
    assert target is not None
    assert marks.is_locked(source)
    assert not marks.is_locked(target)
    left, arrived = marks.mark_of(sites.etcd.names, source), marks.mark_of(sites.kube.names, target)
    assert left is not None
    assert arrived is not None
    assert (left.state, left.run, left.other) == (marks.LEFT, "run", sites.kube.backend.place)
    assert (arrived.state, arrived.run, arrived.other) == (marks.ARRIVED, "run", sites.etcd.backend.place)
    assert target.spec == source.spec | {"datastoreReady": True, "clusterType": "cni,kdd"}
    assert "uid-c" in target.metadata["annotations"][identity_annotation(sites.kube.names)]


def test_a_move_that_has_ended_can_be_repeated(sites: Sites) -> None:
    move(sites.etcd, sites.kube, "run", sites.archive)
    assert preflight(sites.etcd, sites.kube, "run", wait=no_wait) == []
    steps.finish(sites.etcd, sites.kube, "run")


def test_the_check_finds_nothing_afterwards(sites: Sites) -> None:
    assert result(sites.etcd).findings == ()
    move(sites.etcd, sites.kube, "run", sites.archive)
    assert result(sites.kube).findings == ()


def test_endpoints_are_those_of_their_pods(sites: Sites) -> None:
    before = {
        entry.value.spec["pod"]: (entry.value.spec["containerID"], entry.value.spec["ipNetworks"])
        for entry in sites.etcd.backend.list(ResourceQuery(KIND))
    }
    move(sites.etcd, sites.kube, "run", sites.archive)
    after = {
        entry.value.spec["pod"]: (entry.value.spec["containerID"], entry.value.spec["ipNetworks"])
        for entry in sites.kube.backend.list(ResourceQuery(KIND))
    }
    assert after == before


def test_addresses_are_assigned_and_released_in_the_new_datastore(sites: Sites) -> None:
    """The next address of a node is the one that it would have got before."""
    move(sites.etcd, sites.kube, "run", sites.archive)
    ipam, before = IpamService(sites.kube.backend, KUBE_NODE), holdings(sites.kube.backend)
    (address,) = ipam.assign(Assign(f"{NETWORK}.new", {"node": KUBE_NODE})).addresses
    assert all(address not in held for held in before.values())
    for handle in (f"{NETWORK}.new", f"{NETWORK}.c-web"):
        ipam.release(Release(handle))
    del before[f"{NETWORK}.c-web"]
    assert holdings(sites.kube.backend) == before


def test_several_interfaces_of_a_pod_move(sites: Sites, etcd_site: EtcdSite, orch_site: OrchSite) -> None:
    put_endpoint(etcd_site, sites.etcd.backend, "web", "c-web", "10.65.0.200", ifname="net1", node=ETCD_NODE)
    move(sites.etcd, sites.kube, "run", sites.archive)
    found = [entry.value.spec for entry in sites.kube.backend.list(ResourceQuery(KIND)) if entry.value.spec["pod"] == "web"]
    assert [(spec["endpoint"], spec["containerID"]) for spec in found] == [("eth0", "c-web"), ("net1", "c-web")]
    assert found[1]["ipNetworks"] == ["10.65.0.200/32"]


def test_policies_and_other_kinds_move(sites: Sites, orch_site: OrchSite) -> None:
    """They belong to other programs. Copies of policies of Kubernetes, and profiles, stay behind."""
    names = sites.etcd.names
    for kind, scope in (("NetworkPolicy", "Namespaced"), ("FelixConfiguration", "Cluster")):
        orch_site.kube.apply([definition(names.crd_api_version, kind, scope)])
    for name in ("default.own", "knp.default.copy"):
        policy = Resource("NetworkPolicy", {"name": name, "namespace": "default"}, {"selector": "all()"})
        put(sites.etcd.backend, ResourceKey("NetworkPolicy", name, "default"), policy)
    felix = Resource("FelixConfiguration", {"name": "default", "labels": {"a": "b"}}, {"logSeverityScreen": "Info"})
    put(sites.etcd.backend, ResourceKey("FelixConfiguration", "default"), felix)
    put(sites.etcd.backend, ResourceKey("Profile", "kns.default"), Resource("Profile", {"name": "kns.default"}, {}))
    try:
        assert preflight(sites.etcd, sites.kube, "run", wait=no_wait) == []
        move(sites.etcd, sites.kube, "run", sites.archive)
        found = sites.kube.backend.list(ResourceQuery("NetworkPolicy"))
        assert [(entry.value.name, entry.value.spec) for entry in found] == [("default.own", {"selector": "all()"})]
        moved = sites.kube.backend.get(ResourceKey("FelixConfiguration", "default")).value
        assert (moved.spec, moved.labels) == (felix.spec, felix.labels)
        move(sites.kube, sites.etcd, "back", sites.archive)
        assert sites.etcd.backend.get(ResourceKey("FelixConfiguration", "default")).value == felix
    finally:
        for plural in ("networkpolicies", "felixconfigurations"):
            group = names.crd_api_version.partition("/")[0]
            orch_site.kube.call("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}")


def test_documents_move_to_the_plain_group_with_their_status(sites: Sites, orch_site: OrchSite, tmp_path: Path) -> None:
    """There the status of some kinds is written apart."""
    version, kube = sites.kube.names.api_version, orch_site.kube
    install(kube, sites.kube.names, version)
    status = {"runningConfig": {"logSeverityScreen": "Info"}, "environmentVars": {"A": "b"}}
    settings = Resource("KubeControllersConfiguration", {"name": "default"}, {"healthChecks": "Enabled"}, status)
    put(sites.etcd.backend, ResourceKey(settings.kind, "default"), settings)
    before = contents(sites.etcd)
    with closing(AdministratorStore(kube, tmp_path, sites.kube.names, version)) as store:
        plain = replace(sites.kube, backend=store, client=store.client)
        try:
            assert preflight(sites.etcd, plain, "there", wait=no_wait) == []
            move(sites.etcd, plain, "there", sites.archive)
            assert store.get(ResourceKey(settings.kind, "default")).value.status == status
            move(plain, sites.etcd, "back", sites.archive)
        finally:
            wipe(kube, sites.kube.names, version)
    assert contents(sites.etcd) == before


def test_ipv6_moves(sites: Sites) -> None:
    put_pool(sites.etcd.backend, "pool6", "fd00:10:65::/116", blockSize=124)
    owner = {"node": ETCD_NODE, "pod": "web", "namespace": "default"}
    IpamService(sites.etcd.backend, ETCD_NODE).assign(Assign(f"{NETWORK}.six", owner, (6,)))
    before = contents(sites.etcd)
    move(sites.etcd, sites.kube, "run", sites.archive)
    assert any(entry.key.cidr.version == 6 for entry in sites.kube.backend.list(BlockQuery()))  # type: ignore[attr-defined]
    move(sites.kube, sites.etcd, "back", sites.archive)
    assert contents(sites.etcd) == before

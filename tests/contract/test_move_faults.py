"""A move whose servers fail, and whose content other programs change."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import EtcdSite, OrchSite
from harness.ipam import put, put_block
from harness.ipam_check import attributes
from harness.kube import ADMIN_TOKEN
from harness.move_sites import ETCD_NODE, NETWORK, Sites, add_pod, contents, furnish, move, open_sites
from harness.orch import PODS
from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.admin.ipam_check.observation import Place
from svc.admin.resources import CLUSTER, set_ready
from svc.datastore.api import Create, Delete, StoreError
from svc.datastore.etcd import store as etcd_store
from svc.datastore.orch.store import OrchStore
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.endpoint import KIND
from svc.model.errors import SvcError
from svc.model.ipam import Attribute, Block, Handle
from svc.model.keys import BlockKey, BlockQuery, HandleKey, IpamConfigKey, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.move import marks, snapshot, steps
from svc.move.preflight import Blocker, preflight
from svc.move.steps import Documents

pytestmark = pytest.mark.server

WRITES = (
    "POST .*ipamconfigs",
    "POST .*ippools",
    "PUT .*ippools",
    "POST .*ipamhandles",
    "POST .*ipamblocks",
    "POST .*blockaffinities",
    "POST .*clusterinformations",
    "PUT .*clusterinformations",
    "PATCH .*/status",
)


@pytest.fixture
def sites(etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    with open_sites(etcd_site, orch_site, tmp_path) as made:
        furnish(etcd_site, orch_site, made.etcd.backend)
        yield made


@pytest.fixture
def through_proxy(sites: Sites, proxy: ApiProxy) -> Iterator[Place]:
    """Return the Kubernetes API behind a proxy, which can refuse and lose requests."""
    settings = {"kind": "orch", "orch_api_root": proxy.url, "k8s_auth_token": ADMIN_TOKEN}
    with closing(OrchStore(settings, sites.kube.names)) as store:
        yield replace(sites.kube, backend=store, client=store.client)


def admitted(sites: Sites) -> Documents:
    """Begin a move. Return the documents of the source."""
    marks.lock(sites.etcd, sites.kube, "run")
    steps.admit(sites.etcd, sites.kube, "run", sites.archive)
    return steps.export_at_one_revision(sites.etcd).decoded(sites.etcd.names)


def blockers(sites: Sites, run: str = "run") -> list[Blocker]:
    return preflight(sites.etcd, sites.kube, run, wait=lambda _seconds, _counts: False)


def found(sites: Sites) -> list[tuple[str, str]]:
    return [(each.id, each.object) for each in blockers(sites)]


@pytest.mark.parametrize(
    "fault",
    [
        *(Order(Fate.ANSWERED, "", status=status, body=b"refused") for status in (409, 403, 404, 500)),
        Order(Fate.NEVER_SENT, ""),
        Order(Fate.REPLY_LOST, ""),
    ],
    ids=["409", "403", "404", "500", "never sent", "reply lost"],
)
def test_each_kind_of_write_fails_once(sites: Sites, through_proxy: Place, proxy: ApiProxy, fault: Order) -> None:
    """A failure ends the run, or is repaired at once. The next run continues."""
    before = contents(sites.etcd)
    for pattern in WRITES:
        proxy.arm(replace(fault, pattern=pattern))
    failures = 0
    for _ in range(len(WRITES) + 1):
        try:
            move(sites.etcd, through_proxy, "run", sites.archive)
        except StoreError:
            failures += 1
            continue
        break
    assert failures <= len(WRITES)
    assert proxy.calls
    documents = steps.export_at_one_revision(sites.etcd).decoded(sites.etcd.names)
    assert steps.compare(documents, sites.kube) == []
    move(sites.kube, sites.etcd, "back", sites.archive)
    assert contents(sites.etcd) == before


def test_pages_whose_revision_is_discarded_are_read_again(sites: Sites, through_proxy: Place, proxy: ApiProxy) -> None:
    """The etcd of the API server discards its history as well."""
    move(sites.etcd, sites.kube, "run", sites.archive)
    expected = snapshot.take(sites.kube).documents
    for pattern in ("GET .*/ipamhandles", "GET .*/ipamblocks", "GET /api/v1/pods"):
        proxy.arm(Order(Fate.ANSWERED, pattern, status=410, body=b"gone"))
    assert snapshot.take(through_proxy).documents == expected


def test_history_is_discarded_during_the_export(sites: Sites, etcd_site: EtcdSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export begins again at a newer revision."""
    monkeypatch.setattr(etcd_store, "PAGE", 3)
    expected = contents(sites.etcd)
    reads: list[int] = []
    history = type(sites.etcd.backend).history  # type: ignore[attr-defined]

    def compacted(store: Any) -> Iterator[tuple[int, str, bytes]]:
        for number, item in enumerate(history(store)):
            if number == 4 and not reads:
                reads.append(item[0])
                etcd_site.running.compact(etcd_site.running.put("/elsewhere", "x"))
            yield item

    monkeypatch.setattr(type(sites.etcd.backend), "history", compacted)
    taken = snapshot.take(sites.etcd)
    assert int(taken.revision) > reads[0]
    assert contents(sites.etcd) == expected


def test_history_is_discarded_all_the_time(sites: Sites, etcd_site: EtcdSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_store, "PAGE", 3)
    history = type(sites.etcd.backend).history  # type: ignore[attr-defined]

    def compacted(store: Any) -> Iterator[tuple[int, str, bytes]]:
        for number, item in enumerate(history(store)):
            if number == 1:
                etcd_site.running.compact(etcd_site.running.put("/elsewhere", "x"))
            yield item

    monkeypatch.setattr(type(sites.etcd.backend), "history", compacted)
    with pytest.raises(StoreError, match="compacted"):
        snapshot.take(sites.etcd)


def test_a_program_that_ignores_the_lock_is_noticed(sites: Sites, etcd_site: EtcdSite, orch_site: OrchSite) -> None:
    """The comparison reads the source again, and refuses to end the move. The next run has the new address."""
    steps.import_(admitted(sites), sites.kube)
    put_block(sites.etcd.backend, "10.65.0.224/28", f"host:{ETCD_NODE}")
    documents = steps.export_at_one_revision(sites.etcd).decoded(sites.etcd.names)
    with pytest.raises(StoreError, match=r"block 10\.65\.0\.224/28"):
        steps.require_equal(documents, sites.kube)
    move(sites.etcd, sites.kube, "run", sites.archive)


def test_a_source_that_keeps_changing_is_refused(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    move(sites.etcd, sites.kube, "run", sites.archive)
    entries, key = snapshot._entries, HandleKey(f"{NETWORK}.c-web")

    def changing(place: Place) -> Any:
        read = entries(place)
        handle = place.backend.get(key).value
        put(place.backend, key, replace(handle, extra={"n": (handle.extra or {}).get("n", 0) + 1}))
        return read

    monkeypatch.setattr(snapshot, "_entries", changing)
    with pytest.raises(StoreError, match="keeps changing: 5 readings differ"):
        snapshot.take(sites.kube)


def test_pods_that_are_gone_or_new_get_no_annotations(sites: Sites, orch_site: OrchSite) -> None:
    """A pod of the same name that was created after the ADD is another one."""
    orch_site.kube.call("DELETE", f"{PODS}/api?gracePeriodSeconds=0")
    orch_site.kube.call("DELETE", f"{PODS}/db-0?gracePeriodSeconds=0")
    orch_site.add_pod("db-0", "node2")
    status = {"status": {"podIP": "10.65.0.99", "podIPs": [{"ip": "10.65.0.99"}]}}
    orch_site.kube.call("PATCH", f"{PODS}/db-0/status", status, "application/merge-patch+json")
    report = steps.move_endpoints(admitted(sites), sites.kube)
    assert report.kept == 1
    assert report.left == {
        "default/api": "its pod does not exist any more",
        "default/db-0": "its pod was created again, and has other addresses",
    }
    (endpoint,) = sites.kube.backend.list(ResourceQuery(KIND))
    address = sites.etcd.backend.get(endpoint_of(sites, "web")).value.spec["ipNetworks"][0].removesuffix("/32")
    assert endpoint.value.spec["ipNetworks"] == [f"{address}/32"]
    assert endpoint.value.spec["containerID"] == "c-web"


def test_a_pod_that_is_created_again_during_the_write_gets_no_annotations(
    sites: Sites, through_proxy: Place, proxy: ApiProxy, orch_site: OrchSite
) -> None:
    pods = {pod["metadata"]["name"]: pod for page in sites.kube.client.pages("/api/v1/pods") for pod in page.items}  # type: ignore[union-attr]
    orch_site.kube.call("DELETE", f"{PODS}/web?gracePeriodSeconds=0")
    orch_site.add_pod("web", "node1")
    pages = through_proxy.client.pages  # type: ignore[union-attr]

    def stale(path: str, **params: str) -> Iterator[Any]:
        for page in pages(path, **params):
            if path == "/api/v1/pods":
                page.items[:] = [pods[pod["metadata"]["name"]] for pod in page.items]
            yield page

    through_proxy.client.pages = stale  # type: ignore[union-attr, method-assign]
    report = steps.move_endpoints(admitted(sites), through_proxy)
    assert report.left == {"default/web": "its pod was created again during the move"}


def test_annotations_of_an_earlier_time_are_removed(sites: Sites) -> None:
    """A pod whose endpoint is gone in etcd has those that it had before a move back."""
    move(sites.etcd, sites.kube, "1", sites.archive)
    move(sites.kube, sites.etcd, "2", sites.archive)
    sites.etcd.backend.write([Delete(endpoint_of(sites, "web"))])
    move(sites.etcd, sites.kube, "3", sites.archive)
    assert [entry.value.spec["pod"] for entry in sites.kube.backend.list(ResourceQuery(KIND))] == ["api", "db-0"]


def endpoint_of(sites: Sites, pod: str) -> ResourceKey:
    (found,) = [entry.key for entry in sites.etcd.backend.list(ResourceQuery(KIND)) if entry.value.spec["pod"] == pod]
    assert isinstance(found, ResourceKey)
    return found


def test_a_target_that_no_move_has_marked_is_left_alone(sites: Sites) -> None:
    put_block(sites.kube.backend, "10.99.0.0/28", "host:node1")
    documents = steps.export_at_one_revision(sites.etcd).decoded(sites.etcd.names)
    for step in (steps.import_, steps.move_endpoints):
        with pytest.raises(StoreError, match="is not the locked target of a move"):
            step(documents, sites.kube)
    assert len(sites.kube.backend.list(BlockQuery())) == 1


# preflight


def test_nothing_blocks_a_sound_datastore(sites: Sites) -> None:
    assert blockers(sites) == []


def test_handles_that_collide_in_lower_case_block(sites: Sites) -> None:
    sites.etcd.backend.write([Create(HandleKey("Net.c-web"), Handle({}))])
    assert ("name", "handle 'net.c-web'") in found(sites) or ("name", "handle 'Net.c-web'") in found(sites)


def test_underscores_and_long_handles_do_not_block(sites: Sites, etcd_site: EtcdSite) -> None:
    ipam = IpamService(sites.etcd.backend, ETCD_NODE)
    for handle in ("net_work.c-x_y", f"net.{'c' * 300}"):
        ipam.assign(Assign(handle, attributes("web", ETCD_NODE)))
    assert [each for each in found(sites) if each[0] != "ipam-check"] == []


def test_addresses_of_no_pod_block(sites: Sites) -> None:
    IpamService(sites.etcd.backend, ETCD_NODE).assign(Assign(f"{NETWORK}.bare", {"node": ETCD_NODE}))
    assert [each[0] for each in found(sites)].count("no-pod") == 1


def test_addresses_of_services_tunnels_and_windows_do_not_block(sites: Sites) -> None:
    """They move with their owners, as addresses in cooldown do."""
    owners = [
        Attribute("lb-0123", {"service": "web", "namespace": "default", "type": "LoadBalancer"}),
        Attribute("vxlan-tunnel-addr-node-b.etcd", {"node": "node-b.etcd", "type": "vxlanTunnelAddress"}),
        Attribute("Windows-Reserved-IPAM-Handle", {"note": "windows host rsvd"}),
        Attribute(released_at="2026-01-01T00:00:00Z"),
        Attribute("net.vmi.default.vm", {"vmi-name": "vm", "namespace": "default"}),
    ]
    for number, affinity in enumerate((f"host:{ETCD_NODE}", "virtual:load-balancer")):
        cidr = Cidr(f"10.65.{number}.192/29")
        block = Block(cidr, affinity, Ordinals(3), 1000, None, list(owners))
        for tag in range(len(owners)):
            block.ordinal_sequences[block.ordinals.allocate(tag)] = 999
        put(sites.etcd.backend, BlockKey(cidr), block)
    assert [each for each in found(sites) if each[0] == "no-pod"] == []


def test_nodes_without_their_name_in_kubernetes_block(sites: Sites) -> None:
    key = ResourceKey("Node", "node-c")
    put(sites.etcd.backend, key, Resource("Node", {"name": "node-c"}, {}))
    assert found(sites) == [("node", "node node-c")]
    spec = {"orchRefs": [{"nodeName": "node9", "orchestrator": "k8s"}]}
    put(sites.etcd.backend, key, Resource("Node", {"name": "node-c"}, spec))
    assert [each.problem for each in blockers(sites)] == ["Kubernetes has no node 'node9'"]
    spec = {"orchRefs": [{"nodeName": "node1", "orchestrator": "k8s"}]}
    put(sites.etcd.backend, key, Resource("Node", {"name": "node-c"}, spec))
    assert [each.problem for each in blockers(sites)] == [
        "nodes 'node-a.etcd' and 'node-c' are both node 'node1' of Kubernetes"
    ]


def test_a_target_with_content_blocks(sites: Sites) -> None:
    put_block(sites.kube.backend, "10.99.0.0/28", "host:node1")
    assert found(sites) == [("target", sites.kube.backend.place)]
    with pytest.raises(SvcError, match=r"is not empty: it has block 10\.99\.0\.0/28"):
        move(sites.etcd, sites.kube, "run", sites.archive)
    assert sites.kube.backend.find(CLUSTER) is None


def test_a_source_that_others_have_locked_blocks(sites: Sites) -> None:
    set_ready(sites.etcd.backend, ready=False)
    assert found(sites) == [("locked", sites.etcd.backend.place)]
    with pytest.raises(SvcError, match="is locked by another program or a person"):
        move(sites.etcd, sites.kube, "run", sites.archive)


def test_two_runs_exclude_each_other(sites: Sites) -> None:
    marks.lock(sites.etcd, sites.kube, "one")
    with pytest.raises(SvcError, match="is locked by run 'one'"):
        marks.lock(sites.etcd, sites.kube, "two")
    steps.admit(sites.etcd, sites.kube, "one", sites.archive)
    with pytest.raises(SvcError, match="is locked by run 'one'"):
        steps.admit(sites.etcd, sites.kube, "two", sites.archive)
    assert [each.id for each in blockers(sites, "two")] == ["locked", "target"]
    assert blockers(sites, "one") == []


def test_a_source_that_was_unlocked_meanwhile_is_not_left(sites: Sites) -> None:
    marks.lock(sites.etcd, sites.kube, "run")
    set_ready(sites.etcd.backend, ready=True)
    with pytest.raises(StoreError, match="is not locked by run 'run'"):
        marks.wait_for_calls(sites.etcd, "run")
    with pytest.raises(StoreError, match="is not locked by run 'run'"):
        steps.finish(sites.etcd, sites.kube, "run")


def test_documents_of_unknown_keys_block_until_they_are_acknowledged(sites: Sites, etcd_site: EtcdSite) -> None:
    root = etcd_site.names.key_root
    etcd_site.running.put(f"{root}/ipam/v2/host/node-a.etcd", "{}")  # of old programs, unread
    assert found(sites) == []
    etcd_site.running.put(f"{root}/resources/v3/svc.internal/zebras/one", "{}")
    assert found(sites) == [("unknown", f"{root}/resources/v3/svc.internal/zebras/one")]
    assert preflight(sites.etcd, sites.kube, "run", {"unknown"}, lambda _s, _c: False) == []


def test_kinds_that_the_target_does_not_serve_block(sites: Sites) -> None:
    policy = Resource("NetworkPolicy", {"name": "default.own", "namespace": "nowhere"}, {"selector": "all()"})
    put(sites.etcd.backend, ResourceKey("NetworkPolicy", "default.own", "nowhere"), policy)
    assert found(sites) == [("kind", "NetworkPolicy"), ("namespace", "nowhere")]


def test_unreadable_documents_block(sites: Sites, etcd_site: EtcdSite) -> None:
    etcd_site.running.put(f"{etcd_site.names.key_root}/ipam/v2/config", "[]")
    assert ("ipam-check", "IPAM settings") in found(sites)
    unacknowledged = preflight(sites.etcd, sites.kube, "run", {"ipam-check"}, lambda _s, _c: False)
    assert [each.id for each in unacknowledged] == ["document"]
    with pytest.raises(StoreError, match="ipam/v2/config cannot be moved"):
        move(sites.etcd, sites.kube, "run", sites.archive)


def test_findings_of_the_check_can_be_acknowledged(sites: Sites) -> None:
    sites.etcd.backend.write([Create(HandleKey("net.empty"), Handle({}))])

    def wait(_seconds: float, _counts: object) -> bool:
        return True

    assert [each.id for each in preflight(sites.etcd, sites.kube, "run", wait=wait)] == ["ipam-check"]
    assert preflight(sites.etcd, sites.kube, "run", {"ipam-check"}, wait) == []


def test_a_new_pod_in_etcd_after_a_move_back_moves_again(sites: Sites, etcd_site: EtcdSite, orch_site: OrchSite) -> None:
    move(sites.etcd, sites.kube, "1", sites.archive)
    move(sites.kube, sites.etcd, "2", sites.archive)
    add_pod(etcd_site, orch_site, sites.etcd.backend, "late")
    settings = sites.etcd.backend.get(IpamConfigKey()).value
    put(sites.etcd.backend, IpamConfigKey(), replace(settings, max_blocks_per_host=3))
    before = contents(sites.etcd)
    move(sites.etcd, sites.kube, "3", sites.archive)
    assert sites.kube.backend.get(IpamConfigKey()).value.max_blocks_per_host == 3
    move(sites.kube, sites.etcd, "4", sites.archive)
    assert contents(sites.etcd) == before

"""svcctl ipam check beside a Kubernetes API: what the status of pods, services and tunnels show in use."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import EmbeddedSite, OrchSite, session, set_ready
from harness.ipam import put_node, put_pool
from harness.ipam_check import NODE, add, attributes, ids, place, put_endpoint, result
from harness.kube import Kube, Refused
from harness.orch import NODES, PODS
from harness.skips import OTHER_STORES
from svc._core.cidr import Address
from svc.admin.ipam_check.local_uses import LocalUses
from svc.admin.ipam_check.observation import Place
from svc.admin.ipam_check.release import REFUSED, examine
from svc.datastore.api import Backend
from svc.datastore.open import open_client
from svc.ipam.load_balancer import LOAD_BALANCERS
from svc.ipam.requests import Assign, ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.endpoint import Workload, endpoint_key
from svc.names import DEFAULT

pytestmark = pytest.mark.server

MERGE = "application/merge-patch+json"
SERVICES = "/api/v1/namespaces/default/services"


@pytest.fixture
def cluster(orch_site: OrchSite) -> Iterator[OrchSite]:
    yield orch_site
    with suppress(Refused):
        orch_site.kube.call("DELETE", f"{SERVICES}/web")
    orch_site.clear()


@pytest.fixture(params=["orch", "embedded"])
def checked(request: pytest.FixtureRequest, cluster: OrchSite, tmp_path: Path) -> Iterator[Place]:
    """Return a store with a pool, beside or in the Kubernetes API."""
    if request.param == "orch":
        with session(cluster) as store:
            cluster.add_node(NODE)
            yield _furnished(place(cluster, store))
        return
    (tmp_path / "state").mkdir()
    site = EmbeddedSite(tmp_path / "state")
    with session(site) as store, closing(open_client({"kubeconfig": str(cluster.administrator)})) as client:
        yield _furnished(Place(store, DEFAULT, client, wired_networks=frozenset({"net"})))


def _furnished(place: Place) -> Place:
    set_ready(place.backend)
    put_pool(place.backend, "pool4", "10.65.0.0/28", blockSize=30)
    return place


def assign(store: Backend, handle: str, owner: dict[str, str]) -> str:
    return str(IpamService(store, NODE).assign(Assign(handle, owner)).addresses[0])


def report(kube: Kube, pod: str, *addresses: str, **status: Any) -> None:
    """Set the addresses in the status of a pod, as kubelet does."""
    reported = {"podIPs": [{"ip": address} for address in addresses], "podIP": addresses[0]} if addresses else {}
    kube.call("PATCH", f"{PODS}/{pod}/status", {"status": {**reported, **status}}, MERGE)


def annotate(kube: Kube, pod: str, **annotations: str) -> None:
    kube.call("PATCH", f"{PODS}/{pod}", {"metadata": {"annotations": annotations}}, MERGE)


def test_address_in_the_status_of_a_pod_is_in_use(cluster: OrchSite, checked: Place) -> None:
    """Below another main plugin, nothing else shows it. Before the status has it, the address is unverifiable."""
    cluster.add_pod("web")
    address = assign(checked.backend, "net.c1", attributes("web"))
    found = result(checked)
    assert (found.findings, found.verdicts.count()) == ((), {"unverifiable": 1})
    report(cluster.kube, "web", address)
    assert result(checked).verdicts.count() == {"used": 1}
    leaked = assign(checked.backend, "net.c0", attributes("web"))
    assert ids(checked) == [("leaked", leaked)]


def test_address_that_a_meta_plugin_reports_is_in_use(cluster: OrchSite, checked: Place) -> None:
    cluster.add_pod("web")
    address = assign(checked.backend, "second.c1", attributes("web"))
    annotate(cluster.kube, "web", **{"k8s.v1.cni.cncf.io/network-status": f'[{{"name": "second", "ips": ["{address}"]}}]'})
    assert result(checked).verdicts.count() == {"used": 1}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_address_of_a_finished_pod_is_leaked(cluster: OrchSite, checked: Place, phase: str) -> None:
    cluster.add_pod("job")
    address = assign(checked.backend, "net.c1", attributes("job"))
    report(cluster.kube, "job", address, phase=phase)
    (finding,) = result(checked).findings
    assert (finding.id, finding.object, finding.problem) == ("leaked", address, "pod default/job has finished")


def test_address_for_a_pod_of_the_hosts_network_is_leaked(cluster: OrchSite, checked: Place) -> None:
    """An administrator has called the plugin by hand."""
    cluster.add_pod("agent", hostNetwork=True)
    address = assign(checked.backend, "net.c1", attributes("agent"))
    (finding,) = result(checked).findings
    assert (finding.id, finding.object, finding.problem) == ("leaked", address, "pod default/agent has the network of its node")


def test_address_of_a_pod_on_another_node_is_leaked(cluster: OrchSite, checked: Place) -> None:
    """If the datastore does not know that node, this one may be the same by another name."""
    cluster.add_pod("web", "node2")
    address = assign(checked.backend, "net.c1", attributes("web"))
    found = result(checked)
    assert (found.findings, found.verdicts.count()) == ((), {"unverifiable": 1})
    if checked.pods_are_endpoints:
        cluster.add_node("node2")
    else:
        put_node(checked.backend, "node2")
    assert ids(checked) == [("leaked", address)]


def test_node_may_have_another_name_below_another_main_plugin(cluster: OrchSite, checked: Place) -> None:
    """The IPAM plugin by itself takes the host name. Nothing but the status of the pod shows its addresses."""
    cluster.add_pod("web")
    address = assign(checked.backend, "macvlan.c5", attributes("web", "node1.example.com"))
    found = result(checked)
    assert "leaked" not in {finding.id for finding in found.findings}
    assert found.verdicts.count() == {"unverifiable": 1}
    (outcome,) = examine(checked, [ReleaseTarget(Address(address))], (), LocalUses())
    assert (outcome.result, "only the agent of node 'node1.example.com' can tell" in outcome.reason) == (REFUSED, True)


def test_reported_address_without_an_allocation_is_found(cluster: OrchSite, checked: Place) -> None:
    """An address of the host's network, or in no pool, is another program's."""
    cluster.add_pod("web")
    cluster.add_pod("agent", hostNetwork=True)
    report(cluster.kube, "agent", "10.65.0.8")
    report(cluster.kube, "web", "192.0.2.1")
    assert ids(checked) == []
    report(cluster.kube, "web", "10.65.0.9")
    assert ids(checked) == [("unallocated", "10.65.0.9")]


def test_address_of_two_reports_is_found(cluster: OrchSite, checked: Place) -> None:
    cluster.add_pod("web")
    cluster.add_pod("db")
    address = assign(checked.backend, "net.c1", attributes("web"))
    for pod in ("web", "db"):
        report(cluster.kube, pod, address)
    assert ids(checked) == [("duplicate", address)]


def test_address_that_bypasses_ipam_is_in_no_pool_on_purpose(cluster: OrchSite, checked: Place) -> None:
    if not checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "the endpoint is that of the pod")
    cluster.add_pod("web")
    annotate(cluster.kube, "web", **{f"{DEFAULT.annotation_prefix}/ipAddrsNoIpam": '["192.0.2.1"]'})
    put_endpoint(cluster, checked.backend, "web", "c1", "192.0.2.1")
    assert ids(checked) == []
    put_endpoint(cluster, checked.backend, "web", "c1", "192.0.2.2")
    assert ids(checked) == [("outside", "192.0.2.2")]


def test_address_of_a_service_is_in_use(cluster: OrchSite, checked: Place) -> None:
    """A service that lost its address has leaked it."""
    put_pool(checked.backend, "services", "10.66.0.0/28", blockSize=30, allowedUses=["LoadBalancer"])
    owner = {"service": "web", "namespace": "default", "type": "LoadBalancer"}
    request = Assign("lb-1", owner, use="LoadBalancer")
    address = str(IpamService(checked.backend, LOAD_BALANCERS).assign(request).addresses[0])
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
    cluster.kube.call("POST", SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
    assert ids(checked) == [("leaked", address)]
    balancer = {"loadBalancer": {"ingress": [{"ip": address}]}}
    cluster.kube.call("PATCH", f"{SERVICES}/web/status", {"status": balancer}, MERGE)
    assert result(checked).verdicts.count() == {"used": 1}


def test_tunnel_address_of_a_node_is_in_use(cluster: OrchSite, checked: Place) -> None:
    if not checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "the node is that of the Kubernetes API")
    address = assign(checked.backend, f"vxlan-tunnel-addr-{NODE}", {"node": NODE, "type": "vxlanTunnelAddress"})
    note = {f"{DEFAULT.label_prefix}/IPv4VXLANTunnelAddr": address}
    cluster.kube.call("PATCH", f"{NODES}/{NODE}", {"metadata": {"annotations": note}}, MERGE)
    assert result(checked).verdicts.count() == {"used": 1}


def test_pod_that_ends_keeps_its_address_until_its_del(cluster: OrchSite, checked: Place) -> None:
    """Its DEL deletes the endpoint first. The pod object remains until kubelet has ended the sandbox."""
    if not checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "the endpoint is that of the pod")
    cluster.add_pod("web")
    store = checked.backend
    address = add(cluster, store, IpamService(store, NODE), "web", "c1")
    report(cluster.kube, "web", address)
    annotate(cluster.kube, "web", **{f"{DEFAULT.annotation_prefix}/podIPs": ""})
    assert store.find(endpoint_key(DEFAULT, NODE, Workload("c1", "web", "default"), "eth0")) is None
    assert ids(checked) == []

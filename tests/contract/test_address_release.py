"""Release of leaked addresses by the controllers, on each datastore beside a real API server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.address_cluster import NETWORK, AddressCluster, address_cluster, collecting
from harness.address_races import CountingAddresses
from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import Site, set_ready
from harness.ipam_check import spoil
from harness.kube import Kube
from harness.polling import wait_until
from harness.running_controller import Running
from svc.datastore.orch.client import Client
from svc.model.keys import HandleKey

pytestmark = pytest.mark.server

PODS_OF_NOW = "/api/v1/namespaces/default/pods/"


@pytest.fixture
def cluster(site: Site, kube: Kube, fast_looks: None) -> Iterator[AddressCluster]:
    with address_cluster(site, kube) as made:
        yield made


def collect_beside(cluster: AddressCluster, client: Client, **options: Any) -> None:
    """Run the part until it has released the address of a deleted pod, which looked leaked last."""
    cluster.add_pod("canary")
    with collecting(cluster, client, **options):
        address = cluster.attach("canary", "canary")
        cluster.remove_pod("canary")
        wait_until(lambda: not cluster.holder(address))


def test_address_of_a_deleted_pod_is_released_and_others_stay(cluster: AddressCluster, client: Client) -> None:
    cluster.add_pod("web")
    cluster.add_pod("other")
    address, kept = cluster.attach("web", "c1"), cluster.attach("other", "c2")
    with collecting(cluster, client):
        cluster.remove_pod("web")
        wait_until(lambda: not cluster.holder(address))
    assert cluster.holder(kept) == f"{NETWORK}.c2"
    assert not cluster.has_handle(f"{NETWORK}.c1")
    assert [name for name in cluster.endpoints() if "web" in name] == []


# live addresses


def bare_container(cluster: AddressCluster) -> str:
    return cluster.assign(f"{NETWORK}.bare")


def service(cluster: AddressCluster) -> str:
    return cluster.assign("lb-1", service="default/x")


def ipam_role(cluster: AddressCluster) -> str:
    return cluster.assign("macvlan.c1", "gone")


def tunnel(cluster: AddressCluster) -> str:
    return cluster.assign("ipip-tunnel-addr-node1", type="ipipTunnelAddress")


def pod_without_status(cluster: AddressCluster) -> str:
    cluster.add_pod("web")
    return cluster.assign(f"{NETWORK}.c1", "web")


def second_interface(cluster: AddressCluster) -> str:
    cluster.add_pod("web")
    cluster.attach("web", "c1")
    return cluster.attach("web", "c1", ifname="net1", network="blue")


def second_interface_without_endpoint(cluster: AddressCluster) -> str:
    """The status has another address, and the handle is that of the pod's container."""
    cluster.add_pod("web")
    first = cluster.attach("web", "c1")
    cluster.set_status("web", phase="Running", podIP=first, podIPs=[{"ip": first}])
    return cluster.assign("blue.c1", "web")


def address_in_the_status_of_another_pod(cluster: AddressCluster) -> str:
    cluster.add_pod("web")
    address = cluster.assign(f"{NETWORK}.c1", "gone")
    cluster.set_status("web", phase="Running", podIP=address, podIPs=[{"ip": address}])
    return address


def container_of_an_add_in_flight(cluster: AddressCluster) -> str:
    """The next sandbox of a pod has an address, and the endpoint is still that of the former one."""
    cluster.add_pod("web")
    cluster.attach("web", "c1")
    return cluster.assign(f"{NETWORK}.c2", "web")


LIVE: tuple[Callable[[AddressCluster], str], ...] = (
    bare_container,
    service,
    ipam_role,
    tunnel,
    pod_without_status,
    second_interface,
    second_interface_without_endpoint,
    address_in_the_status_of_another_pod,
    container_of_an_add_in_flight,
)


def test_live_addresses_stay(cluster: AddressCluster, client: Client) -> None:
    """Each kind by itself, because their pods have the same name. Another pod shows that the network has endpoints."""
    cluster.add_pod("anchor")
    cluster.attach("anchor", "anchor")
    for make in LIVE:
        kept = make(cluster)
        handle = cluster.holder(kept)
        collect_beside(cluster, client)
        assert cluster.holder(kept) == handle, make.__name__
        cluster.remove_pod("web")
        for name in ("c1", "c2"):
            cluster.detach("web", name)
            cluster.detach("web", name, ifname="net1", network="blue")
        cluster.release(handle)


def test_address_of_a_handle_with_a_live_one_stays(cluster: AddressCluster, client: Client) -> None:
    """All addresses of a handle are released, or none."""
    cluster.add_pod("web")
    first, second = (cluster.assign(f"{NETWORK}.c1", "gone") for _ in range(2))
    cluster.set_status("web", phase="Running", podIP=first, podIPs=[{"ip": first}])
    collect_beside(cluster, client)
    assert cluster.holder(second) == f"{NETWORK}.c1"
    with collecting(cluster, client):
        cluster.remove_pod("web")
        wait_until(lambda: not cluster.holder(first) and not cluster.holder(second))


# leaked addresses


def finished(cluster: AddressCluster) -> str:
    cluster.add_pod("web")
    address = cluster.attach("web", "c1")
    cluster.set_status("web", phase="Failed", reason="Evicted", podIP=address, podIPs=[{"ip": address}])
    return address


def moved(cluster: AddressCluster) -> str:
    cluster.add_node("node2")
    cluster.add_pod("web")
    address = cluster.attach("web", "c1")
    cluster.remove_pod("web")
    cluster.add_pod("web", "node2")
    return address


def former_container(cluster: AddressCluster) -> str:
    cluster.add_pod("web")
    address = cluster.assign(f"{NETWORK}.c1", "web")
    cluster.attach("web", "c2")
    return address


@pytest.mark.parametrize("make", [finished, moved, former_container])
def test_leaked_address_is_released(cluster: AddressCluster, client: Client, make: Callable[[AddressCluster], str]) -> None:
    address = make(cluster)
    with collecting(cluster, client):
        wait_until(lambda: not cluster.holder(address))


def test_leaked_addresses_of_all_interfaces_of_a_pod_are_released(cluster: AddressCluster, client: Client) -> None:
    """Each network has its own handle, and each interface its own endpoint, of the same container."""
    for name in ("anchor", "web"):
        cluster.add_pod(name)
        cluster.attach(name, name)
        cluster.attach(name, name, ifname="net1", network="blue")
    leaked = [f"{NETWORK}.web", "blue.web"]
    with collecting(cluster, client):
        cluster.remove_pod("web")
        wait_until(lambda: not any(map(cluster.has_handle, leaked)))
    assert [name for name in cluster.endpoints() if "web" in name] == []
    assert all(map(cluster.has_handle, (f"{NETWORK}.anchor", "blue.anchor")))


def test_annotations_of_a_user_do_not_release_the_address_of_a_live_interface(cluster: AddressCluster, client: Client) -> None:
    """The user of a pod removes the annotation of one interface, and names the handle of another one as the container."""
    for name in ("anchor", "web"):
        cluster.add_pod(name)
        first = cluster.attach(name, name)
        kept = cluster.attach(name, name, ifname="net1", network="blue")
        cluster.attach(name, name, ifname="net2", network="green")
    cluster.set_status("web", phase="Running", podIP=first, podIPs=[{"ip": first}])
    cluster.annotate_pod("web", **{"podIPs.net1": "", "containerID": "green.web", "containerID.net2": "green.web"})
    collect_beside(cluster, client)
    assert cluster.holder(kept) == "blue.web"


def test_damaged_handle_does_not_keep_the_addresses_of_others(cluster: AddressCluster, client: Client) -> None:
    damaged = cluster.assign(f"{NETWORK}.a", "gone")
    spoil(cluster.site, HandleKey(f"{NETWORK}.a"), None)
    others = [cluster.assign(f"{NETWORK}.{name}", "gone") for name in "bcd"]
    with collecting(cluster, client):
        wait_until(lambda: not any(map(cluster.holder, others)))
    assert cluster.holder(damaged) == f"{NETWORK}.a"


def test_nothing_is_released_without_a_grace_period(cluster: AddressCluster, client: Client) -> None:
    address = cluster.assign(f"{NETWORK}.c1", "gone")
    with collecting(cluster, client, grace=0.0, make=CountingAddresses) as made:
        part = made.part
        assert isinstance(part, CountingAddresses)
        wait_until(lambda: len(part._candidates) == 1)
        looks = part.looks
        part.begin_round()
        wait_until(lambda: part.looks > looks)
        assert part.waiting == 0
        numbers = {(name, labels): value for name, labels, value in part.families()}
        assert numbers["ipam_allocations_gc_candidates", (("ippool", "pool4"), ("node", "node1"))] == 1
    assert cluster.holder(address)


# what must hold before a release


def seen(made: Running) -> bool:
    return len(made.part._candidates) > 0  # type: ignore[attr-defined]


def test_lock_delays_the_release(cluster: AddressCluster, client: Client) -> None:
    address = cluster.assign(f"{NETWORK}.c1", "gone")
    set_ready(cluster.store, ready=False)
    with collecting(cluster, client) as made:
        wait_until(lambda: made.part.waiting == 1)
        assert cluster.holder(address)
        set_ready(cluster.store)
        wait_until(lambda: not cluster.holder(address))


def test_process_that_does_not_lead_releases_nothing(cluster: AddressCluster, client: Client) -> None:
    address = cluster.assign(f"{NETWORK}.c1", "gone")
    with collecting(cluster, client, leads=False) as made:
        wait_until(lambda: made.part.is_ready)
        assert not seen(made)
        assert cluster.holder(address)
        made.lead()
        wait_until(lambda: not cluster.holder(address))


def test_pod_that_cannot_be_read_keeps_its_address(cluster: AddressCluster, client: Client, proxy: ApiProxy) -> None:
    """Only an answer NotFound for the pod itself shows that it does not exist."""
    address = cluster.assign(f"{NETWORK}.c1", "gone")
    order = Order(Fate.ANSWERED, f"GET {PODS_OF_NOW}gone", times=1000, status=404)
    proxy.arm(order)
    with collecting(cluster, client):
        wait_until(lambda: order.times < 1000)
        assert cluster.holder(address)
        order.times = 0
        wait_until(lambda: not cluster.holder(address))


def test_pod_that_the_table_does_not_show_keeps_its_address(cluster: AddressCluster, client: Client) -> None:
    """The live read finds the pod of which the watch has not told yet."""
    cluster.add_pod("web")
    address = cluster.assign(f"{NETWORK}.c1", "web")
    with collecting(cluster, client) as made:
        table = made.shared.tables.pods
        wait_until(lambda: table.is_filled)
        table._note("default/web", None)
        wait_until(lambda: seen(made))
        wait_until(lambda: not seen(made))
    assert cluster.holder(address)


def test_node_that_differs_from_the_table_keeps_its_addresses(cluster: AddressCluster, client: Client) -> None:
    """The live read finds the node of which the watch has not told yet."""
    with collecting(cluster, client) as made:
        table = made.shared.tables.kube_nodes
        wait_until(lambda: made.part.is_ready)
        row = table.get("node1")
        table._note("node1", None)
        address = cluster.assign(f"{NETWORK}.c1", "gone")
        for _ in range(3):
            wait_until(lambda: seen(made))
            wait_until(lambda: not seen(made))
        assert cluster.holder(address)
        table._note("node1", row)
        wait_until(lambda: not cluster.holder(address))


def test_node_without_a_node_of_kubernetes_waits_for_its_claim(
    cluster: AddressCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a node is gone, its tunnel stays, and the grace period applies to its pods."""
    monkeypatch.setattr("svc.controllers.node.addresses.part._LOST_SECONDS", 0.02)
    cluster.add_node("node2")
    pod = cluster.assign(f"{NETWORK}.c1", "gone", "node2")
    tunnel = cluster.assign("t", node="node2", type="vxlanTunnelAddress")
    cluster.remove_node("node2")
    with collecting(cluster, client, grace=3600.0) as made:
        gone = made.part._gone  # type: ignore[attr-defined]
        wait_until(lambda: bool(gone._seen))
    assert cluster.holder(pod) == f"{NETWORK}.c1"
    assert cluster.holder(tunnel) == "t"

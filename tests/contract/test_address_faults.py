"""Faults of the API server and of the datastore beside the release of leaked addresses: nothing live is released."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from harness.address_cluster import NETWORK, AddressCluster, address_cluster, collecting
from harness.address_races import CountingAddresses
from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import Site, session, set_ready
from harness.driven_part import driven
from harness.kube import Kube
from harness.polling import wait_until
from harness.running_controller import Running
from svc.admin.release_record import record_of
from svc.controllers.configuration import Configuration
from svc.controllers.controller import Unsettled
from svc.controllers.node.addresses.part import _LONGEST_LAG, CONDITION, PRESENT, Addresses
from svc.datastore.api import Backend, Entry, StoreError, Write
from svc.datastore.orch.client import Client
from svc.model.keys import BlockKey
from svc.names import DEFAULT

pytestmark = pytest.mark.server

PODS_ONE_BY_ONE = "GET /api/v1/namespaces/default/pods/"
TABLES = "GET /api/v1/(pods|nodes)[?]"


@pytest.fixture
def cluster(site: Site, kube: Kube, fast_looks: None) -> Iterator[AddressCluster]:
    with address_cluster(site, kube) as made:
        yield made


def await_looks(made: Running, count: int = 5) -> None:
    part = made.part
    assert isinstance(part, CountingAddresses)
    looks = part.looks + count

    def has_looked() -> bool:
        part.begin_round()
        return part.looks >= looks

    wait_until(has_looked)


# half-written pods


def without_addresses(address: str) -> dict[str, Any]:
    return {"phase": "Running", "podIP": "", "podIPs": []}


def with_host_address(address: str) -> dict[str, Any]:
    return {"phase": "Running", "hostIP": "192.168.0.1"}


def with_containers_without_id(address: str) -> dict[str, Any]:
    state = {"name": "c", "ready": False, "restartCount": 0, "image": "x", "imageID": "", "state": {"waiting": {}}}
    return {"phase": "Pending", "hostIP": "192.168.0.1", "containerStatuses": [state]}


def with_another_address(address: str) -> dict[str, Any]:
    return {"phase": "Running", "podIP": "10.65.9.9", "podIPs": [{"ip": "10.65.9.9"}]}


def of_an_unknown_phase(address: str) -> dict[str, Any]:
    return {"phase": "Unknown", "reason": "NodeLost"}


STATUSES: tuple[Callable[[str], dict[str, Any]], ...] = (
    without_addresses,
    with_host_address,
    with_containers_without_id,
    with_another_address,
    of_an_unknown_phase,
)


def test_half_written_status_keeps_the_address(cluster: AddressCluster, client: Client) -> None:
    """Also of a pod whose endpoint is not written yet, and also when the status had the address before."""
    kept = {}
    for number, status in enumerate(STATUSES):
        for has_endpoint in (True, False):
            pod, container = f"web{number}{has_endpoint}".lower(), f"c{number}{has_endpoint}"
            cluster.add_pod(pod)
            if has_endpoint:
                address = cluster.attach(pod, container)
                cluster.set_status(pod, phase="Running", podIP=address, podIPs=[{"ip": address}])
            else:
                address = cluster.assign(f"{NETWORK}.{container}", pod)
            cluster.set_status(pod, **status(address))
            kept[address] = f"{NETWORK}.{container}"
    leaked = cluster.assign(f"{NETWORK}.leaked", "gone")
    with collecting(cluster, client, make=CountingAddresses) as made:
        wait_until(lambda: not cluster.holder(leaked))
        await_looks(made)
    assert {address: cluster.holder(address) for address in kept} == kept


def test_node_that_is_created_again_keeps_the_addresses_of_its_pods(
    cluster: AddressCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods were candidates while it was away. It has another UID, and perhaps another pod of the same name."""
    monkeypatch.setattr("svc.controllers.gone_nodes.QUIET_SECONDS", 3600.0)
    monkeypatch.setattr("svc.controllers.node.addresses.part._LOST_SECONDS", 0.02)
    cluster.add_node("node2")
    cluster.add_pod("web", "node2")
    cluster.add_pod("next", "node2")
    kept = [cluster.attach("web", "c1", "node2"), cluster.attach("next", "c2", "node2")]
    former = cluster.attach("next", "c0", "node2")
    with collecting(cluster, client, grace=1.0, make=CountingAddresses) as made:
        wait_until(lambda: made.part.is_ready)
        cluster.remove_pod("web")
        cluster.remove_pod("next")
        cluster.remove_node("node2")
        wait_until(lambda: len(made.part._candidates) == 3)  # type: ignore[attr-defined]
        cluster.kube.call("POST", "/api/v1/nodes", {"metadata": {"name": "node2"}})
        cluster.add_pod("web", "node2")
        cluster.add_pod("next", "node2")
        cluster.write_endpoint("next", "c2", kept[1], node="node2")
        await_looks(made)
        leaked = cluster.assign(f"{NETWORK}.leaked", "gone")
        wait_until(lambda: not cluster.holder(leaked))
        assert [cluster.holder(address) for address in kept] == [f"{NETWORK}.c1", f"{NETWORK}.c2"]
        assert cluster.holder(former) in ("", f"{NETWORK}.c0")


# the API server


def test_watches_that_are_too_old_begin_again(cluster: AddressCluster, client: Client, proxy: ApiProxy) -> None:
    cluster.add_pod("web")
    live = cluster.attach("web", "c1")
    with collecting(cluster, client) as made:
        wait_until(lambda: made.part.is_ready)
        proxy.arm(order := Order(Fate.ANSWERED, f"{TABLES}.*watch=", times=6, status=410))
        proxy.hang_up()
        cluster.add_pod("other")
        other = cluster.attach("other", "c2")
        cluster.remove_pod("other")
        wait_until(lambda: order.times < 6)
        order.times = 0
        wait_until(lambda: not cluster.holder(other))
        assert cluster.holder(live) == f"{NETWORK}.c1"


def test_busy_server_is_asked_again_after_the_time_that_it_requests(
    cluster: AddressCluster, client: Client, proxy: ApiProxy
) -> None:
    cluster.add_pod("web")
    live = cluster.attach("web", "c1")
    leaked = cluster.assign(f"{NETWORK}.leaked", "gone")
    busy = Order(Fate.ANSWERED, PODS_ONE_BY_ONE, times=3, status=429, headers={"Retry-After": "1"})
    proxy.arm(busy)
    with collecting(cluster, client):
        wait_until(lambda: busy.times < 3)
        assert cluster.holder(leaked)
        wait_until(lambda: not cluster.holder(leaked))
        assert busy.times == 0
    assert cluster.holder(live) == f"{NETWORK}.c1"


def test_no_further_pod_is_read_after_the_end_of_the_lead(cluster: AddressCluster, client: Client, proxy: ApiProxy) -> None:
    """A server that does not answer takes some seconds for each pod, and a mass of leaks has many."""
    for number in range(6):
        cluster.assign(f"{NETWORK}.c{number}", f"gone{number}")
    proxy.arm(late := Order(Fate.LATE, PODS_ONE_BY_ONE, times=6, seconds=0.5))
    with collecting(cluster, client) as made:
        wait_until(lambda: late.times < 6)
        made.election.resign()
        wait_until(lambda: made.part._work is None)
        assert late.times >= 4


def test_table_that_is_not_current_releases_nothing(
    cluster: AddressCluster, client: Client, proxy: ApiProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers for each single pod, but neither lists nor watches. So nobody knows which pod shows an address."""
    monkeypatch.setattr("svc.controllers.node.addresses.part._LONGEST_LAG", 0.5)
    monkeypatch.setattr("svc.controllers.table.GAP_SECONDS", 0.0)
    with collecting(cluster, client, make=CountingAddresses) as made:
        wait_until(lambda: made.part.is_ready)
        proxy.arm(order := Order(Fate.ANSWERED, "GET /api/v1/pods[?]", times=1_000_000, status=403))
        proxy.hang_up()
        wait_until(lambda: made.shared.tables.pods.lag > 0.5)
        address = cluster.assign(f"{NETWORK}.c1", "gone")
        cluster.add_pod("web")
        cluster.set_status("web", phase="Running", podIP=address, podIPs=[{"ip": address}])
        leaked = cluster.assign(f"{NETWORK}.leaked", "gone")
        wait_until(lambda: len(made.part._candidates) == 2)  # type: ignore[attr-defined]
        await_looks(made, 10)
        assert cluster.holder(address)
        assert cluster.holder(leaked)
        order.times = 0
        wait_until(lambda: not cluster.holder(leaked))
        assert cluster.holder(address)


def test_look_at_tables_that_were_not_current_releases_nothing(cluster: AddressCluster, client: Client, site: Site) -> None:
    """The stream is open again before the release, and what it has missed comes later."""
    address = cluster.assign(f"{NETWORK}.c1", "gone")
    with session(site) as own, driven(client, own, Addresses, Configuration(leak_grace_seconds=1.0)) as made:
        part, pods = made.part, made.shared.tables.pods
        made.await_tables()
        assert list(part.round_items()) == [PRESENT]  # the condition is not shown yet
        made.clock.now += 1
        pods._interrupted_since = time.monotonic() - 2 * _LONGEST_LAG
        assert list(part.round_items()) == [PRESENT]
        pods._interrupted_since = None
        with pytest.raises(Unsettled, match="has been interrupted"):
            part.settle(PRESENT)
        assert cluster.holder(address)
        assert list(part.round_items()) == [PRESENT]
        part.settle(PRESENT)
        assert not cluster.holder(address)


# the lock


class Locking:
    """A session in which an administrator locks the datastore after the first block that is written."""

    update = Backend.update

    def __init__(self, inner: Backend, lock: Callable[[], None]) -> None:
        self._inner = inner
        self._lock = lock
        self.writes: list[Sequence[Write]] = []
        self.is_armed = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        done = self._inner.write(writes, durable=durable)
        self.writes.append(writes)
        if self.is_armed and any(isinstance(write.key, BlockKey) for write in writes):
            self.is_armed = False
            self._lock()
        return done


def test_lock_in_the_middle_of_a_round_ends_the_writes_until_the_unlock(
    cluster: AddressCluster, client: Client, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.controllers.node.addresses.release._MOST_WRITES", 1)  # so that each handle is a write of its own
    monkeypatch.setattr("svc.controllers.guarded_store.READY_SECONDS", 0.0)
    leaked = [cluster.assign(f"{NETWORK}.c{number}", "gone") for number in range(4)]
    with session(site) as own:
        locking = Locking(own, lambda: set_ready(cluster.store, ready=False))
        with collecting(cluster, client, store=locking, make=CountingAddresses) as made:
            wait_until(lambda: not locking.is_armed)
            wait_until(lambda: made.part.waiting == 1)  # it has failed because of the lock
            written, left = len(locking.writes), list(filter(cluster.holder, leaked))
            assert len(left) == 3
            await_looks(made)
            assert len(locking.writes) == written
            assert list(filter(cluster.holder, leaked)) == left
            set_ready(cluster.store)
            wait_until(lambda: not any(map(cluster.holder, leaked)))


class Failing:
    """A session whose next writes of blocks fail, as if the datastore did not answer."""

    update = Backend.update

    def __init__(self, inner: Backend, failures: int) -> None:
        self._inner = inner
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        if self.failures and any(isinstance(write.key, BlockKey) for write in writes):
            self.failures -= 1
            raise StoreError("the datastore does not answer")
        return self._inner.write(writes, durable=durable)


def test_releases_that_fail_are_recorded_once(cluster: AddressCluster, client: Client, site: Site) -> None:
    """Otherwise a short outage of the datastore would use up the limit, and look like a mass of leaks."""
    leaked = [cluster.assign(f"{NETWORK}.c{number}", f"gone{number}") for number in range(6)]
    with session(site) as own, collecting(cluster, client, store=(failing := Failing(own, 2))) as made:
        wait_until(lambda: not any(map(cluster.holder, leaked)))
        assert failing.failures == 0
        assert {each.reason for each in made.shared.conditions.all() if each.kind == CONDITION} == {"Running"}
    assert sum(record_of(DEFAULT, cluster.settings()).released.values()) == len(leaked)

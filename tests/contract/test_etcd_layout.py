"""Documents of Calico in a real etcd. svc reads them, assigns addresses from them, and writes them back unchanged."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.etcd import Cluster, cluster
from harness.ipam import free, holdings, take
from svc._core.cidr import Address, Cidr
from svc.admin.block_release import remove_host
from svc.datastore.api import Conflict, Create, Update
from svc.datastore.etcd.store import EtcdStore
from svc.ipam.service import IpamService
from svc.model.ipam import Handle
from svc.model.keys import AffinityQuery, BlockQuery, HandleKey, HandleQuery, Query, ResourceQuery
from svc.names import Names

pytestmark = pytest.mark.server

CALICO = Names(key_root="/calico", api_version="projectcalico.org/v3")
STATES = sorted((Path(__file__).parents[1] / "unit" / "fixtures").glob("etcd-*.jsonl"))
KINDS = ("ClusterInformation", "IPPool", "IPReservation", "Node", "Profile", "WorkloadEndpoint")
COUNT = Handle({"10.65.0.0/26": 1})
QUERIES: list[Query] = [BlockQuery(), AffinityQuery(), HandleQuery(), *map(ResourceQuery, KINDS)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture(params=STATES, ids=[path.stem for path in STATES])
def state(request: pytest.FixtureRequest, server: Cluster) -> dict[str, str]:
    """Put the documents of a captured state into etcd with its own tool, and return them by key."""
    server.erase("/")
    items = [json.loads(line) for line in request.param.read_text().splitlines()[1:]]
    for item in items:
        server.put(item["key"], item["value"])
    return {item["key"]: item["value"] for item in items}


@pytest.fixture
def store(server: Cluster) -> Iterator[EtcdStore]:
    with closing(EtcdStore({"kind": "etcdv3", "etcd_endpoints": server.endpoints}, CALICO)) as opened:
        yield opened


def raw(server: Cluster) -> dict[str, str]:
    return server.texts("/")


def test_everything_is_read_and_written_back(state: dict[str, str], server: Cluster, store: EtcdStore) -> None:
    """The documents are equal byte for byte."""
    entries = [entry for query in QUERIES for entry in store.list(query)]
    assert len(entries) == len(state)
    store.write([Update(entry.key, entry.value, entry.revision) for entry in entries])
    assert raw(server) == state


def test_addresses_can_be_assigned_and_released(state: dict[str, str], server: Cluster, store: EtcdStore) -> None:
    """svc assigns free addresses of the captured blocks, in both families. Release restores the captured allocations."""
    held = holdings(store)
    ipam = IpamService(store, "node1")
    got = take(ipam, "net1.c9", versions=(4, 6))
    assert [Address(address) in Cidr(pool) for address, pool in zip(got, ("10.77.0.0/24", "fd77::/112"), strict=True)] == [
        True
    ] * 2
    assert holdings(store) == held | {"net1.c9": frozenset(map(Address, got))}
    added = raw(server).keys() - state.keys()
    assert "/calico/ipam/v2/handle/net1.c9" in added
    assert all(key.startswith("/calico/ipam/v2/") for key in added)
    free(ipam, "net1.c9")
    assert holdings(store) == held


def test_removal_of_a_host_deletes_its_legacy_key(state: dict[str, str], server: Cluster, store: EtcdStore) -> None:
    """Old programs stored this key. The key of a host whose name begins with the same text stays."""
    for host in ("node1", "node10"):
        server.put(f"/calico/ipam/v2/host/{host}", "{}")
    remove_host(store, "node1")
    assert [key for key in raw(server) if key.startswith("/calico/ipam/v2/host/")] == ["/calico/ipam/v2/host/node10"]
    remove_host(store, "node1")


def test_conflict_has_the_current_entries_of_all_keys(server: Cluster, store: EtcdStore) -> None:
    """It has the existing entries of the whole transaction, so that a retry need not read them."""
    server.erase("/")
    first, second, absent = (HandleKey(name) for name in ("a", "b", "c"))
    made = store.write([Create(first, COUNT), Create(second, COUNT)])
    with pytest.raises(Conflict) as caught:
        store.write([Create(absent, COUNT), Create(first, COUNT), Update(second, COUNT, "1")])
    assert caught.value.observed == made

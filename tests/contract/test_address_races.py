"""No live address is released in races of the controllers with nodes, on each datastore beside a real API server.

This runs as many on each datastore, and prints the figures:

    SVC_RACES=10000 pytest -n 0 -s -o faulthandler_timeout=0 tests/contract/test_address_races.py
"""

import random
import time
from collections.abc import Iterator

import pytest

from harness.address_cluster import AddressCluster, address_cluster, collecting
from harness.address_races import GRACE, KINDS, NODES, RACES, CountingAddresses, run_races
from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import Site
from harness.ipam import put_settings
from harness.kube import Kube
from svc.datastore.orch.client import Client

pytestmark = pytest.mark.server


@pytest.fixture
def cluster(site: Site, kube: Kube, fast_looks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddressCluster]:
    monkeypatch.setattr("svc.admin.release_record.LEAST", 1_000_000)  # no limit of releases
    with address_cluster(site, kube) as made:
        made.add_node(NODES[1])
        put_settings(made.store, max_blocks_per_host=1000)  # more than the threads need before their leaks are released
        yield made


def test_no_live_address_is_released(cluster: AddressCluster, client: Client, proxy: ApiProxy) -> None:
    """The answers to reads of every fifth pod are late."""
    proxy.arm(Order(Fate.LATE, "GET /api/v1/namespaces/default/pods/race[0-9]*[05]$", times=10**9, seconds=3 * GRACE))
    seed, began = random.randrange(10**6), time.monotonic()
    with collecting(cluster, client, grace=GRACE, make=CountingAddresses) as made:
        assert isinstance(made.part, CountingAddresses)
        lost, kinds = run_races(cluster, made.part, RACES, seed)
        released = sum(made.part.reclaimed.values())
    print(f"seed {seed}: {dict(kinds)}, {released} leaked addresses released, {time.monotonic() - began:.0f} s")
    assert lost == [], f"seed {seed}"
    assert len(kinds) == min(len(KINDS), RACES)
    assert released > 0

"""Release of leaked addresses by the controllers, on each datastore beside a real API server."""

from collections.abc import Iterator

import pytest

from harness.address_cluster import AddressCluster, address_cluster, collecting
from harness.datastores import Site
from harness.kube import Kube
from harness.polling import wait_until
from svc.datastore.orch.client import Client

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the tables as soon as they change."""
    monkeypatch.setattr("svc.controllers.addresses.part._LOOK_SECONDS", 0.02)
    monkeypatch.setattr("svc.controllers.controller._POLL_SECONDS", 0.02)


@pytest.fixture
def cluster(site: Site, kube: Kube) -> Iterator[AddressCluster]:
    with address_cluster(site, kube) as made:
        yield made


def test_address_of_a_deleted_pod_is_released(cluster: AddressCluster, client: Client) -> None:
    cluster.add_pod("web")
    cluster.add_pod("other")
    address, kept = cluster.attach("web", "c1"), cluster.attach("other", "c2")
    with collecting(cluster, client):
        cluster.remove_pod("web")
        wait_until(lambda: not cluster.holder(address))
    assert cluster.holder(kept) == "pods.c2"
    assert not cluster.has_handle("pods.c1")
    assert [name for name in cluster.endpoints() if "web" in name] == []

"""svc-controllers killed in the middle: the next process completes what was begun, and nothing is doubled or leaked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.controllers import Cluster, cluster, variables_of
from harness.datastores import Site
from harness.kube import Kube
from harness.polling import eventually
from harness.services import Services, await_served, held, store_for_services
from svc.datastore.api import Backend

pytestmark = pytest.mark.server

ASSIGN, RELEASE = "svc.ipam.service:IpamService.assign", "svc.ipam.service:IpamService.release"
STATUS = "svc.controllers.loadbalancer.service_status:ServiceStatus._write"
DATASTORES = pytest.mark.parametrize("site", ["etcdv3", "orch"], indirect=True)


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with store_for_services(site) as made:
        yield made


@pytest.fixture
def controllers(kube: Kube, site: Site, store: Backend, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(kube, tmp_path, {"ENABLED_CONTROLLERS": "loadbalancer", **variables_of(site)}) as made:
        yield made


@DATASTORES
@pytest.mark.parametrize(("point", "when"), [(ASSIGN, "before"), (ASSIGN, "after"), (STATUS, "before"), (STATUS, "after")])
def test_killed_assignment_is_completed(
    point: str, when: str, controllers: Cluster, services: Services, store: Backend
) -> None:
    services.make()
    controllers.kill_itself(point, when)
    before = held(store)
    assert len(before) == (0 if (point, when) == (ASSIGN, "before") else 1)
    controllers.start()
    (address,) = eventually(services.shown, bool)
    await_served(services, store, address)
    assert not before or held(store) == before


@DATASTORES
@pytest.mark.parametrize(("point", "when"), [(STATUS, "before"), (STATUS, "after"), (RELEASE, "before"), (RELEASE, "after")])
def test_killed_release_is_completed(point: str, when: str, controllers: Cluster, services: Services, store: Backend) -> None:
    services.make()
    process = controllers.start()
    eventually(services.shown, bool)
    assert process.terminate() == 0
    services.change(type="ClusterIP")
    controllers.kill_itself(point, when)
    if services.shown():
        assert len(held(store)) == 1  # an address that the status shows is held
    controllers.start()
    eventually(lambda: held(store), lambda found: not found)
    assert services.shown() == ()

"""The nodes, and programs that are killed or cut off."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.api_proxy import ApiProxy
from harness.controllers import cluster, variables_of
from harness.datastores import OrchSite, Site
from harness.host_endpoint_site import Hosts
from harness.kube import Kube
from harness.upgrade_faults import Killer, killing


@pytest.fixture
def hosts(orch_site: Site, kube: Kube, tmp_path: Path) -> Iterator[Hosts]:
    assert isinstance(orch_site, OrchSite)
    orch_site.clear()
    with cluster(kube, tmp_path, {"ENABLED_CONTROLLERS": "node", **variables_of(orch_site)}) as controllers:
        made = Hosts(orch_site, controllers, tmp_path)
        made.furnish()
        yield made
    kube.forget("configmaps/kube-system/svc-upgrade-", "secrets/kube-system/svc-upgrade-", "leases/kube-system/")
    kube.uproot("configmaps/kube-system/svc-upgrade")
    orch_site.clear()


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


@pytest.fixture
def proxy(kube: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(kube) as made:
        yield made

"""Fixtures of test directories whose tests run on each datastore."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.datastores import EtcdSite, OrchSite, Site, site_called
from harness.etcd import Cluster, cluster
from harness.kube import Kube
from harness.spec_rows import EVERYWHERE

ON_EACH_DATASTORE = pytest.mark.parametrize(
    "site",
    [name if name == "embedded" else pytest.param(name, marks=pytest.mark.server) for name in EVERYWHERE],
    indirect=True,
    scope="module",
)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start one etcd member for all tests of a run. A test that writes to it cleans up."""
    with cluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture(scope="session")
def etcd_site(etcd: Cluster) -> Site:
    return EtcdSite(etcd)


@pytest.fixture(scope="session")
def orch_site(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return OrchSite(kube, tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the module's nodes, which run one after the other."""
    return tmp_path_factory.mktemp("node") / "node"


@pytest.fixture(scope="module", params=["etcdv3", "orch"])
def site(request: pytest.FixtureRequest, home: Path) -> Site:
    """Return each kind of shared datastore in turn."""
    return site_called(request, home)

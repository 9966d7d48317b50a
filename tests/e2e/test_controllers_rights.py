"""svc-controllers with exactly the documented rights in the Kubernetes API: each controller works, and uses all of them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from harness import short_times
from harness.controllers import Cluster, cluster, variables_of
from harness.controllers_rights import RightsProxy, documented, granted
from harness.controllers_work import SHORT_TIMES, Work
from harness.datastores import OrchSite, Site, site_called
from harness.driven_part import World, a_world
from harness.installations import InstalledCluster, installed_cluster
from harness.kube import Kube
from harness.orch import AdministratorStore, install, wipe
from harness.services import Services
from svc.controllers.settings import CONTROLLERS, LOAD_BALANCER, NODE, OPERATOR, POLICY
from svc.datastore.api import Backend
from svc.datastore.open import open_client
from svc.names import DEFAULT

pytestmark = pytest.mark.server

PROGRAM = (sys.executable, short_times.__file__, SHORT_TIMES, "svc.controllers.main", "run")
PLAIN, BACKING = (version.partition("/")[0] for version in (DEFAULT.api_version, DEFAULT.crd_api_version))
GROUPS = {"etcdv3": "", "orch": BACKING, "plain": PLAIN}
WITH_API = [CONTROLLERS, (NODE,), (LOAD_BALANCER,), (OPERATOR,), (POLICY,)]  # the others are idle as this one is
WITH_ETCD = [CONTROLLERS, *((name,) for name in (*CONTROLLERS, OPERATOR))]
CASES = [
    pytest.param(kind, each, id=f"{kind}-{each[0] if len(each) == 1 else 'all'}")
    for kind, sets in (("etcdv3", WITH_ETCD), ("orch", WITH_API), ("plain", WITH_API))
    for each in sets
]


class PlainSite(OrchSite):
    """Custom resources in the plain group. With its names, the other group is not served."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        super().__init__(kube, folder)
        install(kube, DEFAULT, DEFAULT.api_version)
        self.names_file = folder / "names.toml"
        self.names_file.write_text('crd_api_version = "unserved.svc.internal/v1"\n')

    def open(self) -> Backend:
        return AdministratorStore(self.kube, self._folder, DEFAULT, DEFAULT.api_version)

    def clear(self) -> None:
        wipe(self.kube, DEFAULT, DEFAULT.api_version)


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, kube: Kube, home: Path) -> Site:
    if request.param == "plain":
        home.mkdir()
        return PlainSite(kube, home)
    return site_called(request, home)


@pytest.fixture
def world(site: Site, kube: Kube, tmp_path: Path) -> Iterator[World]:
    with closing(open_client({"kubeconfig": str(kube.kubeconfig(tmp_path / "admin"))})) as client:
        with a_world(site, kube, client) as made:
            yield made


@pytest.fixture
def controllers(kube: Kube, site: Site, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(kube, tmp_path, variables_of(site)) as made:
        yield made
    kube.forget("pods/default/")


@pytest.fixture
def installed(kube: Kube, world: World, tmp_path: Path) -> Iterator[InstalledCluster]:
    """Return the definition and the workloads of an Installation. Everything is deleted with the world."""
    (tmp_path / "installed").mkdir()
    with installed_cluster(kube, world.site, tmp_path / "installed") as made:
        yield made


@pytest.mark.parametrize(("site", "enabled"), CASES, indirect=["site"], scope="module")
def test_documented_rights_suffice_and_are_used(
    enabled: Sequence[str],
    site: Site,
    world: World,
    services: Services,
    controllers: Cluster,
    installed: InstalledCluster,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    group = GROUPS[request.node.callspec.params["site"]]
    active = [name for name in enabled if not group or name in (NODE, LOAD_BALANCER, OPERATOR)]
    rights = documented(active, group)
    work = Work(world, services, controllers, installed)
    work.prepare()
    if OPERATOR in active:
        work.prepare_operator()
    arguments = ["--names", str(site.names_file)] if isinstance(site, PlainSite) else []
    with granted(world.kube, rights), RightsProxy(world.kube) as proxy:
        variables = {"KUBECONFIG": str(proxy.kubeconfig(tmp_path / "plugin")), "ENABLED_CONTROLLERS": ",".join(enabled)}
        process = controllers.start(*arguments, program=PROGRAM, **variables)
        for name in ("configuration", *active):
            task: Callable[[], None] = getattr(work, name)
            task()
        assert process.terminate() == 0
    assert proxy.forbidden == []
    assert " 403 " not in process.text
    assert proxy.used == rights

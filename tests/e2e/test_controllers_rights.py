"""svc-controllers with exactly the documented rights in the Kubernetes API: each controller works, and uses all of them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from harness import short_times
from harness.controllers import Cluster, cluster
from harness.controllers_rights import RightsProxy, documented, granted
from harness.controllers_work import SHORT_TIMES, Work
from harness.datastores import EtcdSite, Site
from harness.driven_part import World, a_world
from harness.kube import Kube
from harness.services import Services, in_namespace
from svc.controllers.settings import CONTROLLERS, LOAD_BALANCER, NODE, POLICY
from svc.datastore.open import open_client
from svc.names import DEFAULT

pytestmark = pytest.mark.server

PROGRAM = (sys.executable, short_times.__file__, SHORT_TIMES, "svc.controllers.main", "run")
WITH_ETCD = [CONTROLLERS, *((name,) for name in CONTROLLERS)]
WITH_API = [CONTROLLERS, (NODE,), (LOAD_BALANCER,), (POLICY,)]  # the others are idle as this one is
CASES = [*(("etcdv3", each) for each in WITH_ETCD), *(("orch", each) for each in WITH_API)]
GROUP = DEFAULT.crd_api_version.partition("/")[0]


@pytest.fixture
def world(site: Site, kube: Kube, tmp_path: Path) -> Iterator[World]:
    with closing(open_client({"kubeconfig": str(kube.kubeconfig(tmp_path / "admin"))})) as client:
        with a_world(site, kube, client) as made:
            yield made


@pytest.fixture
def services(kube: Kube) -> Iterator[Services]:
    with in_namespace(kube) as made:
        yield made


@pytest.fixture
def controllers(kube: Kube, site: Site, tmp_path: Path) -> Iterator[Cluster]:
    own = {"ETCD_ENDPOINTS": site.running.endpoints} if isinstance(site, EtcdSite) else {"DATASTORE_TYPE": "orch"}
    with cluster(kube, tmp_path, own) as made:
        yield made
    kube.forget("pods/default/")


@pytest.mark.parametrize(("site", "enabled"), CASES, indirect=["site"])
def test_documented_rights_suffice_and_are_used(
    enabled: Sequence[str], world: World, services: Services, controllers: Cluster, kube: Kube, tmp_path: Path
) -> None:
    active = enabled if world.has_etcd else [name for name in enabled if name in (NODE, LOAD_BALANCER)]
    rights = documented(active, "" if world.has_etcd else GROUP)
    work = Work(world, services, controllers)
    work.prepare()
    with granted(kube, rights), RightsProxy(kube) as proxy:
        access = str(proxy.kubeconfig(tmp_path / "plugin"))
        process = controllers.start(program=PROGRAM, KUBECONFIG=access, ENABLED_CONTROLLERS=",".join(enabled))
        process.await_lead()
        for name in active:
            task: Callable[[], None] = getattr(work, name)
            task()
        assert process.terminate() == 0
    assert proxy.forbidden == []
    assert " 403 " not in process.text
    assert proxy.used == rights

"""The controller `operator` as a process: killed at each write, and while the API server restarts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.controllers import Cluster, cluster, variables_of
from harness.datastores import OrchSite, Site
from harness.installations import (
    AGENT,
    CONTROLLERS,
    FOUR,
    V4,
    V6,
    InstalledCluster,
    document,
    host_local,
    installed_cluster,
)
from harness.kube import Kube, running
from harness.polling import wait_until

pytestmark = [pytest.mark.server, pytest.mark.slow]

ENABLED = {"ENABLED_CONTROLLERS": "operator"}
_IN_RECONCILE = "svc.admin.installation_resource.reconcile"
WRITES = {
    "pool removal": "svc.admin.operator_resource:_remove",
    "pools": f"{_IN_RECONCILE}:apply_pools",
    "network list": f"{_IN_RECONCILE}:_write_config_map",
    "first workload": f"{_IN_RECONCILE}:_apply",
    "status": f"{_IN_RECONCILE}:write_status",
}


@contextmanager
def changed_cluster(kube: Kube, site: Site, folder: Path) -> Iterator[InstalledCluster]:
    """Yield a cluster with another state than the one that its resource asks for."""
    with installed_cluster(kube, site, folder) as made:
        made.make(*FOUR)
        made.call("apply", document({"ipPools": [V6]}))
        made.change(host_local({"ipPools": [V4]}))
        yield made


@contextmanager
def controllers_of(kube: Kube, site: Site, folder: Path) -> Iterator[Cluster]:
    (folder / "controllers").mkdir()
    with cluster(kube, folder / "controllers", variables_of(site)) as made:
        yield made


@pytest.fixture
def installed(kube: Kube, site: Site, tmp_path: Path) -> Iterator[InstalledCluster]:
    with changed_cluster(kube, site, tmp_path) as made:
        yield made


@pytest.fixture
def controllers(kube: Kube, site: Site, tmp_path: Path) -> Iterator[Cluster]:
    with controllers_of(kube, site, tmp_path) as made:
        yield made


def await_complete(installed: InstalledCluster) -> None:
    wait_until(lambda: [spec["cidr"] for spec in installed.pools().values()] == [V4["cidr"]])
    wait_until(lambda: all(installed.environment(each).get("USE_POD_CIDR") == "true" for each in FOUR))
    wait_until(lambda: installed.network()["ipam"]["type"] == "host-local")
    installed.await_ready(AGENT, CONTROLLERS)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.long), "after"])
@pytest.mark.parametrize("point", WRITES.values(), ids=WRITES)
def test_next_process_completes_what_a_kill_has_interrupted(
    installed: InstalledCluster, controllers: Cluster, point: str, when: str
) -> None:
    controllers.kill_itself(point, when, **ENABLED)
    process = controllers.start(**ENABLED)
    await_complete(installed)
    assert process.terminate() == 0


@pytest.mark.parametrize("store", ["etcdv3", "orch"])
def test_restart_of_the_api_server_is_survived(tmp_path: Path, etcd_site: Site, store: str) -> None:
    """The API server is of this test alone, because it starts the server again."""
    with ExitStack() as stack:
        kube = stack.enter_context(running(tmp_path))
        site = etcd_site if store == "etcdv3" else OrchSite(kube, tmp_path)
        installed = stack.enter_context(changed_cluster(kube, site, tmp_path))
        process = stack.enter_context(controllers_of(kube, site, tmp_path)).start(**ENABLED)
        await_complete(installed)
        kube.stop_server()
        kube.start_server()
        installed.change(document({"ipPools": [V6]}))
        wait_until(lambda: all("USE_POD_CIDR" not in installed.environment(each) for each in FOUR))
        wait_until(lambda: [spec["cidr"] for spec in installed.pools().values()] == [V6["cidr"]])
        assert process.terminate() == 0


def test_definition_may_come_after_the_process(installed: InstalledCluster, controllers: Cluster, kube: Kube) -> None:
    """Without it, the process is healthy and changes nothing."""
    installed.uninstall()
    process = controllers.start(**ENABLED)
    process.await_lead()
    installed.install()
    installed.create(host_local({"ipPools": [V4, V6]}))
    wait_until(lambda: len(installed.pools()) == 2)
    assert process.terminate() == 0

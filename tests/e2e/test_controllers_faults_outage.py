"""svc-controllers while a server is away for long, and without the right to watch: nothing live is released, work goes on."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.address_cluster import NETWORK, AddressCluster, address_cluster
from harness.audit import IpamAudit
from harness.controllers import Cluster, Process, cluster, variables_of
from harness.datastores import EtcdSite, OrchSite, Site
from harness.etcd import Cluster as Etcd
from harness.etcd import cluster as run_etcd
from harness.kube import Kube, running
from harness.leftovers import HANDLE_OF_LIVE, PATIENCE, add_pools_of_services, contradictions, prepare
from harness.orch import RBAC
from harness.polling import wait_until
from harness.services import Services, in_namespace
from svc.datastore.api import StoreError
from svc.model.keys import ResourceQuery

pytestmark = [pytest.mark.server, pytest.mark.long]

OUTAGE_SECONDS = float(os.environ.get("SVC_OUTAGE_SECONDS", "40"))
"""Longer than the Lease, than the grace period, and than the longest back-off of a watch (30 s)."""


@dataclass
class Case:
    """A cluster whose servers are of one test alone."""

    kube: Kube
    etcd: Etcd
    addresses: AddressCluster
    services: Services
    controllers: Cluster

    @property
    def live(self) -> str:
        allocations = IpamAudit.read(self.addresses.store).allocations
        (address,) = [address for address, handle in allocations.items() if handle == HANDLE_OF_LIVE]
        return address

    def leak(self, number: int) -> str:
        return self.addresses.assign(f"{NETWORK}.c{number}", f"gone{number}")


@pytest.fixture(params=["etcdv3", "orch"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    with ExitStack() as stack:
        kube, etcd = stack.enter_context(running(tmp_path)), stack.enter_context(run_etcd(tmp_path))
        site: Site = EtcdSite(etcd) if request.param == "etcdv3" else OrchSite(kube, tmp_path)
        addresses = stack.enter_context(address_cluster(site, kube))
        prepare(addresses)
        add_pools_of_services(addresses)
        services = stack.enter_context(in_namespace(kube))
        environment = {"ENABLED_CONTROLLERS": "node,loadbalancer", "RECONCILER_PERIOD": "1s", **variables_of(site)}
        yield Case(kube, etcd, addresses, services, stack.enter_context(cluster(kube, tmp_path, environment)))


def start(case: Case, **environment: str) -> Process:
    fast = {name: value for name, value in PATIENCE.items() if not name.endswith("MAX_BACKOFF")}
    return case.controllers.start_marred({"constants": fast}, **environment)


def require_work(case: Case, process: Process, number: int) -> None:
    """Wait until a leak is released and a service is served, by the same process."""
    leaked, name = case.leak(number), f"web{number}"
    case.services.make(name)
    wait_until(lambda: not case.addresses.holder(leaked))
    wait_until(lambda: len(case.services.shown(name)) == 1)
    assert case.addresses.holder(case.live) == HANDLE_OF_LIVE
    wait_until(lambda: contradictions(case.addresses.store) == [])
    assert process.status is None


def is_served(case: Case) -> bool:
    """Return whether the datastore answers. An API server that starts serves custom resources last."""
    try:
        case.addresses.store.list(ResourceQuery("IPPool"))
    except StoreError:
        return False
    return True


def outlast(case: Case, process: Process, stop: Callable[[], None], restart: Callable[[], None]) -> None:
    require_work(case, process, 0)
    released = process.text.count(": released ")
    stop()
    time.sleep(OUTAGE_SECONDS)  # the subject of the test
    assert process.text.count(": released ") == released
    restart()
    wait_until(lambda: is_served(case))
    require_work(case, process, 1)


def test_api_server_that_was_away(case: Case) -> None:
    process = start(case)
    outlast(case, process, case.kube.stop_server, case.kube.start_server)


def test_etcd_that_was_away(case: Case) -> None:
    if not case.addresses.store.atomic:
        pytest.skip("the datastore is not etcd")
    (member,) = case.etcd.members
    outlast(case, start(case), member.kill, lambda: case.etcd.restart(member))


@pytest.fixture
def without_watch(case: Case) -> None:
    """Grant the user `plugin` all rights but `watch`."""
    verbs = ["get", "list", "create", "update", "patch", "delete"]
    role = {"kind": "ClusterRole", "name": "c-no-watch", "apiGroup": RBAC}
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": verbs}]
    user = {"kind": "User", "name": "plugin", "apiGroup": RBAC}
    root = f"/apis/{RBAC}/v1"
    case.kube.call("POST", f"{root}/clusterroles", {"metadata": {"name": "c-no-watch"}, "rules": rules})
    binding = {"metadata": {"name": "c-no-watch"}, "roleRef": role, "subjects": [user]}
    case.kube.call("POST", f"{root}/clusterrolebindings", binding)
    case.kube.await_right("plugin", "", "pods", "list", allowed=True)


def test_work_goes_on_without_the_right_to_watch(case: Case, without_watch: None, tmp_path: Path) -> None:
    process = start(case, KUBECONFIG=str(case.kube.kubeconfig(tmp_path / "plugin", "token-of-plugin")))
    process.await_lead()
    require_work(case, process, 0)
    case.addresses.add_pod("web")
    live = case.addresses.attach("web", "c9")
    require_work(case, process, 1)
    assert case.addresses.holder(live) == f"{NETWORK}.c9"
    assert "cannot watch resource" in process.text

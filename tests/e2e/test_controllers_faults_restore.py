"""svc-controllers while a real etcd, or the etcd of a real API server, gets the data of an earlier snapshot."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness.address_cluster import AddressCluster, address_cluster
from harness.controllers import Process, cluster, variables_of
from harness.datastores import EtcdSite, OrchSite, Site
from harness.etcd import Cluster as Etcd
from harness.etcd import cluster as run_etcd
from harness.ipam import put
from harness.kube import Kube, running
from harness.polling import wait_until
from harness.svcctl import Cli, cli_on
from svc.admin.release_record import SETBACK
from svc.controllers.node.addresses.part import CONDITION
from svc.model.controllers_configuration import KEY
from svc.names import DEFAULT

pytestmark = [pytest.mark.server, pytest.mark.long]

NETWORK = DEFAULT.network
_ROUND = "a full round of Addresses took"  # in the log
FAST = {"svc.controllers.node.addresses.part:_LOOK_SECONDS": 0.2}


@dataclass
class Case:
    """A cluster whose servers are of one test alone. `restored` is the server that goes back to the snapshot."""

    kube: Kube
    etcd: Etcd
    restored: Kube | Etcd
    addresses: AddressCluster
    process: Process
    cli: Cli
    snapshot: Path

    def set_grace(self, duration: str) -> None:
        settings = self.addresses.settings()
        put(self.addresses.store, KEY, replace(settings, spec={"controllers": {"node": {"leakGracePeriod": duration}}}))

    def condition(self) -> Any:
        """Return status and reason of the condition of the releases."""
        conditions = (self.addresses.settings().status or {}).get("conditions") or ()
        return next(((each["status"], each["reason"]) for each in conditions if each["type"] == CONDITION), None)

    def await_full_rounds(self) -> None:
        """Wait for three more rounds of the process."""
        self.process.await_line(_ROUND, self.process.text.count(_ROUND) + 3)

    def pass_revisions(self) -> None:
        """Let both servers have later revisions than the snapshot."""
        for number in range(30):
            self.etcd.put("/other", str(number))
            self.kube.call("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": f"other{number}"}})


@pytest.fixture(params=["etcdv3", "etcdv3, API server", "orch"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    datastore, _, other = request.param.partition(", ")
    with ExitStack() as stack:
        kube = stack.enter_context(running(tmp_path))
        etcd = stack.enter_context(run_etcd(tmp_path))
        site: Site = EtcdSite(etcd) if datastore == "etcdv3" else OrchSite(kube, tmp_path)
        restored = etcd if datastore == "etcdv3" and not other else kube
        addresses = stack.enter_context(address_cluster(site, kube))
        environment = {"ENABLED_CONTROLLERS": "node", "RECONCILER_PERIOD": "1s", **variables_of(site)}
        controllers = stack.enter_context(cluster(kube, tmp_path, environment))
        process = controllers.start_marred({"constants": FAST}, LOG_LEVEL="debug")
        cli = cli_on(site, tmp_path / "cli")
        made = Case(kube, etcd, restored, addresses, process, cli, tmp_path / "snapshot.db")
        made.set_grace("1h")
        yield made


def test_restored_server_stops_the_releases_until_the_acknowledgement(case: Case) -> None:
    cluster, process = case.addresses, case.process
    cluster.add_pod("web")
    live = cluster.attach("web", "c1")
    leaked = cluster.assign(f"{NETWORK}.c2", "gone")
    process.await_lead()
    case.restored.save(case.snapshot)
    case.pass_revisions()
    cluster.add_pod("later")
    case.set_grace("300ms")
    wait_until(lambda: not cluster.holder(leaked))  # so the process has seen the later revisions
    process.await_line(f": released {leaked} ")

    case.restored.restore(case.snapshot)
    cluster.add_pod("again")
    again = cluster.attach("again", "c4")
    more = [cluster.assign(f"{NETWORK}.c{number}", "gone") for number in (5, 6)]
    case.set_grace("300ms")
    wait_until(lambda: case.condition() == ("False", SETBACK))
    case.await_full_rounds()
    assert process.text.count(": released ") == 1
    assert all(map(cluster.holder, more))

    assert "is acknowledged" in case.cli.changes("ipam", "release", "--acknowledge", "--yes")
    wait_until(lambda: not any(map(cluster.holder, [leaked, *more])))  # the tables follow the restored server
    wait_until(lambda: case.condition() == ("True", "Running"))
    assert cluster.holder(live) == f"{NETWORK}.c1"
    assert cluster.holder(again) == f"{NETWORK}.c4"
    assert process.status is None

"""Two processes of svc-controllers, of which the one that was paused writes nothing more, for each part of the controllers."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.address_cluster import AddressCluster, address_cluster
from harness.controllers import LEASE, Cluster, Process, cluster, variables_of
from harness.datastores import Site
from harness.kube import Kube
from harness.leftovers import (
    HANDLE_OF_LIVE,
    PATIENCE,
    add_pools_of_services,
    contents,
    contradictions,
    idle_blocks,
    leaked_addresses,
    lost_node,
    prepare,
)
from harness.marred_program import PAUSED
from harness.polling import wait_until
from harness.services import Services
from harness.stopped import await_stop, stop
from svc.datastore.orch.leases import LEASES
from svc.leader.election import LEASE_SECONDS, RENEW_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.slow]

NODE, LOAD_BALANCER = "node", "loadbalancer"


@pytest.fixture
def made(site: Site, kube: Kube) -> Iterator[AddressCluster]:
    with address_cluster(site, kube) as made:
        prepare(made)
        add_pools_of_services(made)
        yield made


@pytest.fixture
def controllers(made: AddressCluster, site: Site, kube: Kube, tmp_path: Path) -> Iterator[Cluster]:
    environment = {"ENABLED_CONTROLLERS": f"{NODE},{LOAD_BALANCER}", "RECONCILER_PERIOD": "1s", **variables_of(site)}
    with cluster(kube, tmp_path, environment) as found:
        yield found


def start(controllers: Cluster, **plan: Any) -> Process:
    return controllers.start_marred({"constants": PATIENCE, **plan})


def resume(process: Process) -> None:
    os.kill(process.pid, signal.SIGCONT)


def stays(read: Callable[[], Any], expected: Any, seconds: float) -> None:
    """Check all the time that nothing changes."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert read() == expected
        time.sleep(0.2)


@pytest.mark.parametrize("name", [NODE, LOAD_BALANCER])
def test_write_that_was_begun_before_a_pause_is_not_sent_after_it(
    name: str, made: AddressCluster, controllers: Cluster, services: Services
) -> None:
    """Nobody else has written since. So only the time tells that the write must not be sent."""
    if name == NODE:
        leaked_addresses(made)
    else:
        services.make()
    leader = start(controllers, threads=[name], last=0, fate=PAUSED)
    await_stop(leader.pid)
    controllers.take_lease("another")
    time.sleep(RENEW_SECONDS + 1)  # the subject of the test
    before = contents(made.store)
    resume(leader)
    leader.await_line("does not lead any more")
    stays(lambda: (contents(made.store), services_shown(services)), (before, []), LEASE_SECONDS - 5)
    leader.await_lead(2)
    wait_until(lambda: contents(made.store) != before)
    wait_until(lambda: contradictions(made.store) == [])


def services_shown(services: Services) -> list[str]:
    found = services.kube.call("GET", "/api/v1/namespaces/c-services/services")["items"]
    return [each["ip"] for one in found for each in one["status"]["loadBalancer"].get("ingress") or ()]


def test_second_leader_does_the_work_and_the_first_one_writes_nothing_more(
    made: AddressCluster, controllers: Cluster, services: Services
) -> None:
    first = start(controllers)
    first.await_lead()
    second = start(controllers)
    second.await_line("controller node is enabled")
    stop(first.pid)
    for work in (leaked_addresses, lost_node, idle_blocks):
        work(made)
    services.make()
    second.await_lead()
    wait_until(lambda: len(services_shown(services)) == 1)
    wait_until(lambda: set(held_by(made)) == {HANDLE_OF_LIVE, services.handle()})

    stop(second.pid)  # so what is written now is of the first one
    leaked_addresses(made)
    services.make("next")
    before, length = contents(made.store), len(first.text)
    resume(first)
    first.await_line("does not lead any more")
    stays(lambda: (contents(made.store), len(services_shown(services))), (before, 1), LEASE_SECONDS - 5)
    assert "released" not in first.text[length:]
    resume(second)
    wait_until(lambda: set(held_by(made)) == {HANDLE_OF_LIVE, services.handle(), services.handle("next")})
    wait_until(lambda: contradictions(made.store) == [])
    assert len(set(services_shown(services))) == 2


def held_by(made: AddressCluster) -> list[str]:
    return list(contents(made.store)["addresses"].values())


def test_deleted_lease_ends_no_work(made: AddressCluster, controllers: Cluster, services: Services) -> None:
    """The leader makes it again. Another process waits for as long as for its expiry, and writes nothing."""
    leader = start(controllers)
    leader.await_lead()
    other = start(controllers)
    other.await_line("controller node is enabled")
    time.sleep(2.5)  # until the other process has seen who holds the Lease
    holder = controllers.kube.call("GET", LEASE)["spec"]["holderIdentity"]
    controllers.kube.call("DELETE", LEASE)
    leaked_addresses(made)
    services.make()
    wait_until(lambda: set(held_by(made)) == {HANDLE_OF_LIVE, services.handle()})
    wait_until(lambda: holder in str(controllers.kube.call("GET", LEASES)))
    assert "this process leads" not in other.text
    assert "does not lead any more" not in leader.text

"""svc-controllers killed at each of their writes: the next process completes what was begun, as an undisturbed one does.

What is stored before a write is what is stored after the one before it. So each of these states is the start of a process that
is killed before its first write, and of one that is killed after its next one, but before it has the answer.
"""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.address_cluster import AddressCluster, address_cluster
from harness.audit import IpamAudit
from harness.controllers import Cluster, Process, cluster, variables_of
from harness.datastores import EtcdSite, Site
from harness.kube import Kube
from harness.leftovers import (
    HANDLE_OF_LIVE,
    NODE_WORK,
    PATIENCE,
    contents,
    contradictions,
    host_endpoints,
    node_labels,
    prepare,
)
from harness.marred_program import KILLED, KILLED_AFTER
from harness.polling import eventually, wait_until
from harness.services import Services, in_namespace, store_for_services
from svc.datastore.api import Backend

pytestmark = [pytest.mark.server, pytest.mark.long]

Work = Callable[[AddressCluster], None]
ONLY_IN_ETCD = (node_labels,)
MOST_WRITES = 40
END_SECONDS = 1.0
QUIET_SECONDS = 4.0  # more than twice a full round


class Case:
    """The datastore, and the processes one after the other."""

    def __init__(self, site: Site, kube: Kube, folder: Path) -> None:
        self.site, self.kube, self._folder = site, kube, folder

    def environment(self, *controllers: str) -> dict[str, str]:
        return {"ENABLED_CONTROLLERS": ",".join(controllers), "RECONCILER_PERIOD": "1s", **variables_of(self.site)}

    def folder(self, name: str) -> Path:
        (self._folder / name).mkdir()
        return self._folder / name


@pytest.fixture
def case(site: Site, kube: Kube, tmp_path: Path) -> Case:
    return Case(site, kube, tmp_path)


def start(controllers: Cluster, name: str, last: int | None = None, fate: str = KILLED) -> Process:
    threads = {"threads": [name]}  # not those of the thread that keeps the configuration
    return controllers.start_marred({"constants": PATIENCE, "last": last, "fate": fate, **threads})


def was_killed(controllers: Cluster, name: str, last: int, fate: str, is_done: Callable[[], bool]) -> bool:
    """Run a process until it kills itself, or has done everything. Return whether it has killed itself."""
    process = start(controllers, name, last, fate)
    wait_until(lambda: process.status is not None or is_done())
    with suppress(subprocess.TimeoutExpired):
        process.await_end(END_SECONDS)  # the last write is followed by the kill
    if process.status is None:
        process.kill()
        return False
    assert process.status == -signal.SIGKILL, process.text
    controllers.kube.uproot("leases/kube-system/svc-controllers")  # otherwise the next process would wait for its expiry
    return True


# controller `node`


@pytest.mark.parametrize("work", NODE_WORK)
def test_killed_node_controller_is_completed(work: Work, case: Case) -> None:
    if work in ONLY_IN_ETCD and not isinstance(case.site, EtcdSite):
        pytest.skip("only etcd has Nodes of its own")
    expected = ends(work, case)
    assert was_ended(work, case, 0, KILLED, expected)
    writes = 0
    while was_ended(work, case, writes, KILLED_AFTER, expected):
        writes += 1
        assert writes < MOST_WRITES
    assert writes > 0


def ends(work: Work, case: Case) -> Any:
    """Return how an undisturbed process leaves the datastore, when nothing changes any more."""
    with ExitStack() as stack:
        made, controllers, live = furnished(stack, work, case, "undisturbed")
        found = contents(made.store)
        start(controllers, "node")
        found = eventually(lambda: contents(made.store), lambda now: now != found)
        since = time.monotonic()
        while time.monotonic() < since + QUIET_SECONDS:
            before, found = found, contents(made.store)
            since = since if found == before else time.monotonic()
            time.sleep(0.1)
        require_sound(made, live)
        return found


def was_ended(work: Work, case: Case, last: int, fate: str, expected: Any) -> bool:
    """Kill a process at a write, and let the next one complete its work. Return whether there was such a write."""
    with ExitStack() as stack:
        made, controllers, live = furnished(stack, work, case, f"{fate} {last}")
        if not was_killed(controllers, "node", last, fate, lambda: contents(made.store) == expected):
            return False
        assert made.holder(live) == HANDLE_OF_LIVE
        start(controllers, "node")
        found = eventually(lambda: contents(made.store), lambda found: found == expected)
        assert found == expected, f"{fate} {last}"
        require_sound(made, live)
        return True


def furnished(stack: ExitStack, work: Work, case: Case, name: str) -> tuple[AddressCluster, Cluster, str]:
    made = stack.enter_context(address_cluster(case.site, case.kube))
    live = prepare(made, host_endpoints=work is host_endpoints)
    work(made)
    controllers = stack.enter_context(cluster(case.kube, case.folder(name), case.environment("node")))
    return made, controllers, live


def require_sound(made: AddressCluster, live: str) -> None:
    assert contradictions(made.store) == []
    assert made.holder(live) == HANDLE_OF_LIVE


# controller `loadbalancer`, beside the one that corrects handles without an address


def give(services: Services) -> None:
    services.make(ipFamilyPolicy="PreferDualStack", ipFamilies=["IPv4", "IPv6"])


def take_back(services: Services) -> None:
    services.change(type="ClusterIP")


def exchange(services: Services) -> None:
    services.change(annotations={"loadBalancerIPs": ["10.66.0.9", "fd66::9"]})


@pytest.mark.parametrize("change", [give, take_back, exchange])
def test_killed_load_balancer_controller_is_completed(change: Callable[[Services], None], case: Case) -> None:
    assert was_served(change, case, 0, KILLED)
    writes = 0
    while was_served(change, case, writes, KILLED_AFTER):
        writes += 1
        assert writes < MOST_WRITES
    assert writes > 0


def was_served(change: Callable[[Services], None], case: Case, last: int, fate: str) -> bool:
    """Kill a process at a write after a change, and let the next one complete its work. Return whether there was one."""
    with ExitStack() as stack:
        store = stack.enter_context(store_for_services(case.site))
        services = stack.enter_context(in_namespace(case.kube))
        controllers = stack.enter_context(
            cluster(case.kube, case.folder(f"{fate} {last}"), case.environment("loadbalancer", "node"))
        )

        def is_served() -> bool:
            shown, stored = set(services.shown()), addresses_of(store)
            if contradictions(store):
                return False
            if change is take_back:
                return not shown and not stored
            wanted = stored.get(services.handle(), set())
            is_right = wanted == {"10.66.0.9", "fd66::9"} if change is exchange else len(wanted) == 2
            return is_right and shown == wanted and len(stored) == 1

        if change is not give:
            give(services)
            first = start(controllers, "loadbalancer")
            wait_until(lambda: len(services.shown()) == 2)
            assert first.terminate() == 0
        change(services)
        if not was_killed(controllers, "loadbalancer", last, fate, is_served):
            return False
        assert set(services.shown()) <= set(IpamAudit.read(store).allocations)  # what the status shows is held at any time
        start(controllers, "loadbalancer")
        wait_until(is_served)
        return True


def addresses_of(store: Backend) -> dict[str, set[str]]:
    """Return the addresses of each handle."""
    found: dict[str, set[str]] = {}
    for address, handle in IpamAudit.read(store).allocations.items():
        found.setdefault(handle, set()).add(address)
    return found

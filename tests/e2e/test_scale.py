"""svc-controllers in a cluster of 100 nodes with 3,000 pods. `make scale` measures ten times as many."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from harness.audit import IpamAudit
from harness.controllers import Process
from harness.large_cluster import LargeCluster
from harness.large_site import LargeSite, etcd_site, orch_site

pytestmark = pytest.mark.server

NODES, PODS_OF_NODE = 100, 30
GRACE_SECONDS = 5

Opened = Callable[..., AbstractContextManager[LargeSite]]


@pytest.fixture(params=[etcd_site, orch_site], ids=["etcdv3", "orch"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LargeSite]:
    opened: Opened = request.param
    with opened(tmp_path, LargeCluster(NODES, PODS_OF_NODE), RECONCILER_PERIOD="10s") as made:
        yield made


def test_large_cluster(site: LargeSite) -> None:
    """Tables are complete, a full round asks for no list, and exactly one leaked address is released."""
    leader = site.start()
    site.await_settled(leader)
    assert leader.tables()["/api/v1/pods"] == leader.tables()["handles"] == site.size.pods
    assert leader.tables()["blocks"] == leader.tables()["/api/v1/nodes"] == NODES
    assert resident_mib(leader.pid) < 200
    assert_no_lists(site, leader)
    site.leak(GRACE_SECONDS)
    books = IpamAudit.read(site.store)
    assert len(books.allocations) == len(books.handles) == site.size.pods - 1
    site.make_host_endpoints()
    site.label(NODES - 1)
    second = site.start()
    site.await_tables(second, leader)
    assert leader.terminate() == 0
    second.await_lead()


def assert_no_lists(site: LargeSite, leader: Process) -> None:
    lists = site.lists()
    site.await_round(leader, leader.rounds())
    assert not site.lists() - lists


def resident_mib(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024

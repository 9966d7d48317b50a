"""The agent's jobs that restore lost allocations and lost rows, each run by the test."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.fault_injection import Kind
from harness.inprocess import Host
from harness.ipam import IPAM_QUERIES, free, wipe
from harness.node import netconf
from svc.agent.missing_rows import MissingRows
from svc.agent.queue import Job
from svc.agent.restoring import Restoring
from svc.attach.request import Sandbox
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.endpoint import KIND
from svc.model.keys import ResourceQuery
from svc.netconf.installed import FILE_NAME, Installed, add_installed

pytestmark = pytest.mark.root

Look = Callable[[], int]


def look_with(jobs: list[Job], look: Callable[[], None]) -> Look:
    """Return a function that looks once and runs all jobs. It returns how many there were."""

    def run() -> int:
        look()
        count = 0
        while jobs:
            job = jobs.pop(0)
            job.run(job)
            count += 1
        return count

    return run


@pytest.fixture
def verify(host: Host) -> Look:
    """Return a function that verifies all attachments, as after an ADD that has found a lost address."""
    jobs: list[Job] = []
    run = look_with(jobs, Restoring(host.context, jobs.append).look)

    def suspect() -> int:
        host.context.suspects_loss = True
        return run()

    return suspect


@pytest.fixture
def restore_rows(host: Host, tmp_path: Path) -> Look:
    """Return a function that searches for missing rows of an installed network."""
    path = tmp_path / "net.conflist"
    path.write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [netconf(nodename="node1")]}))
    add_installed(tmp_path, Installed("", "/usr/lib/cni", (), str(path)))
    jobs: list[Job] = []
    return look_with(jobs, MissingRows(host.context, jobs.append, tmp_path).look)


def lose_rows(host: Host) -> None:
    with closing(sqlite3.connect(host.directory / "journal.db")) as journal:
        journal.execute("DELETE FROM attachments")
        journal.commit()


def test_lost_allocations_are_claimed_again(host: Host, sandbox: Sandbox, verify: Look) -> None:
    """One job verifies the datastore, and each attachment that lost addresses has another."""
    assert verify() == 0
    host.add(sandbox)
    assert verify() == 1
    wipe(host.store, *IPAM_QUERIES, ResourceQuery(KIND))
    assert verify() == 2
    assert host.audit().disagreements(host.links()) == []


def test_outage_is_reported_once(host: Host, sandbox: Sandbox, verify: Look, caplog: pytest.LogCaptureFixture) -> None:
    host.add(sandbox)
    wipe(host.store, *IPAM_QUERIES)
    host.faults.arm(Kind.OUTAGE)
    for _ in range(3):
        assert verify() == 1
    assert caplog.text.count("it is not known whether the datastore still has the attachments of this node") == 1
    host.heal()
    assert verify() == 2
    assert host.audit().disagreements(host.links()) == []


def test_claim_that_fails_is_repeated(host: Host, sandbox: Sandbox, verify: Look, caplog: pytest.LogCaptureFixture) -> None:
    host.add(sandbox)
    wipe(host.store, *IPAM_QUERIES)
    host.faults.arm(Kind.OUTAGE, 1, "write")
    for _ in range(2):
        assert verify() == 2
    assert caplog.text.count("the addresses of c1 eth0 cannot be claimed again now") == 1
    host.heal()
    assert verify() == 2
    assert host.audit().disagreements(host.links()) == []


def test_conflict_is_dropped_after_the_attachment(host: Host, sandbox: Sandbox, verify: Look) -> None:
    """Another node holds the addresses."""
    host.add(sandbox)
    (row,) = host.context.journal.all()
    wipe(host.store, *IPAM_QUERIES)
    ipam = IpamService(host.store, "node2")
    ipam.assign(Assign("net.c9", {"node": "node2"}, addresses=row.address_list()))
    verify()
    assert list(host.context.conflicts) == [row.id]
    host.delete(sandbox)
    host.add(None, container="c2")
    verify()
    assert host.context.conflicts == {}
    assert len(host.audit().allocations) == 4
    free(ipam, "net.c9")


def test_lost_rows_are_restored(host: Host, sandbox: Sandbox, restore_rows: Look, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged once, and the search is repeated."""
    result = host.add(sandbox)
    assert restore_rows() == 1
    assert restore_rows() == 0
    lose_rows(host)
    host.faults.arm(Kind.OUTAGE)
    for _ in range(3):
        assert restore_rows() == 1
    assert caplog.text.count("rows of the journal cannot be restored now") == 1
    host.heal()
    assert restore_rows() == 1
    assert restore_rows() == 0
    host.check(sandbox, result)


def test_unreadable_list_of_networks_restores_nothing(host: Host, sandbox: Sandbox, restore_rows: Look, tmp_path: Path) -> None:
    host.add(sandbox)
    lose_rows(host)
    (tmp_path / FILE_NAME).write_text("{")
    assert restore_rows() == 0
    assert host.context.journal.all() == []

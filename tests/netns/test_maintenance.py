"""Pending releases are retried in rounds, one after another for each datastore."""

from collections.abc import Iterator
from queue import Empty, Queue

import pytest

from harness.fault_injection import Kind
from harness.inprocess import Host
from svc.agent import maintenance as module
from svc.agent.maintenance import Maintenance
from svc.agent.periodic import Periodic, Task
from svc.agent.queue import Job
from svc.attach.recovery import retry_release

pytestmark = pytest.mark.root

TIMEOUT_SECONDS = 20.0
PENDING = 5
PARKED: set[str] = set()  # containers with a parked call


@pytest.fixture
def jobs(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator["Queue[Job]"]:
    """Yield the queue of jobs for the agent's workers: five containers have pending releases, and rounds have no pause."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    names = [f"c{number}" for number in range(PENDING)]
    for name in names:
        host.add(None, container=name)
    host.faults.arm(Kind.OUTAGE)
    for name in names:
        host.delete(None, container=name)
    assert len(host.context.journal.pending_releases()) == PENDING
    waiting: Queue[Job] = Queue()
    maintenance = Maintenance(host.context, waiting.put, PARKED.__contains__)
    periodic = Periodic([Task("pending releases", 0.001, maintenance.retry_releases)])
    periodic.start()
    yield waiting
    maintenance.stop()
    periodic.stop()
    PARKED.clear()


def run_next(jobs: "Queue[Job]") -> None:
    job = jobs.get(timeout=TIMEOUT_SECONDS)
    with pytest.raises(Empty):
        jobs.get(timeout=0.02)  # many intervals: the next round begins only when this one has ended
    job.run(job)


def test_releases_run_one_at_a_time_while_the_datastore_fails(host: Host, jobs: "Queue[Job]") -> None:
    for _ in range(3):
        run_next(jobs)
    assert len(host.context.journal.pending_releases()) == PENDING


def test_all_releases_succeed_when_the_datastore_works_again(host: Host, jobs: "Queue[Job]") -> None:
    run_next(jobs)
    host.faults.heal()
    while host.context.journal.pending_releases():
        run_next(jobs)
    assert host.left_over() == []


def test_release_that_always_fails_does_not_delay_the_others(
    host: Host, jobs: "Queue[Job]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round has another order."""
    host.faults.heal()

    def fail_for_c0(context: object, key: object, trace: object) -> bool:
        return "c0" not in str(key) and retry_release(context, key, trace)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "retry_release", fail_for_c0)
    while len(host.context.journal.pending_releases()) > 1:
        run_next(jobs)
    assert [record.id.container_id for record in host.context.journal.pending_releases()] == ["c0"]


def test_failed_round_is_followed_by_another(host: Host, jobs: "Queue[Job]") -> None:
    """The round fails because the journal cannot be read."""
    run_next(jobs)
    host.journal_faults.arm(Kind.REFUSED, 1, "read")
    while not host.journal_faults.struck:
        run_next(jobs)
    host.heal()
    run_next(jobs)


def test_container_with_a_parked_call_does_not_delay_the_others(host: Host, jobs: "Queue[Job]") -> None:
    """Its own pending release is retried in a later round."""
    PARKED.add("c0")
    run_next(jobs)  # it may belong to an earlier round
    host.heal()
    while len(host.context.journal.pending_releases()) > 1:
        job = jobs.get(timeout=TIMEOUT_SECONDS)
        job.run(job)
    assert [record.id.container_id for record in host.context.journal.pending_releases()] == ["c0"]
    PARKED.clear()
    last = jobs.get(timeout=TIMEOUT_SECONDS)
    assert last.key == "c0"
    last.run(last)
    assert host.context.journal.pending_releases() == []

"""Pending releases are retried in rounds, one after another in each datastore."""

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

TIMEOUT_SECONDS = 20.0  # seconds
OWED = 5
PAUSED: set[str] = set()  # containers of which a call waits


@pytest.fixture
def jobs(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator["Queue[Job]"]:
    """The jobs for the agent's workers, with pending releases of five containers; rounds follow without a pause."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    names = [f"c{number}" for number in range(OWED)]
    for name in names:
        host.add(None, container=name)
    host.faults.arm(Kind.OUTAGE)
    for name in names:
        host.delete(None, container=name)
    assert len(host.context.journal.pending_releases()) == OWED
    waiting: Queue[Job] = Queue()
    maintenance = Maintenance(host.context, waiting.put, PAUSED.__contains__)
    periodic = Periodic([Task("pending releases", 0.001, maintenance.retry_releases)])
    periodic.start()
    yield waiting
    maintenance.stop()
    periodic.stop()
    PAUSED.clear()


def run_next(jobs: "Queue[Job]") -> None:
    job = jobs.get(timeout=TIMEOUT_SECONDS)
    with pytest.raises(Empty):
        jobs.get(timeout=0.02)  # many rounds; the next one begins when this one has ended
    job.run(job)


def test_one_at_a_time_while_the_datastore_fails(host: Host, jobs: "Queue[Job]") -> None:
    for _ in range(3):
        run_next(jobs)
    assert len(host.context.journal.pending_releases()) == OWED


def test_all_are_paid_when_it_is_back(host: Host, jobs: "Queue[Job]") -> None:
    run_next(jobs)
    host.faults.heal()
    while host.context.journal.pending_releases():
        run_next(jobs)
    assert host.left_over() == []


def test_one_that_can_never_be_paid_does_not_keep_the_others(
    host: Host, jobs: "Queue[Job]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their order is another in each round."""
    host.faults.heal()

    def pay(context: object, key: object, trace: object) -> bool:
        return "c0" not in str(key) and retry_release(context, key, trace)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "retry_release", pay)
    while len(host.context.journal.pending_releases()) > 1:
        run_next(jobs)
    assert [record.id.container_id for record in host.context.journal.pending_releases()] == ["c0"]


def test_round_that_fails_is_not_the_last(host: Host, jobs: "Queue[Job]") -> None:
    """The journal could not be read."""
    run_next(jobs)
    host.journal_faults.arm(Kind.REFUSED, 1, "read")
    while not host.journal_faults.struck:
        run_next(jobs)
    host.heal()
    run_next(jobs)


def test_container_that_waits_does_not_keep_the_others(host: Host, jobs: "Queue[Job]") -> None:
    """Its own pending release is retried in a later round."""
    PAUSED.add("c0")
    run_next(jobs)  # of a round from before, perhaps
    host.heal()
    while len(host.context.journal.pending_releases()) > 1:
        job = jobs.get(timeout=TIMEOUT_SECONDS)
        job.run(job)
    assert [record.id.container_id for record in host.context.journal.pending_releases()] == ["c0"]
    PAUSED.clear()
    last = jobs.get(timeout=TIMEOUT_SECONDS)
    assert last.key == "c0"
    last.run(last)
    assert host.context.journal.pending_releases() == []

"""Back-off of pending releases: a delay for each datastore, doubled by each failure up to a maximum."""

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from svc.agent import maintenance as module
from svc.agent.maintenance import MAX_RETRY_SECONDS, RETRY_SECONDS, Maintenance
from svc.agent.queue import Job
from svc.attach.context import Context
from svc.attach.journal import Journal
from svc.attach.record import DELETING, AttachmentId, Record

FIRST, SECOND = "/first.db", "/second.db"  # datastores
MANY_PERIODS = 100  # periods of retries


class Agent:
    """An agent that runs queued jobs at once, with its own clock. `attempts` has the times of retries by datastore."""

    def __init__(self, journal: Journal, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.failing = {FIRST, SECOND}
        self.attempts: dict[str, list[float]] = {FIRST: [], SECOND: []}
        self._journal = journal
        context = cast(Context, SimpleNamespace(journal=journal))
        self._maintenance = Maintenance(context, self._run, lambda _container: False)
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(module, "retry_release", self._retry_release)

    def add_pending_release(self, datastore: str, container: str) -> None:
        key = AttachmentId("net", container, "eth0")
        self._journal.record_pending_release(
            Record(key, DELETING, "", (0, 0), "node1", {"kind": "embedded", "file": datastore}, "", "")
        )

    def pass_periods(self, number: int) -> None:
        for _ in range(number):
            self._maintenance.retry_releases()
            self.now += RETRY_SECONDS

    def delays(self, datastore: str) -> list[float]:
        times = self.attempts[datastore]
        return [later - earlier for earlier, later in pairwise(times)]

    def _run(self, job: Job) -> None:
        job.run(job)

    def _retry_release(self, _context: object, key: AttachmentId, _trace: object) -> bool:
        record = self._journal.get(key)
        assert record is not None
        datastore = record.settings["file"]
        self.attempts[datastore].append(self.now)
        if datastore in self.failing:
            return False
        self._journal.remove(record)
        return True


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        yield Agent(journal, monkeypatch)


def test_delay_doubles_up_to_its_maximum(agent: Agent) -> None:
    agent.add_pending_release(FIRST, "c1")
    agent.pass_periods(MANY_PERIODS)
    assert agent.delays(FIRST)[:6] == [
        RETRY_SECONDS,
        2 * RETRY_SECONDS,
        4 * RETRY_SECONDS,
        8 * RETRY_SECONDS,
        *2 * [MAX_RETRY_SECONDS],
    ]
    assert agent.delays(FIRST)[-1] == MAX_RETRY_SECONDS


def test_success_resets_the_delay(agent: Agent) -> None:
    agent.add_pending_release(FIRST, "c1")
    agent.pass_periods(MANY_PERIODS)
    agent.failing.remove(FIRST)
    agent.pass_periods(MANY_PERIODS)
    agent.failing.add(FIRST)
    agent.add_pending_release(FIRST, "c2")
    agent.attempts[FIRST].clear()
    agent.pass_periods(4)
    assert agent.delays(FIRST) == [RETRY_SECONDS, 2 * RETRY_SECONDS]


def test_failing_datastore_does_not_delay_another(agent: Agent) -> None:
    agent.add_pending_release(FIRST, "c1")
    agent.pass_periods(MANY_PERIODS)
    agent.failing.remove(SECOND)
    for container in ("c2", "c3"):
        agent.add_pending_release(SECOND, container)
        now = agent.now
        agent.pass_periods(1)
        assert agent.attempts[SECOND][-1] == now


def test_failing_datastore_is_tried_once_in_each_round(agent: Agent) -> None:
    """The number of its pending releases does not matter."""
    for number in range(5):
        agent.add_pending_release(FIRST, f"c{number}")
    agent.pass_periods(1)
    assert len(agent.attempts[FIRST]) == 1

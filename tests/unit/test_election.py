"""The election of a leader, with a clock of the test: at most one process may write at any time."""

import random
from dataclasses import dataclass, field

import pytest

from svc.leader.election import LEASE_SECONDS, RENEW_SECONDS, Election, Holding, NotLeading, boot_time

TRY = 2.0  # seconds between attempts


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Lease:
    """The Lease as the API server keeps it: a write at another revision is refused."""

    content: Holding | None = None
    revision: int = 0

    def write(self, expected: Holding | None, holder: str) -> bool:
        if self.content != expected:
            return False
        self.revision += 1
        self.content = Holding(holder, LEASE_SECONDS, str(self.revision))
        return True


@dataclass
class Cluster:
    """Processes that share a clock and a Lease."""

    clock: Clock = field(default_factory=Clock)
    lease: Lease = field(default_factory=Lease)
    processes: dict[str, Election] = field(default_factory=dict)

    def add(self, name: str) -> Election:
        return self.processes.setdefault(name, Election(name, self.clock))

    def attempt(self, name: str, *, pause: float = 0.0) -> None:
        """Do what a process does in an attempt. It is paused between the read and the write."""
        election, began = self.processes[name], self.clock.now
        found = self.lease.content
        if election.observe(found):
            self.clock.now += pause
            if self.lease.write(found, name):
                election.renewed(began)

    def leaders(self) -> list[str]:
        return [name for name, election in self.processes.items() if election.leads]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.add("a")
    made.add("b")
    return made


def test_first_process_leads(cluster: Cluster) -> None:
    assert cluster.leaders() == []
    cluster.attempt("a")
    cluster.attempt("b")
    assert cluster.leaders() == ["a"]
    assert cluster.processes["a"].require() == RENEW_SECONDS
    with pytest.raises(NotLeading, match="this process does not lead"):
        cluster.processes["b"].require()


def test_leader_that_cannot_renew_stops_before_another_one_begins(cluster: Cluster) -> None:
    cluster.attempt("a")
    cluster.attempt("b")
    began = cluster.clock.now
    cluster.clock.now = began + RENEW_SECONDS - 0.1
    assert cluster.leaders() == ["a"]
    cluster.clock.now = began + RENEW_SECONDS
    assert cluster.leaders() == []
    cluster.clock.now = began + LEASE_SECONDS - 0.1
    cluster.attempt("b")
    assert cluster.leaders() == []
    cluster.clock.now = began + LEASE_SECONDS
    cluster.attempt("b")
    assert cluster.leaders() == ["b"]


def test_renewal_counts_from_its_begin(cluster: Cluster) -> None:
    """The answer may be late: another process counts from the write."""
    cluster.attempt("a", pause=RENEW_SECONDS - 1)
    assert cluster.processes["a"].require() == 1
    cluster.attempt("a", pause=RENEW_SECONDS)
    assert cluster.leaders() == []


def test_released_lease_is_free_at_once(cluster: Cluster) -> None:
    cluster.attempt("a")
    cluster.attempt("b")
    cluster.processes["a"].resign()
    assert cluster.lease.write(cluster.lease.content, "")
    cluster.attempt("b")
    assert cluster.leaders() == ["b"]
    cluster.attempt("a")
    assert cluster.leaders() == ["b"]


def test_leader_stops_if_it_sees_another_holder(cluster: Cluster) -> None:
    cluster.attempt("a")
    assert cluster.lease.write(cluster.lease.content, "b")
    cluster.attempt("a")
    assert cluster.leaders() == []


def test_deleted_lease_stays_with_its_holder(cluster: Cluster) -> None:
    """The holder may write until its next attempt, so other processes that know it wait."""
    cluster.attempt("a")
    cluster.attempt("b")
    cluster.lease.content = None
    cluster.attempt("b")
    assert cluster.lease.content is None
    cluster.attempt("a")
    assert cluster.leaders() == ["a"]
    cluster.lease.content = None
    cluster.clock.now += LEASE_SECONDS
    cluster.attempt("b")
    assert cluster.leaders() == ["b"]


def test_unchanged_lease_expires_by_the_own_clock(cluster: Cluster) -> None:
    """A process that has just started waits, however old the Lease is."""
    cluster.lease.content = Holding("gone", LEASE_SECONDS, "7")
    cluster.attempt("a")
    cluster.clock.now += LEASE_SECONDS - 1
    cluster.attempt("a")
    assert cluster.leaders() == []
    cluster.clock.now += 1
    cluster.attempt("a")
    assert cluster.leaders() == ["a"]


def test_clock_runs_on_while_the_machine_is_suspended() -> None:
    assert boot_time() > 0


@pytest.mark.parametrize("seed", range(50))
def test_no_two_processes_lead(seed: int) -> None:
    """Processes attempt in random order, with pauses, at random times; some are not heard of for long."""
    choose = random.Random(seed)
    cluster = Cluster()
    names = [f"p{number}" for number in range(4)]
    for name in names:
        cluster.add(name)
    led: set[str] = set()
    for _ in range(600):
        cluster.clock.now += choose.choice((0.1, TRY, TRY, RENEW_SECONDS, LEASE_SECONDS))
        pause = choose.choice((0.0, 0.0, 1.0, RENEW_SECONDS + 1))
        cluster.attempt(choose.choice(names), pause=pause)
        leaders = cluster.leaders()
        assert len(leaders) <= 1
        led.update(leaders)
    assert len(led) > 1

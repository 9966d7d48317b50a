"""Status of a node: the problems that states show, the verdict, and sources that do not answer."""

import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.journal_rows import record
from svc.admin import node_status
from svc.admin.node_status import DEGRADED, DOWN, GOOD, NOTE, NodeStatus, pool_problems, state_problems
from svc.admin.sources import Source, read_all
from svc.attach.journal import Journal
from svc.ctl.commands.status import lines_of
from svc.model.errors import CallerError, PeerError

TIMEOUT_SECONDS = 20.0
POOLS = {"place": "embedded", "pools": []}

Json = dict[str, Any]


def store(**changes: Any) -> Json:
    return {
        "place": "datastore etcdv3 (http://h:1)", "node": "n", "networks": ["net"], "is_open": True, "is_up": True,
        "is_ready": True, "held_seconds": 0.0, "checked": 1.0, "error": None, **changes,
    }  # fmt: skip


def queue(**changes: Any) -> Json:
    workers = {"threads": 8, "idle": 8, "max": 128, "seconds_since_progress": 1.0}
    return {"waiting": 0, "running": 0, "lanes": [], "workers": workers, **changes}


def state(**changes: Any) -> Json:
    healthy = {
        "agent": {"restart_reason": ""}, "queue": queue(), "running": [], "parked": [], "datastores": [store()], "tokens": [],
        "attachments": {"added": 1}, "pending_releases": [], "errors": [], "tasks": [], "failed": {},
    }  # fmt: skip
    return healthy | changes


ERROR = {"message": "no answer", "details": "see whether it runs"}
NOW = 1_790_000_000.0
WORKERS = {"threads": 128, "idle": 0, "max": 128, "seconds_since_progress": 50.0}
LANE = {"name": "ADD-remote", "store": "http://h:1", "waiting": 3, "running": 48, "oldest_seconds": 20.0}


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_status, "time", SimpleNamespace(time=lambda: NOW))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"agent": {"restart_reason": "version 2 has been installed"}}, "version 2 has been installed"),
        ({"datastores": [store(is_up=False, is_ready=None, error=ERROR)]}, "etcdv3 (http://h:1) does not answer: no answer"),
        ({"datastores": [store(is_ready=False, error=ERROR)]}, "datastore etcdv3 (http://h:1) is not ready: no answer"),
        ({"datastores": [store(error=ERROR)]}, "datastore etcdv3 (http://h:1): no answer"),
        ({"datastores": [store(held_seconds=12.0)]}, "has lost data: ADDs wait for up to 12 s"),
        ({"tokens": [{"server": "API server x", "expires": 1, "seconds_left": 120.0}]}, "API server x ends in 2 min"),
        ({"tokens": [{"server": "API server x", "expires": 1, "seconds_left": -5.0}]}, "API server x has ended"),
        ({"queue": queue(workers=WORKERS)}, "all 128 workers are occupied, and no call has begun or ended for 50 s"),
        ({"queue": queue(lanes=[LANE])}, "3 calls (ADD-remote at http://h:1) wait for a worker, the oldest for 20 s"),
        ({"errors": [{"source": "the journal", "time": NOW, **ERROR}]}, "the journal: no answer"),
        ({"tasks": [{"name": "x", "last_run": {"failure": "OSError: full"}}]}, "task 'x' failed: OSError: full"),
        ({"pending_releases": None, "failed": {"pending_releases": "locked"}}, "pending releases cannot be read: locked"),
    ],
)  # fmt: skip
def test_problem_is_found(changes: Json, text: str) -> None:
    (problem,) = state_problems(state(**changes))
    assert text in problem.text
    assert problem.level == DEGRADED
    assert problem.fix


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"datastores": [store(is_up=None, is_ready=None)]},  # not asked yet
        {"tokens": [{"server": "x", "expires": None, "seconds_left": None}]},
        {"tokens": [{"server": "x", "expires": 1, "seconds_left": 86400.0}]},
        {"errors": [{"source": "ADD of c1", "time": NOW, "request": "0a", **ERROR}]},  # may concern one pod only
        {"errors": [{"source": "ADD in network net", "time": NOW - 3600, **ERROR}]},
        {"queue": queue(lanes=[LANE | {"oldest_seconds": 1.0}])},
        {"tasks": [{"name": "x", "every_seconds": 1, "last_run": None}]},
        {"queue": None, "datastores": None, "tokens": None, "errors": None, "tasks": None, "agent": None},
    ],
)
def test_other_states_are_no_problem(changes: Json) -> None:
    assert list(state_problems(state(**changes))) == []


def test_failure_of_a_datastore_is_shown_once() -> None:
    errors = [{"source": "datastore etcdv3 (http://h:1)", "time": NOW, **ERROR}]
    assert len(list(state_problems(state(datastores=[store(is_up=False, error=ERROR)], errors=errors)))) == 1


def test_full_pool_is_a_problem() -> None:
    rows = [
        {"name": name, "capacity": capacity, "available": available}
        for name, capacity, available in (("full", 4, 0), ("near", 100, 5), ("half", 100, 50), ("empty", 0, 0))
    ]
    assert [problem.text.split()[1] for problem in pool_problems(rows)] == ["full", "near"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeStatus:
    """Return the status of a node whose sources a test sets."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.begin(record())
    node = NodeStatus(tmp_path, tmp_path / "agent.sock", lambda: POOLS)
    node.agent = Source("the agent", state)
    return node


def failing(error: Exception) -> Any:
    def read() -> Any:
        raise error

    return read


def test_verdict_is_that_of_the_worst_problem(node: NodeStatus) -> None:
    assert node.read(TIMEOUT_SECONDS)["verdict"] == GOOD
    node.datastore = Source("the datastore", failing(CallerError("several networks", details="name one")))
    found = node.read(TIMEOUT_SECONDS)
    assert (found["verdict"], [problem["level"] for problem in found["problems"]]) == (GOOD, [NOTE])
    node.datastore = Source("the datastore", failing(PeerError("no answer", details="see")))
    assert node.read(TIMEOUT_SECONDS)["verdict"] == DEGRADED
    node.agent = Source("the agent", failing(PeerError("does not run", details="start it")))
    found = node.read(TIMEOUT_SECONDS)
    assert (found["verdict"], [problem["level"] for problem in found["problems"]]) == (DOWN, [DOWN, DEGRADED])


def test_datastore_that_does_not_answer_now_is_not_called_ready(node: NodeStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent probes it every 30 s only."""
    monkeypatch.setattr("time.time", lambda: 13.0)
    for failure, text in (
        (PeerError("no answer", details="see"), "was up and ready 12 s ago: etcdv3"),
        (CallerError("several networks", details="name one"), "up, ready: etcdv3"),
    ):
        node.datastore = Source("the datastore", failing(failure))
        found = node.read(TIMEOUT_SECONDS) | {"state": state(agent=None, datastores=[store()])}
        (line,) = [each for each in lines_of(found, is_outdated=node.lacks_datastore) if each.label == "datastore"]
        assert line.text.startswith(text)


def test_journal_replaces_an_agent_that_does_not_answer(node: NodeStatus, tmp_path: Path) -> None:
    node.agent = Source("the agent", failing(PeerError("does not run", details="start it")))
    with closing(Journal(tmp_path / "journal.db")) as journal:
        (row,) = journal.all()
        journal.record_pending_release(row, "etcd does not answer")
    found = node.read(TIMEOUT_SECONDS)
    assert found["attachments"] == {"deleting": 1}
    assert [release["reason"] for release in found["pending_releases"]] == ["etcd does not answer"]
    assert "1 release is pending: etcd does not answer" in [problem["text"] for problem in found["problems"]]


def test_failure_of_the_journal_matters_only_without_an_agent(node: NodeStatus, tmp_path: Path) -> None:
    for file in tmp_path.glob("journal.db*"):
        file.unlink()
    assert node.read(TIMEOUT_SECONDS)["problems"] == []
    node.agent = Source("the agent", failing(PeerError("does not run", details="start it")))
    assert any("does not exist" in problem["text"] for problem in node.read(TIMEOUT_SECONDS)["problems"])


def test_sources_are_read_in_parallel_and_late_ones_are_named() -> None:
    gate = threading.Event()
    slow = [Source(f"slow{number}", lambda: gate.wait(TIMEOUT_SECONDS)) for number in range(3)]
    quick = Source("quick", lambda: 5)
    began = time.monotonic()
    read_all([*slow, quick], 0.2)
    assert time.monotonic() - began < 2
    assert (quick.value, quick.failure) == (5, None)
    assert [str(source.failure).split(" in ")[0] for source in slow] == [f"slow{n} has not answered" for n in range(3)]
    assert [source.is_running for source in (*slow, quick)] == [True, True, True, False]
    gate.set()


def test_source_that_still_runs_is_not_read_twice() -> None:
    """So a watch does not start more and more threads."""
    gate, begun = threading.Event(), list[int]()

    def wait() -> int:
        begun.append(1)
        gate.wait(TIMEOUT_SECONDS)
        return len(begun)

    source = Source("slow", wait)
    for _ in range(3):
        read_all([source], 0.01)
    gate.set()
    source.wait(time.monotonic() + TIMEOUT_SECONDS)
    assert (source.value, len(begun)) == (1, 1)
    read_all([source], TIMEOUT_SECONDS)
    assert (source.value, source.failure) == (2, None)


def test_exception_of_a_source_is_its_failure() -> None:
    source = Source("odd", failing(KeyError("absent")))
    read_all([source], TIMEOUT_SECONDS)
    assert str(source.failure) == "odd cannot be read: KeyError: 'absent'"

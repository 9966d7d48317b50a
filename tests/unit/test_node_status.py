"""Status of a node: the problems that states show, the verdict, and sources that do not answer."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.journal_rows import record
from svc.admin import node_status
from svc.admin.datastore_view import datastores
from svc.admin.node_status import (
    DEGRADED,
    DOWN,
    GOOD,
    NOTE,
    NodeStatus,
    Problem,
    datastore_problems,
    pool_problems,
    spool_problems,
    state_problems,
)
from svc.admin.sources import Source, read_all
from svc.attach.journal import Journal
from svc.ctl.commands import status
from svc.ctl.commands.status import lines_of
from svc.metrics.server import TextServer
from svc.model.errors import CallerError, PeerError, SvcError
from svc.netconf.installed import Installed, add_installed

TIMEOUT_SECONDS = 20.0
PLACE = "datastore etcdv3 (http://h:1)"
POOLS: dict[str, Any] = {"place": PLACE, "pools": [], "is_ready": True, "error": None}
NAMED = {"place": PLACE, "node": "named", "networks": ["net"]}

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


def problems_of(state: Json) -> list[Problem]:
    stores = [problem for store in state["datastores"] or () for problem in datastore_problems(store)]
    return stores + list(state_problems(state))


ERROR = {"message": "no answer", "details": "see whether it runs"}
NOW = 1_790_000_000.0
REPORT: Json = {"time": NOW - 85, "attachments": 2, "findings": [], "torn_down": 0, "errors": []}
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
        ({"errors": [{"source": "ADD in net", "time": NOW, "is_current": True, **ERROR}]}, "ADD in net: no answer"),
        ({"reconciliation": REPORT | {"errors": ["etcd: cut", "x"]}}, "comparison was incomplete: etcd: cut (and 1 more)"),
        ({"tasks": [{"name": "x", "last_run": {"failure": "OSError: full"}}]}, "task 'x' failed: OSError: full"),
        ({"pending_releases": None, "failed": {"pending_releases": "locked"}}, "pending releases cannot be read: locked"),
    ],
)  # fmt: skip
def test_problem_is_found(changes: Json, text: str) -> None:
    (problem,) = problems_of(state(**changes))
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
        {"errors": [{"source": "ADD in network net", "time": NOW, "is_current": False, **ERROR}]},  # STATUS would succeed
        {"queue": queue(lanes=[LANE | {"oldest_seconds": 1.0}])},
        {"tasks": [{"name": "x", "every_seconds": 1, "last_run": None}]},
        {"queue": None, "datastores": None, "tokens": None, "errors": None, "tasks": None, "agent": None},
    ],
)
def test_other_states_are_no_problem(changes: Json) -> None:
    assert problems_of(state(**changes)) == []


def test_failure_of_a_datastore_is_shown_once() -> None:
    errors = [{"source": "datastore etcdv3 (http://h:1)", "time": NOW, **ERROR}]
    assert len(problems_of(state(datastores=[store(is_up=False, error=ERROR)], errors=errors))) == 1


def pool(name: str, in_use: int, available: int, reserved: int = 0, capacity: int = 256) -> Json:
    numbers = {"capacity": capacity, "in_use": in_use, "reserved": reserved, "available": available}
    return {"name": name, "cidr": "10.65.0.0/24", **numbers}


def test_full_pool_is_a_problem() -> None:
    """Reserved addresses are not used, but they cannot be assigned."""
    rows = [
        pool("full", 256, 0), pool("near", 244, 12), pool("half", 128, 128), pool("empty", 0, 0, capacity=0),
        pool("reserved", 10, 0, 246), pool("narrow", 1, 5, 250),
    ]  # fmt: skip
    problems = list(pool_problems(rows))
    assert [problem.text.split()[1] for problem in problems] == ["full", "near", "reserved"]
    assert problems[-1].text == "pool reserved is 100 % used without its 246 reserved addresses, 0 addresses are free"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeStatus:
    """Return the status of a node whose sources a test sets."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.begin(record())
    node = NodeStatus(tmp_path, tmp_path / "agent.sock", lambda: POOLS, lambda: NAMED)
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


def test_damaged_record_of_an_executable_is_a_problem(node: NodeStatus, tmp_path: Path) -> None:
    """Calls of the runtime fail, although an agent answers."""
    add_installed(tmp_path, Installed("", str(tmp_path), (str(tmp_path / "svc"),)))
    (tmp_path / "svc.install").write_text("socket=/s\npython=/p\nstate_dir=/var/li")
    found = node.read(TIMEOUT_SECONDS)
    (problem,) = (each for each in found["problems"] if "svc.install" in each["text"])
    assert problem["text"] == f"cannot use {tmp_path}/svc.install: it is damaged: calls of the runtime fail"
    assert problem["fix"].startswith("repeat `svcctl install` with the same options")
    assert found["verdict"] != GOOD


ROUTES = {
    "state": "working", "traces": [], "problems": [], "heldDeletions": 0, "remainingRoutes": 0, "routes": 12, "conflicts": 0,
    "missing": {}, "networks": [{"network": "10.0.0.0/26"}],
}  # fmt: skip


@contextmanager
def routes_report(path: Path, report: Json) -> Iterator[None]:
    """Serve a report of svc-routes inside the block. The socket stays, as after a kill."""
    listening = socket.socket(socket.AF_UNIX)
    listening.setblocking(False)
    listening.bind(str(path))
    listening.listen()
    server = TextServer(lambda: json.dumps(report), "/routes")
    server.add(listening)
    server.start()
    try:
        yield
    finally:
        server.close()


@pytest.mark.parametrize(
    ("changes", "line", "problems"),
    [
        ({}, "working, 12 routes", []),
        (
            {"missing": {"NOT_CONNECTED": 2, "NO_NODE": 1}, "conflicts": 4, "heldDeletions": 5},
            "working, 12 routes, 3 networks without one, 4 conflicts, 5 kept that are not wanted",
            [(NOTE, "svc-routes has no route to 3 networks (2 NOT_CONNECTED, 1 NO_NODE)")],
        ),
        (
            {"state": "idle", "routes": 0, "remainingRoutes": 3, "traces": ["a device"]},
            "idle, 3 routes: a device",
            [],
        ),
        ({"problems": ["nft failed"]}, "working, 12 routes", [(DEGRADED, "svc-routes: nft failed")]),
    ],
)
def test_routes_are_shown(node: NodeStatus, tmp_path: Path, changes: Json, line: str, problems: list[tuple[str, str]]) -> None:
    """The networks themselves are not part of the status."""
    node.agent = Source("the agent", lambda: {**state(), "agent": None})
    with routes_report(tmp_path / "routes.sock", {**ROUTES, **changes}):
        assert shown(node, "routes") == [line]
        found = node.read(TIMEOUT_SECONDS)
    assert [(each["level"], each["text"]) for each in found["problems"]] == problems
    assert "networks" not in found["routes"]


def test_routes_are_absent_without_an_instance(node: NodeStatus, tmp_path: Path) -> None:
    """Also if a killed one has left its socket. One that hangs is a problem."""
    node.agent = Source("the agent", lambda: {**state(), "agent": None})
    assert shown(node, "routes") == []
    with routes_report(tmp_path / "routes.sock", ROUTES):
        pass
    assert shown(node, "routes") == []
    assert node.read(TIMEOUT_SECONDS)["verdict"] == GOOD
    (tmp_path / "routes.sock").unlink()
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(tmp_path / "routes.sock"))
        hanging.listen()
        found = node.read(0.3)
    assert found["routes"] is None
    assert any("svc-routes does not answer" in each["text"] for each in found["problems"])


def shown(node: NodeStatus, label: str) -> list[str]:
    return [line.text for line in lines_of(node.read(TIMEOUT_SECONDS)) if line.label == label]


@pytest.mark.parametrize(
    ("known", "failure", "text"),
    [
        (store(), PeerError("no answer", details="see"), "was up and ready 12 s ago: etcdv3"),
        (store(), CallerError("several networks", details="name one"), "up, ready: etcdv3"),
        (store(place="datastore embedded"), PeerError("no answer", details="see"), "up, ready: embedded"),  # another one
        (store(is_up=None, is_ready=None), PeerError("no answer", details="see"), "down: etcdv3"),
    ],
)
def test_datastore_that_does_not_answer_now_is_not_called_ready(
    node: NodeStatus, monkeypatch: pytest.MonkeyPatch, known: Json, failure: SvcError, text: str
) -> None:
    """The agent probes it every 30 s only."""
    monkeypatch.setattr("time.time", lambda: 13.0)
    node.agent = Source("the agent", lambda: state(agent=None, datastores=[known]))
    node.datastore = Source("the datastore", failing(failure))
    assert shown(node, "datastore")[0].startswith(text)


LOCKED = {"message": "the datastore is locked", "details": "unlock it"}


@pytest.mark.parametrize(
    ("known", "read", "verdict", "text"),
    [
        (store(), {"is_ready": False, "error": LOCKED}, DEGRADED, "up, not ready: etcdv3"),
        (store(is_ready=False, error=LOCKED), {"is_ready": True, "error": None}, GOOD, "up, ready: etcdv3"),
        (store(is_up=None, is_ready=None), {"is_ready": True, "error": None}, GOOD, "up, ready: etcdv3"),
        (store(), {"is_ready": None, "error": ERROR}, GOOD, "up, ready: etcdv3"),
        (store(is_up=False, is_ready=None, error=ERROR), {"is_ready": True, "error": None}, DEGRADED, "down: etcdv3"),
    ],
)
def test_readiness_that_svcctl_reads_counts(node: NodeStatus, known: Json, read: Json, verdict: str, text: str) -> None:
    """The last probe of the agent may be older. A datastore that only the agent does not reach stays down."""
    errors = [{"source": PLACE, "time": NOW, "is_current": True, **known["error"]}] if known["error"] else []
    node.agent = Source("the agent", lambda: state(agent=None, datastores=[known], errors=errors))
    node.datastore = Source("the datastore", lambda: POOLS | read)
    found = node.read(TIMEOUT_SECONDS)
    assert (found["verdict"], found["state"]["datastores"]) == (verdict, [known])
    assert shown(node, "datastore")[0].startswith(text)
    if verdict == DEGRADED:
        assert len(found["problems"]) == 1


def test_datastore_of_svcctl_is_shown_before_the_first_call(node: NodeStatus) -> None:
    node.agent = Source("the agent", lambda: state(agent=None, datastores=[]))
    assert shown(node, "datastore") == ["up, ready: etcdv3 (http://h:1), network net"]
    node.datastore = Source("the datastore", failing(PeerError("no answer", details="see")))
    assert shown(node, "datastore") == ["down: etcdv3 (http://h:1), network net"]
    assert [problem["text"] for problem in node.read(TIMEOUT_SECONDS)["problems"]] == ["no answer"]
    assert datastores([], NAMED, None, CallerError("several networks", details="name one")) == []


def test_nodes_are_those_of_networks_and_attachments(node: NodeStatus, tmp_path: Path) -> None:
    assert node.read(TIMEOUT_SECONDS)["nodes"] == sorted({"n", record().node})
    node.agent = Source("the agent", failing(PeerError("does not run", details="start it")))
    assert node.read(TIMEOUT_SECONDS)["nodes"] == [record().node]
    with closing(Journal(tmp_path / "journal.db")) as journal:
        for row in journal.all():
            journal.remove(row)
    assert node.read(TIMEOUT_SECONDS)["nodes"] == ["named"]


def test_screen_shows_incomplete_comparisons_reserved_addresses_and_ages(
    node: NodeStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    report = REPORT | {"errors": ["etcd does not answer"]}
    error = {"source": "ADD in network net", "time": NOW - 300, "is_current": False, **ERROR}
    node.agent = Source("the agent", lambda: state(agent=None, reconciliation=report, errors=[error]))
    node.datastore = Source("the datastore", lambda: POOLS | {"pools": [pool("pool4", 10, 240, 6)]})
    known = "85 s ago, findings: unknown, incomplete (etcd does not answer); last complete comparison: "
    assert shown(node, "compared") == [f"{known}none since the agent's start"]
    report["complete"] = {"time": NOW - 600, "findings": 0}
    assert shown(node, "compared") == [f"{known}0 findings 10 min ago"]
    assert shown(node, "pools") == ["pool4 10.65.0.0/24: 4 % used (10 of 256, 6 reserved)"]
    assert shown(node, "errors")[0].endswith(", 5 min ago, ADD in network net: no answer")


def test_conflict_is_shown_before_the_first_comparison(node: NodeStatus) -> None:
    conflict = {"id": "attachment-unallocated", "object": "net c1 eth0", "problem": "another has it", "fix": "recreate c1"}
    report = REPORT | {"time": None, "findings": [conflict]}
    node.agent = Source("the agent", lambda: state(agent=None, reconciliation=report))
    assert shown(node, "compared") == ["not yet, 1 findings"]
    assert shown(node, "problems") == ["attachment-unallocated: net c1 eth0: another has it: recreate c1"]


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


@pytest.mark.parametrize(("age", "seconds"), [(0.0, 0.85), (0.25, 0.6), (0.6, 0.4), (0.85, 0.4), (1.5, 1.5), (60.0, 5.0)])
def test_busy_machine_gets_more_time(age: float, seconds: float) -> None:
    """A machine that needs long to start svcctl needs as long for the agent's answer."""
    assert status._seconds(age) == pytest.approx(seconds)


def test_full_spool_and_refused_files_are_problems() -> None:
    spool = {"number": 0, "since": 0.0, "refused": 4, "refused_files": ("/s/a.refused", "/s/b.refused"), "is_full": True}
    texts = [problem.text for problem in spool_problems(spool, 1.0)]
    assert texts[0].startswith("the spool is full, with 4096 files or 64 MiB")
    assert texts[1] == "4 files of the spool cannot be used: /s/a.refused, /s/b.refused and 2 more"
    assert list(spool_problems({}, 1.0)) == []

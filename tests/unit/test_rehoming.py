"""Rows after a move of their datastore: which of them follow it, and which stay."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from svc._core.cidr import Address
from svc.agent.queue import Job
from svc.agent.rehoming import Rehoming
from svc.agent.restoring import Restoring
from svc.attach import rehoming
from svc.attach.context import Context
from svc.attach.journal import Journal
from svc.attach.network_stores import NetworkStores
from svc.attach.record import ADDED, ADDING, DELETING, AttachmentId, Record, SessionKey
from svc.attach.sessions import DatastoreSession
from svc.datastore.api import StoreError
from svc.model.endpoint import Workload
from svc.model.errors import CallerError
from svc.names import DEFAULT

NET = "", "net"
ETCD = SessionKey({"kind": "etcdv3", "etcd_endpoints": "http://127.0.0.1:1"}, "n1.etcd")
KUBE = SessionKey({"kind": "orch", "kubeconfig": "/k"}, "n1")
KUBE_RENAMED = SessionKey(KUBE.datastore, "n2")


@dataclass
class Ipam:
    """Holds the addresses of no handle."""

    avoided: list[Address] = field(default_factory=list)

    def not_held(self, held: Any) -> set[Any]:
        return set(held)

    def avoid(self, addresses: Any) -> None:
        self.avoided += addresses


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.db")
    yield journal
    journal.close()


@pytest.fixture
def context(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Return a context in which every datastore is the successor of any other one, without any endpoint."""
    monkeypatch.setattr(rehoming, "why_no_successor", lambda *_: "")
    monkeypatch.setattr(rehoming, "endpoint_matches", lambda *_: False)
    sessions: dict[SessionKey, Any] = {}

    def session(where: SessionKey) -> Any:
        made = SimpleNamespace(settings=where.datastore, node=where.node, names=DEFAULT, ipam=Ipam())
        return sessions.setdefault(where, made)

    networks = NetworkStores(journal)
    return cast(Context, SimpleNamespace(journal=journal, session=session, networks=networks, left_behind={}))


def add_row(journal: Journal, state: str, where: SessionKey = ETCD, container: str = "c1") -> Record:
    record = Record.of(AttachmentId("net", container, "eth0"), Workload(container, "", ""), where, DEFAULT, "boot")
    record.state, record.addresses = state, ["10.0.0.1"]
    journal.begin(record)
    return record


def session_of(context: Context, where: SessionKey) -> DatastoreSession:
    return context.session(where)


def with_conflicts(context: Context) -> Context:
    """Return the context with what `Restoring` needs of it in addition."""
    return cast(Context, SimpleNamespace(**vars(context), conflicts={}, suspects_loss=False))


def look(moved: Rehoming, jobs: list[Job]) -> int:
    """Look, and carry out the jobs. Return their number."""
    moved.look()
    count = len(jobs)
    while jobs:
        job = jobs.pop()
        job.run(job)
    return count


def test_row_without_its_address_stays(context: Context, journal: Journal) -> None:
    record = add_row(journal, ADDED)
    assert "does not have 10.0.0.1 under the handle net.c1" in rehoming.rehome(context, record, session_of(context, KUBE))
    assert record.session_key == ETCD


@pytest.mark.parametrize("state", [ADDING, DELETING])
def test_row_to_be_released_needs_no_address(context: Context, journal: Journal, state: str) -> None:
    """Its release may have been applied before the move, without an answer. It would be pending for ever."""
    record = add_row(journal, state)
    assert rehoming.rehome(context, record, session_of(context, KUBE)) == ""
    assert record.session_key == KUBE


def test_row_follows_for_its_deletion(context: Context, journal: Journal) -> None:
    """Without its address in the new datastore, its DEL would fail for ever."""
    record = add_row(journal, ADDED)
    assert rehoming.rehome(context, record, session_of(context, KUBE), releases=True) == ""
    found = journal.get(record.id)
    assert found is not None
    assert found.session_key == KUBE


def test_row_keeps_the_name_of_its_node_with_its_endpoint(
    context: Context, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node was renamed some time after a move: the endpoint, which a DEL has to find, has the former name."""
    record = add_row(journal, DELETING, KUBE)
    assert "former name of the node" in rehoming.rehome(context, record, session_of(context, KUBE_RENAMED))
    assert record.session_key == KUBE
    monkeypatch.setattr(rehoming, "endpoint_matches", lambda _session, row: row.node == "n2")
    assert rehoming.rehome(context, record, session_of(context, KUBE_RENAMED)) == ""
    assert record.session_key == KUBE_RENAMED


def test_row_that_stays_is_tried_again_at_intervals(
    context: Context, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with each change of the journal, which a busy node changes all the time."""
    add_row(journal, ADDED)
    context.networks.present[NET] = KUBE
    jobs: list[Job] = []
    moved = Rehoming(context, jobs.append)
    assert look(moved, jobs) == 1
    (told,) = context.left_behind.values()
    assert "does not follow its datastore" in told
    assert cast(Any, context.session(KUBE).ipam).avoided == [Address("10.0.0.1")]
    add_row(journal, ADDED, KUBE, "c2")
    assert look(moved, jobs) == 0
    assert list(context.left_behind.values()) == [told]
    monkeypatch.setattr(moved, "_retry_at", 0.0)
    assert look(moved, jobs) == 1


def test_rows_follow_although_a_names_profile_was_removed(context: Context, journal: Journal) -> None:
    """The session with a datastore of that profile cannot be closed."""

    def close_former(*_: object) -> bool:
        raise CallerError("no such profile, by the test", details="")

    cast(Any, context).close_former = close_former
    jobs: list[Job] = []
    moved = Rehoming(context, jobs.append)
    context.networks.present[NET] = ETCD
    assert look(moved, jobs) == 0
    context.networks.present[NET] = KUBE
    assert look(moved, jobs) == 0
    record = add_row(journal, DELETING)
    assert look(moved, jobs) == 1
    found = journal.get(record.id)
    assert found is not None
    assert found.session_key == KUBE
    assert look(moved, jobs) == 0


def test_renamed_node_is_not_reported_as_a_move(context: Context, journal: Journal) -> None:
    add_row(journal, ADDED, KUBE)
    context.networks.present[NET] = KUBE_RENAMED
    jobs: list[Job] = []
    assert look(Rehoming(context, jobs.append), jobs) == 1
    assert context.left_behind == {}


def test_call_by_a_former_configuration_goes_to_the_successor(
    context: Context, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated DEL has no row any more. The former datastore would refuse it for ever."""
    assert rehoming.datastore_of_call(context, "net", ETCD) == ETCD
    context.networks.note(NET, KUBE)
    assert rehoming.datastore_of_call(context, "net", ETCD) == KUBE
    assert rehoming.datastore_of_call(context, "other", ETCD) == ETCD
    assert rehoming.datastore_of_call(context, "net", KUBE_RENAMED) == KUBE_RENAMED
    context.networks.present.clear()
    assert rehoming.datastore_of_call(context, "net", ETCD) == KUBE, "an earlier process has noted it"
    monkeypatch.setattr(rehoming, "why_no_successor", lambda *_: "no datastore was moved there")
    assert rehoming.datastore_of_call(context, "net", ETCD) == ETCD

    def fails(*_: object) -> str:
        raise StoreError("no answer, by the test")

    monkeypatch.setattr(rehoming, "why_no_successor", fails)
    assert rehoming.datastore_of_call(context, "net", ETCD) == ETCD


def test_rows_that_need_not_move_are_not_decoded(context: Context, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy node has thousands of them, and its journal changes all the time."""
    for container in ("c1", "c2"):
        add_row(journal, ADDED, KUBE, container)
    context.networks.present[NET] = KUBE
    jobs: list[Job] = []
    moved, restoring = Rehoming(context, jobs.append), Restoring(with_conflicts(context), jobs.append)
    monkeypatch.setattr(journal, "_records", lambda *_: pytest.fail("rows are decoded"))
    moved.look()
    restoring.look()
    assert len(jobs) == 1  # the check of the datastore that the rows name


def test_rows_with_former_settings_are_found(context: Context, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the network whose kubeconfig was moved, and no others."""
    former, elsewhere = SessionKey({"kind": "orch", "kubeconfig": "/former"}, "n1"), AttachmentId("other", "c3", "eth0")
    add_row(journal, ADDED, former, "c1")
    add_row(journal, ADDED, KUBE, "c2")
    journal.begin(Record.of(elsewhere, Workload("c3", "", ""), former, DEFAULT, "boot"))
    context.networks.present[NET] = KUBE
    jobs: list[Job] = []
    restoring = Restoring(with_conflicts(context), jobs.append)
    restoring.look()
    assert restoring._former == {KUBE: {former: [AttachmentId("net", "c1", "eth0")]}}
    assert len(jobs) == 2

"""Calls without an agent after a loss: journal rows are missing, or allocations of live attachments."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.add_requests import netconf
from harness.blocking import run_blocking
from harness.fault_injection import Kind
from harness.inprocess import WHERE, Host, opened
from harness.ipam import IPAM_QUERIES, free, put, put_pool, wipe
from harness.netns import Netns
from harness.node import POOL4
from svc.attach.add import add
from svc.attach.check import check
from svc.attach.context import Context
from svc.attach.datastore_ready import KEY as READY
from svc.attach.delete import delete
from svc.attach.gc import collect_garbage
from svc.attach.journal import Journal
from svc.attach.moved_store import move_rows
from svc.attach.reclaim import lost, restore, without_endpoint
from svc.attach.record import ADDED, ADDING, DELETING, AttachmentId, IntentLost, Record, SessionKey
from svc.attach.recovery import Teardowns, retry_release
from svc.attach.request import AddRequest, Attachment, Sandbox
from svc.attach.restore import restore_for_call
from svc.attach.sources.own import BYPASS
from svc.call_trace import CallTrace
from svc.datastore.api import Backend, StoreError
from svc.datastore.embedded import EmbeddedStore
from svc.ipam.requests import Assign, AssignResult, Release
from svc.ipam.service import IpamService
from svc.model.endpoint import KIND, Workload
from svc.model.errors import PeerError
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource
from svc.model.result import Result
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import Profiles

pytestmark = pytest.mark.root

KEY = AttachmentId("net", "c1", "eth0")


@pytest.fixture
def other() -> Iterator[Sandbox]:
    with Netns("other") as netns, opened(netns) as sandbox:
        yield sandbox


def lose_rows(host: Host) -> None:
    with closing(sqlite3.connect(host.directory / "journal.db")) as journal:
        journal.execute("DELETE FROM attachments")
        journal.commit()


def lose_allocations(host: Host) -> None:
    wipe(host.store, *IPAM_QUERIES, ResourceQuery(KIND))


# rows


@pytest.mark.parametrize("endpoints", [True, False], ids=["endpoints", "no endpoints"])
def test_rows_are_restored_by_the_next_call(host: Host, sandbox: Sandbox, pod: Netns, endpoints: bool) -> None:
    """Without endpoints the call finds the interfaces of its sandbox by their pairs."""
    result = host.add(sandbox)
    host.add(sandbox, ifname="eth1")
    lose_rows(host)
    if not endpoints:
        wipe(host.store, ResourceQuery(KIND))
    restore_for_call(host.context, Attachment(KEY, Workload("c1"), sandbox, WHERE), host.trace)
    assert len(host.context.journal.all()) == 2
    if endpoints:
        host.check(sandbox, result)
    host.delete(sandbox)
    assert pod.links() == ["eth1"]
    host.delete(sandbox, ifname="eth1")
    assert host.left_over() == []


def test_add_after_a_loss_of_rows_has_the_same_result(host: Host, sandbox: Sandbox) -> None:
    """Another address family is not added to the existing attachment: a warning says so."""
    result = host.add(sandbox)
    assert host.add(sandbox, versions=(4,)) == result
    assert "DEL it and ADD it again for that" in "".join(host.trace.lines)
    lose_rows(host)
    host.context.journal.note_loss()
    assert host.add(sandbox) == result
    host.check(sandbox, result)
    host.delete(sandbox)
    assert host.left_over() == []


@pytest.mark.parametrize("workload", [Workload("c1"), Workload("c1", "web-0", "default")], ids=["bare", "pod"])
def test_del_without_a_row_spares_the_other_interface(
    host: Host, sandbox: Sandbox, pod: Netns, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows cannot be restored. The addresses of both interfaces have one handle."""

    def add_interface(ifname: str) -> Result:
        request = AddRequest(AttachmentId("net", "c1", ifname), workload, sandbox, WHERE, netconf((4,)))
        return run_blocking(add(host.context, request, host.trace))

    add_interface("eth0")
    (kept,) = addresses(add_interface("eth1"))
    lose_rows(host)
    monkeypatch.setattr("svc.attach.delete.restore_for_call", lambda *_: None)
    delete(host.context, Attachment(KEY, workload, sandbox, WHERE), CallTrace("test"))
    assert pod.links() == ["eth1"]
    assert list(host.audit().allocations) == [kept]


def test_del_without_a_row_keeps_the_interface_of_another_container(
    host: Host, sandbox: Sandbox, pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint names the other container."""
    host.add(sandbox)
    lose_rows(host)
    monkeypatch.setattr("svc.attach.delete.restore_for_call", lambda *_: None)
    host.delete(sandbox, container="c2")
    assert pod.links() == ["eth0"]
    assert len(host.audit().allocations) == 2


def test_del_without_a_row_releases_the_older_form_of_the_handle(host: Host) -> None:
    """An earlier release did not double the dots of the network. Addresses of other workloads stay."""
    ipam = IpamService(host.store, "node1")
    ipam.assign(Assign("a.b.c1", {"node": "node1"}))
    ipam.assign(Assign("a.b.c1", {"node": "node1", "pod": "other"}))
    workload = Workload("c1", "web-0", "default")
    delete(host.context, Attachment(AttachmentId("a.b", "c1", "eth0"), workload, None, WHERE), host.trace)
    assert "its older form" in "".join(host.trace.lines)
    assert len(host.audit().allocations) == 1


# releases


def test_outage_delays_all_other_releases_of_the_datastore(host: Host) -> None:
    """The first failure shows that the datastore is unreachable. A retry releases everything."""
    for container in ("c1", "c2"):
        host.add(None, container=container)
    rows = host.context.journal.all()
    for row in rows:
        row.state = ADDING
        host.context.journal.update(row)
    host.faults.arm(Kind.OUTAGE)
    assert host.recover() == 2
    assert [row.state for row in host.context.journal.all()] == [DELETING] * 2
    host.heal()
    assert all(retry_release(host.context, row.id, host.trace) for row in rows)
    assert retry_release(host.context, KEY, host.trace), "without a row, nothing is pending"
    assert host.left_over() == []


def test_gc_reports_attachments_that_stay(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the datastore nor the journal can be written."""

    def refuse(*_: object) -> None:
        raise StoreError("the disk is full", details="the test wants it so")

    host.add(None)
    host.add(None, container="c2")
    host.faults.arm(Kind.OUTAGE, 1, "write")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record_pending_release", refuse)
        with pytest.raises(PeerError, match="1 attachments of network 'net' could not be collected"):
            collect_garbage(host.context, "net", [("c2", "eth0")], WHERE, host.trace)
    host.heal()
    collect_garbage(host.context, "net", [], WHERE, host.trace)
    assert host.left_over() == []


def test_gc_releases_what_only_the_datastore_shows(host: Host, sandbox: Sandbox) -> None:
    """Allocations and endpoints of containers without a row, and a handle without allocations."""
    host.add(sandbox)
    host.context.remove_interface(next(iter(host.links())))
    lose_rows(host)
    IpamService(host.store, "node1").assign(Assign("net.c9", {"node": "node1"}, (4, 6)))
    IpamService(host.store, "node2").assign(Assign("net.c8", {"node": "node2"}))
    collect_garbage(host.context, "net", [], WHERE, host.trace)
    assert list(host.audit().handles) == ["net.c8"]
    assert list(host.store.list(ResourceQuery(KIND))) == []


# allocations


def addresses(result: Result) -> set[str]:
    return {ip.address.partition("/")[0] for ip in result.ips}


def test_add_claims_lost_allocations_of_live_attachments_again(host: Host, sandbox: Sandbox, other: Sandbox) -> None:
    """It would otherwise receive an address that the host routes to another container."""
    first = host.add(sandbox)
    lose_allocations(host)
    second = host.add(other, container="c2")
    assert addresses(first).isdisjoint(addresses(second))
    assert host.audit().disagreements(host.links()) == []
    host.check(sandbox, first)


def test_add_writes_lost_endpoints_of_other_sources_again(host: Host, sandbox: Sandbox, other: Sandbox) -> None:
    result = host.add(sandbox)
    (row,) = host.context.journal.all()
    BYPASS.mark(row)
    host.context.journal.update(row)
    lose_allocations(host)
    host.add(other, container="c2")
    host.check(sandbox, result)


def test_repeated_add_keeps_the_interface_after_a_loss(host: Host, sandbox: Sandbox) -> None:
    """It claims its own addresses again, and does not wait until the other attachments have done so."""
    result, links = host.add(sandbox), host.links()
    lose_allocations(host)
    session = host.context.session(WHERE)
    put(host.store, READY, Resource(READY.kind, {"name": READY.name}, {"datastoreReady": True, "clusterGUID": "fresh"}))
    session.require_ready()
    assert session.identity.is_pending
    assert host.add(sandbox).to_json() == result.to_json()
    assert host.links() == links
    host.check(sandbox, result)


def test_lost_endpoint_is_written_again_without_addresses_of_the_pools(host: Host, sandbox: Sandbox) -> None:
    """Another source has assigned the addresses, so the datastore has nothing else to claim."""
    result = host.add(sandbox)
    (row,) = host.context.journal.all()
    BYPASS.mark(row)
    host.context.journal.update(row)
    lose_allocations(host)
    session = host.context.session(WHERE)
    assert lost(host.context, session, [row]) == []
    assert without_endpoint(host.context, session, [row]) == [row]
    assert restore(host.context, KEY, host.trace)
    host.check(sandbox, result)
    assert host.audit().allocations == {}


@pytest.mark.parametrize("network", ["net", "second", "unknown"])
def test_allocation_of_an_earlier_container_is_released(host: Host, sandbox: Sandbox, network: str) -> None:
    """An older copy of the datastore has it. No row of this node tells of its container any more.

    An allocation in a network that this node does not have may be of another program.
    """
    host.context.networks.note(("", "second"), WHERE)
    host.add(sandbox)
    (row,) = host.context.journal.all()
    lose_allocations(host)
    IpamService(host.store, "node1").assign(Assign(f"{network}.c9", {"node": "node1"}, addresses=row.address_list()))
    is_known = network != "unknown"
    assert restore(host.context, KEY, host.trace) is is_known
    assert (f"{network}.c9 is released" in "".join(host.trace.lines)) is is_known
    assert (host.audit().disagreements(host.links()) == []) is is_known


def test_outdated_allocation_of_a_container_keeps_its_other_endpoints(host: Host, sandbox: Sandbox, other: Sandbox) -> None:
    """The container is attached to another network still."""
    host.context.networks.note(("", "second"), WHERE)
    host.add(sandbox)
    host.add(other, container="c9")
    (address, *_) = (row.address_list()[0] for row in host.context.journal.all() if row.id == KEY)
    host.context.session(WHERE).ipam.release(Release("net.c1"))
    IpamService(host.store, "node1").assign(Assign("second.c9", {"node": "node1"}, addresses=(address,)))
    assert restore(host.context, KEY, host.trace)
    assert host.audit().disagreements(host.links()) == []


def test_address_that_another_node_holds_is_a_conflict(host: Host, sandbox: Sandbox) -> None:
    """It is reported until the other allocation is released."""
    host.add(sandbox)
    (row,) = host.context.journal.all()
    lose_allocations(host)
    ipam = IpamService(host.store, "node2")
    ipam.assign(Assign("net.c9", {"node": "node2"}, addresses=row.address_list()))
    assert not restore(host.context, KEY, host.trace)
    assert "is held by another" in str(host.context.conflicts[KEY])
    free(ipam, "net.c9")
    assert restore(host.context, KEY, host.trace)
    assert host.context.conflicts == {}
    assert host.audit().disagreements(host.links()) == []


def test_removed_row_claims_nothing_again(host: Host, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DEL in another process has removed the row in the meantime, or long before."""
    host.add(sandbox)
    lose_allocations(host)
    assign = IpamService.assign

    def assign_after_a_del(ipam: IpamService, request: Assign) -> AssignResult:
        lose_rows(host)
        return assign(ipam, request)

    monkeypatch.setattr(IpamService, "assign", assign_after_a_del)
    with pytest.raises(IntentLost):
        restore(host.context, KEY, host.trace)
    assert host.audit().allocations == {}
    assert restore(host.context, KEY, host.trace)


# other settings for the same datastore


class Sites:
    """Two combinations of settings, each with its datastore. A combination in `down` is unreachable."""

    def __init__(self, folder: Path, *files: str) -> None:
        self.where = [SessionKey({"kind": "etcdv3", "etcd_endpoints": f"http://{place}"}, "node1") for place in "ab"]
        self.down: set[str] = set()
        self.refused = 0  # attempts to open an unreachable one
        self._files = dict(zip("ab", files, strict=True))
        self._folder = folder
        for file in set(files):
            with closing(EmbeddedStore(folder / file)) as store:
                put_pool(store, "pool4", POOL4)

    def open(self, settings: dict[str, str], _names: Names) -> Backend:
        place = settings["etcd_endpoints"][-1]
        if place in self.down:
            self.refused += 1
            raise StoreError("unreachable", details="the test wants it so")
        return EmbeddedStore(self._folder / self._files[place])


@pytest.fixture(params=["same", "different"])
def sites(request: pytest.FixtureRequest, tmp_path: Path, netns: Netns) -> Sites:
    return Sites(tmp_path, "a.db", "a.db" if request.param == "same" else "b.db")


@pytest.fixture
def context(sites: Sites, tmp_path: Path) -> Iterator[Context]:
    """Return the context of a node with an attachment in the first datastore, which both combinations have reached."""
    with closing(Context(lambda _: DEFAULT, tmp_path, sites.open)) as context:
        for where in reversed(sites.where):
            context.session(where).require_ready()
        request = AddRequest(KEY, Workload("c1"), None, sites.where[0], netconf((4,)))
        run_blocking(add(context, request, CallTrace("test")))
        yield context
        context.kernel.host().close()


def test_release_follows_the_settings_of_its_network(context: Context, sites: Sites, request: pytest.FixtureRequest) -> None:
    """The settings of the row do not reach the datastore any more. Those of the DEL must reach the same one."""
    is_same = request.node.callspec.params["sites"] == "same"
    context.sessions.close_idle(0.0)
    sites.down.add("a")
    delete(context, Attachment(KEY, Workload("c1"), None, sites.where[1]), CallTrace("test"))
    assert [record.state for record in context.journal.all()] == ([] if is_same else [DELETING])


@pytest.mark.parametrize("sites", ["same"], indirect=True)
def test_check_and_gc_follow_the_settings_of_their_network(context: Context, sites: Sites) -> None:
    (row,) = context.journal.all()
    context.sessions.close_idle(0.0)
    sites.down.add("a")
    assert row.result is not None
    check(context, KEY, None, Result.from_json(row.result), CallTrace("test"), lambda: sites.where[1])
    collect_garbage(context, "net", [], sites.where[1], CallTrace("test"))
    assert context.journal.all() == []


def add_second(context: Context, sites: Sites) -> None:
    request = AddRequest(AttachmentId("net", "c2", "eth0"), Workload("c2"), None, sites.where[0], netconf((4,)))
    run_blocking(add(context, request, CallTrace("test")))


def test_gc_asks_a_failed_datastore_once(context: Context, sites: Sites, request: pytest.FixtureRequest) -> None:
    """It may not answer, and each request waits for a timeout then."""
    is_same = request.node.callspec.params["sites"] == "same"
    add_second(context, sites)
    context.sessions.close_idle(0.0)
    sites.down.add("a")
    collect_garbage(context, "net", [], sites.where[1], CallTrace("test"))
    assert [record.state for record in context.journal.all()] == ([] if is_same else [DELETING] * 2)
    assert sites.refused == 1


@pytest.mark.parametrize("sites", ["same"], indirect=True)
def test_gc_spares_an_attachment_that_was_added_again(context: Context, sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """GC has read the row of the earlier attachment."""
    add_second(context, sites)
    tear_down = Teardowns.tear_down

    def replace_the_other(self: Teardowns, record: Record, trace: CallTrace, where: SessionKey | None = None) -> bool:
        if record.id == KEY:
            delete(context, Attachment(AttachmentId("net", "c2", "eth0"), Workload("c2"), None, sites.where[0]), trace)
            add_second(context, sites)
        return tear_down(self, record, trace, where)

    monkeypatch.setattr(Teardowns, "tear_down", replace_the_other)
    collect_garbage(context, "net", [], sites.where[0], CallTrace("test"))
    (row,) = context.journal.all()
    assert (row.id.container_id, row.state) == ("c2", ADDED)
    assert context.session(sites.where[0]).ipam.addresses_of(row.handle) == row.address_list()


def test_release_stays_in_its_datastore_without_a_stored_identity(context: Context, sites: Sites, tmp_path: Path) -> None:
    """A damaged journal has lost the identity. The row of an ADD shows that its datastore was reached."""
    context.sessions.close_idle(0.0)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as journal:
        journal.execute("DELETE FROM about WHERE name GLOB 'datastore *'")
        journal.commit()
    sites.down.add("a")
    for _ in range(2):
        delete(context, Attachment(KEY, Workload("c1"), None, sites.where[1]), CallTrace("test"))
        (row,) = context.journal.all()
        assert (row.state, row.session_key) == (DELETING, sites.where[0])


def test_row_of_a_missing_names_profile_keeps_no_session_open(context: Context, sites: Sites) -> None:
    """The file of the profile was removed. The sessions of other rows stay open."""
    add_second(context, sites)
    row, _ = context.journal.all()
    row.profile = "/missing.toml"
    context.journal.update(row)
    opened = [context.session(where) for where in sites.where]
    context.names_of = Profiles().get
    context.close_idle(0.0)
    assert [context.session(where) is session for where, session in zip(sites.where, opened, strict=True)] == [True, False]


def test_rows_move_to_other_settings_of_their_datastore(context: Context, sites: Sites, request: pytest.FixtureRequest) -> None:
    is_same = request.node.callspec.params["sites"] == "same"
    session = context.session(sites.where[1])
    assert move_rows(context, sites.where[0], [KEY], session) is is_same
    assert move_rows(context, sites.where[0], [KEY], session) is False
    (row,) = context.journal.all()
    assert row.session_key == sites.where[is_same]


@pytest.mark.parametrize("sites", ["different"], indirect=True)
def test_rows_move_to_a_copy_of_what_their_datastore_was(context: Context, sites: Sites) -> None:
    """Their datastore was wiped and initialised again since."""
    first, second = (context.session(where) for where in sites.where)
    for session, guid in ((second, first.identity.guid), (first, "fresh")):
        put(session.backend, READY, Resource(READY.kind, {"name": READY.name}, {"datastoreReady": True, "clusterGUID": guid}))
        session.require_ready()
    assert move_rows(context, sites.where[0], [KEY], second)
    (row,) = context.journal.all()
    assert row.session_key == sites.where[1]

"""Node claims: one claimant per node name. Another machine takes it over only if the claimant's counter has stopped."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from harness.datastores import set_ready
from harness.ipam import handles, holdings, put_node, put_pool
from harness.polling import wait_until
from svc.attach import node_claim
from svc.attach.datastore_ready import DatastoreReadiness, ready_checked
from svc.attach.node_claim import CopiedRow, NodeNameClaim
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, Forbidden, NotFound
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.claim import Claimant, NodeClaim
from svc.model.errors import Code, PeerError
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, NodeClaimKey, NodeFenceKey

HERE, THERE = Claimant("machine-a", "boot-a", "/var/lib/a"), Claimant("machine-b", "boot-b", "/var/lib/b")
AFTER_REBOOT = Claimant("machine-a", "boot-c", "/var/lib/a")

MakeClaim = Callable[..., NodeNameClaim]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("RENEW_SECONDS", 0.1), ("WATCH_SECONDS", 0.6), ("POLL_SECONDS", 0.1), ("WAIT_SECONDS", 5.0)):
        monkeypatch.setattr(node_claim, name, seconds)


@pytest.fixture
def claim_of(backend: Backend) -> Iterator[MakeClaim]:
    made: list[NodeNameClaim] = []

    def make(claimant: Claimant, *, renews: bool = False) -> NodeNameClaim:
        made.append(NodeNameClaim(backend, "node1", claimant, renews=renews))
        return made[-1]

    yield make
    for claim in made:
        claim.close()
        claim.join()


def stored(backend: Backend) -> NodeClaim:
    value = backend.get(NodeClaimKey("node1")).value
    assert isinstance(value, NodeClaim)
    return value


def test_all_processes_of_a_state_directory_share_a_claim(backend: Backend, claim_of: MakeClaim) -> None:
    claim_of(HERE).require()
    before = backend.get(NodeClaimKey("node1"))
    another = claim_of(HERE)
    assert another.decision() is None
    another.require()
    assert backend.get(NodeClaimKey("node1")) == before
    assert stored(backend) == NodeClaim(HERE)
    assert not another.had_recent_predecessor()


def test_live_claimant_keeps_its_name(backend: Backend, claim_of: MakeClaim) -> None:
    """The error of the newcomer names both machines.

    It continues to watch, and gets the name after the other machine has stopped.
    """
    holder, newcomer = claim_of(HERE, renews=True), claim_of(THERE)
    holder.require()
    with pytest.raises(PeerError) as unknown:
        newcomer.require()
    assert unknown.value.code == Code.TRY_AGAIN
    wait = newcomer.decision()
    assert wait is not None
    wait.join()
    with pytest.raises(PeerError) as refused:
        newcomer.require()
    assert refused.value.code == Code.NODE_CLAIMED
    assert all(
        text in str(refused.value) for text in ("node1", "machine-a", "/var/lib/a", "machine-b", "/var/lib/b", "nodename")
    )
    assert newcomer.decision() is None
    holder.close()
    holder.join()
    wait_until(lambda: stored(backend).claimant == THERE)
    wait_until(lambda: _may_assign(newcomer))
    assert newcomer.had_recent_predecessor()


def test_refused_call_asks_for_the_name_for_a_limited_time(
    backend: Backend, claim_of: MakeClaim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node name that was mistyped once must not be taken from its machine when its agent stops for a while."""
    monkeypatch.setattr(node_claim, "ASKED_SECONDS", 0.0)
    holder, mistyped = claim_of(HERE, renews=True), claim_of(THERE)
    holder.require()
    wait = mistyped.decision()
    assert wait is not None
    wait.join()
    assert not _may_assign(mistyped)
    holder.close()
    holder.join()
    time.sleep(3 * node_claim.WATCH_SECONDS)
    assert stored(backend).claimant == HERE
    assert not _may_assign(mistyped)


@pytest.mark.parametrize("newcomer", [THERE, AFTER_REBOOT], ids=["another machine", "another boot"])
def test_claim_of_a_stopped_claimant_is_taken_over(backend: Backend, claim_of: MakeClaim, newcomer: Claimant) -> None:
    claim_of(HERE).require()
    began = time.monotonic()
    claim_of(newcomer).require_decided()
    assert time.monotonic() - began >= node_claim.WATCH_SECONDS
    found = stored(backend)
    assert (found.claimant, found.predecessor) == (newcomer, HERE)
    assert abs(found.ended - time.time()) < 60


def test_rows_of_a_live_claimant_are_copies(backend: Backend, claim_of: MakeClaim) -> None:
    """A cloned machine has the rows of the original. It releases nothing, and does not wait for the name."""
    original, clone = claim_of(HERE, renews=True), claim_of(THERE)
    original.require()
    with pytest.raises(PeerError) as unknown:
        clone.require_release(HERE.boot)
    assert unknown.value.code == Code.TRY_AGAIN
    wait = clone.decision()
    assert wait is not None
    wait.join()
    with pytest.raises(CopiedRow):
        clone.require_release(HERE.boot)
    for boot in ("another boot", ""):
        with pytest.raises(PeerError) as refused:
            clone.require_release(boot)
        assert refused.value.code == Code.NODE_CLAIMED
        assert not isinstance(refused.value, CopiedRow)
    original.close()
    original.join()
    time.sleep(node_claim.WATCH_SECONDS + 3 * node_claim.RENEW_SECONDS)
    assert stored(backend).claimant == HERE
    assert not _may_assign(clone)
    wait_until(lambda: _may_assign(clone))


@pytest.mark.parametrize(("newcomer", "releases"), [(THERE, False), (AFTER_REBOOT, True)], ids=["another machine", "a reboot"])
def test_rows_of_the_former_claimant(
    backend: Backend, claim_of: MakeClaim, monkeypatch: pytest.MonkeyPatch, newcomer: Claimant, releases: bool
) -> None:
    """For some time the rows of another machine may belong to live attachments."""
    claim_of(HERE).require()
    claim = claim_of(newcomer)
    claim.require_decided()
    claim.require_release("another boot")
    if not releases:
        with pytest.raises(PeerError) as refused:
            claim.require_release(HERE.boot)
        assert refused.value.code == Code.TRY_AGAIN
        monkeypatch.setattr(node_claim, "RECENT_SECONDS", 0)
    claim.require_release(HERE.boot)


def test_one_of_two_newcomers_gets_the_name(backend: Backend, claim_of: MakeClaim) -> None:
    claim_of(HERE).require()
    newcomers = [claim_of(THERE, renews=True), claim_of(AFTER_REBOOT, renews=True)]
    waits = [newcomer.decision() for newcomer in newcomers]
    for wait in waits:
        assert wait is not None
        wait.join()
    wait_until(lambda: all(newcomer.decision() is None for newcomer in newcomers))
    assert sorted(_may_assign(newcomer) for newcomer in newcomers) == [False, True]


def test_counter_moves_while_the_datastore_is_locked(backend: Backend, claim_of: MakeClaim) -> None:
    set_ready(backend, ready=False)
    claim_of(HERE, renews=True).require()
    wait_until(lambda: stored(backend).counter > 2)


def test_deleted_claim_is_created_again(backend: Backend, claim_of: MakeClaim) -> None:
    claim = claim_of(HERE, renews=True)
    claim.require()
    backend.write([Delete(NodeClaimKey("node1"))])
    wait_until(lambda: _is_there(backend))
    claim.require()


@pytest.mark.only_over("embedded", "etcdv3")
def test_writes_of_a_replaced_claimant_fail(backend: Backend, claim_of: MakeClaim) -> None:
    """The check of the claim and the writes are one transaction, so no write applies."""
    claim = _ready_claim(backend, claim_of)
    (stale,) = claim.checks()
    claim_of(THERE).require_decided()
    with pytest.raises(Conflict) as caught:
        backend.write([stale, Create(HandleKey("net.c1"), Handle({}))])
    assert caught.value.key == NodeFenceKey("node1")
    with pytest.raises(NotFound):
        backend.get(HandleKey("net.c1"))


@pytest.mark.only_over("etcdv3")
@pytest.mark.parametrize("noticed", [False, True], ids=["not noticed", "noticed by the renewal"])
def test_assignment_planned_before_a_takeover_fails(
    backend: Backend, claim_of: MakeClaim, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    """Its error names both machines.

    A release under the lost name applies once no call from before the loss can be in flight.
    """
    put_node(backend, "node1")
    put_pool(backend, "pool", "10.65.0.0/28", blockSize=28)
    claim = _ready_claim(backend, claim_of)
    store = ready_checked(DatastoreReadiness(backend), claim)
    ipam = IpamService(store, "node1")
    ipam.assign(Assign("net.c1", {}))
    before = holdings(backend), handles(backend)
    planned, write = threading.Event(), store.write

    def takeover(*args: Any, **more: Any) -> Sequence[Entry | None]:
        if not planned.is_set():
            planned.set()
            claim_of(THERE).require_decided()
            with suppress(PeerError):
                if noticed:
                    claim.on_conflict()
        return write(*args, **more)

    monkeypatch.setattr(store, "write", takeover)
    with pytest.raises(PeerError) as refused:
        ipam.assign(Assign("net.c2", {}))
    assert refused.value.code == Code.NODE_CLAIMED
    assert "machine-a" in str(refused.value)
    assert "machine-b" in str(refused.value)
    with pytest.raises(PeerError):
        ipam.release(Release("net.c1"))
    assert (holdings(backend), handles(backend)) == before
    monkeypatch.setattr(node_claim, "LOST_SECONDS", 0.0)
    ipam.release(Release("net.c1"))
    assert handles(backend) == {}


def test_fence_fails_writes_of_earlier_processes_only(backend: Backend, claim_of: MakeClaim) -> None:
    claim = _ready_claim(backend, claim_of)
    stale = claim.checks()
    claim.fence()
    for check in stale:
        with pytest.raises(Conflict):
            backend.write([check, Create(HandleKey("net.c1"), Handle({}))])
    ready_checked(DatastoreReadiness(backend), claim).write([Create(HandleKey("net.c2"), Handle({}))])
    assert bool(stale) == backend.atomic


@pytest.mark.only_over("embedded", "etcdv3")
def test_write_recreates_a_deleted_claim(backend: Backend, claim_of: MakeClaim) -> None:
    claim = _ready_claim(backend, claim_of)
    backend.write([Delete(NodeClaimKey("node1")), Delete(NodeFenceKey("node1"))])
    ready_checked(DatastoreReadiness(backend), claim).write([Create(HandleKey("net.c1"), Handle({}))])
    assert stored(backend).claimant == HERE


def test_missing_right_is_a_warning(
    backend: Backend, claim_of: MakeClaim, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise Forbidden("leases is forbidden")

    claim = claim_of(HERE)
    monkeypatch.setattr(backend, "list", refuse)
    claim.require()
    assert claim.checks() == ()
    assert "leases is forbidden" in caplog.text


def _ready_claim(backend: Backend, claim_of: MakeClaim) -> NodeNameClaim:
    set_ready(backend)
    claim = claim_of(HERE)
    claim.require()
    return claim


def _may_assign(claim: NodeNameClaim) -> bool:
    try:
        claim.require()
    except PeerError:
        return False
    return True


def _is_there(backend: Backend) -> bool:
    try:
        return stored(backend).claimant == HERE
    except NotFound:
        return False

"""Rollback: an ADD that fails at any step leaves nothing, and a failed rollback leaves a pending release."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.fault_injection import Faults, Kind
from harness.inprocess import Host
from harness.netns import Netns
from svc.attach import transaction
from svc.attach.record import DELETING
from svc.attach.recovery import retry_release
from svc.attach.request import Sandbox
from svc.attach.sources.own import PoolSource
from svc.attach.transaction import AddTransaction
from svc.datastore.api import Create
from svc.model.errors import CallerError, PeerError, SvcError
from svc.model.keys import Key, ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

STEPS = ("record_intent", "assign_addresses", "wire", "write_endpoint", "record_result")
ROLLBACK_STEPS = ("delete_endpoint", "unwire", "release")
FAILURES: list[type[BaseException]] = [PeerError, RuntimeError, KeyboardInterrupt]


def fail_step(patch: pytest.MonkeyPatch, step: str, failure: type[BaseException], *, after: bool) -> None:
    original: Callable[..., Any] = getattr(AddTransaction, step)

    def failing(self: AddTransaction, *arguments: Any) -> None:
        if after:
            original(self, *arguments)
        raise failure("the step failed")

    patch.setattr(AddTransaction, step, failing)


def fail_rollback(patch: pytest.MonkeyPatch, name: str) -> None:
    def failing(*arguments: Any) -> None:
        raise PeerError("the undo failed")

    patch.setattr(PoolSource if name == "release" else transaction, name, failing)


def assert_add_works(host: Host, sandbox: Sandbox) -> None:
    """Repeat the ADD without faults, and check that the failed one does not affect it."""
    result = host.add(sandbox)
    host.check(sandbox, result)
    assert host.audit().disagreements(host.links()) == []


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_failed_step_leaves_nothing(
    host: Host, sandbox: Sandbox, pod: Netns, step: str, after: bool, failure: type[BaseException]
) -> None:
    """It fails before or after its work. The caller gets its exception."""
    with pytest.MonkeyPatch.context() as patch:
        fail_step(patch, step, failure, after=after)
        with pytest.raises(failure, match="the step failed"):
            host.add(sandbox)
    assert host.left_over() == []
    assert pod.links() == []
    assert_add_works(host, sandbox)


@pytest.mark.parametrize("step", ROLLBACK_STEPS)
def test_failed_rollback_leaves_a_pending_release(host: Host, sandbox: Sandbox, step: str) -> None:
    """The caller gets the error of the ADD, not that of the rollback. The release can be retried at once."""
    with pytest.MonkeyPatch.context() as patch:
        fail_step(patch, "record_result", PeerError, after=False)
        fail_rollback(patch, step)
        with pytest.raises(PeerError, match="the step failed"):
            host.add(sandbox)
    (record,) = host.audit().records
    assert record.state == DELETING
    assert "undo failed, its release is pending: the undo failed" in "".join(host.trace.lines)
    assert retry_release(host.context, record.id, host.trace)
    assert host.left_over() == []
    assert_add_works(host, sandbox)


def test_address_is_not_released_while_its_interface_exists(host: Host, sandbox: Sandbox) -> None:
    """Otherwise another container could get it while the old interface still answers for it."""
    with pytest.MonkeyPatch.context() as patch:
        fail_step(patch, "record_result", PeerError, after=False)
        fail_rollback(patch, "unwire")
        with pytest.raises(PeerError, match="the step failed"):
            host.add(sandbox)
    assert len(host.links()) == 1
    assert sorted(host.audit().allocations) == sorted(host.audit().records[0].addresses)
    assert host.recover() == 0
    assert host.left_over() == []


def test_failed_add_of_a_second_interface_keeps_the_first(host: Host, sandbox: Sandbox, pod: Netns) -> None:
    """Both have the same handle."""
    first = host.add(sandbox)
    with pytest.MonkeyPatch.context() as patch:
        fail_step(patch, "record_result", PeerError, after=True)
        with pytest.raises(PeerError):
            host.add(sandbox, ifname="eth1")
    assert pod.links() == ["eth0"]
    host.check(sandbox, first)
    assert host.audit().disagreements(host.links()) == []


@pytest.mark.parametrize("step", STEPS)
def test_add_without_a_sandbox_is_rolled_back(host: Host, step: str) -> None:
    """It assigns only addresses, for another main plugin. The steps of wiring and endpoint are skipped, so they cannot fail."""
    with pytest.MonkeyPatch.context() as patch:
        fail_step(patch, step, PeerError, after=True)
        if step in ("wire", "write_endpoint"):
            assert len(host.add(None).ips) == 2
            host.delete(None)
        else:
            with pytest.raises(PeerError, match="the step failed"):
                host.add(None)
    assert host.left_over() == []


# the datastore and the journal

KINDS = pytest.mark.parametrize(
    "kind", [Kind.REFUSED, Kind.REPLY_LOST, Kind.OUTAGE], ids=lambda kind: kind.value.replace(" ", "-")
)


def failure_of(host: Host, sandbox: Sandbox) -> SvcError | None:
    try:
        host.add(sandbox)
    except SvcError as failure:
        return failure
    return None


def fail_everywhere(tmp_path: Path, netns: Netns, sandbox: Sandbox, fault: Callable[[Host, int], Faults]) -> int:
    """Let one call after another fail, each on a new host, until an ADD has no fault; return the number of failed calls."""
    for number in itertools.count(1):
        with Host(tmp_path / str(number), netns) as host:
            faults = fault(host, number)
            failure = failure_of(host, sandbox)
            host.heal()
            if failure is None:
                host.delete(sandbox)
            else:
                assert "ordered fault" in str(failure), f"call {number}: another failure hides the first"
                assert host.recover() == 0, f"call {number}"
            assert host.left_over() == [], f"call {number}"
            assert_add_works(host, sandbox)
            host.delete(sandbox)
            if not faults.struck:
                return number - 1
    raise AssertionError


@KINDS
def test_store_may_fail_at_any_write(tmp_path: Path, netns: Netns, sandbox: Sandbox, kind: Kind) -> None:
    """An ADD to an empty store claims two blocks in four writes each, and writes addresses and endpoint in another."""

    def fault(host: Host, number: int) -> Faults:
        host.faults.arm(kind, number, "write")
        return host.faults

    assert fail_everywhere(tmp_path, netns, sandbox, fault) == 9


@KINDS
def test_store_may_fail_at_any_call(tmp_path: Path, netns: Netns, sandbox: Sandbox, kind: Kind) -> None:
    """This includes reads and writes."""

    def fault(host: Host, number: int) -> Faults:
        host.faults.arm(kind, number)
        return host.faults

    assert fail_everywhere(tmp_path, netns, sandbox, fault) > 15


def leave_endpoint(host: Host, sandbox: Sandbox) -> Key:
    """Leave the endpoint of a container as its only object, and return its key."""
    host.add(sandbox)
    (left,) = host.store.list(ResourceQuery("WorkloadEndpoint"))
    assert isinstance(left.value, Resource)
    host.delete(sandbox)
    host.store.write([Create(left.key, Resource(left.value.kind, left.value.metadata, {}))])
    return left.key


def test_refused_add_keeps_an_existing_endpoint(host: Host, sandbox: Sandbox) -> None:
    """It does not belong to this ADD."""
    key = leave_endpoint(host, sandbox)
    with pytest.raises(CallerError):
        host.add(sandbox, address="192.0.2.1")
    assert host.store.get(key).key == key


@KINDS
def test_store_may_fail_at_any_call_if_an_endpoint_exists(tmp_path: Path, netns: Netns, sandbox: Sandbox, kind: Kind) -> None:
    """The ADD then takes over the endpoint instead of creating it with the addresses."""

    def fault(host: Host, number: int) -> Faults:
        leave_endpoint(host, sandbox)
        host.faults.arm(kind, number)
        return host.faults

    assert fail_everywhere(tmp_path, netns, sandbox, fault) > 5


@KINDS
def test_journal_may_fail_at_any_call(tmp_path: Path, netns: Netns, sandbox: Sandbox, kind: Kind) -> None:
    """The ADD looks for an earlier attachment, and records the intent and the result."""

    def fault(host: Host, number: int) -> Faults:
        host.journal_faults.arm(kind, number)
        return host.journal_faults

    assert fail_everywhere(tmp_path, netns, sandbox, fault) == 3


@KINDS
def test_fault_of_the_last_write_leaves_no_pending_release(host: Host, sandbox: Sandbox, kind: Kind) -> None:
    """Addresses and endpoint are one write. If it was applied, it is rolled back at once."""
    host.faults.arm(kind, 9, "write")
    with pytest.raises(SvcError, match="ordered fault"):
        host.add(sandbox)
    host.heal()
    assert host.left_over() == []
    assert host.links() == {}


def test_next_start_cleans_up_after_an_outage_of_store_and_journal(tmp_path: Path, netns: Netns, sandbox: Sandbox) -> None:
    """Neither a rollback nor a journal entry is possible. Recovery knows the attachment from the intent."""
    with Host(tmp_path, netns) as host:
        with pytest.MonkeyPatch.context() as patch:
            fail_step(patch, "record_result", PeerError, after=False)
            host.journal_faults.arm(Kind.OUTAGE, 3)
            host.faults.arm(Kind.OUTAGE, 10, "write")
            with pytest.raises(PeerError, match="the step failed"):
                host.add(sandbox)
    with Host(tmp_path, netns) as host:
        assert [record.state for record in host.audit().records] == ["adding"]
        assert host.recover() == 0
        assert host.left_over() == []
        assert_add_works(host, sandbox)


def test_next_add_retries_the_pending_release_of_a_failed_one(host: Host, sandbox: Sandbox) -> None:
    """The runtime need not wait for a periodic retry. Addresses and endpoint exist when the outage begins."""
    host.faults.arm(Kind.OUTAGE, 10, "write")
    with pytest.MonkeyPatch.context() as patch:
        fail_step(patch, "record_result", PeerError, after=False)
        with pytest.raises(PeerError, match="the step failed"):
            host.add(sandbox)
    assert host.left_over() != []
    with pytest.raises(PeerError, match="still has a pending release"):
        host.add(sandbox)
    host.heal()
    assert_add_works(host, sandbox)


@KINDS
def test_delete_succeeds_if_the_store_fails_at_any_call(tmp_path: Path, netns: Netns, sandbox: Sandbox, kind: Kind) -> None:
    """The interface is deleted at once. The next start retries the pending release."""
    for number in itertools.count(1):
        with Host(tmp_path / str(number), netns) as host:
            host.add(sandbox)
            host.faults.arm(kind, number)
            host.delete(sandbox)
            struck = host.faults.struck
            assert host.links() == {}
            host.heal()
            assert host.recover() == 0
            assert host.left_over() == [], f"call {number}"
        if not struck:
            break
    assert number > 3

"""Second network with the same interface name, while datastore or journal fail: it joins, or nothing of it is left."""

import itertools
from collections.abc import Iterator

import pytest

from harness.add_requests import netconf
from harness.blocking import run_blocking
from harness.fault_injection import Kind
from harness.inprocess import WHERE, Host
from svc.attach.add import add
from svc.attach.check import check
from svc.attach.delete import delete
from svc.attach.record import AttachmentId
from svc.attach.recovery import retry_release
from svc.attach.request import AddRequest, Attachment, Sandbox
from svc.call_trace import CallTrace
from svc.model.endpoint import Workload
from svc.model.errors import SvcError
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource
from svc.model.result import Result

pytestmark = pytest.mark.root

SECOND = AttachmentId("other", "c1", "eth0")
CONTAINER = Workload("c1")


@pytest.fixture
def first(host: Host, sandbox: Sandbox) -> Result:
    return host.add(sandbox)


def join(host: Host, sandbox: Sandbox) -> Result:
    request = AddRequest(SECOND, CONTAINER, sandbox, WHERE, netconf((4, 6)))
    return run_blocking(add(host.context, request, host.trace))


def leave(host: Host, sandbox: Sandbox) -> None:
    delete(host.context, Attachment(SECOND, CONTAINER, sandbox, WHERE), CallTrace("test"))


def profiles(host: Host) -> list[str]:
    (entry,) = host.store.list(ResourceQuery("WorkloadEndpoint"))
    assert isinstance(entry.value, Resource)
    return list(entry.value.spec["profiles"])


def numbers(host: Host, of_journal: bool, kind: Kind) -> Iterator[int]:
    """Let one call fail in each iteration, and yield its number, until all have failed once."""
    faults = host.journal_faults if of_journal else host.faults
    for number in itertools.count(1):
        faults.arm(kind, number)
        yield number
        struck = faults.struck
        host.heal()
        if not struck:
            assert number > 3
            return


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.REPLY_LOST, Kind.OUTAGE], ids=lambda kind: kind.value)
@pytest.mark.parametrize("of_journal", [False, True], ids=["datastore", "journal"])
def test_failed_join_is_rolled_back(host: Host, sandbox: Sandbox, first: Result, of_journal: bool, kind: Kind) -> None:
    """The rollback happens at once or with the retry of the release. The attachment of the first network does not change."""
    for _ in numbers(host, of_journal, kind):
        joined = True
        try:
            assert join(host, sandbox) == first
        except SvcError:
            joined = False
        host.heal()
        if joined:
            check(host.context, SECOND, sandbox, first, CallTrace("test"))
            leave(host, sandbox)
        elif not retry_release(host.context, SECOND, CallTrace("test")) or host.context.journal.get(SECOND) is not None:
            leave(host, sandbox)
        assert profiles(host) == ["net"]
        assert host.context.journal.get(SECOND) is None
        host.check(sandbox, first)
        assert host.audit().disagreements(host.links()) == []


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.REPLY_LOST, Kind.OUTAGE], ids=lambda kind: kind.value)
def test_failed_leave_has_a_pending_release(host: Host, sandbox: Sandbox, first: Result, kind: Kind, number: int) -> None:
    """The DEL succeeds nevertheless, and the pending release can be retried."""
    join(host, sandbox)
    host.faults.arm(kind, number)
    leave(host, sandbox)
    host.heal()
    assert retry_release(host.context, SECOND, CallTrace("test"))
    assert profiles(host) == ["net"]
    host.check(sandbox, first)

"""Processes that are killed at any call to the datastore or the journal: the next start tears down the rest."""

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.fault_injection import Kind
from harness.inprocess import Host
from harness.netns import Netns
from svc.attach.request import Sandbox

pytestmark = pytest.mark.root

KINDS = pytest.mark.parametrize("kind", [Kind.KILLED, Kind.KILLED_AFTER], ids=["before", "after"])


def killed(work: Callable[[], None]) -> bool:
    """Return whether a child that does the work was killed; it must end in this way or succeed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


@KINDS
@pytest.mark.parametrize("what", ["store", "journal"])
def test_killed_add_is_torn_down_at_the_next_start(
    tmp_path: Path, netns: Netns, sandbox: Sandbox, kind: Kind, what: str
) -> None:
    """The store is empty, so the ADD claims two blocks. Afterwards the same ADD works."""
    for number in itertools.count(1):
        directory = tmp_path / str(number)

        def add(directory: Path = directory, number: int = number) -> None:
            with Host(directory, netns) as host:
                (host.faults if what == "store" else host.journal_faults).arm(kind, number)
                host.add(sandbox)

        struck = killed(add)
        with Host(directory, netns) as host:
            complete = [record.state for record in host.audit().records] == ["added"]
            assert host.recover() == 0
            assert complete or host.left_over() == [], f"call {number}"
            host.check(sandbox, host.add(sandbox))
            assert host.audit().disagreements(host.links()) == []
            host.delete(sandbox)
            assert host.left_over() == []
        if not struck:
            break
    assert number > (10 if what == "store" else 3)


@KINDS
@pytest.mark.parametrize("what", ["store", "journal"])
def test_killed_delete_may_be_repeated(tmp_path: Path, netns: Netns, sandbox: Sandbox, kind: Kind, what: str) -> None:
    """Runtimes repeat it until it succeeds; a partial deletion does not prevent that."""
    for number in itertools.count(1):
        with Host(tmp_path, netns) as host:
            host.add(sandbox)

        def delete(number: int = number) -> None:
            with Host(tmp_path, netns) as host:
                (host.faults if what == "store" else host.journal_faults).arm(kind, number)
                host.delete(sandbox)

        struck = killed(delete)
        with Host(tmp_path, netns) as host:
            host.recover()
            host.delete(sandbox)
            assert host.left_over() == [], f"call {number}"
        if not struck:
            break
    assert number > (4 if what == "store" else 2)


@KINDS
def test_killed_recovery_is_repeated(tmp_path: Path, netns: Netns, sandbox: Sandbox, kind: Kind) -> None:
    """The next start has three incomplete attachments to tear down."""
    for number in itertools.count(1):
        for serial in range(3):

            def add(serial: int = serial) -> None:
                with Host(tmp_path, netns) as host:
                    host.journal_faults.arm(Kind.KILLED, 1, "update")
                    host.add(sandbox, ifname=f"eth{serial}", container=f"c{serial}")

            assert killed(add)

        def recover(number: int = number) -> None:
            with Host(tmp_path, netns) as host:
                host.faults.arm(kind, number, "write")
                assert host.recover() == 0

        struck = killed(recover)
        with Host(tmp_path, netns) as host:
            assert host.recover() == 0
            assert host.left_over() == [], f"write {number}"
        if not struck:
            break
    assert number > 3

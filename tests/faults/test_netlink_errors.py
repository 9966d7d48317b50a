"""Each exchange with the kernel, and each message of one, fails in turn. An ADD leaves nothing, and a DEL can be repeated."""

import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from faults.netlink_faults import REFUSALS, FaultySocket, NetlinkFaults
from harness.inprocess import Host
from harness.netns import Netns
from svc._core import netns as core
from svc.attach.request import Sandbox
from svc.model.errors import SvcError

pytestmark = pytest.mark.root

ERRORS = pytest.mark.parametrize(
    ("number", "by_message"),
    [
        *(pytest.param(number, False, id=f"exchange-{errno.errorcode[number]}") for number in (*REFUSALS, errno.ETIMEDOUT)),
        *(pytest.param(number, True, id=f"message-{errno.errorcode[number]}") for number in REFUSALS),
    ],
)
MOST_EXCHANGES = 100


@contextmanager
def failing(exchange: int, number: int, *, by_message: bool) -> Iterator[NetlinkFaults]:
    """Let this exchange, or message, of sockets that are opened in the block fail."""
    faults = NetlinkFaults(exchange, number, by_message)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "Socket", partial(FaultySocket, faults))
        yield faults


def each_exchange(attempt: Callable[[int], bool]) -> int:
    """Attempt with a fault in each exchange, until the attempt has fewer exchanges. Return their number."""
    for exchange in itertools.count(1):
        assert exchange < MOST_EXCHANGES
        if not attempt(exchange):
            return exchange - 1
    raise AssertionError


@ERRORS
def test_failed_add_leaves_nothing(tmp_path: Path, netns: Netns, sandbox: Sandbox, number: int, by_message: bool) -> None:
    """If the runtime gets an error, it calls DEL; then the same ADD works."""

    def attempt(exchange: int) -> bool:
        with failing(exchange, number, by_message=by_message) as faults, Host(tmp_path / str(exchange), netns) as host:
            try:
                host.add(sandbox)
            except SvcError:
                faults.exchange = 0
                assert host.left_over() == [], f"exchange {exchange}, before the DEL"
                host.delete(sandbox)
                assert host.left_over() == [], f"exchange {exchange}"
                host.add(sandbox)
            faults.exchange = 0
            assert host.audit().disagreements(host.links()) == []
            host.delete(sandbox)
            assert host.left_over() == []
        return faults.struck

    assert each_exchange(attempt) >= (8 if by_message else 3)


@ERRORS
def test_failed_del_can_be_repeated(tmp_path: Path, netns: Netns, sandbox: Sandbox, number: int, by_message: bool) -> None:
    """A DEL that fails has released no address of an interface that still exists."""

    def attempt(exchange: int) -> bool:
        with Host(tmp_path / str(exchange), netns) as host:
            host.add(sandbox)
        with failing(exchange, number, by_message=by_message) as faults, Host(tmp_path / str(exchange), netns) as host:
            try:
                host.delete(sandbox)
            except SvcError:
                assert not host.links() or host.audit().disagreements(host.links()) == []
                faults.exchange = 0
                host.delete(sandbox)
            assert host.left_over() == [], f"exchange {exchange}"
        return faults.struck

    assert each_exchange(attempt) >= 1

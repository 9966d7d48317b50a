"""Two stress processes with different node names share a datastore, and one is killed repeatedly.

Their ledgers, which are outside the datastore, are compared. At the end the datastore must contain exactly the allocations that
were not released, and none after their release.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness import stress
from harness.ipam import TIMEOUT_SECONDS, free, holdings, put_node, put_pool
from harness.stress import Ledger, Stay
from svc._core.cidr import Address
from svc.ipam.service import IpamService

TESTS = Path(__file__).parents[1]
KILLS = 8
STORES = {"embedded": ("harness.stress:embedded", 2500), "piecemeal": ("harness.stress:piecemeal", 1000)}  # a process


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_no_address_is_assigned_twice_or_lost(tmp_path: Path, name: str) -> None:
    """There are few blocks, so that the nodes borrow. All but a few allocations are released at the end."""
    opener, operations = STORES[name]
    with closing(getattr(stress, opener.partition(":")[2])(str(tmp_path))) as backend:
        put_pool(backend, "pool4", "10.65.0.0/24", blockSize=28)
        for node in ("node1", "node2"):
            put_node(backend, node)
        ledgers = {node: tmp_path / node for node in ("node1", "node2")}
        with running(opener, tmp_path, "node1", ledgers["node1"], operations, 0) as steady:
            stress_and_kill(opener, tmp_path, ledgers["node2"], operations)
            assert steady.wait(TIMEOUT_SECONDS) == 0
        stays = {handle: stay for path in ledgers.values() for handle, stay in Ledger(path).stays.items()}
        assert len(stays) == 2 * operations
        require_no_overlap(stays)
        remaining = {handle: stay for handle, stay in stays.items() if not stay.is_over}
        assert remaining
        assert holdings(backend) == {handle: frozenset(map(Address, stay.addresses)) for handle, stay in remaining.items()}
        for handle in remaining:
            free(IpamService(backend, "node1"), handle)
        assert holdings(backend) == {}


def stress_and_kill(opener: str, where: Path, ledger: Path, operations: int) -> None:
    """Kill the process repeatedly, until it survives long enough to complete its operations."""
    dice = random.Random(1)
    for kill in range(KILLS):
        with running(opener, where, "node2", ledger, operations, kill + 1) as victim:
            _wait_for(victim, ledger, size=_size(ledger) + dice.randrange(operations * 80 // KILLS))
            victim.send_signal(signal.SIGKILL)
            assert victim.wait(TIMEOUT_SECONDS) == -signal.SIGKILL, "the process ended before it was killed"
    with running(opener, where, "node2", ledger, operations, KILLS + 1) as last:
        assert last.wait(TIMEOUT_SECONDS) == 0


def require_no_overlap(stays: dict[str, Stay]) -> None:
    """Require that the times from the reply to an assignment until the request to release it do not overlap."""
    by_address: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for handle, stay in stays.items():
        for address in stay.addresses:
            by_address[address].append((stay.since, stay.until, handle))
    for address, times in by_address.items():
        times.sort()
        for (_, until, first), (since, _, second) in pairwise(times):
            assert until <= since, f"{address} was assigned to {first} and {second} at the same time"
    assert max(map(len, by_address.values())) > 1, "no address was assigned a second time"


@contextmanager
def running(*arguments: Any) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "harness.stress", *map(str, arguments)]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _wait_for(process: "subprocess.Popen[bytes]", path: Path, size: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while _size(path) < size and process.poll() is None:
        assert time.monotonic() < deadline, "the process makes no progress"
        time.sleep(0.002)

"""Two processes that assign and release addresses on one embedded store, killed at random and started again."""

import os
import random
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.ipam import NODE, demand_whole_claims, free, holdings, put_node, put_pool, take
from svc._core.cidr import Address
from svc.datastore.embedded import EmbeddedStore
from svc.ipam.allocator import Ipam
from svc.model.errors import PeerError

OPERATIONS = 20_000  # of all processes together, each an assignment or a release
LIFE = (200, 2500)  # operations of a process before it is killed
PATIENCE = 60.0  # seconds without a sign of life
ADDRESSES = 256  # in each of the two pools

# Tells of every operation with a byte on standard output, and at the end, after SIGTERM, of what it holds on standard error.
# What its predecessor was assigned is released first: a restarted agent does so from its journal.
PROGRAM = """
import os, random, signal, sys
from pathlib import Path
from svc.datastore.embedded import EmbeddedStore
from svc.ipam.allocator import Ipam
from svc.ipam.requests import Assign, Release
from svc.model.keys import HandleQuery

path, node, name, seed = sys.argv[1:]
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
store = EmbeddedStore(Path(path))
ipam = Ipam(store, node)
dice = random.Random(seed)
held = {}

for entry in store.list(HandleQuery()):
    if entry.key.handle.startswith(name + "."):
        ipam.release(Release(entry.key.handle))
while not stopping:
    if len(held) >= 40 or (held and dice.random() < 0.5):
        handle = dice.choice(list(held))
        assert ipam.holds(handle, held.pop(handle)), handle
        ipam.release(Release(handle))
    else:
        handle = f"{name}.{os.getpid()}.{dice.getrandbits(64)}"
        allocations = ipam.assign(Assign(handle, {"node": node}, dice.choice([(4,), (6,), (4, 6)])))
        held[handle] = [allocation.address for allocation in allocations]
    os.write(1, b".")
for handle, addresses in held.items():
    print(handle, *addresses, file=sys.stderr)
"""


@dataclass
class Worker:
    """One of the two, through all of its lives."""

    store: Path
    node: str
    name: str
    dice: random.Random
    lives: int = 0
    left: int = 0  # operations until it is killed
    works: bool = False  # whether this life has told of an operation
    process: "subprocess.Popen[bytes]" = field(init=False)

    def start(self) -> None:
        self.lives += 1
        self.left, self.works = self.dice.randint(*LIFE), False
        command = [sys.executable, "-c", PROGRAM, str(self.store), self.node, self.name, str(self.dice.random())]
        with self.messages.open("wb") as messages:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages)

    @property
    def messages(self) -> Path:
        return self.store.with_name(f"{self.name}.txt")

    @property
    def pipe(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def end(self, number: int) -> int:
        """Its exit status."""
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def read(self) -> int:
        """How many operations it has told of since; AssertionError when it has died by itself."""
        count = len(os.read(self.pipe, 65536))
        assert count, f"{self.name} has failed: {self.messages.read_text()}"
        self.left -= count
        self.works = True
        return count

    def told(self) -> dict[str, frozenset[Address]]:
        """What its last life was told to hold."""
        lines = map(str.split, self.messages.read_text().splitlines())
        return {handle: frozenset(map(Address, addresses)) for handle, *addresses in lines}


@contextmanager
def workers(store: Path, nodes: tuple[str, str], dice: random.Random) -> Iterator[list[Worker]]:
    both = [Worker(store, node, f"net.w{number}", dice) for number, node in enumerate(nodes)]
    try:
        for worker in both:
            worker.start()
        yield both
    finally:
        for worker in both:
            if worker.process.poll() is None:
                worker.end(signal.SIGKILL)


def hammer(both: list[Worker]) -> None:
    """Until there were operations enough, and both are at work: reads, kills and restarts as it comes."""
    done = 0
    with selectors.DefaultSelector() as selector:
        for worker in both:
            selector.register(worker.pipe, selectors.EVENT_READ, worker)
        while done < OPERATIONS or not all(worker.works for worker in both):
            ready = selector.select(PATIENCE)
            assert ready, "no process shows a sign of life"
            for key, _ in ready:
                worker = key.data
                done += worker.read()
                if worker.left <= 0:
                    selector.unregister(worker.pipe)
                    assert worker.end(signal.SIGKILL) == -signal.SIGKILL
                    worker.start()
                    selector.register(worker.pipe, selectors.EVENT_READ, worker)


def capacity(store: EmbeddedStore, nodes: tuple[str, str], version: int) -> int:
    """How many addresses can be had until every node is told that there are no more."""
    count = 0
    for node in dict.fromkeys(nodes):
        ipam = Ipam(store, node)
        while True:
            try:
                take(ipam, "net.all", versions=(version,))
            except PeerError:
                break
            count += 1
    return count


@pytest.mark.parametrize("nodes", [(NODE, "node2"), (NODE, NODE)], ids=["two nodes", "one node"])
def test_killed_processes_lose_and_double_no_address(tmp_path: Path, nodes: tuple[str, str]) -> None:
    """At the end blocks and handles agree, the survivors hold what they were told, and every address can be had again."""
    path = tmp_path / "store.db"
    with closing(EmbeddedStore(path)) as store:
        for node in nodes:
            put_node(store, node)
        put_pool(store, "pool4", "10.65.0.0/24", blockSize=28)
        put_pool(store, "pool6", "fd65::/120", blockSize=124)
        with workers(path, nodes, random.Random("processes")) as both:
            hammer(both)
            assert [worker.end(signal.SIGTERM) for worker in both] == [0, 0]
        assert all(worker.lives > 2 for worker in both)
        assert holdings(store) == both[0].told() | both[1].told()
        for handle in holdings(store):
            free(Ipam(store, NODE), handle)
        assert holdings(store) == {}
        assert [capacity(store, nodes, version) for version in (4, 6)] == [ADDRESSES, ADDRESSES]
        demand_whole_claims(store)

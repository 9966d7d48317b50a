"""Two processes that assign and release addresses in one datastore, killed at random and started again."""

import json
import os
import random
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.ipam import NODE, demand_whole_claims, free, holdings, put_node, put_pool, take
from harness.site import OrchSite, Site
from svc._core.cidr import Address
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE
from svc.ipam.allocator import Ipam
from svc.model.errors import PeerError

PATIENCE = 60.0  # seconds without a sign of life

POOLS, SMALL_POOLS = ("10.65.0.0/24", "fd65::/120"), ("10.65.0.0/26", "fd65::/122")

# Tells of every operation with a byte on standard output, and at the end, after SIGTERM, of what it holds on standard error.
# What its predecessor was assigned is released first: a restarted agent does so from its journal.
PROGRAM = """
import json, os, random, signal, sys
from pathlib import Path
from svc.datastore.open import open_backend
from svc.ipam.allocator import Ipam
from svc.ipam.requests import Assign, Release
from svc.model.keys import HandleQuery
from svc.names import DEFAULT

settings, folder, node, name, most, seed = sys.argv[1:]
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
store = open_backend(json.loads(settings), Path(folder), DEFAULT)
ipam = Ipam(store, node)
dice = random.Random(seed)
held = {}

for entry in store.list(HandleQuery()):
    if entry.key.handle.startswith(name + "."):
        ipam.release(Release(entry.key.handle))
while not stopping:
    if len(held) >= int(most) or (held and dice.random() < 0.5):
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


@dataclass(frozen=True)
class Ground:
    """A datastore with a pool of each family, and how hard it is worked on.

    `life` is how many operations a process does before it is killed; `held` is the most handles it has at once.
    """

    settings: dict[str, str]
    folder: Path
    pools: tuple[str, str]
    addresses: int  # in each pool
    operations: int  # of both processes together, each an assignment or a release
    life: tuple[int, int]
    held: int
    put_node: Callable[[str], None]
    open: Callable[[], Backend]


@dataclass
class Worker:
    """One of the two, through all of its lives."""

    ground: Ground
    node: str
    name: str
    dice: random.Random
    lives: int = 0
    left: int = 0  # operations until it is killed
    works: bool = False  # whether this life has told of an operation
    process: "subprocess.Popen[bytes]" = field(init=False)

    def start(self) -> None:
        self.lives += 1
        self.left, self.works = self.dice.randint(*self.ground.life), False
        arguments = [json.dumps(self.ground.settings), str(self.ground.folder), self.node, self.name, str(self.ground.held)]
        command = [sys.executable, "-c", PROGRAM, *arguments, str(self.dice.random())]
        with self.messages.open("wb") as messages:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages)

    @property
    def messages(self) -> Path:
        return self.ground.folder / f"{self.name}.txt"

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
def workers(ground: Ground, nodes: tuple[str, str], dice: random.Random) -> Iterator[list[Worker]]:
    both = [Worker(ground, node, f"net.w{number}", dice) for number, node in enumerate(nodes)]
    try:
        for worker in both:
            worker.start()
        yield both
    finally:
        for worker in both:
            if worker.process.poll() is None:
                worker.end(signal.SIGKILL)


def hammer(both: list[Worker], operations: int) -> None:
    """Until there were operations enough, and both are at work: reads, kills and restarts as it comes."""
    done = 0
    with selectors.DefaultSelector() as selector:
        for worker in both:
            selector.register(worker.pipe, selectors.EVENT_READ, worker)
        while done < operations or not all(worker.works for worker in both):
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


def capacity(store: Backend, nodes: tuple[str, str], version: int) -> int:
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


TWO, ONE = (NODE, "node2"), (NODE, NODE)


@pytest.mark.parametrize("nodes", [TWO, ONE], ids=["two nodes", "one node"])
def test_embedded_store(tmp_path: Path, nodes: tuple[str, str]) -> None:
    def open_store() -> Backend:
        return EmbeddedStore(tmp_path / EMBEDDED_FILE)

    def put(node: str) -> None:
        with closing(open_store()) as store:
            put_node(store, node)

    demand_nothing_lost(Ground({"kind": "embedded"}, tmp_path, POOLS, 256, 20_000, (200, 2500), 40, put, open_store), nodes)


def test_etcd(etcd_site: Site, tmp_path: Path) -> None:
    settings = {"kind": "etcdv3", "etcd_endpoints": etcd_site.config["etcd_endpoints"]}
    ground = Ground(settings, tmp_path, POOLS, 256, 20_000, (500, 5000), 40, etcd_site.add_node, etcd_site.open)
    with cleared(etcd_site):
        demand_nothing_lost(ground, TWO)


def test_custom_resources(orch_site: OrchSite, tmp_path: Path) -> None:
    """An operation takes a dozen requests there: fewer of them, on smaller pools."""
    settings = {"kind": "orch", "kubeconfig": str(orch_site.kubeconfig)}
    ground = Ground(settings, tmp_path, SMALL_POOLS, 64, 600, (30, 120), 10, orch_site.add_node, orch_site.open)
    with cleared(orch_site):
        demand_nothing_lost(ground, TWO)


@contextmanager
def cleared(site: Site) -> Iterator[None]:
    try:
        yield
    finally:
        site.clear()


def demand_nothing_lost(ground: Ground, nodes: tuple[str, str]) -> None:
    """Two processes, killed again and again, lose no address and get none twice: at the end blocks and handles agree, the
    survivors hold what they were told, and every address can be had again."""
    for node in dict.fromkeys(nodes):
        ground.put_node(node)
    with closing(ground.open()) as store:
        put_pool(store, "pool4", ground.pools[0], blockSize=28)
        put_pool(store, "pool6", ground.pools[1], blockSize=124)
        with workers(ground, nodes, random.Random("processes")) as both:
            hammer(both, ground.operations)
            assert [worker.end(signal.SIGTERM) for worker in both] == [0, 0]
        assert all(worker.lives > 2 for worker in both)
        assert holdings(store) == both[0].told() | both[1].told()
        for handle in holdings(store):
            free(Ipam(store, NODE), handle)
        assert holdings(store) == {}
        assert [capacity(store, nodes, version) for version in (4, 6)] == [ground.addresses] * 2
        demand_whole_claims(store)

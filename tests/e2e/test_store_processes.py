"""Two processes that assign and release addresses in one datastore, killed at random and started again."""

import json
import os
import random
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.datastores import OrchSite, Site
from harness.ipam import NODE, demand_whole_claims, free, holdings, put_node, put_pool, take
from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE
from svc.ipam.service import IpamService
from svc.model.errors import PeerError

PATIENCE = 60.0  # seconds without a sign of life

POOLS = ("10.65.0.0/24", "fd65::/120")

# Tells of every address that it was assigned, or has released, with a byte on standard output, and at the end, after SIGTERM,
# of what it holds on standard error. What its predecessor was assigned is released first, as a restarted agent does it from
# its journal.
PROGRAM = """
import json, os, random, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from svc.datastore.open import open_backend
from svc.ipam.service import IpamService
from svc.ipam.requests import Assign, Release
from svc.model.keys import HandleQuery
from svc.names import DEFAULT

settings, folder, node, name, threads, most, families, seed = sys.argv[1:]
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
store = open_backend(json.loads(settings), Path(folder), DEFAULT)
ipam = IpamService(store, node)


def work(number):
    dice, held = random.Random(f"{seed}.{number}"), {}
    try:
        while not stopping.is_set():
            os.write(1, b"." * trade(dice, held))
    except BaseException:
        stopping.set()
        raise
    return held


def trade(dice, held):
    if len(held) >= int(most) or (held and dice.random() < 0.5):
        handle = dice.choice(list(held))
        addresses = held.pop(handle)
        assert ipam.holds(handle, addresses), handle
        ipam.release(Release(handle))
    else:
        handle = f"{name}.{os.getpid()}.{dice.getrandbits(64)}"
        wanted = Assign(handle, {"node": node}, tuple(dice.choice(json.loads(families))))
        held[handle] = addresses = [allocation.address for allocation in ipam.assign(wanted).allocations]
    return len(addresses)


left = [entry.key.handle for entry in store.list(HandleQuery()) if entry.key.handle.startswith(name + ".")]
with ThreadPoolExecutor(int(threads)) as pool:
    list(pool.map(lambda handle: ipam.release(Release(handle)), left))
    for held in pool.map(work, range(int(threads))):
        for handle, addresses in held.items():
            print(handle, *addresses, file=sys.stderr)
"""


@dataclass(frozen=True)
class Ground:
    """A datastore with a pool of each family, and how hard it is worked on.

    Both processes together assign and release so many `addresses`; `life` is how many of them one does before it is killed.
    Each of its threads has so many handles at once, of which each has addresses of one of the `families`.
    """

    settings: dict[str, str]
    folder: Path
    put_node: Callable[[str], None]
    open: Callable[[], Backend]
    addresses: int
    life: tuple[int, int]
    threads: int = 1
    handles: int = 40
    families: tuple[tuple[int, ...], ...] = ((4,), (6,), (4, 6))


@dataclass
class Worker:
    """One of the two, through all of its lives."""

    ground: Ground
    node: str
    name: str
    dice: random.Random
    lives: int = 0
    left: int = 0  # addresses until it is killed
    works: bool = False  # whether this life has told of an address
    process: "subprocess.Popen[bytes]" = field(init=False)

    def start(self) -> None:
        self.lives += 1
        self.left, self.works = self.dice.randint(*self.ground.life), False
        ground = self.ground
        place = [json.dumps(ground.settings), str(ground.folder), self.node, self.name]
        work = [str(ground.threads), str(ground.handles), json.dumps(ground.families), str(self.dice.random())]
        command = [sys.executable, "-c", PROGRAM, *place, *work]
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
        """How many addresses it has told of since; AssertionError when it has died by itself."""
        count = len(os.read(self.pipe, 65536))
        assert count, f"{self.name} has failed: {self.messages.read_text()}"
        self.left -= count
        self.works = True
        return count

    def told(self) -> dict[str, frozenset[Address]]:
        """Return the addresses of its last life, as it reports them."""
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


def kill_and_restart(both: list[Worker], addresses: int) -> None:
    """Until there were addresses enough, each was killed at least twice, and both are at work."""
    done = 0
    with selectors.DefaultSelector() as selector:
        for worker in both:
            selector.register(worker.pipe, selectors.EVENT_READ, worker)
        while done < addresses or not all(worker.works and worker.lives > 2 for worker in both):
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
    """Return how many addresses can be assigned until every node gets the error that none is free."""
    count = 0
    for node in dict.fromkeys(nodes):
        ipam = IpamService(store, node)
        for number in (16, 1):
            with suppress(PeerError):
                while True:
                    count += len(take(ipam, "net.all", versions=(version,) * number))
    return count


TWO, ONE = (NODE, "node2"), (NODE, NODE)


@pytest.mark.parametrize("nodes", [TWO, ONE], ids=["two nodes", "one node"])
def test_embedded_store(tmp_path: Path, nodes: tuple[str, str]) -> None:
    def open_store() -> Backend:
        return EmbeddedStore(tmp_path / EMBEDDED_FILE)

    def put(node: str) -> None:
        with closing(open_store()) as store:
            put_node(store, node)

    demand_nothing_lost(Ground({"kind": "embedded"}, tmp_path, put, open_store, 20_000, life=(200, 2500)), nodes)


def test_etcd(etcd_site: Site, tmp_path: Path) -> None:
    settings = {"kind": "etcdv3", "etcd_endpoints": etcd_site.config["etcd_endpoints"]}
    ground = Ground(settings, tmp_path, etcd_site.add_node, etcd_site.open, 10_000, life=(150, 1500))
    with cleared(etcd_site):
        demand_nothing_lost(ground, TWO)


def test_custom_resources(orch_site: OrchSite, tmp_path: Path) -> None:
    """A handle takes a dozen requests there: so there are many at once, of several addresses each."""
    settings = {"kind": "orch", "kubeconfig": str(orch_site.kubeconfig)}
    families = ((4,), (6,), (4, 6), (4, 4, 6, 6), (4, 4, 4, 4, 6, 6, 6, 6))
    ground = Ground(
        settings, tmp_path, orch_site.add_node, orch_site.open, 5000, life=(200, 1000), threads=16, handles=1, families=families
    )
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
        put_pool(store, "pool4", POOLS[0], blockSize=28)
        put_pool(store, "pool6", POOLS[1], blockSize=124)
        with workers(ground, nodes, random.Random("processes")) as both:
            kill_and_restart(both, ground.addresses)
            assert [worker.end(signal.SIGTERM) for worker in both] == [0, 0]
        assert holdings(store) == both[0].told() | both[1].told()
        for handle in holdings(store):
            free(IpamService(store, NODE), handle)
        assert holdings(store) == {}
        assert [capacity(store, nodes, version) for version in (4, 6)] == [Cidr(pool).size for pool in POOLS]
        demand_whole_claims(store)

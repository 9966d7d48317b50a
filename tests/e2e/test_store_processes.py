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
from harness.ipam import NODE, free, holdings, put_node, put_pool, require_whole_claims, take
from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE
from svc.ipam.service import IpamService
from svc.model.errors import PeerError

SILENCE_SECONDS = 60.0  # without progress

POOLS = ("10.65.0.0/24", "fd65::/120")

# Writes a byte to standard output for each address that it assigns or releases, and after SIGTERM its allocations to standard
# error. It first releases the allocations of its predecessor, as a restarted agent does with its journal.
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
class Workload:
    """A datastore with a pool of each family, and the load on it.

    Both processes together assign and release `addresses` addresses. `life` is the range of those before a process is killed.
    Each thread has at most `handles` handles at once. Each handle has addresses of one of the `families`.
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
    """One of the two processes, with all its restarts."""

    workload: Workload
    node: str
    name: str
    dice: random.Random
    starts: int = 0
    left: int = 0  # addresses until it is killed
    works: bool = False  # whether the process has reported an address since its start
    process: "subprocess.Popen[bytes]" = field(init=False)

    def start(self) -> None:
        self.starts += 1
        self.left, self.works = self.dice.randint(*self.workload.life), False
        workload = self.workload
        store = [json.dumps(workload.settings), str(workload.folder), self.node, self.name]
        work = [str(workload.threads), str(workload.handles), json.dumps(workload.families), str(self.dice.random())]
        command = [sys.executable, "-c", PROGRAM, *store, *work]
        with self.messages.open("wb") as messages:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages)

    @property
    def messages(self) -> Path:
        return self.workload.folder / f"{self.name}.txt"

    @property
    def pipe(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def end(self, number: int) -> int:
        """Send the signal, and return the exit status."""
        self.process.send_signal(number)
        self.process.communicate(timeout=SILENCE_SECONDS)
        return self.process.returncode

    def read(self) -> int:
        """Return how many more addresses the process has reported. Raise AssertionError if it has failed."""
        count = len(os.read(self.pipe, 65536))
        assert count, f"{self.name} has failed: {self.messages.read_text()}"
        self.left -= count
        self.works = True
        return count

    def reported(self) -> dict[str, frozenset[Address]]:
        """Return the addresses of each handle, as the process has reported them at its end."""
        lines = map(str.split, self.messages.read_text().splitlines())
        return {handle: frozenset(map(Address, addresses)) for handle, *addresses in lines}


@contextmanager
def workers(workload: Workload, nodes: tuple[str, str], dice: random.Random) -> Iterator[list[Worker]]:
    both = [Worker(workload, node, f"net.w{number}", dice) for number, node in enumerate(nodes)]
    try:
        for worker in both:
            worker.start()
        yield both
    finally:
        for worker in both:
            if worker.process.poll() is None:
                worker.end(signal.SIGKILL)


def kill_and_restart(both: list[Worker], addresses: int) -> None:
    """Kill and restart the processes until `addresses` are reached, each was killed twice, and both work."""
    done = 0
    with selectors.DefaultSelector() as selector:
        for worker in both:
            selector.register(worker.pipe, selectors.EVENT_READ, worker)
        while done < addresses or not all(worker.works and worker.starts > 2 for worker in both):
            ready = selector.select(SILENCE_SECONDS)
            assert ready, "neither process made progress in time"
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
def test_embedded_store_loses_no_address(tmp_path: Path, nodes: tuple[str, str]) -> None:
    def open_store() -> Backend:
        return EmbeddedStore(tmp_path / EMBEDDED_FILE)

    def put(node: str) -> None:
        with closing(open_store()) as store:
            put_node(store, node)

    require_nothing_lost(Workload({"kind": "embedded"}, tmp_path, put, open_store, 5000, life=(150, 1000)), nodes)


def test_etcd_loses_no_address(etcd_site: Site, tmp_path: Path) -> None:
    settings = {"kind": "etcdv3", "etcd_endpoints": etcd_site.config["etcd_endpoints"]}
    workload = Workload(settings, tmp_path, etcd_site.add_node, etcd_site.open, 2500, life=(100, 500))
    with cleared(etcd_site):
        require_nothing_lost(workload, TWO)


def test_custom_resources_lose_no_address(orch_site: OrchSite, tmp_path: Path) -> None:
    """A handle takes a dozen requests, so many threads use handles with several addresses each."""
    settings = {"kind": "orch", "kubeconfig": str(orch_site.kubeconfig)}
    families = ((4,), (6,), (4, 6), (4, 4, 6, 6), (4, 4, 4, 4, 6, 6, 6, 6))
    workload = Workload(
        settings, tmp_path, orch_site.add_node, orch_site.open, 2500, life=(100, 500), threads=16, handles=1, families=families
    )
    with cleared(orch_site):
        require_nothing_lost(workload, TWO)


@contextmanager
def cleared(site: Site) -> Iterator[None]:
    try:
        yield
    finally:
        site.clear()


def require_nothing_lost(workload: Workload, nodes: tuple[str, str]) -> None:
    """Require that two processes, which are killed repeatedly, lose no address and get none twice.

    At the end blocks and handles agree, the processes hold what they report, and every address can be assigned again.
    """
    for node in dict.fromkeys(nodes):
        workload.put_node(node)
    with closing(workload.open()) as store:
        put_pool(store, "pool4", POOLS[0], blockSize=28)
        put_pool(store, "pool6", POOLS[1], blockSize=124)
        with workers(workload, nodes, random.Random("processes")) as both:
            kill_and_restart(both, workload.addresses)
            assert [worker.end(signal.SIGTERM) for worker in both] == [0, 0]
        assert holdings(store) == both[0].reported() | both[1].reported()
        for handle in holdings(store):
            free(IpamService(store, NODE), handle)
        assert holdings(store) == {}
        assert [capacity(store, nodes, version) for version in (4, 6)] == [Cidr(pool).size for pool in POOLS]
        require_whole_claims(store)

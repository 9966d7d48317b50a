"""Two nodes assign from the same few blocks while another program rewrites these blocks. No address is assigned twice."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.etcd import cluster
from harness.ipam import free, holdings, put_node, put_pool, take
from svc.datastore.api import Backend, Conflict, NotFound, Update
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.etcd.store import EtcdStore
from svc.ipam.service import IpamService
from svc.model.errors import Code, SvcError
from svc.model.ipam import Block
from svc.model.keys import BlockQuery
from svc.names import DEFAULT

ROUNDS = 150  # of each node, at least
MAX_ROUNDS = 20_000
FOREIGN_WRITES = 30
Open = Callable[[], Backend]


@pytest.fixture(params=["embedded", pytest.param("etcdv3", marks=pytest.mark.server)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    """Return a function that opens a session with the datastore."""
    if request.param == "embedded":
        return lambda: EmbeddedStore(tmp_path / "store.db")
    running = request.getfixturevalue("etcd_server")
    return lambda: EtcdStore({"kind": "etcdv3", "etcd_endpoints": running.endpoints}, DEFAULT)


@pytest.fixture
def etcd_server(tmp_path: Path) -> object:
    with cluster(tmp_path) as running:
        yield running


class ForeignWriter:
    """A program that changes fields of blocks that svc does not know, as a newer release may do."""

    def __init__(self, open_store: Open) -> None:
        self._open = open_store
        self.stopping = threading.Event()
        self.writes = 0

    def run(self) -> None:
        dice = Random(0)
        with closing(self._open()) as store:
            while not self.stopping.is_set():
                for entry in store.list(BlockQuery()):
                    assert isinstance(entry.value, Block)
                    changed = replace(entry.value, extra={**(entry.value.extra or {}), "novel": dice.random()})
                    with suppress(Conflict, NotFound):
                        store.write([Update(entry.key, changed, entry.revision)])
                        self.writes += 1
                self.stopping.wait(0.005)


def assign_and_release(open_store: Open, node: str, foreign: ForeignWriter) -> dict[str, tuple[str, ...]]:
    """Continue until the other program has written often enough. Return what the node holds then: handles with addresses."""
    dice, held = Random(node), dict[str, tuple[str, ...]]()
    with closing(open_store()) as store:
        ipam = IpamService(store, node)
        for number in range(MAX_ROUNDS):
            if number >= ROUNDS and foreign.writes >= FOREIGN_WRITES:
                break
            if held and dice.random() < 0.45:
                handle = dice.choice(list(held))
                free(ipam, handle)
                del held[handle]
                continue
            handle = f"{node}.{number}"
            try:
                held[handle] = take(ipam, handle)
            except SvcError as refusal:
                if refusal.code not in (Code.NO_ADDRESS, Code.CONCURRENCY):
                    raise
                free(ipam, handle)
    return held


def test_no_address_is_assigned_twice(open_store: Open) -> None:
    """The fields of the other program stay."""
    with closing(open_store()) as store:
        put_pool(store, "small", "10.65.0.0/28", blockSize=29)
        for node in ("node1", "node2"):
            put_node(store, node)
        foreign = ForeignWriter(open_store)
        with ThreadPoolExecutor(3) as pool:
            writing = pool.submit(foreign.run)
            nodes = [pool.submit(assign_and_release, open_store, node, foreign) for node in ("node1", "node2")]
            try:
                held = {handle: addresses for node in nodes for handle, addresses in node.result().items()}
            finally:
                foreign.stopping.set()
            writing.result()
        assert foreign.writes >= FOREIGN_WRITES
        given = [address for addresses in held.values() for address in addresses]
        assert len(given) == len(set(given))
        stored = {handle: frozenset(map(str, addresses)) for handle, addresses in holdings(store).items()}
        assert stored == {handle: frozenset(addresses) for handle, addresses in held.items()}
        assert any((entry.value.extra or {}).get("novel") for entry in store.list(BlockQuery()))

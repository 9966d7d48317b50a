"""Several etcd members, some of them dead: nothing is lost and nothing is done twice."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.etcd import Cluster, cluster
from harness.etcd_sessions import HANDLES, create, handle, session
from svc.datastore.api import Conflict, Create, Delete, KeyedError, NotFound, StoreError, Update
from svc.datastore.etcd.store import EtcdStore
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, HandleQuery

WORKERS = 4
KILLS = 2
OPERATIONS = 60  # of each worker after each kill, and before the first one
SHARED = HandleKey("shared")  # everybody counts in it, each under a name of his own


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, 3) as running:
        yield running


class Worker:
    """Counts in the shared key, and creates and deletes keys of its own; knows what must be there."""

    def __init__(self, number: int, endpoints: str) -> None:
        self.thread = threading.Thread(target=self._run, name=f"worker-{number}")
        self.block = f"10.0.{number}.0/26"
        self._number = number
        self._endpoints = endpoints
        self._dice = random.Random(number)
        self.counted = 0
        self.keys: set[str] = set()
        self.operations = 0
        self.unknown = 0
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            with session(self._endpoints) as store:
                while not self.stopping.is_set():
                    self._dice.choice([self._count, self._create, self._delete])(store)
                    self.operations += 1
        except BaseException as failure:
            self.failure = failure

    def _count(self, store: EtcdStore) -> None:
        try:
            entry = store.get(SHARED)
            assert isinstance(entry.value, Handle)
            assert entry.value.blocks.get(self.block, 0) == self.counted, "lost or doubled"
            store.write([Update(SHARED, entry.value.changed(self.block, 1), entry.revision)])
            self.counted += 1
        except Conflict:
            return
        except StoreError:
            self.unknown += 1
            self.counted = self._stored_count(store)

    def _stored_count(self, store: EtcdStore) -> int:
        """For a write of which nothing is known: it was made or not, never twice."""
        while True:
            try:
                value = store.get(SHARED).value
            except StoreError:
                continue
            assert isinstance(value, Handle)
            count = value.blocks.get(self.block, 0)
            assert count in (self.counted, self.counted + 1)
            return count

    def _create(self, store: EtcdStore) -> None:
        """A key that nobody else knows is never there already."""
        name = f"own.{self._number}.{self._dice.getrandbits(64)}"
        self._own(store, name, Create(HandleKey(name), handle(1)))

    def _delete(self, store: EtcdStore) -> None:
        if self.keys:
            name = self._dice.choice(sorted(self.keys))
            self._own(store, name, Delete(HandleKey(name)))

    def _own(self, store: EtcdStore, name: str, write: Create | Delete) -> None:
        try:
            store.write([write])
            self.keys ^= {name}
        except KeyedError:
            raise
        except StoreError:
            self.unknown += 1
            self.keys.discard(name)
            if self._exists(store, name):
                self.keys.add(name)

    def _exists(self, store: EtcdStore, name: str) -> bool:
        while True:
            try:
                store.get(HandleKey(name))
            except NotFound:
                return False
            except StoreError:
                continue
            return True


def go_on(workers: list[Worker], operations: int) -> None:
    """Until each has done so many more."""
    goals = {worker: worker.operations + operations for worker in workers}
    pause = threading.Event()
    while any(worker.operations < goal for worker, goal in goals.items()):
        assert [worker.failure for worker in workers if worker.failure] == []
        pause.wait(0.05)


def test_killed_leaders_lose_and_double_nothing(three: Cluster) -> None:
    """Counters and keys are as every worker was told, whatever was on its way when the leader died."""
    with session(three.endpoints) as store:
        store.write([Create(SHARED, Handle({}))])
        workers = [Worker(number, three.endpoints) for number in range(WORKERS)]
        try:
            for worker in workers:
                worker.thread.start()
            go_on(workers, OPERATIONS)
            for _ in range(KILLS):
                leader = three.leader()
                leader.kill()
                go_on(workers, OPERATIONS)
                three.restart(leader)
        finally:
            for worker in workers:
                worker.stopping.set()
            for worker in workers:
                worker.thread.join()
        assert [worker.failure for worker in workers if worker.failure] == []
        shared = store.get(SHARED).value
        assert isinstance(shared, Handle)
        assert shared.blocks == {worker.block: worker.counted for worker in workers}
        present = {entry.key.handle for entry in store.list(HandleQuery()) if isinstance(entry.key, HandleKey)}
        assert present - {SHARED.handle} == set.union(*(worker.keys for worker in workers))
        assert Counter(worker.unknown for worker in workers)[0] == WORKERS, "a write that could be looked up was given up"


def test_two_dead_members_are_passed_over(three: Cluster) -> None:
    """One that is reachable is enough, as long as the cluster has a leader: here all endpoints but one are wrong."""
    live = three.members[0].url
    for endpoints in (
        f"http://127.0.0.1:1,http://127.0.0.1:2,{live}",
        f"{live},http://127.0.0.1:1",
        f"http://nowhere.invalid:1,{live}",
    ):
        with session(endpoints) as store:
            for number in range(3):
                entry = create(store, f"{len(endpoints)}.{number}")
                assert store.get(entry.key) == entry


def test_a_majority_lost_is_an_error_and_then_none(three: Cluster) -> None:
    """Nothing is written without a majority; with it, the same session goes on."""
    with session(three.endpoints) as store:
        create(store, "before")
        for member in three.members[1:]:
            member.kill()
        with pytest.raises(StoreError, match=r"etcd at .* does not answer|not known"):
            create(store, "meanwhile")
        for member in three.members[1:]:
            member.start()
        for member in three.members:
            member.wait()
        create(store, "after")
        names = {key.removeprefix(HANDLES) for key, _ in three.stored(HANDLES)}
        assert {"before", "after"} <= names <= {"before", "meanwhile", "after"}

"""Worker threads that count, create and delete in etcd, and check the stored result."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from harness.etcd_sessions import handle, session
from svc.datastore.api import Conflict, Create, Delete, Update
from svc.datastore.etcd.store import EtcdStore
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, HandleQuery

SHARED = HandleKey("shared")  # each worker counts here under its own name
WORKERS = 4


class Worker:
    """A thread with a session. A wrong reply, or an error other than a conflict, is its failure."""

    def __init__(self, number: int, endpoints: str) -> None:
        self.name = f"10.0.{number}.0/26"
        self.counted = 0
        self.keys: set[str] = set()
        self.operations = 0
        self.failure: BaseException | None = None
        self._number = number
        self._endpoints = endpoints
        self._dice = random.Random(number)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"worker-{number}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with session(self._endpoints) as store:
                while not self._stopping.is_set():
                    self._dice.choice([self._count, self._create, self._delete])(store)
                    self.operations += 1
        except BaseException as failure:
            self.failure = failure

    def _count(self, store: EtcdStore) -> None:
        entry = store.get(SHARED)
        assert isinstance(entry.value, Handle)
        assert entry.value.blocks.get(self.name, 0) == self.counted, "an update was lost or applied twice"
        try:
            store.write([Update(SHARED, entry.value.changed(self.name, 1), entry.revision)])
        except Conflict:
            return
        self.counted += 1

    def _create(self, store: EtcdStore) -> None:
        """Create a key that only this worker knows."""
        name = f"own.{self._number}.{self._dice.getrandbits(64)}"
        store.write([Create(HandleKey(name), handle(1))])
        self.keys.add(name)

    def _delete(self, store: EtcdStore) -> None:
        """Delete a key, which must exist."""
        if self.keys:
            name = self.keys.pop()
            store.write([Delete(HandleKey(name))])


class Churn:
    """Several concurrent workers."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def go_on(self, operations: int) -> None:
        """Wait until each worker has completed so many more operations."""
        goals = {worker: worker.operations + operations for worker in self._workers}
        pause = threading.Event()
        while any(worker.operations < goal for worker, goal in goals.items()):
            self.require_success()
            pause.wait(0.02)

    def require_success(self) -> None:
        for worker in self._workers:
            if worker.failure is not None:
                raise worker.failure

    def require_consistency(self, store: EtcdStore) -> None:
        """Require that the store contains exactly the result of the successful writes."""
        self.require_success()
        shared = store.get(SHARED).value
        assert isinstance(shared, Handle)
        assert shared.blocks == {worker.name: worker.counted for worker in self._workers if worker.counted}
        present = {entry.key.handle for entry in store.list(HandleQuery()) if isinstance(entry.key, HandleKey)}
        assert present - {SHARED.handle} == set[str]().union(*(worker.keys for worker in self._workers))


@contextmanager
def churning(endpoints: str, sound: EtcdStore) -> Iterator[Churn]:
    """Run workers at these endpoints. At the end, stop them and check the stored result with a separate session."""
    sound.write([Create(SHARED, Handle({}))])
    workers = [Worker(number, endpoints) for number in range(WORKERS)]
    churn = Churn(workers)
    try:
        for worker in workers:
            worker.start()
        yield churn
    finally:
        for worker in workers:
            worker.stop()
    churn.require_consistency(sound)

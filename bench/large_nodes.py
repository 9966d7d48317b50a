"""The nodes of a large cluster: their address management, svc's own code, in worker processes.

A worker has one session with the datastore, which its nodes share, and a thread for each node that is at work. Each node has
caches of its own, as on a machine of its own, and may have one block.
"""

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from bench.testbed import Failed
from harness.large_cluster import CREATED, LargeCluster
from svc import deadline
from svc._core.cidr import Address
from svc.agent.call import EXPECTED_SECONDS
from svc.attach.datastore_ready import KEY as READY
from svc.datastore.api import Backend, Create, Delete, Entry, StoreError
from svc.datastore.etcd.store import EtcdStore
from svc.datastore.orch.store import OrchStore
from svc.ipam.errors import NoAddress
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.endpoint import PodFacts
from svc.model.keys import HandleKey, Key
from svc.names import DEFAULT

WORKERS, THREADS = 4, 16
END_SECONDS = 60.0

Place = tuple[int, int]  # the number of a node, and that of its pod


@dataclass(frozen=True, slots=True)
class Order:
    """Work for some nodes at once: to get addresses for pods, or to let pods come and go for some seconds.

    `pods` are the numbers of the pods of each node.
    """

    pods: Mapping[int, Sequence[int]]
    churn_seconds: float = 0.0


@dataclass(slots=True)
class Tally:
    """What was done: milliseconds of each assignment, the addresses, the refused pods, and what it cost the nodes."""

    ms: list[float] = field(default_factory=list)
    addresses: dict[Place, str] = field(default_factory=dict)
    refused: list[Place] = field(default_factory=list)
    costs: Counter[str] = field(default_factory=Counter)
    processor_seconds: float = 0.0
    seconds: float = 0.0

    def add(self, other: "Tally") -> None:
        self.ms += other.ms
        self.addresses |= other.addresses
        self.refused += other.refused
        self.costs += other.costs
        self.processor_seconds += other.processor_seconds


class Fleet:
    """The workers."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections

    def carry_out(self, order: Order) -> Tally:
        """Divide the nodes among the workers, and return what they did. Raise Failed if a call fails for another reason."""
        began, whole = time.perf_counter(), Tally()
        for number, connection in enumerate(self._connections):
            pods = {node: numbers for node, numbers in order.pods.items() if node % len(self._connections) == number}
            connection.send(Order(pods, order.churn_seconds))
        answers = [connection.recv() for connection in self._connections]
        whole.seconds = time.perf_counter() - began
        for answer in answers:
            if isinstance(answer, str):
                raise Failed(answer)
            whole.add(answer)
        return whole


@contextmanager
def fleet(settings: Mapping[str, str], pods_of_node: int, at_once: int) -> Iterator[Fleet]:
    """Start the workers, with so many nodes at work at once. End them at the end."""
    context = get_context("spawn")
    pairs = [context.Pipe() for _ in range(min(WORKERS, at_once))]
    processes = [
        context.Process(target=_work, args=(end, dict(settings), pods_of_node, max(1, at_once // WORKERS)), daemon=True)
        for _, end in pairs
    ]
    try:
        for process, (_, end) in zip(processes, pairs, strict=True):
            process.start()
            end.close()  # the other copy is the worker's: when it fails, `recv` fails
        for own, _ in pairs:
            own.recv()  # it has imported everything, and opened its session
        yield Fleet([own for own, _ in pairs])
    finally:
        for (own, end), process in zip(pairs, processes, strict=True):
            end.close()
            own.close()  # its worker ends then
            process.join(END_SECONDS)
            process.kill()
            process.join()
            process.close()


def open_session(settings: Mapping[str, str]) -> Backend:
    kind = EtcdStore if "etcd_endpoints" in settings else OrchStore
    return kind(dict(settings), DEFAULT)


# in a worker


def _work(connection: Connection, settings: dict[str, str], pods_of_node: int, threads: int) -> None:
    with closing(open_session(settings)) as store, ThreadPoolExecutor(threads) as pool:
        worker = _Worker(store, pods_of_node, pool)
        connection.send(None)
        while True:
            try:
                order = connection.recv()
            except EOFError:
                return
            try:
                answer: Any = worker.carry_out(order)
            except Exception:
                answer = traceback.format_exc()
            connection.send(answer)


class _Worker:
    def __init__(self, store: Backend, pods_of_node: int, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._cluster = LargeCluster(0, pods_of_node)
        self._pool = pool
        self._services: dict[int, IpamService] = {}
        self._serial = 1_000_000  # of pods that come and go

    def carry_out(self, order: Order) -> Tally:
        whole, before, used = Tally(), self._costs(), _own_seconds()
        until = time.monotonic() + order.churn_seconds

        def work(node: int) -> Tally:
            return self._node(node, order.pods[node], until if order.churn_seconds else 0.0)

        for tally in self._pool.map(work, order.pods):
            whole.add(tally)
        whole.costs = self._costs() - before
        whole.processor_seconds = _own_seconds() - used
        return whole

    def _node(self, node: int, numbers: Sequence[int], until: float) -> Tally:
        service = self._services.setdefault(node, IpamService(self._store, f"node{node}"))
        tally = Tally()
        for number in numbers:
            self._assign(service, node, number, tally)
        while time.monotonic() < until:
            self._serial += 1  # threads may get the same one: it is another node's
            if self._assign(service, node, number := self._serial, tally):
                self._release(service, node, number)
        return tally

    def _assign(self, service: IpamService, node: int, number: int, tally: Tally) -> bool:
        handle, extra = self._cluster.handle(node, number), self._creation(node, number)
        owner = {
            "node": f"node{node}",
            "timestamp": CREATED,
            "pod": self._cluster.pod_name(node, number),
            "namespace": "default",
        }
        began = time.perf_counter()
        try:
            with deadline.limit(EXPECTED_SECONDS):
                result = service.assign(Assign(handle, owner, extra_write=extra, max_blocks=1))
            tally.addresses[node, number] = str(result.addresses[0])
        except NoAddress:
            tally.refused.append((node, number))
            return False
        finally:
            tally.ms.append((time.perf_counter() - began) * 1000)
        return True

    def _creation(self, node: int, number: int) -> Callable[[tuple[Address, ...]], Create] | None:
        """Return what makes the write of the endpoint, which is in the transaction of an ADD if there are transactions."""
        if not self._store.atomic:
            return None
        return lambda addresses: Create(*self._cluster.endpoint_at(node, number, addresses[0], PodFacts()))

    def _release(self, service: IpamService, node: int, number: int) -> None:
        """Do what a DEL does: read all in one call, and release."""
        handle = self._cluster.handle(node, number)
        endpoint, _ = self._cluster.endpoint_at(node, number, Address("0.0.0.0"), PodFacts())
        keys: list[Key] = [READY, HandleKey(handle), *([endpoint] if self._store.atomic else [])]
        _, stored, *others = self._store.get_all(keys)
        extra = next((Delete(each.key, each.revision) for each in others if isinstance(each, Entry)), None)
        service.release(Release(handle, extra_write=extra), stored)

    def _costs(self) -> Counter[str]:
        """Return the requests of this worker so far, and the conflicts among them."""
        found = Counter[str]()
        for name, labels, value in self._store.meter.samples(""):
            if name == "store_requests_total":
                outcome = dict(labels)["outcome"]
                found["requests"] += int(value)
                found["conflicts"] += int(value) if outcome == "conflict" else 0
                if outcome == "error" and value:
                    raise StoreError(f"{value:.0f} requests have failed")
        return found


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system

"""Allocations and releases on one datastore: `python -m bench alloc` starts this program for each view of them."""

import json
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import alloc_meter, alloc_views
from bench.alloc_meter import Meter, MeteredBackend, MeteredIpam
from bench.ipam_load import (
    POOL_LENGTH,
    SPACE,
    block_documents,
    elapsed_us,
    fill,
    other_blocks,
    pool_documents,
    register,
    site_of,
)
from bench.measurement import Figure, Missing, Sample
from bench.signals import tear_down_at_signals
from svc.ipam.requests import Assign, Release

RELEASES = ("lifo", "fifo", "random", "none")


@dataclass(frozen=True, slots=True)
class Load:
    """What is allocated where: the parameters of the profiler.

    `threads` allocate on `nodes` in `pools`, each node with a block of `fill` used addresses. Beside these there are `blocks`
    of other nodes in each pool. A thread holds `held` addresses and then releases one for each that it allocates: the newest
    (lifo), the oldest (fifo), any (random), or none.
    """

    store: str = "embedded"
    pools: int = 1
    blocks: int = 20
    block_size: int = 26
    fill: float = 0.5
    threads: int = 1
    nodes: int = 1
    release: str = "lifo"
    held: int = 4
    rounds: int = 500

    @property
    def blocks_of_pool(self) -> int:
        """Return how many blocks a pool has."""
        return 1 << (self.block_size - POOL_LENGTH)

    @property
    def free(self) -> int:
        """Return how many addresses a pool has that are not used at the beginning."""
        size = 1 << (32 - self.block_size)
        return self.blocks_of_pool * size - self.nodes * int(size * self.fill)

    @property
    def room(self) -> int:
        """Return how many of them are not in blocks of other nodes, from which the nodes would borrow."""
        return self.free - self.blocks * (1 << (32 - self.block_size))

    def parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "rounds"}


class Work:
    """The calls of a load, on a furnished datastore."""

    def __init__(self, load: Load, services: list[MeteredIpam], meter: Meter) -> None:
        self.load = load
        self.meter = meter
        self._services = services
        self._held: list[deque[tuple[MeteredIpam, str]]] = [deque() for _ in range(load.threads)]
        self._serial = 0
        self._failure: BaseException | None = None

    def run(self, rounds: int) -> None:
        """Let each thread allocate so many addresses. Raise the first failure."""
        self._serial += 1
        if self.load.threads == 1:
            self._thread(0, rounds)
            return
        threads = [threading.Thread(target=self._guarded, args=(number, rounds)) for number in range(self.load.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure:
            raise self._failure

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.run(20)
            if self.load.release == "none" and sum(map(len, self._held)) * 2 > self.load.room:
                self._release_all()  # the pool would be exhausted before the time is over

    def _release_all(self) -> None:
        for held in self._held:
            while held:
                service, handle = held.popleft()
                service.release(Release(handle))

    def _guarded(self, number: int, rounds: int) -> None:
        try:
            self._thread(number, rounds)
        except BaseException as failure:
            self._failure = failure

    def _thread(self, number: int, rounds: int) -> None:
        chance, held = random.Random(number), self._held[number]
        own = self._services[number % len(self._services) :: self.load.threads]
        for turn in range(rounds):
            service, handle = own[turn % len(own)], f"net.{self._serial:032x}{number:08x}{turn:024x}"
            began = time.perf_counter()
            service.assign(Assign(handle, {"node": service.node, "pod": f"pod-{turn}", "namespace": "default"}))
            self.meter.note("assign", elapsed_us(began))
            held.append((service, handle))
            if len(held) > self.load.held and self.load.release != "none":
                self._release(held, chance)

    def _release(self, held: deque[tuple[MeteredIpam, str]], chance: random.Random) -> None:
        if self.load.release == "random":
            held.rotate(chance.randrange(len(held)))
        service, handle = held.popleft() if self.load.release == "fifo" else held.pop()
        began = time.perf_counter()
        service.release(Release(handle))
        self.meter.note("release", elapsed_us(began))


@contextmanager
def work_on(load: Load) -> Iterator[Work]:
    """Furnish a datastore. The first calls of each thread, which claim blocks and fill caches, are done."""
    meter = Meter()
    nodes = [f"node{number}" for number in range(load.nodes)]
    with ExitStack() as stack:
        site = stack.enter_context(site_of(load.store))
        sessions = [stack.enter_context(closing(site.open())) for _ in nodes]
        register(site, sessions[0], *nodes)
        _furnish(load, sessions[0], nodes)
        stack.enter_context(alloc_meter.codecs_metered(meter))
        backends = [MeteredBackend(session, meter) for session in sessions]
        work = Work(load, [MeteredIpam(backend, node, meter) for backend, node in zip(backends, nodes, strict=True)], meter)
        work.run(load.held + 10)
        meter.clear()
        yield work


def _furnish(load: Load, store: Any, nodes: list[str]) -> None:
    length, last = load.block_size, load.pools - 1
    fill(store, pool_documents(load.pools, block_length=length))
    fill(store, other_blocks(load.pools, load.blocks, length))
    for number, node in enumerate(nodes):
        cidr = SPACE.block((last << (length - POOL_LENGTH)) + number, length)
        fill(store, block_documents(cidr, node, int((1 << (32 - length)) * load.fill)))


# views


def _time(work: Work, _: Path) -> Iterator[Figure]:
    load, meter = work.load, work.meter
    began = time.perf_counter()
    work.run(load.rounds)
    seconds = time.perf_counter() - began
    parameters = load.parameters()
    for name in ("assign", "release"):
        if values := meter.times(name):
            yield Figure(f"alloc_{name}", "us", Sample.of(values), len(values), parameters=parameters)
    calls = len(meter.times("assign")) + len(meter.times("release"))
    yield Figure("alloc_rate", "calls/s", Sample(calls / seconds), calls, parameters=parameters)
    for name, value in meter.phases().items():
        yield Figure("alloc_phase", "us a call", Sample(value / calls), calls, parameters={**parameters, "phase": name})
    for name, number in meter.counts().items():
        yield Figure("alloc_count", "a call", Sample(number / calls), calls, parameters={**parameters, "of": name})


VIEWS: dict[str, Callable[[Work, Path], Iterator[Figure]]] = {
    "time": _time,
    "allocations": alloc_views.allocations,
    "flame": alloc_views.flame,
    "lines": alloc_views.lines,
}


def main() -> None:
    """Write a JSON line for each figure to a descriptor. The arguments are view, descriptor, folder and load."""
    view, descriptor, folder, load = sys.argv[1:]
    tear_down_at_signals()
    with os.fdopen(int(descriptor), "w") as sink:
        try:
            with work_on(Load(**json.loads(load))) as work:
                for figure in VIEWS[view](work, Path(folder)):
                    print(json.dumps(figure.to_json()), file=sink, flush=True)
        except Missing as what:
            print(json.dumps({"missing": f"{view}: {what}"}), file=sink)


if __name__ == "__main__":
    main()

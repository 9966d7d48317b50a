"""Pods that are created again, move and get second interfaces, beside the release of leaked addresses.

Each race has its own pod. A race notes which addresses are live, and each of them must stay with its handle until the race ends
it. `SVC_RACES` is the number of races of a test.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from harness.address_cluster import NETWORK, AddressCluster
from svc.controllers.node.addresses.part import Addresses
from svc.datastore.api import Conflict, NotFound
from svc.model.errors import SvcError

RACES = int(os.environ.get("SVC_RACES", "16"))
THREADS = min(RACES, 40)
_REPORTED = 100  # races between two lines about the progress
GRACE = 0.02  # seconds
_LOOKS = (0, 1, 3, 6)  # of the part, during a pause
_PAUSE_SECONDS = 5.0  # limit of a pause
NODES = ("node1", "node2")
_ATTEMPTS = 20


class CountingAddresses(Addresses):
    """The part, which counts its looks. What a look has confirmed is released before the next one begins."""

    looks = 0

    def round_items(self) -> Iterable[str]:
        self.looks += 1
        return super().round_items()


class Race:
    """One pod, with the live addresses so far."""

    def __init__(self, cluster: AddressCluster, part: CountingAddresses, number: int, seed: int) -> None:
        self.cluster = cluster
        self.part = part
        self.pod = f"race{number}"
        self.random = random.Random(seed * 1_000_003 + number)
        self.live: dict[str, str] = {}  # handles by address
        self.lost: list[str] = []
        self._sandboxes = 0

    def pause(self) -> None:
        """Wait for some looks of the part, and check the live addresses."""
        looks, until = self.part.looks + self.random.choice(_LOOKS), time.monotonic() + _PAUSE_SECONDS
        while self.part.looks < looks and time.monotonic() < until:
            time.sleep(0.02)
        for address, handle in self.live.items():
            if (holder := self.cluster.holder(address)) != handle:
                self.lost.append(f"{address} of {self.pod}, {handle}, is held by {holder or 'no handle'}")

    def create(self, node: str = "node1") -> None:
        self.cluster.add_pod(self.pod, node)

    def delete(self) -> None:
        """Delete the pod. The node does not notice."""
        self.live.clear()
        self.cluster.remove_pod(self.pod)

    def add(self, node: str = "node1", ifname: str = "eth0", network: str = NETWORK, container: str = "") -> str:
        """Carry out an ADD, in a new sandbox unless a container is given. Return the container."""
        if not container:
            self._sandboxes += 1
            container = f"{self.pod}x{self._sandboxes}"
        handle = f"{network}.{container}"
        address = self.cluster.assign(handle, self.pod, node)
        self.live[address] = handle
        self.pause()
        self._write_endpoint(container, address, node, ifname)
        self.pause()
        return container

    def release(self, container: str) -> None:
        """Carry out a DEL that comes late, after the endpoint became that of another sandbox."""
        with suppress(SvcError):
            self.cluster.release(f"{NETWORK}.{container}")

    def end(self) -> None:
        self.pause()
        containers = [handle.rpartition(".")[2] for handle in self.live.values()]
        self.delete()
        if self.random.random() < 0.5:  # otherwise the part has to release them
            for container in containers:
                self.release(container)

    def _write_endpoint(self, container: str, address: str, node: str, ifname: str) -> None:
        for _ in range(_ATTEMPTS):
            with suppress(Conflict, NotFound):  # the endpoint of an earlier sandbox may be deleted at the same time
                return self.cluster.write_endpoint(self.pod, container, address, node=node, ifname=ifname)
        raise AssertionError("the endpoint could not be written")


def created_again(race: Race) -> None:
    race.create()
    former = race.add()
    race.delete()
    race.pause()
    race.create()
    race.pause()
    race.add()
    if race.random.random() < 0.5:
        race.release(former)


def moved(race: Race) -> None:
    race.create("node1")
    race.add("node1")
    race.delete()
    race.pause()
    race.create("node2")
    race.add("node2")


def second_interface(race: Race) -> None:
    race.create()
    container = race.add()
    first = next(iter(race.live))
    race.cluster.set_status(race.pod, phase="Running", podIP=first, podIPs=[{"ip": first}])
    race.add(ifname="net1", network="blue", container=container)


def new_sandbox(race: Race) -> None:
    """The runtime begins another sandbox of the same pod before the DEL of the former one."""
    race.create()
    race.add()
    race.live.clear()
    race.add()


KINDS: tuple[Callable[[Race], None], ...] = (created_again, moved, second_interface, new_sandbox)


def run_races(cluster: AddressCluster, part: CountingAddresses, count: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Run races in threads. Return the live addresses that were lost, and the number of races of each kind."""

    lost: list[str] = []
    kinds: Counter[str] = Counter()

    def run(number: int) -> tuple[str, list[str]]:
        race, kind = Race(cluster, part, number, seed), KINDS[number % len(KINDS)]
        kind(race)
        race.end()
        return kind.__name__, race.lost

    with ThreadPoolExecutor(THREADS) as threads:
        for name, found in threads.map(run, range(count)):
            kinds[name] += 1
            lost += found
            if kinds.total() % _REPORTED == 0:
                print(f"{kinds.total()} races, {len(lost)} live addresses lost", flush=True)
    return lost, kinds

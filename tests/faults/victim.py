"""The process that is killed: a node that adds and deletes containers at random.

It begins as an agent does after a kill: it tears down what the last process has left. Runtimes repeat calls without a reply.
Then nothing may be lost, leaked or assigned twice.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.api_faults import Switch
from faults.ledger import Ledger
from faults.pods import BareContainers, Pods
from harness.etcd import Cluster
from harness.fault_injection import Kind
from harness.inprocess import Host, opened
from harness.kube import Kube
from harness.netns import Netns
from svc.attach.record import SessionKey
from svc.attach.request import Sandbox
from svc.datastore.open import open_backend
from svc.model.errors import SvcError
from svc.names import DEFAULT

NODE: Final = "node1"
THREADS: Final = 3
MAX_LIFE_SECONDS: Final = 0.08
_KILLS: Final = (Kind.KILLED, Kind.KILLED_AFTER)
_TROUBLES: Final = (Kind.REFUSED, Kind.REPLY_LOST)
MAX_JUMP_SECONDS: Final = 86_400.0
_MAX_CALL: Final = 60  # to the datastore or the journal, at which a fault is armed


@dataclass(frozen=True)
class Node:
    """What stays while its process is killed: state, datastore and namespaces."""

    directory: Path
    settings: dict[str, str]
    netns: Netns
    sandboxes: Sequence[Netns]
    servers: Cluster | None = None  # that have faults, too
    kube: Kube | None = None  # in which each container has a pod
    api_faults: Switch | None = None  # of the requests to the API server
    longest_life: float = MAX_LIFE_SECONDS

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.directory / "ledger")

    def owners(self) -> BareContainers:
        """Return the owners of the containers, for this process alone."""
        return BareContainers() if self.kube is None else Pods(self.kube.connected_again())

    def let_requests_fail(self, *, on: bool) -> None:
        """Let requests to the API server fail at random, or no longer."""
        if self.api_faults is not None:
            self.api_faults.turn(on=on)


class Victim:
    """One life of the node."""

    def __init__(self, node: Node, host: Host, sandboxes: Sequence[Sandbox], seed: int) -> None:
        self._node = node
        self._host = host
        self._sandboxes = sandboxes
        self._random = random.Random(seed)
        self._ledger = node.ledger
        self._owners = node.owners()

    def begin(self) -> list[str]:
        """Do what follows a kill. Return every contradiction between callers, journal, datastore and kernel."""
        pending = self._host.recover()
        for container in self._ledger.unanswered():
            self._delete(container)
        problems = [f"{pending} attachments could not be torn down"] if pending else []
        return [*problems, *self._host.audit().disagreements(self._host.links()), *self._lost()]

    def _lost(self) -> Iterator[str]:
        recorded = {record.id.container_id: list(record.addresses) for record in self._host.audit().records}
        held = self._ledger.held()
        for container in held.keys() | recorded.keys():
            if sorted(held.get(container, [])) != sorted(recorded.get(container, [])):
                yield f"{container} was given {held.get(container)}, its row has {recorded.get(container)}"

    def work(self, *, with_troubles: bool) -> None:
        """Add and delete until the process is killed, by itself or from outside."""
        self._node.let_requests_fail(on=with_troubles)
        if self._random.random() < 0.5:
            target = self._random.choice((self._host.faults, self._host.journal_faults))
            target.arm(self._random.choice(_KILLS), self._random.randrange(1, _MAX_CALL))
        if with_troubles:
            threading.Thread(target=_jump, args=(random.Random(self._random.random()),), daemon=True).start()
        threads = [
            threading.Thread(target=self._loop, args=(number, self._random.random(), with_troubles), daemon=True)
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def end(self) -> list[str]:
        """Delete every container. Return what is left."""
        for container in self._ledger.held():
            self._delete(container)
        return self._host.left_over()

    def _loop(self, number: int, seed: float, with_troubles: bool) -> None:
        dice, held = random.Random(seed), set(self._ledger.held())
        own = [f"c{index}" for index in range(len(self._sandboxes)) if index % THREADS == number]
        while True:
            container = dice.choice(own)
            if with_troubles and dice.random() < 0.2:
                self._host.faults.arm(dice.choice(_TROUBLES), dice.randrange(1, 6))
            self._ledger.request(container)
            try:
                self._call(container, dice, is_held=container in held)
            except SvcError:
                held.add(container)  # the runtime deletes it
                continue
            held ^= {container}

    def _call(self, container: str, dice: random.Random, *, is_held: bool) -> None:
        if is_held:
            self._owners.terminate(container, dice)
            self._delete(container)
            return
        uid, workload = self._owners.prepare(container, dice), self._owners.workload(container)
        result = self._host.add(self._sandbox(container), container=container, workload=workload, pod_uid=uid)
        self._ledger.added(container, [str(each.address).split("/")[0] for each in result.ips])

    def _delete(self, container: str) -> None:
        self._host.delete(self._sandbox(container), container=container, workload=self._owners.workload(container))
        self._ledger.deleted(container)

    def _sandbox(self, container: str) -> Sandbox:
        return self._sandboxes[int(container[1:])]


def _jump(dice: random.Random) -> None:
    """Set the clock forward and back, by up to a day, again and again."""
    exact = time.time
    while True:
        jump = dice.uniform(-MAX_JUMP_SECONDS, MAX_JUMP_SECONDS)
        time.time = lambda jump=jump: exact() + jump  # type: ignore[misc]
        time.sleep(dice.uniform(0, 0.02))


def live(node: Node, seed: int, *, is_last: bool, with_troubles: bool, announce: Callable[[list[str]], None]) -> None:
    """Live until a kill; in the last life, delete everything. `announce` gets the problems, in an empty list if all is well."""
    node.let_requests_fail(on=False)
    with ExitStack() as stack:
        sandboxes = [stack.enter_context(opened(each)) for each in node.sandboxes]
        store = open_backend(node.settings, node.directory, DEFAULT)
        host = stack.enter_context(Host(node.directory, node.netns, store, SessionKey(node.settings, NODE)))
        victim = Victim(node, host, sandboxes, seed)
        problems = victim.begin()
        if problems or is_last:
            announce(problems or victim.end())
            return
        announce([])
        victim.work(with_troubles=with_troubles)

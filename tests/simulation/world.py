"""The world of one schedule: nodes with their files and kernels, a shared datastore, containers, and the runtime's results."""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from simulation import machine
from simulation.blocking import FileLocks
from simulation.cluster import Cluster, RemoteStore, Request, request
from simulation.files import Files
from simulation.machine import Machine
from simulation.scheduler import Scheduler
from svc.attach.context import Context
from svc.attach.handles import plain_handle
from svc.attach.record import AttachmentId, SessionKey
from svc.attach.request import Sandbox
from svc.datastore.api import Backend, Create
from svc.datastore.embedded import EmbeddedStore
from svc.model.endpoint import Workload
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT, Names
from svc.waits.wait import Wait, WaitOutcome

NETWORK = "net"
IFNAME = "eth0"
NODES = ("a", "b")
KINDS = ("embedded", "etcdv3", "orch")
POOL = "10.65.0.0/30"
BLOCK_LENGTH = 30


@dataclass(eq=False)
class Container:
    """A container and the runtime's knowledge of it. Its `name` begins with that of its node."""

    name: str
    sandbox: int
    issued: int = 0  # ADDs
    waiting: set[int] = field(default_factory=set)  # the numbers of ADDs that have neither begun nor ended
    dels: int = 0
    deleting: int = 0  # DELs without a reply so far
    answers: list[str] = field(default_factory=list)
    gone: bool = False  # a DEL after every ADD returned 0
    live: bool = False  # an ADD returned 0, and no DEL was in flight then or issued since

    @property
    def node(self) -> str:
        return self.name[0]

    @property
    def id(self) -> AttachmentId:
        return AttachmentId(NETWORK, self.name, IFNAME)

    @property
    def handle(self) -> str:
        return plain_handle(NETWORK, self.name)

    def open(self) -> Sandbox:
        return Sandbox(self.sandbox, f"/netns/{self.name}", (4, self.sandbox))


class GateWait(Wait):
    """A wait for a readiness gate."""

    answers: dict[str, object] = {}  # noqa: RUF012


class ModelGates:
    """A model of `svc.waits.gates.GateMonitor`. The schedule opens the gate."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def wait(self, settings: object, deadline: float) -> GateWait:
        wait = GateWait(deadline)
        self._world.gate_waits.append(wait)
        if self._world.gate_open:
            wait.end(WaitOutcome.READY)
        return wait

    def close(self) -> None:
        return


class Stage:
    """Directories and open files that schedules share."""

    def __init__(self, root: Path) -> None:
        self.files = Files()
        self._directories = {node: root / node for node in NODES}
        for directory in self._directories.values():
            directory.mkdir(parents=True)

    def state_dir(self, node: str) -> Path:
        return self._directories[node]

    def database(self, node: str, name: str) -> sqlite3.Connection:
        """Return a connection that reads a file of a node without a step."""
        return self.files.real(self._directories[node] / name)

    def close(self) -> None:
        self.files.close()


@contextmanager
def directory() -> Iterator[Path]:
    """Make a directory for stages in memory. It is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="svc-simulation-", dir="/dev/shm") as path:
        yield Path(path)


class World:
    """The state of one schedule. `kind` is that of the datastore."""

    def __init__(self, stage: Stage, scheduler: Scheduler, kind: str) -> None:
        self.stage = stage
        self.scheduler = scheduler
        self.kind = kind
        self.cluster = Cluster(_first_requests())
        self.machines = {node: Machine(node) for node in NODES}
        self.containers: dict[str, Container] = {}
        self.killed_agents: list[str] = []  # their nodes
        self.gate_open = False
        self.gate_waits: list[GateWait] = []
        machine.MACHINES.clear()
        machine.MACHINES.update(self.machines)
        FileLocks.reset()
        stage.files.reset()

    @property
    def is_shared(self) -> bool:
        return self.kind != "embedded"

    def container(self, name: str) -> Container:
        if name not in self.containers:
            self.containers[name] = Container(name, 1000 + len(self.containers))
        return self.containers[name]

    def where(self, node: str) -> SessionKey:
        return SessionKey({"kind": self.kind}, node)

    def workload(self, container: Container) -> Workload:
        """Return the workload. In the Kubernetes API it is a pod, because endpoints belong to pods there."""
        if self.kind == "orch":
            return Workload(container.name, f"pod-{container.name}", "default")
        return Workload(container.name)

    def context(self, node: str, *, resident: bool) -> Context:
        """Return the context of the running process."""
        context = Context(lambda _: DEFAULT, self.stage.state_dir(node), self._opener(node), resident=resident)
        context._gates = ModelGates(self)  # type: ignore[assignment]
        return context

    def open_gate(self) -> None:
        self.gate_open = True
        for wait in self.gate_waits:
            wait.end(WaitOutcome.READY)

    def _opener(self, node: str) -> Callable[[dict[str, str], Names], Backend]:
        def open_backend(settings: dict[str, str], names: Names) -> Backend:
            if settings["kind"] == "embedded":
                return EmbeddedStore(self.stage.state_dir(node) / "store.db", names)
            return RemoteStore(self.cluster, atomic=settings["kind"] == "etcdv3")

        return open_backend


def pool_write() -> Create:
    """Return the write of the only pool of a schedule. It has a single block, so that the nodes compete for it."""
    spec = {"cidr": POOL, "blockSize": BLOCK_LENGTH}
    return Create(ResourceKey("IPPool", "pool"), Resource("IPPool", {"name": "pool"}, spec))


@cache
def _first_requests() -> list[Request]:
    nodes = [Create(ResourceKey("Node", node), Resource("Node", {"name": node, "labels": {}}, {}, {})) for node in NODES]
    return [request(write) for write in (pool_write(), *nodes)]

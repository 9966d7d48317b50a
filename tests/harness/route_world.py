"""A node for svc-routes: the program over a real kernel, with a store that needs no server."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from harness.enter_netns import entered
from harness.ipam import put, put_pool, write_all
from harness.netns import Netns, run
from svc._core.cidr import Cidr
from svc.datastore.api import Create
from svc.datastore.embedded import EmbeddedStore
from svc.end_request import EndRequest
from svc.model.ipam import Affinity
from svc.model.keys import AffinityKey, ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.routes.kernel_part import KernelPart
from svc.routes.program import Program
from svc.routes.settings import Settings
from svc.routes.telemetry import Telemetry

UPLINK = """
link set lo up
link add uplink type bridge
link set uplink up
address add 198.18.0.1/16 dev uplink
"""
SECONDS = 20.0


class World:
    """A node, and the datastore."""

    def __init__(self, folder: Path, netns: Netns, store: EmbeddedStore) -> None:
        folder.mkdir(exist_ok=True)
        self.netns = netns
        self.folder = folder
        self.store = store
        self.telemetry = Telemetry("embedded", store.meter)

    def has_only(self, *reasons: str) -> bool:
        """Return whether the networks have these reasons and no other, and each has its route."""
        found = self.telemetry.report
        return {reason.name for _, _, reason, _ in found.reasons()} == set(reasons) and not list(found.missing())

    def add_node(self, name: str, address: str) -> None:
        given = [{"address": address, "type": "InternalIP"}]
        put(self.store, ResourceKey("Node", name), Resource("Node", {"name": name, "uid": name}, {"addresses": given}))

    def add_blocks(self, number: int, node: str = "n1") -> None:
        cidrs = [Cidr("10.0.0.0/8").block(index, 26) for index in range(number)]
        write_all(self.store, [Create(AffinityKey(node, cidr), Affinity()) for cidr in cidrs])

    def own_routes(self) -> dict[str, dict[str, Any]]:
        return {route["dst"]: route for route in self.netns.ip("-4", "route", "show", "proto", "83")}

    @contextmanager
    def program(self, **options: Any) -> Iterator[Program]:
        settings = Settings({}, state_dir=self.folder, **{"node": "own", "mode": "on", "use_nat": False, **options})
        with entered(self.netns), closing(KernelPart(DEFAULT)) as kernel:
            yield Program(settings, self.store, kernel, self.telemetry)

    @contextmanager
    def running(self, **options: Any) -> Iterator[None]:
        """Run the program in a thread."""
        began, end, statuses = threading.Event(), FakeEnd(), list[int]()

        def work() -> None:
            with self.program(**options) as program:
                began.set()
                statuses.append(program.run(end))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert began.wait(SECONDS)
            yield
        finally:
            end.ended.set()
            thread.join(SECONDS)
        assert statuses == [0]


class FakeEnd(EndRequest):
    """A request to end that the test makes."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.reason = ""

    def wait(self, seconds: float | None = None) -> bool:
        return self.ended.wait(seconds)


@contextmanager
def one_world(folder: Path) -> Iterator[World]:
    """Yield a node with the name `own`, its address and a pool."""
    with ExitStack() as stack:
        netns = stack.enter_context(Netns("routes"))
        run("ip", "-n", netns.name, "-batch", "-", stdin=UPLINK)
        netns.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        found = World(folder, netns, stack.enter_context(closing(EmbeddedStore(folder / "store.db"))))
        found.add_node("own", "198.18.0.1")
        put_pool(found.store, "pool", "10.0.0.0/8")
        yield found


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True

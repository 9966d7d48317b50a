"""Packets between two nodes while svc-routes is restarted and killed, and while its datastore is away."""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.measurement import Figure, Sample, at_most
from bench.options import Options
from bench.routes_process import RoutesProcess
from bench.routes_site import folder, required
from harness import etcd
from harness.datastores import EtcdSite, OrchSite, Site, session, set_ready
from harness.enter_netns import entered
from harness.ipam import put, put_affinity, put_pool
from harness.kube import running
from harness.netns import Netns
from harness.port_forward import PortForward
from harness.routed_node import Fabric, addresses_of
from svc._core.cidr import Cidr
from svc.model.keys import ResourceKey
from svc.model.resource import Resource

POOL = "10.64.0.0/16"
BLOCKS = {"node1": Cidr("10.64.1.0/26"), "node2": Cidr("10.64.2.0/26")}
PLACES = {"node1": ("a", 1), "node2": ("b", 2)}
TIMES, OUTAGE_SECONDS = 5, 60.0
SPACING = "0.01"  # seconds between pings
_SENT = re.compile(r"(\d+) packets transmitted, (\d+) received")
_MERGE = "application/merge-patch+json"


def run(options: Options) -> Iterator[Figure]:
    outage = OUTAGE_SECONDS if options.rounds >= 60 else 10.0
    for kind, opened in (("orch", _orch), ("etcd", _etcd)):
        with ExitStack() as stack:
            nodes = _Nodes(stack.enter_context(opened(stack.enter_context(folder()))), stack)
            yield from nodes.figures(kind, outage)


class _Nodes:
    """Two nodes behind a router, with a tunnel between them and an address of a pod on each."""

    def __init__(self, site: Site, stack: ExitStack) -> None:
        self._site = site
        self._spaces: dict[str, Netns] = {}
        self._forwards: dict[str, PortForward] = {}
        self._processes: dict[str, RoutesProcess] = {}
        fabric = Fabric()
        stack.callback(fabric.close)
        self._folders = {name: stack.enter_context(folder()) for name in PLACES}
        with session(site) as store:
            set_ready(store)
            put_pool(store, "pool", POOL, vxlanMode="Always")
            for name, block in BLOCKS.items():
                _add_node(site, name)
                put_affinity(store, str(block), node=name)
        for name, (subnet, number) in PLACES.items():
            netns = self._spaces[name] = stack.enter_context(Netns("node"))
            fabric.connect(netns, subnet, number)
            netns.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
            netns.ip("address", "add", str(BLOCKS[name].address(5).host()), "dev", "lo")
            self._connect(name)
            self._start(name)
        stack.callback(self._close)
        for process in self._processes.values():
            process.await_reasons("TUNNEL", "OWN")

    def figures(self, kind: str, outage: float) -> Iterator[Figure]:
        for what, action in (
            ("restart", lambda: self._restart_all(signal.SIGTERM)),
            ("kill", lambda: self._restart_all(signal.SIGKILL)),
            ("outage", lambda: self._be_away(outage)),
        ):
            sent, received = self._pinged(action)
            note = f"of {sent}, through a tunnel"
            yield Figure(f"routes_{kind}_lost_by_{what}", "packets", Sample(sent - received), sent, goal=at_most(0), note=note)

    def _pinged(self, action: Callable[[], None]) -> tuple[int, int]:
        """Return how many pings were sent and answered during an action."""
        source, target = (str(BLOCKS[name].address(5)) for name in PLACES)
        command = ["ping", "-n", "-q", "-i", SPACING, "-I", source, target]
        pinging = self._spaces["node1"].begin(*command, stdout=subprocess.PIPE)
        try:
            time.sleep(1)
            action()
            time.sleep(1)
        finally:
            pinging.send_signal(signal.SIGINT)
            output = pinging.communicate()[0].decode()
        found = _SENT.search(output)
        assert found, output
        return int(found[1]), int(found[2])

    def _restart_all(self, number: signal.Signals) -> None:
        for _ in range(TIMES):
            for name in PLACES:
                self._processes[name].end(number)
                self._start(name)
                self._processes[name].await_reasons("TUNNEL", "OWN")

    def _be_away(self, seconds: float) -> None:
        """Take the datastore away. One of the processes is restarted in this time."""
        for forward in self._forwards.values():
            forward.close()
        time.sleep(seconds / 2)
        self._processes["node1"].end(signal.SIGKILL)
        self._start("node1")
        time.sleep(seconds / 2)
        for name in PLACES:
            self._connect(name)
            self._processes[name].await_reasons("TUNNEL", "OWN")

    def _connect(self, name: str) -> None:
        self._forwards[name] = PortForward(self._spaces[name], self._site.port)

    def _start(self, name: str) -> None:
        with entered(self._spaces[name]):
            self._processes[name] = RoutesProcess(self._folders[name], self._site, name=name)

    def _close(self) -> None:
        for process in self._processes.values():
            process.end()
        for forward in self._forwards.values():
            forward.close()


def _add_node(site: Site, name: str) -> None:
    given = [{"type": "InternalIP", "address": addresses_of(*PLACES[name])[4]}]
    if isinstance(site, OrchSite):
        site.add_node(name)
        site.kube.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"addresses": given}}, _MERGE)
        return
    with session(site) as store:
        put(store, ResourceKey("Node", name), Resource("Node", {"name": name, "uid": name}, {"addresses": given}))


@contextmanager
def _etcd(place: Path) -> Iterator[Site]:
    with required(), etcd.cluster(place, durable=True) as member:
        yield EtcdSite(member)


@contextmanager
def _orch(place: Path) -> Iterator[Site]:
    with required(), running(place) as kube:
        yield OrchSite(kube, place)

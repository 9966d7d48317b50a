"""The measurements by name: what each measures, what it leaves out, and the module that does it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from bench.measurement import Figure
from bench.options import Options


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement, which runs in a process of its own. `parameters` are fields of the options.

    One that runs `on_request` is not part of a run without --only.
    """

    name: str
    module: str
    measures: str
    leaves_out: str
    parameters: tuple[str, ...] = ("rounds",)
    function: str = "run"
    on_request: bool = False
    needs_root: bool = True

    def run(self, options: Options) -> Iterator[Figure]:
        """Measure. Raise Missing if something is not on this machine, Failed if a call fails. Import only this measurement."""
        function: Callable[[Options], Iterator[Figure]] = getattr(import_module(f"bench.{self.module}"), self.function)
        return function(options)


_NO_RUNTIME = "the runtime's own work for a pod: images, sandboxes, cgroups"

ALL = (
    Case(
        "single", "sequential",
        "ADD and DEL by exec, one after the other, beside ptp and beside the kernel's own share of the work",
        _NO_RUNTIME, ("rounds", "warm_up"),
    ),
    Case(
        "driver",
        "python_driver",
        "the calls of `single` by a driver in Python, whose own time is in each call",
        _NO_RUNTIME,
        ("rounds", "warm_up"),
    ),
    Case(
        "burst", "burst",
        "ADD and DEL of many pods, 16 at a time: pods per second, time of all DELs, tail of a call, STATUS among ADDs",
        "a node with other load", ("burst_rounds", "burst_pods"),
    ),
    Case("executable", "shim_call", "the executable alone: its size, memory, and time outside the agent", "the agent's work"),
    Case(
        "memory", "memory",
        "memory of the agent after its start, with many pods, and after their DEL",
        "page cache", ("memory_pods",),
    ),
    Case(
        "density", "density",
        "ADD and DEL on a full node beside an almost empty one, and the kernel's share on the same two nodes",
        "traffic of the pods that are there", ("rounds", "warm_up", "density_pods"),
    ),
    Case(
        "verbs", "verbs",
        "STATUS and CHECK, inside the agent",
        "the executable, whose time is in the notes", ("rounds", "warm_up"),
    ),
    Case("waits", "waits", "readiness gates and status files that are ready before the ADD", "the time until they are ready"),
    Case(
        "etcd", "cluster", "ADD and DEL with etcd on loopback: time, round trips, requests, bursts, memory",
        "a network between node and etcd", ("rounds", "burst_pods", "memory_pods"), "run_etcd",
    ),
    Case(
        "orch", "cluster", "the same with the Kubernetes API as the datastore, and 100 ADDs at once",
        "a network between node and API server, admission webhooks", ("rounds", "burst_pods", "memory_pods"), "run_orch",
    ),
    Case(
        "one-shot", "one_shot", "ADD without an agent: the executable starts Python, which does the call, by datastore",
        "a cold page cache", ("rounds",),
    ),
    Case(
        "check", "ipam_check",
        "`svcctl ipam check` in a large cluster: time and peak of memory",
        "repairs", (), needs_root=False,
    ),
    Case("node", "node", "the share of the network in the start of a pod on a real node", "pulling of images", ()),
    Case(
        "core", "core",
        "the compiled core beside libraries with the same functions",
        "calls from Cython", (), needs_root=False,
    ),
    Case(
        "routes", "routes",
        "svc-routes with 1,000 nodes and 4,000 blocks on each datastore: start, memory, rest, changes until the kernel; "
        "packets during restarts, kills and outages; ADDs beside it; its messages to the kernel beside pyroute2",
        "a network between the nodes", (), on_request=True,
    ),
    Case(
        "routes-kernel", "routes_kernel", "the part of `routes` with its messages to the kernel beside pyroute2",
        "a network between the nodes", (), on_request=True,
    ),
    Case(
        "routes-cluster", "routes_cluster", "the part of `routes` with start, comparison, memory, rest and changes",
        "a network between the nodes", (), on_request=True,
    ),
    Case(
        "routes-packets", "routes_packets", "the part of `routes` with packets during restarts, kills and outages",
        "a network between the nodes", (), on_request=True,
    ),
    Case(
        "routes-adds", "routes_adds", "the part of `routes` with ADDs beside svc-routes and without it, in turns",
        "a network between the nodes", (), on_request=True,
    ),
    Case(
        "attachments", "attachments", "start of the agent, introspection and reconciliation with many attachments",
        "a boot of the node", ("attachments", "rounds"), on_request=True,
    ),
    Case(
        "beside", "beside_adds",
        "STATUS and CHECK beside a burst of ADDs: what 99 % of the calls do not exceed",
        "DELs", (), on_request=True,
    ),
    Case(
        "restarts", "restarts",
        "restarts of the agent under 16 callers, on each datastore: failed calls, longest call, remains",
        "restarts of the node", ("restarts",), "run_restarts", on_request=True,
    ),
    Case(
        "kills", "restarts", "the same with kill -9", "power cuts", ("restarts",), "run_kills", on_request=True,
    ),
    Case(
        "soak", "soak",
        "memory, descriptors and threads after many cycles of ADD and DEL",
        "days", ("soak_cycles",), on_request=True,
    ),
    Case(
        "scale", "scale", "svc-controllers in a large cluster, on each datastore: memory, full rounds, leaks, new leaders",
        "nodes with agents", ("scale_nodes", "scale_pods"), on_request=True, needs_root=False,
    ),
    Case(
        "pods", "curve_pods", "ADD and DEL as functions of the pods on the node, beside ptp and the kernel's own share",
        "traffic of these pods", ("curve_pods", "curve_rounds"), on_request=True,
    ),
    Case(
        "growth", "curve_growth", "the agent's memory as a function of the pods on the node, on each datastore",
        "memory of the datastore's servers", ("curve_pods",), on_request=True,
    ),
    Case(
        "parallel", "curve_parallel", "pods per second as a function of the calls at once, beside ptp",
        "pauses of a runtime between calls", ("parallel", "burst_pods"), on_request=True,
    ),
    Case(
        "blocks", "curve_blocks",
        "an allocation and its release as functions of the fill and the size of the block, in this process",
        "the interface, the executable, the socket", ("block_sizes", "fills",
        "curve_rounds"), on_request=True, needs_root=False,
    ),
    Case(
        "pools", "curve_pools", "ADD, an allocation and the choice of pools as functions of the number of pools",
        "changes of pools during the calls", ("pools", "blocks_of_pool", "curve_rounds"), on_request=True,
    ),
    Case(
        "phases", "curve_phases",
        "the phases of an ADD on each datastore, beside ptp with host-local and the kernel's own share",
        "the phases of ptp, which does not report any", ("rounds",), on_request=True,
    ),
    Case(
        "large-etcd", "large",
        "address management on many nodes with one etcd: claims, borrowing, exhaustion, a tenth of the nodes lost; "
        "their growth laws; the load at which etcd is the bound",
        "interfaces and agents, the watches of each node, a network between nodes and etcd",
        ("large_nodes", "large_pods", "large_at_once", "large_parallel"), "run_etcd", on_request=True, needs_root=False,
    ),
    Case(
        "large-orch", "large", "the same with the Kubernetes API as the datastore",
        "the endpoints in the annotations of pods; and the same",
        ("large_nodes", "large_pods", "large_at_once", "large_parallel"), "run_orch", on_request=True, needs_root=False,
    ),
)  # fmt: skip
CASES = {case.name: case for case in ALL}

"""svcctl ipam check on a large cluster: time and peak memory of the process, with the Kubernetes API as the datastore."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.measurement import Figure, Missing, Sample, at_most
from bench.options import VERSIONS, Options
from harness.ipam import put_pool
from harness.kube import Kube, running
from harness.node import netconf
from harness.orch import NODES, PODS, install, open_store
from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.datastore.api import MAX_WRITES, Backend, Create, Write
from svc.datastore.orch.client import Client
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key
from svc.model.ipam import Affinity, Attribute, Block, Handle
from svc.model.keys import AffinityKey, BlockKey, HandleKey
from svc.model.pod_endpoint import wired_annotations
from svc.names import DEFAULT

Json = dict[str, Any]

POOL, BLOCK_LENGTH = Cidr("10.64.0.0/12"), 26
PODS_OF_NODE = 30
PARALLEL = 8  # requests that set up the cluster
PADDING = "x" * 3000  # a pod of a cluster has about as much in its specification and its managed fields
CREATED = "2026-01-02 03:04:05 +0000 UTC"


class Cost(NamedTuple):
    """Seconds of a process, its processor time, and its peak memory."""

    seconds: float
    processor_seconds: float
    mib: float


def run(options: Options) -> Iterator[Figure]:
    nodes = 1000 if options.memory_pods >= 500 else 100
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            kube = stack.enter_context(running(folder))
        except pytest.skip.Exception as what:
            raise Missing(str(what)) from None
        install(kube)
        with closing(open_store(kube, folder)) as store:
            put_pool(store, "pool4", str(POOL))
            _create_objects(store.client, nodes)
            _create_documents(store, nodes)
        yield from _measure(kube, folder, nodes)


def _measure(kube: Kube, folder: Path, nodes: int) -> Iterator[Figure]:
    cost, summary = _check(kube, folder)
    number = nodes * PODS_OF_NODE
    note = f"{summary['allocations']} addresses of {nodes} nodes, {summary['inUse']} in use, {summary['findings']} findings"
    note += f"; {cost.processor_seconds:.1f} s of processor time"
    is_whole = nodes >= 1000
    yield Figure(
        "ipam_check", "s", Sample(cost.seconds), number, goal=at_most(30) if is_whole else None, note=note, versions=VERSIONS
    )
    yield Figure("ipam_check_peak", "MiB", Sample(cost.mib), number, goal=at_most(250) if is_whole else None, note=note)


_MEASURED = """
import os, subprocess, sys, time
started = time.monotonic()
_, status, usage = os.wait4(subprocess.Popen(sys.argv[1:], stdout=sys.stderr).pid, 0)
print(os.waitstatus_to_exitcode(status), time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""  # a process of its own: the peak of a child includes what its parent had at the fork


def _check(kube: Kube, folder: Path) -> tuple[Cost, Json]:
    """Run the check in a process of its own. Return its cost, and its summary."""
    file = folder / "netconf.json"
    access = {"kubeconfig": str(kube.kubeconfig(folder / "kubeconfig"))}
    file.write_text(json.dumps(netconf(name="net", datastore_type="orch", orch=access)))
    command = [str(Path(sys.executable).with_name("svcctl")), "--netconf", str(file), "ipam", "check", "-o", "json"]
    command += ["--report", str(folder / "report.json")]
    done = subprocess.run([sys.executable, "-c", _MEASURED, *command], capture_output=True, text=True, check=True)
    status, *numbers = done.stdout.split()
    assert status == "0", done.stderr
    summary: Json = json.loads(done.stderr)[0]["summary"]
    return Cost(*map(float, numbers)), summary


def _create_objects(client: Client, nodes: int) -> None:
    """Create the nodes, and their pods with the annotations that an ADD writes."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        for _ in pool.map(lambda node: client.create(NODES, {"metadata": {"name": f"node{node}"}}), range(nodes)):
            pass
        for _ in pool.map(lambda pod: client.create(PODS, _pod(*divmod(pod, PODS_OF_NODE))), range(nodes * PODS_OF_NODE)):
            pass


def _container(node: int, number: int) -> str:
    return f"{node:032x}{number:032x}"


def _pod(node: int, number: int) -> Json:
    host, workload = f"node{node}", Workload(_container(node, number), f"pod-{node}-{number}", "default")
    spec = {"ipNetworks": [str(_block(node).address(number).host())], "interfaceName": "svc1", "mac": ""}
    key = endpoint_key(DEFAULT, host, workload, "eth0")
    wired = wired_annotations(DEFAULT, "eth0", endpoint(DEFAULT, key, host, workload, "eth0", spec=spec, facts=PodFacts()))
    metadata = {"name": workload.pod, "namespace": "default", "annotations": wired | {"padding": PADDING}}
    containers = [{"name": "c", "image": "x"}]
    return {"metadata": metadata, "spec": {"nodeName": host, "automountServiceAccountToken": False, "containers": containers}}


def _block(node: int) -> Cidr:
    return POOL.block(node, BLOCK_LENGTH)


def _create_documents(store: Backend, nodes: int) -> None:
    """Write the blocks, affinities and handles of all pods."""
    for node in range(nodes):
        writes = [*_handles(node), *_claimed(node)]
        for start in range(0, len(writes), MAX_WRITES):
            store.write(writes[start : start + MAX_WRITES])


def _handles(node: int) -> Iterator[Write]:
    for number in range(PODS_OF_NODE):
        yield Create(HandleKey(f"net.{_container(node, number)}"), Handle({str(_block(node)): 1}))


def _claimed(node: int) -> Iterator[Write]:
    host, cidr = f"node{node}", _block(node)
    block = Block(cidr, f"host:{host}", Ordinals(32 - BLOCK_LENGTH), 1_000_000, "2026-01-02T03:04:05Z", [])
    for number in range(PODS_OF_NODE):
        owner = {"node": host, "timestamp": CREATED, "pod": f"pod-{node}-{number}", "namespace": "default"}
        block.attributes = [*(block.attributes or ()), Attribute(f"net.{_container(node, number)}", owner)]
        block.ordinal_sequences[block.ordinals.allocate(number)] = 1000 + number
    yield Create(BlockKey(cidr), block)
    yield Create(AffinityKey(host, cidr), Affinity())

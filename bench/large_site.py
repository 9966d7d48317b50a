"""The servers of a large cluster: an API server, and etcd beside it or the API server itself as the datastore."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest

from bench.large_nodes import open_session
from bench.measurement import Missing
from bench.server_counts import Counts, etcd_requests, etcd_sent, orch_requests, orch_sent, processor_seconds
from harness import etcd
from harness.datastores import set_ready
from harness.ipam import put_pool, wait_for_stable_generations, write_all
from harness.kube import Kube, running
from harness.large_cluster import LargeCluster
from harness.orch import install
from svc._core.cidr import Address
from svc.datastore.api import Backend
from svc.datastore.etcd.messages import rpc
from svc.names import DEFAULT

BLOCK_LENGTH = 27
BLOCK_SIZE = 1 << (32 - BLOCK_LENGTH)
SPACE = "10.64.0.0"
SPARE = 4  # times the blocks of all nodes are in the pool
_PAGE = 2000


class GrownCluster(LargeCluster):
    """A cluster whose pods have the addresses that they got."""

    def __init__(self, nodes: int, pods_of_node: int, addresses: Mapping[tuple[int, int], str]) -> None:
        super().__init__(nodes, pods_of_node)
        self._addresses = addresses

    def address(self, node: int, number: int) -> Address:
        return Address(self._addresses[node, number])

    def pod_numbers(self) -> Iterator[tuple[int, int]]:
        return iter(self._addresses)


@dataclass(frozen=True)
class LargeSite:
    """The servers. `settings` are those of a session; `requests` and `sent` are what the datastore has counted so far."""

    kind: str
    kube: Kube
    folder: Path
    settings: Mapping[str, str]
    store: Backend
    requests: Callable[[], Counts]
    sent: Callable[[], float]
    pids: tuple[int, ...]
    kv_port: int  # of the etcd that has the documents
    prefix: str  # of their keys

    def processor_seconds(self) -> float:
        """Return the processor time of the servers so far."""
        return sum(map(processor_seconds, self.pids))

    def stored_bytes(self) -> int:
        """Return the bytes of all keys and documents of the datastore."""
        size, key, end = 0, self.prefix.encode(), self.prefix[:-1].encode() + bytes([ord(self.prefix[-1]) + 1])
        with grpc.insecure_channel(f"127.0.0.1:{self.kv_port}", (("grpc.max_receive_message_length", -1),)) as channel:
            stub = rpc.KVStub(channel)
            while True:
                answer = stub.Range(rpc.RangeRequest(key=key, range_end=end, limit=_PAGE))
                size += sum(len(kv.key) + len(kv.value) for kv in answer.kvs)
                if not answer.more:
                    return size
                key = answer.kvs[-1].key + b"\0"

    def furnish(self, nodes: int) -> None:
        """Register nodes and a pool in the new datastore."""
        set_ready(self.store)
        length = BLOCK_LENGTH - (SPARE * nodes - 1).bit_length()
        put_pool(self.store, "pool4", f"{SPACE}/{length}", blockSize=BLOCK_LENGTH)
        cluster = LargeCluster(nodes, 0)
        cluster.fill_nodes(self.kube)
        if self.store.atomic:
            write_all(self.store, [*cluster.node_documents()])
        wait_for_stable_generations(self.store, "IPPool")


@contextmanager
def large_site(kind: str) -> Iterator[LargeSite]:
    """Run the servers. Raise Missing if they cannot run here."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-bench-")))
        try:
            yield (_with_etcd if kind == "etcd" else _with_orch)(folder, stack)
        except pytest.skip.Exception as what:
            raise Missing(str(what)) from None


def _with_etcd(folder: Path, stack: ExitStack) -> LargeSite:
    kube = stack.enter_context(running(folder))
    member = stack.enter_context(etcd.cluster(folder, durable=True))
    settings = {"etcd_endpoints": member.endpoints}
    store = stack.enter_context(closing(open_session(settings)))
    process = member.members[0].process
    assert process is not None

    return LargeSite(
        "etcd", kube, folder, settings, store, partial(etcd_requests, member), partial(etcd_sent, member),
        (process.pid,), member.members[0].ports[0], f"{DEFAULT.key_root}/",
    )  # fmt: skip


def _with_orch(folder: Path, stack: ExitStack) -> LargeSite:
    kube = stack.enter_context(running(folder))
    install(kube)
    settings = {"kubeconfig": str(kube.kubeconfig(folder / "kubeconfig"))}
    store = stack.enter_context(closing(open_session(settings)))
    group = DEFAULT.crd_api_version.partition("/")[0]
    return LargeSite(
        "orch", kube, folder, settings, store, partial(orch_requests, kube), partial(orch_sent, kube),
        tuple(process.pid for process in kube.processes.values()), kube.etcd_port, f"/registry/{group}/",
    )  # fmt: skip

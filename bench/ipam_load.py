"""Datastores with pools, blocks and allocations, for the measurements of address management."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.measurement import Missing
from harness import etcd, kube
from harness.datastores import EmbeddedSite, EtcdSite, OrchSite, Site, set_ready
from harness.ipam import put_node, write_all
from harness.orch import install, put_core_node
from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Create
from svc.model.ipam import Affinity, Attribute, Block, Handle
from svc.model.keys import AffinityKey, BlockKey, HandleKey, Key, ResourceKey
from svc.model.kv_codec import Value
from svc.model.resource import Resource

SPACE = Cidr("10.0.0.0/8")
POOL_LENGTH = 17  # 512 of them in the space
BLOCK_LENGTH = 26
LAST_ZONE = "z0000"  # of the node that allocates
CLAIMED = "2026-01-02T03:04:05Z"
CREATED = "2026-01-02 03:04:05 +0000 UTC"
STORES = ("embedded", "etcdv3", "orch")

Documents = Iterator[tuple[Key, Value]]


def pool_documents(pools: int, *, block_length: int = BLOCK_LENGTH, selecting: bool = True) -> Documents:
    """Yield pools in name order. With `selecting` each is for a zone of nodes, and the last one for that of the node here."""
    for number in range(pools):
        name = f"pool{number:04}"
        spec: dict[str, Any] = {"cidr": str(SPACE.block(number, POOL_LENGTH)), "blockSize": block_length}
        if selecting:
            spec["nodeSelector"] = f"zone == {f'z{pools - 1 - number:04}'!r}"
        yield ResourceKey("IPPool", name), Resource("IPPool", {"name": name, "uid": name}, spec)


def block_documents(cidr: Cidr, host: str, used: int) -> Documents:
    """Yield a block of a host with so many allocations, each of a pod with one address, and what belongs to it."""
    attributes = list[Attribute]()
    block = Block(cidr, f"host:{host}", Ordinals(32 - cidr.length), 1_000_000, CLAIMED, attributes)
    for number in range(used):
        handle = f"net.{cidr.first.packed.hex()}{number:056x}"
        owner = {"node": host, "timestamp": CREATED, "pod": f"pod-{number}", "namespace": "default"}
        attributes.append(Attribute(handle, owner))
        block.ordinal_sequences[block.ordinals.allocate(number)] = 1000 + number
        yield HandleKey(handle), Handle({str(cidr): 1})
    yield BlockKey(cidr), block
    yield AffinityKey(host, cidr), Affinity()


def other_blocks(pools: int, of_each: int, length: int = BLOCK_LENGTH) -> Documents:
    """Yield empty blocks of other nodes in the pools, from their ends on. Allocations start at their beginnings."""
    for pool in range(pools):
        blocks = 1 << (length - POOL_LENGTH)
        for number in range(of_each):
            cidr = SPACE.block(pool * blocks + blocks - 1 - number, length)
            yield from block_documents(cidr, f"other{number % 50}", 0)


def fill(store: Backend, documents: Documents) -> None:
    write_all(store, [Create(key, value) for key, value in documents])


def furnish_node_store(state_dir: Path, pools: int, of_each: int) -> None:
    """Write pools, and blocks of other nodes, to the embedded store of a node whose pools and blocks are still missing."""
    with closing(EmbeddedSite(state_dir).open()) as store:
        put_node(store, os.uname().nodename.lower(), zone=LAST_ZONE)
        fill(store, pool_documents(pools))
        fill(store, other_blocks(pools, of_each))


@contextmanager
def site_of(kind: str) -> Iterator[Site]:
    """Run the servers of a datastore. Raise Missing if they cannot run here."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-bench-")))
        try:
            yield _opened(kind, folder, stack)
        except pytest.skip.Exception as what:
            raise Missing(str(what)) from None


def _opened(kind: str, folder: Path, stack: ExitStack) -> Site:
    if kind == "embedded":
        return EmbeddedSite(folder)
    if kind == "etcdv3":
        return EtcdSite(stack.enter_context(etcd.cluster(folder, durable=True)))
    server = stack.enter_context(kube.running(folder))
    install(server)
    return OrchSite(server, folder)


def register(site: Site, store: Backend, *nodes: str) -> None:
    """Register nodes in a new datastore."""
    set_ready(store)
    for node in nodes:
        if isinstance(site, OrchSite):
            put_core_node(site.kube, node, {"zone": LAST_ZONE})
        else:
            put_node(store, node, zone=LAST_ZONE)


def elapsed_us(began: float) -> float:
    return (time.perf_counter() - began) * 1e6

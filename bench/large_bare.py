"""Bare requests of the kinds that a pod costs, by a client that does nothing else: the ceiling of a datastore.

One pod comes and goes. With etcd: a transaction with handle, block and endpoint, a transaction that reads three keys, and a
transaction that deletes handle and endpoint and writes the block. With the Kubernetes API: a handle is created, a block
replaced, two objects are read, the block is replaced, and the handle is deleted.
"""

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import grpc

from bench.large_nodes import WORKERS
from bench.orch_requests import Json, Requests
from harness.etcd import TIMEOUT_SECONDS
from svc.datastore.etcd.messages import rpc

BARE = "/bare"  # of all keys here

Cycle = Callable[[], None]
Documents = Mapping[str, str]  # the texts of a handle and a block, and of an endpoint if it is a document of the datastore


def pods_per_second(
    settings: Mapping[str, str], documents: Documents, parallel: int, seconds: float, used: Callable[[], float]
) -> tuple[float, float]:
    """Return how many pods a second come and go in so many threads, and the share of a processor that the servers use.

    `used` returns their processor seconds so far.
    """
    context = get_context("spawn")
    parts = [len(range(number, parallel, WORKERS)) for number in range(min(WORKERS, parallel))]
    pairs = [context.Pipe() for _ in parts]
    processes = [
        context.Process(
            target=_work, args=(end, dict(settings), dict(documents), f"{parallel}-{number}", threads, seconds), daemon=True
        )
        for number, (threads, (_, end)) in enumerate(zip(parts, pairs, strict=True))
    ]
    for process, (_, end) in zip(processes, pairs, strict=True):
        process.start()
        end.close()  # the other copy is the worker's: when it fails, `recv` fails
    for own, _ in pairs:
        own.recv()  # it is connected
    began, before = time.monotonic(), used()
    for own, _ in pairs:
        own.send(None)
    rates: list[float] = [own.recv() for own, _ in pairs]
    share = (used() - before) / (time.monotonic() - began)
    for process in processes:
        process.join()
        process.close()
    return sum(rates), share


def _work(
    connection: Connection, settings: dict[str, str], documents: Documents, name: str, threads: int, seconds: float
) -> None:
    make = _etcd_cycle if "etcd_endpoints" in settings else _orch_cycle
    cycles = [make(settings, documents, f"{name}-{number}") for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        for cycle in cycles:
            cycle()
        connection.send(None)
        connection.recv()
        until = time.monotonic() + seconds
        connection.send(sum(pool.map(lambda cycle: _repeat(cycle, until), cycles)) / seconds)


def _repeat(cycle: Cycle, until: float) -> int:
    number = 0
    while time.monotonic() < until:
        cycle()
        number += 1
    return number


# etcd


def _etcd_cycle(settings: Mapping[str, str], documents: Documents, name: str) -> Cycle:
    """Return the requests of a pod, made once and sent as bytes, on a channel of its own."""
    keys = {kind: f"{BARE}/{kind}/{name}".encode() for kind in documents}
    puts = {kind: _op(request_put=rpc.PutRequest(key=key, value=documents[kind].encode())) for kind, key in keys.items()}
    gone = [_op(request_delete_range=rpc.DeleteRangeRequest(key=keys[kind])) for kind in ("handle", "endpoint")]
    reads = [_op(request_range=rpc.RangeRequest(key=key)) for key in keys.values()]
    absent, present = (_compare(keys["handle"], result) for result in (rpc.Compare.EQUAL, rpc.Compare.GREATER))
    add = rpc.TxnRequest(compare=[absent], success=[*puts.values()], failure=reads)
    read = rpc.TxnRequest(success=reads)
    delete = rpc.TxnRequest(compare=[present], success=[*gone, puts["block"]], failure=reads)
    channel = grpc.insecure_channel(
        settings["etcd_endpoints"].removeprefix("http://"), (("grpc.use_local_subchannel_pool", 1),)
    )
    send = channel.unary_unary("/etcdserverpb.KV/Txn")  # bytes, without messages
    requests = [request.SerializeToString() for request in (add, read, delete)]

    def cycle() -> None:
        for request in requests:
            send(request, timeout=TIMEOUT_SECONDS)

    return cycle


def _op(**operation: Any) -> Any:
    return rpc.RequestOp(**operation)


def _compare(key: bytes, result: int) -> Any:
    return rpc.Compare(result=result, target=rpc.Compare.VERSION, key=key, version=0)


# the Kubernetes API


def _orch_cycle(settings: Mapping[str, str], documents: Documents, name: str) -> Cycle:
    """Return the requests of a pod on a connection of its own. Only the revision of each answer is read."""
    ask = Requests(settings["kubeconfig"]).ask
    block, handle = (_named_document(documents[kind], f"{BARE.strip('/')}-{name}") for kind in ("block", "handle"))
    blocks, handles = (f"/apis/{each['apiVersion']}/{each['kind'].lower()}s" for each in (block, handle))
    state = {"block": ask("POST", blocks, block)}
    own_block, own_handle = (f"{root}/{block['metadata']['name']}" for root in (blocks, handles))

    def put_block() -> None:
        document = _counted(block)
        body = document | {"metadata": document["metadata"] | {"resourceVersion": state["block"]}}
        state["block"] = ask("PUT", own_block, body)

    def cycle() -> None:
        ask("POST", handles, handle)
        put_block()
        for path in (own_block, own_handle):
            ask("GET", path)
        put_block()
        ask("DELETE", own_handle)

    return cycle


def _named_document(text: str, name: str) -> Json:
    found: Json = json.loads(text)
    return {**{key: found[key] for key in ("apiVersion", "kind", "spec")}, "metadata": {"name": name}}


def _counted(block: Json) -> Json:
    """Change a block, because an update without a change is not stored."""
    spec = block["spec"]
    spec["sequenceNumber"] = spec.get("sequenceNumber", 0) + 1
    return block

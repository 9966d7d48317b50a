"""Helpers for tests of address management: pools, nodes, calls of IPAM, and an audit of the datastore."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from svc._core.bitmap import Ordinals
from svc._core.cidr import Address, Cidr
from svc.datastore.api import MAX_WRITES, Backend, Create, Delete, Entry, NotFound, Update, Write
from svc.ipam.blocks import format_time
from svc.ipam.pools import RESERVATION
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.ipam.settings import update_settings
from svc.model.ipam import CONFIRMED, Affinity, Attribute, Block, Handle, IpamConfig
from svc.model.keys import (
    AffinityKey,
    AffinityQuery,
    BlockKey,
    BlockQuery,
    HandleKey,
    HandleQuery,
    IpamConfigKey,
    Key,
    Query,
    ResourceKey,
    ResourceQuery,
    counted_kind,
)
from svc.model.kv_codec import Value
from svc.model.resource import Resource

NODE = "node1"
_NEWS_SECONDS = 2.0  # until the event of a write
TIMEOUT_SECONDS = 60.0  # for actions of other threads; far longer than any successful wait

Holdings = dict[str, frozenset[Address]]


# configuration


def put(backend: Backend, key: Key, value: Value) -> Entry:
    """Create or replace an entry, as an administrator's tool does.

    Wait until the session has received the event of a change.
    """
    try:
        write: Write = Update(key, value, backend.get(key).revision)
    except NotFound:
        write = Create(key, value)
    entry = _write_and_await_event(backend, write)
    assert entry is not None
    return entry


def remove(backend: Backend, key: Key) -> None:
    """Delete an entry, and wait as `put` does."""
    _write_and_await_event(backend, Delete(key))


def _write_and_await_event(backend: Backend, write: Write) -> Entry | None:
    kind = counted_kind(write.key)
    if kind:
        wait_for_stable_generations(backend, kind)
    before = backend.generations((kind,)) if kind else 0
    (entry,) = backend.write([write])
    if isinstance(write, Update) and entry is not None and entry.revision == write.revision:
        return entry  # an update without a change has no event
    deadline = time.monotonic() + _NEWS_SECONDS
    while kind and backend.generations((kind,)) == before and time.monotonic() < deadline:
        time.sleep(0.005)
    return entry


def write_all(backend: Backend, writes: Sequence[Write]) -> None:
    """Write any number of entries, in parts."""
    for start in range(0, len(writes), MAX_WRITES):
        backend.write(writes[start : start + MAX_WRITES])


def put_pool(backend: Backend, name: str, cidr: str, **spec: Any) -> None:
    put(backend, ResourceKey("IPPool", name), Resource("IPPool", {"name": name, "uid": name}, {"cidr": cidr, **spec}))


def put_node(backend: Backend, name: str = NODE, **labels: str) -> None:
    put(backend, ResourceKey("Node", name), Resource("Node", {"name": name, "uid": name, "labels": labels}, {}, {}))


def put_settings(backend: Backend, **settings: Any) -> None:
    put(backend, IpamConfigKey(), IpamConfig(**settings))


def put_reservation(backend: Backend, name: str, *cidrs: object) -> None:
    put(backend, ResourceKey(RESERVATION, name), Resource(RESERVATION, {"name": name}, {"reservedCIDRs": list(cidrs)}))


def put_block(
    backend: Backend,
    cidr: str,
    affinity: str | None,
    holders: Sequence[str] = (),
    claimed_at: str | None = "2026-11-20T18:03:21Z",
) -> Entry:
    """Create a block whose first ordinals have these handles. The handle documents are not written."""
    block = Block(Cidr(cidr), affinity, Ordinals(Cidr(cidr).bits - Cidr(cidr).length), 1000, claimed_at)
    for tag, holder in enumerate(holders):
        block.attributes = [*(block.attributes or ()), Attribute(holder)]
        block.ordinal_sequences[block.ordinals.allocate(tag)] = 999
    return put(backend, BlockKey(block.cidr), block)


def put_affinity(backend: Backend, cidr: str, state: str = CONFIRMED, node: str = NODE) -> None:
    """Create an affinity of a node. The block need not exist."""
    put(backend, AffinityKey(node, Cidr(cidr)), Affinity(state))


def wipe(backend: Backend, *queries: Query) -> None:
    """Delete every entry that answers the queries."""
    for query in queries:
        for entry in backend.list(query):
            backend.write([Delete(entry.key)])


def just_now() -> str:
    """Return the claim time of a block that is too young to be reclaimed."""
    return format_time(datetime.now(timezone.utc))


def instruct(field: str, value: str) -> str:
    """Return how to set a field, for users who write the resource themselves."""
    return f"set {field} to {value}"


def configure(backend: Backend, wanted: IpamConfig) -> None:
    """Store the settings as an administrator does: with checks, and with the unknown fields of the stored ones."""
    update_settings(backend, lambda present: replace(wanted, extra=present.extra), instruct)


IPAM_QUERIES: tuple[Query, ...] = (BlockQuery(), AffinityQuery(), HandleQuery())
EVERYTHING = (*IPAM_QUERIES, ResourceQuery("IPPool"), ResourceQuery("Node"), ResourceQuery(RESERVATION))


def wait_for_stable_generations(backend: Backend, *kinds: str) -> None:
    """Wait until the generations stop changing, because a store may have to start its watches."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while any(backend.generations((kind,)) != backend.generations((kind,)) for kind in kinds):
        assert time.monotonic() < deadline, "the generations did not stop changing"
        time.sleep(0.01)


# calls

_ANY: Mapping[int, tuple[str, ...]] = {}


def take(
    ipam: IpamService,
    handle: str,
    *,
    versions: tuple[int, ...] = (4,),
    at: str = "",
    pools: Mapping[int, tuple[str, ...]] = _ANY,
    **more: Any,
) -> tuple[str, ...]:
    """Assign addresses, and return them."""
    request = Assign(handle, {"node": NODE}, versions, dict(pools), (Address(at),) if at else (), **more)
    return tuple(str(allocation.address) for allocation in ipam.assign(request).allocations)


def free(ipam: IpamService, handle: str, keep: Iterable[str] = ()) -> None:
    ipam.release(Release(handle, frozenset(map(Address, keep))))


def in_threads(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Run all calls at once. Return their results or exceptions in order."""
    todo = list(calls)
    outcomes: list[Any] = [None] * len(todo)
    start = threading.Barrier(len(todo))

    def run(number: int) -> None:
        start.wait()
        try:
            outcomes[number] = todo[number]()
        except BaseException as failure:
            outcomes[number] = failure

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(todo))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a call did not return in time"
    return outcomes


# contents of the datastore


def blocks(backend: Backend) -> dict[str, Block]:
    found = (entry.value for entry in backend.list(BlockQuery()))
    return {str(value.cidr): value for value in found if isinstance(value, Block)}


def block_of(backend: Backend, address: str) -> Block:
    return next(block for block in blocks(backend).values() if Address(address) in block.cidr)


def affinities(backend: Backend) -> dict[tuple[str, str], str]:
    """Return the state of each affinity, by host and CIDR."""
    found = {}
    for entry in backend.list(AffinityQuery()):
        assert isinstance(entry.key, AffinityKey)
        assert isinstance(entry.value, Affinity)
        found[entry.key.host, str(entry.key.cidr)] = entry.value.state
    return found


def handles(backend: Backend) -> dict[str, dict[str, int]]:
    found = {}
    for entry in backend.list(HandleQuery()):
        assert isinstance(entry.key, HandleKey)
        assert isinstance(entry.value, Handle)
        found[entry.key.handle] = entry.value.blocks
    return found


def document(backend: Backend) -> list[tuple[Key, str, Any]]:
    """Return everything that address management stores: keys, revisions and documents."""
    return [(entry.key, entry.revision, entry.value.to_json()) for query in IPAM_QUERIES for entry in backend.list(query)]


def holdings(backend: Backend) -> Holdings:
    """Return the addresses of each handle.

    Raise AssertionError if an address has two handles, or blocks and handles disagree.
    """
    present = blocks(backend)
    _require_no_overlap(present)
    held: dict[str, set[Address]] = defaultdict(set)
    counted: dict[str, dict[str, int]] = defaultdict(dict)
    for cidr, block in present.items():
        _require_sound(block)
        for ordinal, tag in enumerate(block.ordinals.allocations()):
            if tag is not None and not (attribute := (block.attributes or [])[tag]).released_at:
                handle = attribute.handle_id or ""
                held[handle].add(block.cidr.address(ordinal))
                counted[handle][cidr] = counted[handle].get(cidr, 0) + 1
    assert handles(backend) == counted
    return {handle: frozenset(addresses) for handle, addresses in held.items()}


def require_whole_claims(backend: Backend) -> None:
    """Require that every affinity is confirmed and has its block, and that every block with an owner has its affinity."""
    owners = {cidr: block.affinity.removeprefix("host:") for cidr, block in blocks(backend).items() if block.affinity}
    owned = {(owner, cidr): CONFIRMED for cidr, owner in owners.items()}
    assert affinities(backend) == owned


def _require_no_overlap(present: Iterable[str]) -> None:
    ordered = sorted(map(Cidr, present))
    for before, after in pairwise(ordered):
        assert not before.overlaps(after), f"blocks {before} and {after} share addresses"


def _require_sound(block: Block) -> None:
    """Require that every attribute is used, and that every allocated ordinal has the sequence number of an earlier write."""
    tags = block.ordinals.allocations()
    assert {tag for tag in tags if tag is not None} == set(range(len(block.attributes or ())))
    assert set(block.ordinal_sequences) == {ordinal for ordinal, tag in enumerate(tags) if tag is not None}
    assert all(sequence < block.sequence for sequence in block.ordinal_sequences.values())

"""Copies of what the datastore has about routes, kept current by watches. A thread for each kind of objects."""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Entry, Event
from svc.heap import return_free_memory
from svc.model.errors import SvcError, reason_of
from svc.model.ipam import Affinity, Block
from svc.model.keys import (
    IPAM_CONFIG,
    AffinityKey,
    AffinityQuery,
    BlockKey,
    BlockQuery,
    Key,
    ResourceKey,
    ResourceQuery,
    describe,
)
from svc.names import Names
from svc.routes.follower import Follower
from svc.routes.inputs import Inputs, NodeFacts, RoutedPool, borrowed_addresses, node_facts, owner_of, routed_pool
from svc.routes.last_known import LastNodes, LastPools
from svc.routes.owners import OwnerReader

NODE_KIND, POOL_KIND = "Node", "IPPool"
SETTINGS_SECONDS: Final = 2.0  # between checks whether the IPAM settings have changed, which sends no request
_SHARED_CLAIMS: Final = 10_000
_JOIN_SECONDS: Final = 5.0

log = logging.getLogger("svc.routes")


class Copies:
    """The copies. `changed` is called, in any thread, after each change that routes may follow from. Thread-safe.

    Nodes and pools that vanish stay for a time (see `last_known`), except this node itself, `own`."""

    def __init__(
        self, backend: Backend, names: Names, changed: Callable[[], None], *, own: str = "", use_pod_cidr: bool = False
    ) -> None:
        self._backend = backend
        self._names = names
        self._changed = changed
        self._use_pod_cidr = use_pod_cidr
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeFacts] = {}
        self._pools: dict[str, RoutedPool] = {}
        self._claims: dict[Cidr, dict[str, bool]] = {}  # a value is never changed, only replaced
        self._alone: dict[str, dict[str, bool]] = {}  # the claims of blocks that one node has confirmed, by node
        self._borrowed: dict[Cidr, dict[Address, str]] = {}  # by block
        self._owners: dict[Cidr, str] = {}
        self._owner_reader = OwnerReader(backend, changed)  # of disputed blocks that are not watched
        self._undisputed: dict[Cidr, str] = {}  # the nodes that had disputed blocks before
        self._last_nodes = LastNodes(own)
        self._last_pools = LastPools()
        self._strict = False
        self.unreadable: dict[Key, str] = {}
        self._lacking: set[Key] = set()  # unreadable, and not read before
        self._affinities = Follower(backend, AffinityQuery(), "affinities", self._take, self._listed)
        self._followers = [
            Follower(backend, ResourceQuery(NODE_KIND), "nodes", self._take, self._listed),
            Follower(backend, ResourceQuery(POOL_KIND), "pools", self._take, self._listed),
        ]
        self._blocks: Follower | None = None
        self._blocks_are_known = use_pod_cidr
        self._blocks_problem = ""
        self._may_read_blocks = threading.Event()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        if not use_pod_cidr:
            self._followers.append(self._affinities)
            self._threads.append(threading.Thread(target=self._follow_settings, name="copies-settings", daemon=True))

    def start(self) -> None:
        for follower in self._followers:
            follower.start()
        for thread in self._threads:
            thread.start()

    def read_blocks(self) -> None:
        """Read the blocks as well, the largest part, by which addresses are found that nodes have borrowed."""
        self._may_read_blocks.set()

    def close(self) -> None:
        """End the watches and their threads."""
        self._ended.set()
        self._may_read_blocks.set()
        for follower in self._all_followers():
            follower.close()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        self._owner_reader.close()
        for follower in self._all_followers():  # that of the blocks may have begun since
            follower.close()
            follower.join()

    @property
    def can_plan(self) -> bool:
        """Whether everything but the blocks was read completely: the routes of all blocks are known."""
        return all(follower.is_complete for follower in self._followers)

    @property
    def is_complete(self) -> bool:
        """Whether everything was read completely at least once."""
        return self._blocks_are_known and self.can_plan

    @property
    def interrupted_since(self) -> float | None:
        """Since when changes may be missing (monotonic time); None while all watches report them."""
        found = [since for follower in self._all_followers() if (since := follower.interrupted_since) is not None]
        return min(found, default=None)

    def problems(self) -> Iterator[str]:
        """Yield sentences about what is not known, and about what stays although the datastore does not have it any more."""
        yield from filter(None, (follower.problem for follower in self._all_followers()))
        if self._blocks_problem:
            yield self._blocks_problem
        elif not self._blocks_are_known and self._blocks is None and self.can_plan:
            yield "blocks are not read completely yet"
        yield from tuple(self.unreadable.values())
        yield from filter(None, (self._owner_reader.problem,))
        with self._lock:
            now = time.monotonic()
            yield from self._last_nodes.problems(self._nodes, lambda: self._routed_nodes(now), now)
            yield from self._last_pools.problems(self._pools, self._networks())

    @property
    def has_pools(self) -> bool:
        return bool(self._pools)

    @property
    def is_lacking(self) -> bool:
        """Whether an object is unreadable that was not read before."""
        return bool(self._lacking)

    @property
    def watches_blocks(self) -> bool:
        return self._blocks is not None

    def inputs(self) -> Inputs:
        """Return the present copies.

        Owners of disputed blocks are read in a thread if their blocks are not watched. Meanwhile the node that had the block
        alone stays its owner."""
        with self._lock:
            claims = {cidr: dict(hosts) if len(hosts) > 1 else hosts for cidr, hosts in self._claims.items()}
            borrowed = {address: node for found in self._borrowed.values() for address, node in found.items()}
            nodes = self._last_nodes.completed(self._nodes, time.monotonic())
            pools = self._last_pools.completed(self._pools, self._networks())
            disputed = [cidr for cidr, hosts in claims.items() if len(hosts) > 1 and sum(hosts.values()) > 1]
            self._undisputed = {cidr: self._undisputed[cidr] for cidr in disputed if cidr in self._undisputed}
            owners = {**self._undisputed, **self._owner_reader.owners(disputed), **self._owners}
            return Inputs(nodes, claims, pools, borrowed, owners)

    def _all_followers(self) -> list[Follower]:
        blocks = self._blocks
        return [*self._followers, *([blocks] if blocks is not None else [])]

    def _routed_nodes(self, now: float) -> set[str]:
        """Return the names of the nodes that have networks."""
        if self._use_pod_cidr:
            return {name for name, facts in self._last_nodes.completed(self._nodes, now).items() if facts.ranges}
        claiming = {host for hosts in self._claims.values() for host in hosts}
        return claiming.union(*(found.values() for found in self._borrowed.values()))

    def _networks(self) -> Iterator[Cidr]:
        """Yield the networks that need routes, one of each block."""
        yield from self._claims
        yield from self._borrowed

    def _listed(self) -> None:
        self._changed()

    def _take(self, event: Event) -> None:
        """Take a change. An object of which svc cannot make sense stays as it was, and the others are followed nevertheless."""
        with self._lock:
            self._forget_unreadable(event.key)
            try:
                is_changed = self._apply(event.key, event.entry)
            except Exception as failure:  # of any kind: a document of another program is the cause
                self._note_unreadable(event.key, f"{describe(event.key)} is left out: {reason_of(failure)}", failure)
                is_changed = True
        if is_changed:
            self._changed()

    def _note_unreadable(self, key: Key, text: str, failure: Exception) -> None:
        is_expected = isinstance(failure, ValueError)
        log.warning("%s", text, exc_info=None if is_expected else failure)
        self.unreadable[key] = text
        if not self._has(key):
            self._lacking.add(key)

    def _forget_unreadable(self, key: Key) -> None:
        if self.unreadable.pop(key, None) is not None:
            self._lacking.discard(key)

    def _has(self, key: Key) -> bool:
        match key:
            case ResourceKey(kind=kind, name=name):
                return name in (self._nodes if kind == NODE_KIND else self._pools)
            case AffinityKey(host=host, cidr=cidr):
                return host in self._claims.get(cidr, {})
        return isinstance(key, BlockKey) and (key.cidr in self._owners or key.cidr in self._borrowed)

    def _apply(self, key: Key, entry: Entry | None) -> bool:
        match key:
            case AffinityKey(host=host, cidr=cidr):
                return self._apply_claim(host, cidr, None if entry is None else entry.value)
            case ResourceKey(kind=kind, name=name) if kind == NODE_KIND:
                return self._apply_node(name, None if entry is None else node_facts(entry.value, self._names))
            case ResourceKey(name=name):
                return self._apply_pool(name, None if entry is None else routed_pool(entry.value))
            case BlockKey(cidr=cidr):
                return self._apply_block(cidr, None if entry is None else entry.value)
        return False

    def _apply_node(self, name: str, facts: NodeFacts | None) -> bool:
        self._last_nodes.note(name, self._nodes.get(name), facts, time.monotonic())
        return _put(self._nodes, name, facts)

    def _apply_pool(self, name: str, pool: RoutedPool | None) -> bool:
        self._last_pools.note(name, self._pools.get(name), pool)
        return _put(self._pools, name, pool)

    def _apply_claim(self, host: str, cidr: Cidr, affinity: Affinity | None) -> bool:
        hosts = self._claims.get(cidr, {})
        present = None if affinity is None else affinity.is_confirmed
        if hosts.get(host) is present:
            return False
        alone = [name for name, is_confirmed in hosts.items() if is_confirmed]
        if present and len(alone) == 1 and self._affinities.is_complete:  # before, the order is that of the listing
            self._undisputed[cidr] = alone[0]
        changed = {name: is_confirmed for name, is_confirmed in hosts.items() if name != host}
        if present is not None:
            changed[host] = present
        if changed == {host: True}:
            if len(self._alone) > _SHARED_CLAIMS:
                self._alone.clear()  # names of nodes that are gone
            changed = self._alone.setdefault(host, changed)  # a node has several blocks, and most have one node
        return _put(self._claims, cidr, changed or None)

    def _apply_block(self, cidr: Cidr, block: Block | None) -> bool:
        borrowed = {} if block is None else borrowed_addresses(block)
        owner = None if block is None else owner_of(block)
        is_disputed = len(self._claims.get(cidr, ())) > 1
        is_changed = _put(self._borrowed, cidr, borrowed or None)
        return (_put(self._owners, cidr, owner) and is_disputed) or is_changed

    def _follow_settings(self) -> None:
        """Watch blocks while other nodes may have addresses in them."""
        self._may_read_blocks.wait()
        generation: tuple[int, ...] = ()
        while not self._ended.wait(SETTINGS_SECONDS if generation else 0):
            try:
                generation = self._checked_settings(generation)
                self._blocks_problem = ""
            except SvcError as failure:
                self._blocks_problem = f"the IPAM settings cannot be read: {failure}"
            except Exception as failure:  # an error of svc, which must not end this thread
                log.warning("blocks are not followed, and will be looked at again", exc_info=failure)
                self._blocks_problem = f"blocks are not followed: an error of svc, {type(failure).__name__}: {failure}"
            self._follow_blocks()
            generation = generation or (-1,)

    def _checked_settings(self, generation: tuple[int, ...]) -> tuple[int, ...]:
        from svc.ipam.settings import read_settings  # loads IPAM, which no first route waits for

        present = self._backend.generations((IPAM_CONFIG,))
        if present != generation:
            self._strict = read_settings(self._backend).strict_affinity
        return present

    def _follow_blocks(self) -> None:
        blocks = self._blocks
        if blocks is None and (not self._strict or not self._blocks_are_known or self._borrowed):
            known = {BlockKey(cidr) for cidr in self._borrowed}  # those of a watch that was closed
            self._blocks = Follower(self._backend, BlockQuery(), "blocks", self._take, self._blocks_listed, known)
            self._blocks.start()
        elif blocks is not None and self._strict and self._blocks_are_known and not self._borrowed and not self._lacks_block():
            blocks.close()
            blocks.join()
            self._blocks = None
            with self._lock:
                self._owner_reader.note(self._owners)
                self._owners.clear()
            del blocks
            gc.collect()  # of what the listing of the largest part has left
            return_free_memory()

    def _lacks_block(self) -> bool:
        """Return whether a block is unreadable: only the watch tells when it is corrected, and nothing is deleted before."""
        with self._lock:
            return any(isinstance(key, BlockKey) for key in self._lacking)

    def _blocks_listed(self) -> None:
        self._blocks_are_known = True
        self._changed()
        return_free_memory()


def _put(copies: dict[Any, Any], key: Any, value: Any) -> bool:
    """Set or remove an entry. Return whether that changes something."""
    if copies.get(key) == value:
        return False
    if value is None:
        del copies[key]
    else:
        copies[key] = value
    return True

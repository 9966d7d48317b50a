"""Copies of what the datastore has about routes, kept current by watches. A thread for each kind of objects."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Entry, Event, Watch
from svc.ipam.settings import read_settings
from svc.model.errors import SvcError
from svc.model.ipam import Affinity, Block
from svc.model.keys import IPAM_CONFIG, AffinityKey, AffinityQuery, BlockKey, BlockQuery, Key, Query, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import Names
from svc.retry import Backoff
from svc.routes.inputs import Inputs, NodeFacts, RoutedPool, borrowed_addresses, node_facts, owner_of, routed_pool

NODE_KIND, POOL_KIND = "Node", "IPPool"
SETTINGS_SECONDS: Final = 2.0  # between checks whether the IPAM settings have changed, which sends no request
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0  # of a watch that the datastore refuses
_JOIN_SECONDS: Final = 5.0

log = logging.getLogger("svc.routes")


class Follower:
    """A watch of one query in a thread of its own, opened again if the datastore refuses it.

    `take` gets each event, `listed` is called after each complete listing."""

    def __init__(
        self,
        backend: Backend,
        query: Query,
        take: Callable[[Event], None],
        listed: Callable[[], None],
        known: Iterable[Key] = (),
    ) -> None:
        self._backend = backend
        self._query = query
        self._take = take
        self._listed = listed
        self._closed = threading.Event()
        self._watch: Watch | None = None
        self._known: set[Key] = set(known)
        self._seen: set[Key] | None = None  # of the first listing of a watch; None after it
        self._refused_since: float | None = None
        self.is_complete = False
        self._thread = threading.Thread(target=self._run, name=f"copies-{type(query).__name__}", daemon=True)

    @property
    def interrupted_since(self) -> float | None:
        """Since when changes may be missing (monotonic time); None while they are reported as they come."""
        watch = self._watch
        since = None if watch is None else watch.interrupted_since
        return self._refused_since if since is None else since

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the watch. The thread may call this itself."""
        self._closed.set()
        watch = self._watch
        if watch is not None:
            watch.close()

    def join(self) -> None:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        backoff = Backoff(_MIN_BACKOFF, _MAX_BACKOFF)
        while not self._closed.is_set():
            try:
                self._follow(backoff)
            except SvcError as failure:
                if self._closed.is_set():
                    return
                if self._refused_since is None:
                    log.warning("the datastore refuses a watch: %s", failure)
                    self._refused_since = time.monotonic()
            self._closed.wait(backoff.next())

    def _follow(self, backoff: Backoff) -> None:
        """Take the events of one watch until it ends. Raise SvcError if the datastore refuses it."""
        self._seen = set()
        self._watch = self._backend.watch(self._query, self._end_listing)
        if self._closed.is_set():
            self._watch.close()
        for event in self._watch:
            backoff.reset()
            self._note(event)
            self._take(event)

    def _note(self, event: Event) -> None:
        if event.entry is None:
            self._known.discard(event.key)
            return
        self._known.add(event.key)
        if self._seen is not None:
            self._seen.add(event.key)

    def _end_listing(self) -> None:
        """Report what an earlier watch knew and this one has not found as deleted."""
        if self._seen is not None:
            for key in self._known - self._seen:
                self._take(Event(key, None))
            self._known, self._seen = self._seen, None
        self._refused_since = None
        self.is_complete = True
        self._listed()


class Copies:
    """The copies. `changed` is called, in any thread, after each change that routes may follow from. Thread-safe."""

    def __init__(self, backend: Backend, names: Names, changed: Callable[[], None], *, use_pod_cidr: bool = False) -> None:
        self._backend = backend
        self._names = names
        self._changed = changed
        self._use_pod_cidr = use_pod_cidr
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeFacts] = {}
        self._pools: dict[str, RoutedPool] = {}
        self._claims: dict[Cidr, dict[str, bool]] = {}
        self._borrowed: dict[Cidr, dict[Address, str]] = {}  # by block
        self._owners: dict[Cidr, str] = {}
        self._found_owners: dict[Cidr, str] = {}  # of disputed blocks that are not watched
        self._strict = False
        self.unreadable: dict[str, str] = {}
        self._followers = [Follower(backend, ResourceQuery(kind), self._take, self._listed) for kind in (NODE_KIND, POOL_KIND)]
        self._blocks: Follower | None = None
        self._blocks_are_known = use_pod_cidr
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        if not use_pod_cidr:
            self._followers.append(Follower(backend, AffinityQuery(), self._take, self._listed))
            self._threads.append(threading.Thread(target=self._follow_blocks, name="copies-settings", daemon=True))

    def start(self) -> None:
        for follower in self._followers:
            follower.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the watches and their threads."""
        self._ended.set()
        followers = [*self._followers, *([self._blocks] if self._blocks else [])]
        for follower in followers:
            follower.close()
        for follower in followers:
            follower.join()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    @property
    def is_complete(self) -> bool:
        """Whether everything was read completely at least once."""
        return self._blocks_are_known and all(follower.is_complete for follower in self._followers)

    @property
    def interrupted_since(self) -> float | None:
        """Since when changes may be missing (monotonic time); None while all watches report them."""
        followers = [*self._followers, *([blocks] if (blocks := self._blocks) else [])]
        found = [since for follower in followers if (since := follower.interrupted_since) is not None]
        return min(found, default=None)

    @property
    def has_pools(self) -> bool:
        return bool(self._pools)

    @property
    def lacks_pools(self) -> bool:
        """Whether a pool is unreadable that was not read before."""
        return any(name not in self._pools for name in tuple(self.unreadable))

    @property
    def watches_blocks(self) -> bool:
        return self._blocks is not None

    def inputs(self) -> Inputs:
        """Return the present copies. Owners of disputed blocks are read if their blocks are not watched."""
        with self._lock:
            claims = {cidr: dict(hosts) if len(hosts) > 1 else hosts for cidr, hosts in self._claims.items()}
            borrowed = {address: node for found in self._borrowed.values() for address, node in found.items()}
            inputs = Inputs(dict(self._nodes), claims, tuple(self._pools.values()), borrowed, dict(self._owners))
        disputed = [cidr for cidr, hosts in claims.items() if sum(hosts.values()) > 1 and cidr not in inputs.owners]
        if not disputed:
            return inputs
        if self.interrupted_since is None:
            self._find_owners(disputed)
        owners = {**self._found_owners, **inputs.owners}
        return Inputs(inputs.nodes, inputs.claims, inputs.pools, inputs.borrowed, owners)

    def _find_owners(self, disputed: Iterable[Cidr]) -> None:
        """Read the owners of these blocks. Those that cannot be read now stay as they were found before."""
        for cidr in disputed:
            with suppress(SvcError):
                entry = self._backend.find(BlockKey(cidr))
                self._found_owners[cidr] = "" if entry is None else owner_of(entry.value)

    def _listed(self) -> None:
        self._changed()

    def _take(self, event: Event) -> None:
        with self._lock:
            is_changed = self._apply(event.key, event.entry)
        if is_changed:
            self._changed()

    def _apply(self, key: Key, entry: Entry | None) -> bool:
        match key:
            case ResourceKey(kind=kind, name=name) if kind == NODE_KIND:
                return _put(self._nodes, name, None if entry is None else node_facts(entry.value, self._names))
            case ResourceKey(name=name):
                return _put(self._pools, name, self._pool(name, entry))
            case AffinityKey(host=host, cidr=cidr):
                return self._apply_claim(host, cidr, None if entry is None else entry.value)
            case BlockKey(cidr=cidr):
                return self._apply_block(cidr, None if entry is None else entry.value)
        return False

    def _pool(self, name: str, entry: Entry[Resource] | None) -> RoutedPool | None:
        self.unreadable.pop(name, None)
        if entry is None:
            return None
        try:
            return routed_pool(entry.value)
        except ValueError as error:
            log.warning("%s", error)
            self.unreadable[name] = str(error)
            return self._pools.get(name)  # its routes stay as they were

    def _apply_claim(self, host: str, cidr: Cidr, affinity: Affinity | None) -> bool:
        hosts = self._claims.get(cidr, {})
        present = None if affinity is None else affinity.is_confirmed
        if hosts.get(host) is present:
            return False
        changed = {name: is_confirmed for name, is_confirmed in hosts.items() if name != host}
        if present is not None:
            changed[host] = present
        return _put(self._claims, cidr, changed or None)

    def _apply_block(self, cidr: Cidr, block: Block | None) -> bool:
        borrowed = {} if block is None else borrowed_addresses(block)
        owner = None if block is None else owner_of(block)
        is_disputed = len(self._claims.get(cidr, ())) > 1
        is_changed = _put(self._borrowed, cidr, borrowed or None)
        return (_put(self._owners, cidr, owner) and is_disputed) or is_changed

    def _follow_blocks(self) -> None:
        """Watch blocks while other nodes may have addresses in them."""
        generation: tuple[int, ...] = ()
        while not self._ended.wait(0 if not generation else SETTINGS_SECONDS):
            with suppress(SvcError):
                present = self._backend.generations((IPAM_CONFIG,))
                if present != generation:
                    self._strict = read_settings(self._backend).strict_affinity
                    generation = present
            if self._blocks is None and (not self._strict or not self._blocks_are_known or self._borrowed):
                known = {BlockKey(cidr) for cidr in self._borrowed}  # those of a watch that was closed
                self._blocks = Follower(self._backend, BlockQuery(), self._take, self._blocks_listed, known)
                self._blocks.start()
            elif self._blocks is not None and self._blocks_are_known and self._strict and not self._borrowed:
                self._blocks.close()
                self._blocks.join()
                self._blocks = None
                with self._lock:
                    self._owners.clear()
            generation = generation or (-1,)

    def _blocks_listed(self) -> None:
        self._blocks_are_known = True
        self._changed()


def _put(copies: dict[Any, Any], key: Any, value: Any) -> bool:
    """Set or remove an entry. Return whether that changes something."""
    if copies.get(key) == value:
        return False
    if value is None:
        del copies[key]
    else:
        copies[key] = value
    return True

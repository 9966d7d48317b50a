"""The front of IPAM: assign and release, from any number of threads.

Calls that wait at the same time become one plan and one write. A lost race (somebody else changed a block or a handle) is read
again and planned again; a refusal is only given after everything was read anew.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from svc._core.cidr import Address, Cidr
from svc.batching import Batcher
from svc.datastore.api import MAX_WRITES, Backend, Damaged, Entry, Found, OutcomeUnknown, entry_of
from svc.ipam import blocks
from svc.ipam.assigning import pools_for
from svc.ipam.cache import IpamCache, read_pools
from svc.ipam.group import Group, Outcome
from svc.ipam.handle_repair import recount
from svc.ipam.host import NODE, Host
from svc.ipam.plan import Plan
from svc.ipam.requests import (
    Allocation,
    Answer,
    Assign,
    AssignResult,
    Release,
    ReleaseAddresses,
    ReleaseResult,
    ReleaseTarget,
    Request,
)
from svc.model.errors import SvcError
from svc.model.ipam import Block, Handle
from svc.model.keys import BlockKey, HandleKey, HandleQuery
from svc.values import dataclass

GROUP = (MAX_WRITES - 1) // 4  # requests of one write: each has a handle, at most a block of each family, and a companion
ONE_BY_ONE = MAX_WRITES // 3  # the same where writes are not atomic, and go without
PATIENCE = 0.25  # seconds for a request that is on its way, where blocks are written one by one


@dataclass(frozen=True, slots=True)
class _Call:
    """A request, and the handle that it is about as its caller has read it."""

    request: Request
    handle: Entry[Handle] | None = None


class Ipam:
    """Addresses of one host in one datastore. `host` is the name of a node, or a virtual host such as `LOAD_BALANCERS`."""

    def __init__(self, backend: Backend, host: str | Host) -> None:
        self._backend = backend
        self._host = host if isinstance(host, Host) else Host(host)
        self._view = IpamCache(backend, self._host)
        self._undecided: set[str] = set()  # handles whose assignment may still be carried out
        self._combiner: Batcher[_Call, Answer] = Batcher(
            self._carry_out,
            lambda: backend.place,
            limit=GROUP if backend.atomic else ONE_BY_ONE,
            patience=0.0 if backend.atomic else PATIENCE,
        )

    def announced(self) -> AbstractContextManager[None]:
        """Inside, this thread is going to ask for addresses. Where a group of requests costs many writes, whoever is about to
        write waits a little for those that are announced: a crowd then comes to few writes."""
        return nullcontext() if self._backend.atomic else self._combiner.announced()

    def assign(self, request: Assign) -> AssignResult:
        """SvcError, and nothing assigned, where not all of it can be.

        After a StoreError it may be unknown what was assigned: a `Release` of the handle is owed, and the companion may be
        there."""
        try:
            answer = self._combiner.run(_Call(request))
        except OutcomeUnknown:
            self._undecided.add(request.handle)
            raise
        assert isinstance(answer, AssignResult)
        return answer

    def release(self, request: Release, stored: Found[Handle] | None = None) -> bool:
        """Returns when nothing but `keep` is held: whether there was anything to look at, and its companion went along.

        `stored` is the handle as the caller has read it. SvcError: then it may be repeated; KeyedError of the companion's key.
        """
        handle = None
        if request.handle not in self._undecided:  # or it is read after what may still be carried out
            key = HandleKey(request.handle)  # read here: callers read in parallel
            handle = self._backend.find(key) if stored is None else entry_of(stored)
            if handle is None and not request.addresses:
                return False
        self._combiner.run(_Call(request, handle))
        self._undecided.discard(request.handle)
        return True

    def release_addresses(self, addresses: Sequence[ReleaseTarget]) -> ReleaseResult:
        """Any number of addresses, one write for all of a block. What is refused is told in the answer; SvcError when the
        datastore fails: then the handles concerned may count too many, until a `Release` of them."""
        answer = self._combiner.run(_Call(ReleaseAddresses(tuple(addresses))))
        assert isinstance(answer, ReleaseResult)
        return answer

    def addresses_of(self, handle: str) -> tuple[Address, ...]:
        """What the handle holds, read now; blocks that are gone are left out. Damaged."""
        return tuple(
            block.cidr.address(ordinal) for block in self._blocks_of(handle) for ordinal in blocks.held_by(block, handle)
        )

    def owners_of(self, handle: str) -> dict[Address, dict[str, str]]:
        """The attributes of each address that the handle holds, read now. An allocation that names no `node` is its block's.
        Damaged."""
        return {
            block.cidr.address(ordinal): _owner(block, block.cidr.address(ordinal))
            for block in self._blocks_of(handle)
            for ordinal in blocks.held_by(block, handle)
        }

    def holds(self, handle: str, addresses: Sequence[Address]) -> bool:
        """Whether the datastore says, right now, that the handle holds every one of these addresses."""
        return set(self.addresses_of(handle)).issuperset(addresses)

    def allocations(self, handle: str, addresses: Sequence[Address]) -> tuple[Allocation, ...]:
        """The given addresses with the blocks that the handle names for them, read now. StoreError."""
        entry = self._backend.find(HandleKey(handle))
        if entry is None:
            return ()
        cidrs = [Cidr(text) for text in entry.value.blocks]
        return tuple(Allocation(address, cidr) for address in addresses for cidr in cidrs if address in cidr)

    def standing(self, address: Address) -> tuple[str, str]:
        """The pool that has the address, and the handle that holds it there, as they are now; empty where there is none."""
        pool = read_pools(self._backend).pool_of(address)
        if pool is None:
            return "", ""
        block = self._block(pool.cidr.block_of(address, pool.block_size))
        holder = None if block is None else blocks.holder(block, address)
        return pool.name, (holder.handle_id or "" if holder else "")

    def avoid(self, addresses: Iterable[Address]) -> None:
        """Assign none of these for a minute, unless a request names them: this host uses them, whatever the datastore says."""
        self._view.avoid(addresses)

    def has_pools(self) -> bool:
        """Return whether there is any pool, read now. Raise StoreError."""
        return bool(read_pools(self._backend).all)

    def not_held(self, held: Iterable[tuple[str, Address]]) -> set[tuple[str, Address]]:
        """Return which of these pairs of handle and address the datastore does not show, read now: each block once.

        Raise StoreError, Damaged."""
        pools, found = read_pools(self._backend), dict[Cidr, Block | None]()
        missing = set()
        for handle, address in held:
            pool = pools.pool_of(address)
            cidr = None if pool is None else pool.cidr.block_of(address, pool.block_size)
            if cidr is not None and cidr not in found:
                found[cidr] = self._block(cidr)
            block = None if cidr is None else found[cidr]
            holder = None if block is None else blocks.holder(block, address)
            if holder is None or holder.released_at or holder.handle_id != handle:
                missing.add((handle, address))
        return missing

    def counts(self) -> dict[str, tuple[Cidr, ...]]:
        """Return the blocks of which each handle counts addresses, in one listing. Raise StoreError."""
        entries = self._backend.list(HandleQuery())
        return {entry.key.handle: tuple(map(Cidr, entry.value.blocks)) for entry in entries if isinstance(entry.key, HandleKey)}

    def recount(self, handle: str, cidrs: Sequence[Cidr]) -> None:
        """Make the handle count what these blocks show of it; no address is freed. An assignment to it that is in flight is
        planned again. Raise StoreError, PeerError."""
        recount(self._backend, handle, [str(cidr) for cidr in cidrs])

    def _block(self, cidr: Cidr) -> Block | None:
        entry = self._backend.find(BlockKey(cidr))
        if entry is None:
            return None
        return entry.value

    def pool_of(self, address: Address) -> Cidr | None:
        """That an address lies in, read now. StoreError."""
        pool = read_pools(self._backend).pool_of(address)
        return None if pool is None else pool.cidr

    def check_room(
        self, versions: Sequence[int], pools: dict[int, tuple[str, ...]], namespace_labels: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """SvcError when an ADD with these settings would get no address right now. Reads everything anew, writes nothing.

        Return the fault of each pool and reservation that such an ADD passes because it cannot be read."""
        plan = Plan(self._backend, IpamCache(self._backend, self._host), self._host, {})
        request = Assign("", {}, tuple(versions), pools, namespace_labels=dict(namespace_labels or {}))
        for version in versions:
            plan.room.check(plan.block, version, pools_for(plan, version, request))
        return plan.view.faults() if any(not pools.get(version) for version in versions) else ()

    def _blocks_of(self, handle: str) -> Iterator[Block]:
        entry = self._backend.find(HandleKey(handle))
        if entry is None:
            return
        for text in entry.value.blocks:
            block = self._block(Cidr(text))
            if block is not None:
                yield block

    def _carry_out(self, calls: Sequence[_Call]) -> list[Outcome]:
        """Where something is wrong with one of them that planning did not show, each is tried by itself."""
        known = [call.handle for call in calls if call.handle is not None]
        try:
            return Group(self._backend, self._view, self._host, [call.request for call in calls], known).carry_out()
        except Exception as failure:
            if isinstance(failure, SvcError) and not isinstance(failure, Damaged):
                raise
            if len(calls) == 1:
                return [failure]
            return [outcome for call in calls for outcome in self._carry_out([call])]


def _owner(block: Block, address: Address) -> dict[str, str]:
    attribute, host = blocks.holder(block, address), Host.of(block.affinity)
    node = {"node": host.name} if host is not None and host.kind == NODE else {}
    return {**node, **(attribute.secondary or {} if attribute is not None else {})}

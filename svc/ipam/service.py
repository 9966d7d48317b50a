"""The interface of IPAM: assign and release addresses, from any number of threads.

Calls that wait at the same time become one batch: one plan and one write. After a conflict on a block or a handle, the batch is
read and planned again. A request is refused only after the cache was reloaded.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from svc._core.cidr import Address, Cidr
from svc.batching import Batcher
from svc.datastore.api import MAX_WRITES, Backend, Delete, Entry, Found, OutcomeUnknown, UndecodableEntry, entry_of
from svc.ipam import blocks
from svc.ipam.assigning import pools_for
from svc.ipam.batch import Outcome, RequestBatch
from svc.ipam.cache import IpamCache
from svc.ipam.handle_repair import recount_handle
from svc.ipam.plan import Plan, RequestChanges
from svc.ipam.pools import read_pools
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
from svc.ipam.selection import BlockFinder
from svc.model.errors import SvcError
from svc.model.ipam import Block, Handle
from svc.model.keys import NODE, AffinityKey, AffinityQuery, BlockKey, HandleKey, HandleQuery, Host
from svc.values import dataclass, field

MAX_BATCH = (MAX_WRITES - 1) // 4  # requests of one write: each changes a handle, one block per family, and one extra object
MAX_BATCH_NOT_ATOMIC = MAX_WRITES // 3  # the same for stores without atomic writes, which get no extra write

PLAN_SECONDS = 0.1  # for which a planned release may be carried out as it was planned


@dataclass(slots=True)
class PlannedRelease:
    """A release, with the plan that was made for it."""

    request: Release
    batch: RequestBatch
    since: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class _Call:
    """A request, with the entry of its handle if the caller has read it, and its plan if there is one.

    With `only_plans`, it is planned and not carried out.
    """

    request: Request
    handle: Entry[Handle] | None = None
    only_plans: bool = False
    planned: RequestBatch | None = None


class IpamService:
    """The addresses of one host in one datastore.

    `host` is the name of a node, or a virtual host such as `LOAD_BALANCERS`. Thread-safe. Methods without a request read the
    datastore now. They raise StoreError if it fails, UndecodableEntry if it holds a value that cannot be decoded.
    """

    def __init__(self, backend: Backend, host: str | Host) -> None:
        self._backend = backend
        self._host = host if isinstance(host, Host) else Host(host)
        self._cache = IpamCache(backend, self._host)
        self._undecided: set[str] = set()  # handles whose assignment has an unknown outcome: the datastore may still apply it
        self._batcher: Batcher[_Call, Answer | RequestBatch | None] = Batcher(
            self._execute,
            lambda: backend.place,
            limit=MAX_BATCH if backend.atomic else MAX_BATCH_NOT_ATOMIC,
        )

    def assign(self, request: Assign) -> AssignResult:
        """Assign all addresses of the request, or none.

        Raise SvcError and assign nothing if one of them cannot be assigned. Raise StoreError if the datastore fails. Then
        addresses may be assigned and the extra object may exist, so the caller must release the handle.
        """
        try:
            answer = self._batcher.run(_Call(request))
        except OutcomeUnknown:
            self._undecided.add(request.handle)
            raise
        assert isinstance(answer, AssignResult)
        return answer

    def plan_release(self, request: Release, stored: Found[Handle]) -> PlannedRelease | None:
        """Plan a release that `release` carries out soon, with the handle as the caller has read it.

        Return None if that would not help: other requests are in work, or nothing is to be released. Raise SvcError.
        """
        handle = entry_of(stored)
        if handle is None or request.handle in self._undecided or self._batcher.is_busy:
            return None
        batch = self._batcher.run(_Call(request, handle, only_plans=True))
        return PlannedRelease(request, batch) if isinstance(batch, RequestBatch) else None

    def carry_out(self, planned: PlannedRelease, stored: Found[Handle]) -> bool:
        """Do as `release`, by the plan if it is recent and current."""
        if time.monotonic() - planned.since > PLAN_SECONDS or planned.request.handle in self._undecided:
            return self.release(planned.request, stored)
        self._batcher.run(_Call(planned.request, entry_of(stored), planned=planned.batch))
        return True

    def release(self, request: Release, stored: Found[Handle] | None = None) -> bool:
        """Release what the handle holds, except `keep`. Return whether the request was carried out. Idempotent.

        Do nothing, not even the extra write, if the handle does not exist and the request names no addresses. `stored` is the
        handle as the caller has read it. Raise KeyedError if the extra write conflicts, SvcError if the release fails.
        """
        handle = None
        if request.handle not in self._undecided:  # otherwise the plan reads the handle, after a late assignment
            key = HandleKey(request.handle)  # read here and not in the batch: callers read in parallel
            handle = self._backend.find(key) if stored is None else entry_of(stored)
            if handle is None and not request.addresses:
                return False
        self._batcher.run(_Call(request, handle))
        self._undecided.discard(request.handle)
        return True

    def release_addresses(self, addresses: Sequence[ReleaseTarget]) -> ReleaseResult:
        """Release any number of addresses, with one write per block. The result lists the refused addresses with the reasons.

        Raise SvcError if the datastore fails. Then handles may count too many addresses, until a `Release` corrects them.
        """
        answer = self._batcher.run(_Call(ReleaseAddresses(tuple(addresses))))
        assert isinstance(answer, ReleaseResult)
        return answer

    def release_whole_handles(self, addresses: Sequence[ReleaseTarget], deletions: Sequence[Delete] = ()) -> ReleaseResult:
        """Release addresses of any number of handles, and delete objects with them, or do nothing.

        The addresses must be all that their handles hold; those that are free already do not count. Raise CallerError if they
        are not, or if an allocation differs from its target, KeyedError if an object to delete was changed. Raise SvcError if
        the datastore fails: without transactions, some of the addresses may be released then.
        """
        answer = self._batcher.run(_Call(ReleaseAddresses(tuple(addresses), True, tuple(deletions))))
        assert isinstance(answer, ReleaseResult)
        return answer

    def addresses_of(self, handle: str) -> tuple[Address, ...]:
        """Return the addresses that the handle holds. Skip missing blocks."""
        return tuple(address for _, address in self._held_by(handle))

    def owners_of(self, handle: str) -> dict[Address, dict[str, str]]:
        """Return the attributes of each address that the handle holds. A missing `node` is that of the block's affinity."""
        return {address: _owner(block, address) for block, address in self._held_by(handle)}

    def holds(self, handle: str, addresses: Sequence[Address]) -> bool:
        """Return whether the handle holds all of these addresses."""
        return set(self.addresses_of(handle)).issuperset(addresses)

    def allocations(self, handle: str, addresses: Sequence[Address]) -> tuple[Allocation, ...]:
        """Return the given addresses with the blocks that the handle lists. Leave out addresses in no such block."""
        entry = self._backend.find(HandleKey(handle))
        if entry is None:
            return ()
        cidrs = [Cidr(text) for text in entry.value.blocks]
        return tuple(Allocation(address, cidr) for address in addresses for cidr in cidrs if address in cidr)

    def pool_and_handle(self, address: Address) -> tuple[str, str]:
        """Return the name of the address's pool and the handle that holds the address; each is empty if it does not exist."""
        pool = read_pools(self._backend).pool_of(address)
        if pool is None:
            return "", ""
        block = self._block(pool.cidr.block_of(address, pool.block_size))
        found = None if block is None else blocks.allocation_of(block, address)
        return pool.name, (found.handle_id or "" if found else "")

    def avoid(self, addresses: Iterable[Address]) -> None:
        """Do not assign these addresses, which this host uses, for `AVOID_SECONDS`, unless a request names them."""
        self._cache.avoid(addresses)

    def read_own_blocks(self) -> dict[Cidr, Block]:
        """Return the blocks for which this host has an affinity, read now. Skip those that cannot be decoded."""
        return self._read_blocks(self._read_own())[0]

    def read_blocks_for(self, addresses: Iterable[Address]) -> tuple[dict[Cidr, Block], list[Cidr]]:
        """Return the blocks of this host and of these addresses, read now, and the CIDRs of those that cannot be decoded."""
        pools = read_pools(self._backend)
        return self._read_blocks({*self._read_own(), *filter(None, map(pools.any_block_of, addresses))})

    def _read_own(self) -> list[Cidr]:
        queries = [AffinityQuery(self._host.name, version, self._host.kind) for version in (4, 6)]
        keys = [entry.key for query in queries for entry in self._backend.list(query)]
        return [key.cidr for key in keys if isinstance(key, AffinityKey)]

    def _read_blocks(self, cidrs: Iterable[Cidr]) -> tuple[dict[Cidr, Block], list[Cidr]]:
        keys, found, unreadable = [BlockKey(cidr) for cidr in cidrs], dict[Cidr, Block](), []
        for start in range(0, len(keys), MAX_WRITES):
            part = keys[start : start + MAX_WRITES]
            for key, entry in zip(part, self._backend.get_all(part), strict=True):
                if isinstance(entry, Entry):
                    found[key.cidr] = entry.value
                elif isinstance(entry, UndecodableEntry):
                    unreadable.append(key.cidr)
        return found, unreadable

    def own_blocks(self, read: Mapping[Cidr, Block]) -> dict[Cidr, Block]:
        """Return the blocks of this host, which were `read` earlier, with the newer ones of the cache. Send no request."""
        return self._cache.newest(read)

    def has_pools(self) -> bool:
        return bool(read_pools(self._backend).all)

    def not_held(self, held: Iterable[tuple[str, Address]]) -> set[tuple[str, Address]]:
        """Return the pairs of handle and address that the datastore does not record as allocations. Read each block once."""
        pools, found = read_pools(self._backend), dict[Cidr, Block | None]()
        missing = set()
        for handle, address in held:
            cidr = pools.any_block_of(address)
            if cidr is not None and cidr not in found:
                found[cidr] = self._block(cidr)
            block = None if cidr is None else found[cidr]
            present = None if block is None else blocks.allocation_of(block, address)
            if present is None or present.released_at or present.handle_id != handle:
                missing.add((handle, address))
        return missing

    def counts(self) -> dict[str, tuple[Cidr, ...]]:
        """Return, for each handle, the blocks in which it counts addresses. List the handles in one request."""
        entries = self._backend.list(HandleQuery())
        return {entry.key.handle: tuple(map(Cidr, entry.value.blocks)) for entry in entries if isinstance(entry.key, HandleKey)}

    def recount_handle(self, handle: str, cidrs: Sequence[Cidr]) -> None:
        """Set the handle's counts for these blocks to the allocations in them. Raise PeerError if every attempt conflicts."""
        recount_handle(self._backend, handle, [str(cidr) for cidr in cidrs])

    def _block(self, cidr: Cidr) -> Block | None:
        entry = self._backend.find(BlockKey(cidr))
        return None if entry is None else entry.value

    def pool_of(self, address: Address) -> Cidr | None:
        """Return the CIDR of the address's pool, or None."""
        pool = read_pools(self._backend).pool_of(address)
        return None if pool is None else pool.cidr

    def require_capacity(self, versions: Sequence[int], pools: dict[int, tuple[str, ...]]) -> tuple[str, ...]:
        """Check, with a new cache, that an ADD with these settings would get addresses now. Raise SvcError if it would not.

        Return the error of each unreadable pool and reservation, which such an ADD skips.
        """
        plan = Plan(self._backend, IpamCache(self._backend, self._host), self._host, {})
        request = Assign("", {}, tuple(versions), pools)
        finder = BlockFinder(RequestChanges(plan))
        for version in versions:
            finder.require_free(version, pools_for(plan, version, request))
        return plan.cache.errors() if any(not pools.get(version) for version in versions) else ()

    def _held_by(self, handle: str) -> Iterator[tuple[Block, Address]]:
        entry = self._backend.find(HandleKey(handle))
        for cidr in () if entry is None else map(Cidr, entry.value.blocks):
            block = self._block(cidr)
            if block is not None:
                yield from ((block, cidr.address(ordinal)) for ordinal in blocks.held_by(block, handle))

    def _execute(self, calls: Sequence[_Call]) -> list[Outcome | RequestBatch | None]:
        """Carry out a batch. Plan a request that is only to be planned if it is alone, because others would change its plan."""
        if len(calls) == 1 and calls[0].only_plans:
            batch = self._batch_of(calls)
            batch.plan()
            return [batch]
        wanted = [call for call in calls if not call.only_plans]
        outcomes = iter(self._carry_out(wanted) if wanted else ())
        return [None if call.only_plans else next(outcomes) for call in calls]

    def _batch_of(self, calls: Sequence[_Call]) -> RequestBatch:
        if len(calls) == 1 and calls[0].planned is not None:
            return calls[0].planned
        known = [call.handle for call in calls if call.handle is not None]
        return RequestBatch(self._backend, self._cache, self._host, [call.request for call in calls], known)

    def _carry_out(self, calls: Sequence[_Call]) -> list[Outcome]:
        """Carry out requests. If that fails with UndecodableEntry or an unexpected exception, carry out each one by itself."""
        self._backend.meter.batch(len(calls))
        try:
            return self._batch_of(calls).execute()
        except Exception as failure:
            if isinstance(failure, SvcError) and not isinstance(failure, UndecodableEntry):
                raise
            if len(calls) == 1:
                return [failure]
            return [outcome for call in calls for outcome in self._carry_out([call])]


def _owner(block: Block, address: Address) -> dict[str, str]:
    attribute, host = blocks.allocation_of(block, address), Host.of(block.affinity)
    node = {"node": host.name} if host is not None and host.kind == NODE else {}
    return {**node, **(attribute.secondary or {} if attribute is not None else {})}

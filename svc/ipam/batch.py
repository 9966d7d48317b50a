"""A batch of requests: plan them together, write, and plan again after each conflict.

A store without atomic writes may apply a batch in part. Requests whose blocks were all written are served. For the other
requests, the written changes are undone and the requests are planned again. Later requests of the batch may be served first.
That is permitted, because all requests of a batch are concurrent.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from svc._core.cidr import Address, Cidr
from svc.datastore.api import (
    Backend,
    Create,
    Delete,
    Entry,
    KeyedError,
    NotFound,
    OutcomeUnknown,
    PartialWrite,
    StoreError,
    UndecodableEntry,
    Write,
)
from svc.ipam import errors
from svc.ipam.assigning import assign
from svc.ipam.cache import IpamCache, node_labels
from svc.ipam.claims import BlockInUse, ClaimConflict, release_affinity
from svc.ipam.handle_repair import WriteProgress, apply_corrections, corrections, recount_handle
from svc.ipam.plan import Plan, Planned
from svc.ipam.releasing import release, release_addresses
from svc.ipam.requests import Answer, Assign, AssignResult, Release, ReleaseAddresses, ReleaseResult, ReleaseTarget, Request
from svc.model.errors import SvcError
from svc.model.ipam import Block, Handle
from svc.model.keys import NODE, BlockKey, HandleKey, Host, Key, ResourceKey
from svc.retry import ATTEMPTS_BEFORE_BACKOFF, attempts, is_after_backoff
from svc.values import replace

Outcome = Answer | BaseException

_log = logging.getLogger(__name__)

_PLANNERS: dict[type, Callable[[Plan, Any], Planned]] = {
    Assign: assign,
    Release: release,
    ReleaseAddresses: release_addresses,
}


class RequestBatch:
    """The requests of one batch, in order. `handles` are entries that the callers have read. For one thread."""

    def __init__(
        self, backend: Backend, cache: IpamCache, host: Host, requests: Sequence[Request], handles: Iterable[Entry[Handle]] = ()
    ) -> None:
        self._backend = backend
        self._cache = cache
        self._host = host
        self._open = dict(enumerate(requests))
        self._outcomes: dict[int, Outcome] = {}
        self._freed: dict[int, tuple[Address, ...]] = {}  # addresses released by earlier attempts of a request
        self._known_handles = {entry.key.handle: entry for entry in handles if isinstance(entry.key, HandleKey)}
        self._existing_extras: set[Key] = set()  # keys of extra writes whose objects already exist
        self._has_reloaded = False
        self._planned: tuple[Plan, Mapping[int, Planned]] | None = None

    def plan(self) -> None:
        """Plan all requests. `execute` writes this plan first, if it is still current. Raise StoreError or ClaimConflict."""
        self._planned = self._plan(self._open)

    def execute(self) -> list[Outcome]:
        """Return one outcome for each request, in order. Raise the failure if no request has an outcome yet."""
        one_by_one = False  # true after `ATTEMPTS_BEFORE_BACKOFF` conflicts: then single requests conflict less
        try:
            while self._open:
                one_by_one = self._serve(one_by_one=one_by_one)
        except Exception as failure:
            if not self._outcomes:
                raise
            for number in list(self._open):
                self._close(number, copy.copy(failure))
        return [self._outcomes[number] for number in sorted(self._outcomes)]

    def _serve(self, *, one_by_one: bool) -> bool:
        """Serve at least one request. Return whether to serve the rest one by one. Raise PeerError if all attempts conflict."""
        for number in attempts():
            one_by_one = one_by_one or number >= ATTEMPTS_BEFORE_BACKOFF
            chosen = dict(islice(self._open.items(), 1 if one_by_one else None))
            try:
                self._attempt(chosen)
            except (KeyedError, ClaimConflict) as conflict:
                self._backend.meter.ipam_conflicts += 1
                self._invalidate_after(conflict, thoroughly=is_after_backoff(number + 1))
            if not chosen.keys() & self._open.keys():
                return one_by_one
        raise errors.too_much_contention()

    def _attempt(self, chosen: Mapping[int, Request]) -> None:
        plan, planned = self._take_plan() or self._plan(chosen)
        if not self._has_reloaded and any(_is_from_cache(each.outcome) for each in planned.values()):
            self._cache.invalidate_all()
            self._has_reloaded = True
            return
        extra_writes = self._extra_writes(planned) if self._backend.atomic else {}
        deletions = self._deletions(planned) if self._backend.atomic else ()
        writes = [*plan.writes(), *extra_writes.values(), *deletions]
        try:
            entries = self._backend.write(writes) if writes else ()
        except PartialWrite as partial:
            self._finish_partial(plan, planned, writes, partial)
            return
        except OutcomeUnknown:
            unresolved = self._cache.unresolved
            for number, each in planned.items():
                request = self._open[number]
                if isinstance(request, Assign):
                    unresolved[request.handle] = unresolved.get(request.handle, frozenset()) | each.blocks
            raise
        self._remember(entries)
        pending_corrections = {} if self._backend.atomic else corrections(plan, WriteProgress.complete(writes, entries))
        releases = [number for number, request in chosen.items() if not isinstance(request, Assign)]
        for number, each in planned.items():
            if number in extra_writes and isinstance(each.outcome, AssignResult):
                self._close(number, replace(each.outcome, has_extra=True))
            elif not (pending_corrections and number in releases):
                self._close(number, each.outcome)
        apply_corrections(self._backend, pending_corrections)  # if this fails, the releases fail too and stay pending
        for number in planned.keys() & self._open.keys():
            self._close(number, planned[number].outcome)
        if releases:
            self._release_ineligible(plan)

    def _take_plan(self) -> tuple[Plan, Mapping[int, Planned]] | None:
        """Return the plan that was made before, if it is current, for one attempt."""
        made, self._planned = self._planned, None
        return made if made is not None and made[0].is_current() else None

    def _plan(self, chosen: Mapping[int, Request]) -> tuple[Plan, Mapping[int, Planned]]:
        plan = Plan(self._backend, self._cache, self._host, self._known_handles)
        return plan, {number: _planned(plan, request) for number, request in chosen.items()}

    def _extra_writes(self, planned: Mapping[int, Planned]) -> dict[int, Create | Delete]:
        """Return the extra writes by request number. Leave out objects that are known to exist."""
        found: dict[int, Create | Delete] = {}
        keys = set(self._existing_extras)
        for number, each in planned.items():
            write = _extra_write(self._open[number], each.outcome)
            if write is not None and write.key not in keys:
                keys.add(write.key)
                found[number] = write
        return found

    def _deletions(self, planned: Mapping[int, Planned]) -> Iterator[Delete]:
        """Yield the deletions that belong to releases which can be carried out."""
        for number, each in planned.items():
            request = self._open[number]
            if isinstance(request, ReleaseAddresses) and isinstance(each.outcome, ReleaseResult):
                yield from request.deletions

    def _close(self, number: int, outcome: Outcome) -> None:
        request = self._open[number]
        if isinstance(request, Release) and isinstance(outcome, ReleaseResult):
            self._cache.unresolved.pop(request.handle, None)
        if number in self._freed and isinstance(outcome, ReleaseResult):
            outcome = replace(outcome, freed=self._freed[number] + outcome.freed)
        self._outcomes[number] = outcome
        del self._open[number]

    def _invalidate_after(self, conflict: KeyedError | ClaimConflict, *, thoroughly: bool) -> None:
        """Invalidate what the conflict has shown to be stale.

        Without `thoroughly`, read only the block in conflict. Reading more takes longer, and a writer that rewrites the block
        continuously would then win each time.
        """
        for request in self._open.values():
            if isinstance(request, Assign):
                request.decide(f"planned again: {conflict or 'the claim of a block is lost'}")
        if isinstance(conflict, KeyedError) and isinstance(conflict.key, ResourceKey):
            self._existing_extras.add(conflict.key)
            for number, request in list(self._open.items()):
                if conflict.key in _keys_of_deletions(request):
                    self._close(number, copy.copy(conflict))
        elif isinstance(conflict, KeyedError) and isinstance(conflict.key, HandleKey):
            if not self._backend.atomic and conflict.key.handle not in self._known_handles:  # a late write may have created it
                recount_handle(self._backend, conflict.key.handle)
            self._known_handles = self._stored_handles()
        elif isinstance(conflict, NotFound):  # another process has deleted objects
            self._cache.invalidate_all()
        elif isinstance(conflict, KeyedError) and isinstance(conflict.key, BlockKey) and not thoroughly:
            self._cache.invalidate_block(conflict.key.cidr)
            self._remember(conflict.observed)
        else:
            self._cache.invalidate_blocks()

    def _stored_handles(self) -> dict[str, Entry[Handle]]:
        """Read all handles of the open requests. If one is stale, others may be, and each would cost one more attempt."""
        names = {request.handle for request in self._open.values() if not isinstance(request, ReleaseAddresses)}
        return {name: entry for name in names if (entry := self._backend.find(HandleKey(name))) is not None}

    def _remember(self, entries: Sequence[Entry | None]) -> None:
        for entry in entries:
            if entry is not None and isinstance(entry.key, BlockKey):
                self._cache.remember(entry)

    # after a partial write

    def _finish_partial(
        self, plan: Plan, planned: Mapping[int, Planned], writes: Sequence[Write], partial: PartialWrite
    ) -> None:
        """Serve the requests whose blocks were written, undo the written changes of the others, and plan those again.

        Raise StoreError if an outcome is unknown or cannot be undone. Then each caller must release its handle.
        """
        progress = WriteProgress.of(writes, partial)
        done = frozenset(key.cidr for key in progress.done if isinstance(key, BlockKey))
        self._remember(partial.done)
        served = [number for number, each in planned.items() if each.blocks <= done]
        for number in served:
            if isinstance(self._open[number], Assign):
                self._close(number, planned[number].outcome)
        apply_corrections(self._backend, corrections(plan, progress))
        for number in served:
            if number in self._open and not _is_unresolved(self._open[number], progress):
                self._close(number, planned[number].outcome)
        if not isinstance(partial.cause, KeyedError):
            raise partial.cause
        for number in planned.keys() & self._open.keys():
            self._revert(number, planned[number], done)
        self._invalidate_after(partial.cause, thoroughly=True)
        self._known_handles = self._stored_handles()

    def _revert(self, number: int, planned: Planned, done: frozenset[Cidr]) -> None:
        request = self._open[number]
        if isinstance(request, Assign):
            written = tuple(ReleaseTarget(each.address, request.handle) for each in planned.taken if each.block in done)
            release = RequestBatch(self._backend, self._cache, self._host, [ReleaseAddresses(written)] if written else [])
            for outcome in release.execute():
                if isinstance(outcome, BaseException):
                    self._close(number, outcome)
        elif isinstance(request, ReleaseAddresses) and isinstance(planned.outcome, ReleaseResult):
            freed = tuple(address for address in planned.outcome.freed if any(address in cidr for cidr in done))
            self._freed[number] = self._freed.get(number, ()) + freed
            left = tuple(held for held in request.addresses if held.address not in freed)
            self._open[number] = replace(request, addresses=left)

    # after a release

    def _release_ineligible(self, plan: Plan) -> None:
        """Release the affinities to ineligible blocks that this plan has emptied. Log failures: the requests are served."""
        try:
            for block in plan.emptied():
                self._release_if_ineligible(plan, block)
        except (SvcError, ClaimConflict, BlockInUse) as failure:
            _log.warning("after a release: %s", failure)

    def _release_if_ineligible(self, plan: Plan, block: Block) -> None:
        """Release the affinity to an empty block if it is ineligible: its node cannot assign from it automatically."""
        owner = Host.of(block.affinity)
        if owner is None or owner.kind != NODE:
            return
        labels = self._cache.node_labels() if owner == self._host else node_labels(self._backend, owner)
        if self._cache.pools().is_ineligible(block.cidr, labels, usable=False):
            release_affinity(self._backend, owner.affinity_key(block.cidr), plan.cooldown, only_empty=True)
            self._cache.remove_own(block.cidr)


def _planned(plan: Plan, request: Request) -> Planned:
    """Plan one request. Return its own failure as its outcome. Raise StoreError or ClaimConflict for the whole batch."""
    try:
        return _PLANNERS[type(request)](plan, request)
    except UndecodableEntry as damage:
        return Planned(damage)
    except (StoreError, ClaimConflict):
        raise
    except Exception as failure:
        return Planned(failure)


def _extra_write(request: Request, outcome: Outcome) -> Create | Delete | None:
    """Return the extra write of a request that can be served."""
    if isinstance(request, Assign) and request.extra_write is not None and isinstance(outcome, AssignResult):
        return request.extra_write(outcome.addresses)
    if isinstance(request, Release) and isinstance(outcome, ReleaseResult):
        return request.extra_write
    return None


def _keys_of_deletions(request: Request) -> set[Key]:
    """Return the keys whose conflict fails a release."""
    if isinstance(request, ReleaseAddresses):
        return {write.key for write in request.deletions}
    return {request.extra_write.key} if isinstance(request, Release) and request.extra_write is not None else set()


def _is_from_cache(outcome: Outcome) -> bool:
    """Return whether the outcome is a refusal or a no-op that may come from a stale cache. No write would detect that."""
    return isinstance(outcome, SvcError) or (
        isinstance(outcome, ReleaseResult) and bool(outcome.unallocated or outcome.refused)
    )


def _is_unresolved(request: Request, progress: WriteProgress) -> bool:
    """Return whether the outcome of the request depends on a handle whose write has an unknown outcome."""
    if not isinstance(progress.unknown, HandleKey):
        return False
    return not isinstance(request, Release) or request.handle == progress.unknown.handle

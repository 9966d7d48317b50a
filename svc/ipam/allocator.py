"""The front of IPAM: assign and release, from any number of threads.

Calls that wait at the same time become one plan and one write. A lost race (somebody else changed a block or a handle) is read
again and planned again; a refusal is only given after everything was read anew.
"""

from collections.abc import Sequence
from contextlib import suppress

from svc._core.cidr import Address, Cidr
from svc.combine import Combiner
from svc.datastore.api import MAX_WRITES, Backend, Damaged, Entry, KeyedError, NotFound, StoreError
from svc.ipam import blocks, errors
from svc.ipam.claim import ClaimLost
from svc.ipam.plan import Plan, remember_written
from svc.ipam.requests import Allocation, Assign, Release, Request
from svc.ipam.view import View
from svc.model.errors import SvcError
from svc.model.ipam import Block, Handle
from svc.model.keys import BlockKey, HandleKey

ATTEMPTS = 100
GROUP = MAX_WRITES // 3  # requests of one write: each has a handle, and at most a block of each family

Outcome = tuple[Allocation, ...] | BaseException


class Ipam:
    """Addresses of one node in one datastore."""

    def __init__(self, backend: Backend, node: str) -> None:
        self._backend = backend
        self._node = node
        self._view = View(backend, node)
        self._combiner: Combiner[Request, tuple[Allocation, ...]] = Combiner(self._carry_out, limit=GROUP)

    def assign(self, request: Assign) -> tuple[Allocation, ...]:
        """One allocation for each family wanted, in the order of `versions`; SvcError and nothing assigned otherwise."""
        return self._combiner.run(request)

    def release(self, request: Release) -> None:
        self._combiner.run(request)

    def holds(self, handle: str, addresses: Sequence[Address]) -> bool:
        """Whether the datastore says, right now, that the handle holds every one of these addresses."""
        try:
            value = self._backend.get(HandleKey(handle)).value
            assert isinstance(value, Handle)
            held = {address for text in value.blocks for address in self._held_in(Cidr(text), handle)}
        except NotFound:
            return False
        return held.issuperset(addresses)

    def check_room(self, versions: Sequence[int], pools: dict[int, tuple[str, ...]]) -> None:
        """SvcError when an ADD with these settings would get no address right now. Reads everything anew, writes nothing."""
        plan = Plan(self._backend, View(self._backend, self._node), self._node, {})
        for version in versions:
            plan.check_room(version, pools.get(version, ()))

    def _held_in(self, cidr: Cidr, handle: str) -> list[Address]:
        try:
            block = self._backend.get(BlockKey(cidr)).value
        except NotFound:
            return []
        assert isinstance(block, Block)
        return [cidr.address(ordinal) for ordinal in blocks.held_by(block, handle)]

    def _carry_out(self, requests: Sequence[Request]) -> list[Outcome]:
        """Where something is wrong with one of them that planning did not show, each is tried by itself."""
        try:
            return self._carry_out_together(requests)
        except Exception as failure:
            if isinstance(failure, SvcError) and not isinstance(failure, Damaged):
                raise
            if len(requests) == 1:
                return [failure]
            return [outcome for request in requests for outcome in self._carry_out([request])]

    def _carry_out_together(self, requests: Sequence[Request]) -> list[Outcome]:
        known_handles: dict[str, Entry] = {}
        fresh = False
        for _ in range(ATTEMPTS):
            try:
                plan = Plan(self._backend, self._view, self._node, known_handles)
                outcomes = [_planned(plan, request) for request in requests]
                if not fresh and any(isinstance(outcome, SvcError) for outcome in outcomes):
                    self._view.forget_all()
                    fresh = True
                    continue
                writes = plan.writes()
                if writes:
                    remember_written(self._view, self._backend.write(writes))
                return outcomes
            except (KeyedError, ClaimLost) as lost:
                if isinstance(lost, KeyedError) and isinstance(lost.key, HandleKey):
                    known_handles = self._stored_handles(requests)
                elif isinstance(lost, NotFound):  # no race: somebody has been clearing up
                    self._view.forget_all()
                else:
                    self._view.forget_blocks()
        raise errors.too_much_contention(ATTEMPTS)

    def _stored_handles(self, requests: Sequence[Request]) -> dict[str, Entry]:
        """All of them: where one is not as expected, others may not be either, and each would cost an attempt."""
        found = {}
        for name in {request.handle for request in requests}:
            with suppress(NotFound):
                found[name] = self._backend.get(HandleKey(name))
        return found


def _planned(plan: Plan, request: Request) -> Outcome:
    """A refusal, or whatever is wrong with this request alone, is its outcome; what concerns all of them is raised."""
    try:
        if isinstance(request, Assign):
            return plan.assign(request)
        plan.release(request)
    except Damaged as damage:
        return damage
    except (StoreError, ClaimLost):
        raise
    except Exception as failure:
        return failure
    return ()

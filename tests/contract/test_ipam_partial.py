"""Partial writes: each single write of each kind of call fails in turn, with concurrent calls in between.

An operation that is reported as done must be done. A failure is repaired by a release of its handle, as documented. Afterwards
blocks and handles must agree on every address.
"""

import random
from collections.abc import Callable, Sequence
from itertools import count

import pytest

from harness.backend_wrappers import Interfering, NonAtomic, Slow
from harness.fault_injection import Faults, FaultyBackend, Kind
from harness.ipam import NODE, block_of, blocks, free, handles, holdings, in_threads, put_node, put_pool, put_settings, take
from svc._core.cidr import Address
from svc.admin.block_release import release_host
from svc.datastore.api import Backend, Create
from svc.ipam.batch import Outcome, RequestBatch
from svc.ipam.cache import IpamCache
from svc.ipam.claims import release_affinity
from svc.ipam.requests import Assign, AssignResult, Release, ReleaseAddresses, ReleaseResult, ReleaseTarget, Request
from svc.ipam.service import IpamService
from svc.ipam.settings import cooldown_of
from svc.model.ipam import Handle, IpamConfig
from svc.model.keys import AffinityKey, HandleKey, Host

KINDS = pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.REPLY_LOST, Kind.OUTAGE], ids=lambda kind: str(kind.value))
BOTH = (4, 6)
Requests = list[Request]
OpenStore = Callable[[], Backend]


@pytest.fixture
def store(backend: Backend) -> Backend:
    """Return a store with blocks of four addresses in both families. The node has one block of each, with two handles in it."""
    put_node(backend)
    put_node(backend, "node2")
    put_pool(backend, "pool4", "10.65.0.0/27", blockSize=30)
    put_pool(backend, "pool6", "fd65::/123", blockSize=126)
    for handle in ("net.a", "net.b"):
        take(IpamService(backend, NODE), handle, versions=BOTH)
    return backend


def assign(handle: str, *versions: int) -> Assign:
    return Assign(handle, {"node": NODE}, versions or (4,))


def by_address(store: Backend, *names: str) -> ReleaseAddresses:
    return ReleaseAddresses(tuple(ReleaseTarget(address, name) for name in names for address in sorted(holdings(store)[name])))


def outside_blocks(store: Backend) -> Address:
    """Return the last address of the pool, which has no block yet."""
    free_ones = (Address(f"10.65.0.{number}") for number in range(31, -1, -1))
    return next(address for address in free_ones if not any(address in block.cidr for block in blocks(store).values()))


CALLS: dict[str, Callable[[Backend], Requests]] = {
    "one address": lambda _: [assign("net.c")],
    "both families": lambda _: [assign("net.c", *BOTH)],
    "a handle that exists": lambda _: [assign("net.a", *BOTH)],
    "more than a block has": lambda _: [assign(f"net.c{n}") for n in range(6)],
    "both families, new blocks": lambda _: [assign(f"net.c{n}", *BOTH) for n in range(3)],
    "several of one family": lambda _: [assign("net.c", 4, 4, 4, 6)],
    "release": lambda _: [Release("net.a")],
    "release of two": lambda _: [Release("net.a"), Release("net.b")],
    "release by address": lambda store: [by_address(store, "net.a", "net.b")],
    "one goes, one comes": lambda _: [Release("net.a"), assign("net.c", *BOTH)],
    "the same goes and comes": lambda _: [Release("net.a"), assign("net.a", *BOTH)],
    "the same comes and goes": lambda _: [assign("net.a", *BOTH), Release("net.a")],
    "the same moves elsewhere": lambda store: [Release("net.a"), Assign("net.a", {}, addresses=(outside_blocks(store),))],
    "all at once": lambda store: [
        by_address(store, "net.b"),
        *(assign(f"net.c{n}", *BOTH) for n in range(4)),
        Release("net.a"),
        assign("net.a"),
    ],
}
EVERY_CALL = pytest.mark.parametrize("name", CALLS)


def execute(backend: Backend, requests: Requests) -> list[Outcome]:
    """Run the requests as one batch. If the batch fails as a whole, return the failure for each."""
    try:
        return RequestBatch(backend, IpamCache(backend, Host(NODE)), Host(NODE), requests).execute()
    except Exception as failure:
        return [failure] * len(requests)


def repair(store: Backend, requests: Requests, outcomes: Sequence[Outcome]) -> None:
    """Do what the caller must do after a failure.

    The handles of addresses that were not released by address are corrected by releasing these addresses by handle.
    """
    for request, outcome in zip(requests, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            continue
        if isinstance(request, ReleaseAddresses):
            requested = {held.address for held in request.addresses}
            for handle in {held.handle for held in request.addresses}:
                keep = [str(address) for address in _held_by(store, handle) if address not in requested]
                free(IpamService(store, NODE), handle, keep)
        else:
            assert isinstance(request, Assign | Release)
            free(IpamService(store, NODE), request.handle)


def _held_by(store: Backend, handle: str) -> list[Address]:
    return [
        block.cidr.address(ordinal)
        for block in blocks(store).values()
        for ordinal, tag in enumerate(block.ordinals.allocations())
        if tag is not None and (block.attributes or [])[tag].handle_id == handle
    ]


def require_done(store: Backend, requests: Requests, outcomes: Sequence[Outcome]) -> None:
    """Require that blocks and handles agree, and that each address reported as assigned is allocated.

    Addresses that the same batch or the repair released are excluded.
    """
    held = holdings(store)
    repaired = {getattr(r, "handle", "") for r, o in zip(requests, outcomes, strict=True) if isinstance(o, BaseException)}
    released = repaired | {request.handle for request in requests if isinstance(request, Release)}
    for request, outcome in zip(requests, outcomes, strict=True):
        if isinstance(request, Assign) and isinstance(outcome, AssignResult) and request.handle not in released:
            assert held[request.handle] >= {*outcome.addresses}
        if isinstance(request, ReleaseAddresses) and isinstance(outcome, ReleaseResult):
            assert set(outcome.freed) == {each.address for each in request.addresses}


@EVERY_CALL
@KINDS
def test_repair_restores_consistency_after_any_failed_write(store: Backend, name: str, kind: Kind) -> None:
    """Each write fails in turn. With an outage no rollback is possible, as after a kill."""
    before = holdings(store)
    for number in count(1):
        faults = Faults()
        faulty = NonAtomic(FaultyBackend(store, faults))
        requests = CALLS[name](store)
        faults.arm(kind, number, "write")
        outcomes = execute(faulty, requests)
        repair(store, requests, outcomes)
        require_done(store, requests, outcomes)
        _restore(store, before)
        if not faults.struck:
            assert number > 1
            assert not any(isinstance(outcome, BaseException) for outcome in outcomes)
            return


@EVERY_CALL
@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.OUTAGE], ids=lambda kind: str(kind.value))
def test_repair_restores_consistency_after_any_failed_read(store: Backend, name: str, kind: Kind) -> None:
    """Each read fails in turn, during planning and during the rollback after a conflict."""
    before = holdings(store)
    for number in count(1):
        faults = Faults()
        interrupted = Interfering(FaultyBackend(store, faults), 2, lambda: _another_address(store))
        requests = CALLS[name](store)
        faults.arm(kind, number, "get", "list")
        outcomes = execute(NonAtomic(interrupted), requests)
        repair(store, requests, outcomes)
        require_done(store, requests, outcomes)
        _restore(store, before)
        if not faults.struck:
            return


def _another_address(store: Backend) -> None:
    take(IpamService(store, NODE), "net.rival", versions=BOTH)


def _same_handles(store: Backend) -> None:
    for handle in ("net.c", "net.c0", "net.a"):
        take(IpamService(store, NODE), handle)


def _frees_the_same_handles(store: Backend) -> None:
    for handle in ("net.c", "net.c0", "net.c1", "net.a", "net.b"):
        free(IpamService(store, NODE), handle)


def _frees_and_takes(store: Backend) -> None:
    """Release and assign. A writer that then subtracts its count for a handle subtracts it from another writer's count."""
    _frees_the_same_handles(store)
    _same_handles(store)


def _lets_rest(store: Backend) -> None:
    put_settings(store, cooldown_seconds=3600)
    free(IpamService(store, NODE), "net.b")
    put_settings(store)


DEEDS: dict[str, Callable[[Backend], object]] = {
    "takes addresses": _another_address,
    "takes addresses for the same handles": _same_handles,
    "frees the same handles": _frees_the_same_handles,
    "frees the same handles and takes for them": _frees_and_takes,
    "takes the blocks away": lambda store: release_host(store, NODE),
    "lets addresses rest": _lets_rest,
}


@EVERY_CALL
@pytest.mark.parametrize("deed", DEEDS)
def test_concurrent_calls_between_any_two_writes_need_no_repair(store: Backend, name: str, deed: str) -> None:
    """Each call succeeds, and the audit finds no contradiction."""
    before = holdings(store)
    for number in count(1):
        requests = CALLS[name](store)
        interrupted = Interfering(store, number, lambda: DEEDS[deed](store))
        outcomes = execute(NonAtomic(interrupted), requests)
        assert not any(isinstance(outcome, BaseException) for outcome in outcomes)
        if "frees" in deed or "rest" in deed:
            holdings(store)
        else:
            require_done(store, requests, outcomes)
        put_settings(store)
        _restore(store, before)
        if interrupted.calls["write"] < number:
            return


@EVERY_CALL
@pytest.mark.parametrize("deed", DEEDS)
def test_stale_handles_need_no_repair(store: Backend, name: str, deed: str) -> None:
    """The batch reads current blocks, and handles from before a concurrent call."""
    requests = CALLS[name](store)
    read = [store.get(HandleKey(handle)) for handle in ("net.a", "net.b")]
    DEEDS[deed](store)
    outcomes = RequestBatch(NonAtomic(store), IpamCache(store, Host(NODE)), Host(NODE), requests, read).execute()
    assert not any(isinstance(outcome, BaseException) for outcome in outcomes)
    holdings(store)


def test_release_corrects_a_handle_that_counts_too_many(store: Backend) -> None:
    """It counts an address that was never assigned."""
    faults = Faults()
    faults.arm(Kind.OUTAGE, 2, "write")
    (outcome,) = execute(NonAtomic(FaultyBackend(store, faults)), [assign("net.c")])
    assert isinstance(outcome, BaseException)
    assert sum(handles(store)["net.c"].values()) == 1
    free(IpamService(store, NODE), "net.c")
    assert holdings(store).keys() == {"net.a", "net.b"}


@pytest.mark.parametrize("excess", [1, 2])
def test_assignment_corrects_a_handle_that_counts_too_many(store: Backend, excess: int) -> None:
    """An earlier ADD of the container has been rolled back, and then its write of the handle arrives late."""
    (held,) = [address for address in holdings(store)["net.a"] if address.version == 4]
    store.write([Create(HandleKey("net.c"), Handle({str(block_of(store, str(held)).cidr): excess}))])
    (outcome,) = execute(NonAtomic(store), [assign("net.c")])
    assert isinstance(outcome, AssignResult)
    assert holdings(store)["net.c"] == {*outcome.addresses}


def test_release_during_an_assignment_leaves_no_address_without_a_handle(store: Backend) -> None:
    """The handle is released after its count was written and before the block is."""
    (got,) = [str(address) for address in holdings(store)["net.a"] if address.version == 4]
    number = 2  # the block, after the handle
    interrupted = Interfering(store, number, lambda: free(IpamService(NonAtomic(store), NODE), "net.c"))
    (outcome,) = execute(NonAtomic(interrupted), [assign("net.c")])
    assert isinstance(outcome, AssignResult)
    assert block_of(store, got).ordinals.used == 3
    assert {*holdings(store)["net.c"]} == {*outcome.addresses}


@pytest.mark.parametrize("seed", range(4))
def test_concurrent_calls_on_few_handles_stay_consistent(open_store: OpenStore, store: Backend, seed: int) -> None:
    """Every write is slow. All threads assign to the same handles, and release them by handle or by address."""
    managers = [IpamService(NonAtomic(Slow(open_store(), 0.002)), node) for node in (NODE, NODE, "node2")]
    failures = in_threads(
        [lambda number=number: _play(managers[number % 3], random.Random(seed * 10 + number)) for number in range(6)]  # type: ignore[misc]
    )
    assert failures == [None] * 6
    for handle in holdings(store):
        free(managers[0], handle)
    assert holdings(store) == {}


def _play(ipam: IpamService, dice: random.Random) -> None:
    for _ in range(25):
        handle = f"net.{dice.randrange(3)}"
        match dice.randrange(4):
            case 0:
                free(ipam, handle)
            case 1:
                ipam.release_addresses([ReleaseTarget(address, handle) for address in ipam.addresses_of(handle)[:2]])
            case _:
                take(ipam, handle, versions=dice.choice([(4,), BOTH]))


def _restore(store: Backend, before: dict[str, frozenset[Address]]) -> None:
    """Give each handle the same number of addresses again."""
    for handle in {*handles(store), *before}:
        free(IpamService(store, NODE), handle)
    for handle in before:
        take(IpamService(store, NODE), handle, versions=BOTH)
    for block in blocks(store).values():
        if not block.ordinals.used:  # so that every round claims its new blocks again
            release_affinity(store, AffinityKey(NODE, block.cidr), cooldown_of(IpamConfig()), only_empty=True)

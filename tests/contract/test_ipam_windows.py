"""Blocks of Windows nodes in a mixed cluster: their reserved addresses stay, and other nodes do not use the rest."""

import pytest

from harness.ipam import NODE, blocks, free, put, put_block, put_node, put_pool, take
from svc._core.bitmap import Ordinals
from svc._core.cidr import Address, Cidr
from svc.admin import pools
from svc.admin.block_release import remove_host
from svc.datastore.api import Backend, Delete
from svc.ipam.blocks import RESERVED_HANDLE
from svc.ipam.requests import ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, PeerError
from svc.model.ipam import Affinity, Attribute, Block
from svc.model.keys import AffinityKey, BlockKey

THEIRS, MINE = Cidr("10.65.0.0/29"), Cidr("10.65.0.8/29")
SET_ASIDE = Attribute(RESERVED_HANDLE, {"note": "windows host rsvd"})
PUT_ASIDE = [0, 0, 0, None, None, None, None, 0]


def windows_block(claimed_at: str) -> Block:
    """Return a block as a Windows node creates it."""
    ordinals = Ordinals.load(PUT_ASIDE, [3, 4, 5, 6])
    return Block(THEIRS, "host:win1", ordinals, 1000, claimed_at, [SET_ASIDE], dict.fromkeys((0, 1, 2, 7), 999))


@pytest.fixture
def store(backend: Backend) -> Backend:
    """Return a store with a pool of two blocks. One belongs to a Windows node and has a pod; the other one is full."""
    for node in (NODE, "win1"):
        put_node(backend, node)
    put_pool(backend, "pool4", "10.65.0.0/28", blockSize=29)
    put(backend, BlockKey(THEIRS), windows_block("2026-11-20T18:03:21Z"))
    put(backend, AffinityKey("win1", THEIRS), Affinity())
    take(IpamService(backend, "win1"), "net.theirs", at="10.65.0.3")
    put_block(backend, str(MINE), f"host:{NODE}", [f"net.c{n}" for n in range(8)])
    put(backend, AffinityKey(NODE, MINE), Affinity())
    return backend


def allocations(store: Backend) -> list[int | None]:
    return blocks(store)[str(THEIRS)].ordinals.allocations()


def test_blocks_of_windows_nodes_are_not_borrowed_from(store: Backend) -> None:
    """Neither automatic assignment nor a request by address borrows. The Windows node can assign."""
    before = blocks(store)[str(THEIRS)]
    with pytest.raises(PeerError, match="no free IPv4 address for node 'node1'"):
        take(IpamService(store, NODE), "net.late")
    with pytest.raises(PeerError, match="no free IPv4 address for node 'node1'"):
        IpamService(store, NODE).require_capacity((4,), {})
    for address in ("10.65.0.4", "10.65.0.0"):
        with pytest.raises(CallerError, match="belongs to a Windows node"):
            take(IpamService(store, NODE), "net.late", at=address)
    assert blocks(store)[str(THEIRS)] == before
    assert take(IpamService(store, "win1"), "net.more") == ("10.65.0.4",)
    assert allocations(store) == [0, 0, 0, 1, 2, None, None, 0]


def test_windows_reserved_addresses_cannot_be_released(store: Backend) -> None:
    """They have no handle, and a release by address is refused."""
    ipam = IpamService(store, NODE)
    freed = ipam.release_addresses([ReleaseTarget(Address("10.65.0.7")), ReleaseTarget(Address("10.65.0.0"), RESERVED_HANDLE)])
    assert freed.freed == ()
    assert [str(address) for address in freed.refused] == ["10.65.0.7", "10.65.0.0"]
    free(ipam, RESERVED_HANDLE)
    free(ipam, "net.theirs")
    assert allocations(store) == PUT_ASIDE


def test_idle_windows_block_is_reclaimed_completely(store: Backend) -> None:
    """It is created again, without reserved addresses."""
    free(IpamService(store, "win1"), "net.theirs")
    assert take(IpamService(store, NODE), "net.late") == ("10.65.0.0",)
    assert blocks(store)[str(THEIRS)].affinity == f"host:{NODE}"


def test_removed_windows_node_leaves_its_allocations(store: Backend) -> None:
    """The block becomes unclaimed. Other nodes borrow its unreserved addresses, and the last release deletes it."""
    assert remove_host(store, "win1") == 1
    assert take(IpamService(store, NODE), "net.late") == ("10.65.0.4",)
    for handle in ("net.late", "net.theirs"):
        free(IpamService(store, NODE), handle)
    assert str(THEIRS) not in blocks(store)


def test_windows_reserved_addresses_do_not_keep_a_pool(store: Backend) -> None:
    """They are deleted with the pool if no pod is left."""
    for key in (BlockKey(MINE), AffinityKey(NODE, MINE)):
        store.write([Delete(key)])
    with pytest.raises(CallerError, match="1 address is taken"):
        pools.delete(store, "pool4")
    free(IpamService(store, "win1"), "net.theirs")
    pools.delete(store, "pool4")
    assert blocks(store) == {}

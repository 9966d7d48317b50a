"""Pools whose block size has changed: new blocks never overlap the old ones."""

import pytest

from harness.ipam import (
    NODE,
    affinities,
    blocks,
    handles,
    holdings,
    put_affinity,
    put_block,
    put_node,
    put_pool,
    put_settings,
    take,
)
from svc.datastore.api import Backend
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, PeerError
from svc.model.ipam import PENDING

POOL = "10.65.0.0/28"


@pytest.fixture
def store(backend: Backend) -> Backend:
    """Return a store with a pool of four blocks and two nodes."""
    for node in (NODE, "node2"):
        put_node(backend, node)
    put_pool(backend, "pool4", POOL, blockSize=30)
    return backend


@pytest.mark.parametrize("size", [28, 29, 31, 32])
def test_new_blocks_do_not_overlap_old_ones(store: Backend, size: int) -> None:
    """A pool was deleted and created again with another block size, while addresses of old blocks are allocated."""
    old = [take(IpamService(store, NODE), f"net.old{n}")[0] for n in range(6)]
    put_pool(store, "pool4", POOL, blockSize=size)
    for number in range(16):
        try:
            take(IpamService(store, "node2"), f"net.new{number}")
        except PeerError:
            break
    with pytest.raises(CallerError, match="is already assigned"):
        take(IpamService(store, "node2"), "net.same", at=old[0])
    assert len({address for held in holdings(store).values() for address in held}) == len(handles(store)) >= 6


def test_address_whose_block_would_overlap_is_refused(store: Backend) -> None:
    """No block is created. Addresses that the other block contains can be requested."""
    present = {"10.65.0.0/30", "10.65.0.4/30"}
    for cidr in present:
        put_block(store, cidr, "host:node2")
    put_pool(store, "pool4", POOL, blockSize=28)
    with pytest.raises(CallerError, match=r"overlap block 10\.65\.0\.0/30"):
        take(IpamService(store, NODE), "net.c1", at="10.65.0.9")
    for address in ("10.65.0.1", "10.65.0.5"):
        assert take(IpamService(store, NODE), "net.c1", at=address) == (address,)
    assert (set(blocks(store)), affinities(store)) == (present, {})


def test_interrupted_claim_is_not_completed_over_another_block(store: Backend) -> None:
    """The pool was created again, and another node has claimed a larger block there."""
    put_affinity(store, "10.65.0.4/30", PENDING)
    put_pool(store, "pool4", POOL, blockSize=29)
    put_block(store, "10.65.0.0/29", "host:node2")
    assert take(IpamService(store, NODE), "net.c1") == ("10.65.0.8",)
    assert set(blocks(store)) == {"10.65.0.0/29", "10.65.0.8/29"}


def test_pool_inside_an_old_block_has_no_blocks(store: Backend) -> None:
    """The pool is now smaller than the existing block."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True)
    put_block(store, "10.65.0.0/28", "host:node2", ["net.old"])
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(IpamService(store, NODE), "net.c1")
    assert set(blocks(store)) == {"10.65.0.0/28"}

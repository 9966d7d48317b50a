"""The blocks of a host, read for metrics and findings, on every datastore."""

from collections.abc import Iterator

import pytest

from harness.ipam import NODE, affinities, put_node, put_pool, take
from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend
from svc.ipam.requests import ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.ipam import Block

POOLS = {"pool4": "10.65.0.0/24", "pool6": "fd65::/120"}


@pytest.fixture
def ipam(backend: Backend) -> IpamService:
    for node in (NODE, "node2"):
        put_node(backend, node)
    for name, cidr in POOLS.items():
        put_pool(backend, name, cidr)
    return IpamService(backend, NODE)


def used(blocks: dict[Cidr, Block]) -> list[int]:
    return [block.ordinals.used for block in blocks.values()]


def test_host_without_blocks_has_none(ipam: IpamService) -> None:
    assert ipam.read_own_blocks() == {}
    assert ipam.read_blocks_for([Address("10.65.0.1"), Address("192.0.2.1")]) == ({}, [])


def test_own_blocks_are_those_with_an_affinity(backend: Backend, ipam: IpamService) -> None:
    """Those of another node are read only if they have one of the addresses."""
    take(ipam, "net.c1", versions=(4, 6))
    (far,) = take(IpamService(backend, "node2"), "net.far", versions=(4,))
    own = ipam.read_own_blocks()
    assert sorted(map(str, own)) == sorted(cidr for node, cidr in affinities(backend) if node == NODE)
    assert used(own) == [1, 1]
    found, unreadable = ipam.read_blocks_for([Address(far)])
    assert len(found) == 3
    assert any(Address(far) in cidr for cidr in found)
    assert unreadable == []


def test_assignments_since_the_reading_are_seen(ipam: IpamService) -> None:
    """Those of this session are known without a request, and so is a block that it claims."""
    earlier = ipam.read_own_blocks()
    got = take(ipam, "net.c1", versions=(4,))
    assert (earlier, used(ipam.own_blocks(earlier))) == ({}, [1])
    read = ipam.read_own_blocks()
    ipam.release_addresses([ReleaseTarget(Address(got[0]))])
    assert used(ipam.own_blocks(read)) == [0]
    for handle in ("net.c2", "net.c3"):
        take(ipam, handle, versions=(4,))
    assert used(ipam.own_blocks(read)) == [2]


@pytest.mark.parametrize("releaser", ["this session", "another process"])
def test_full_block_serves_again_after_a_release(backend: Backend, ipam: IpamService, releaser: str) -> None:
    """Full blocks are passed over. A released address of the first one comes before the free ones of the others."""
    put_pool(backend, "small", "10.66.0.0/28", blockSize=30)
    full = [take(ipam, f"net.c{number}", pools={4: ("small",)})[0] for number in range(9)]
    first = min(map(Address, full))
    other = IpamService(backend, NODE)
    (other if releaser == "another process" else ipam).release_addresses([ReleaseTarget(first)])
    taken = [Address(take(ipam, f"net.d{number}", pools={4: ("small",)})[0]) for number in range(8)]
    assert first in taken
    assert releaser == "another process" or taken[0] == first


def test_addresses_to_avoid_are_noted_beside_each_other(backend: Backend, ipam: IpamService) -> None:
    """They may be read from the journal. Those that another thread notes at that time are kept."""
    put_pool(backend, "small", "10.66.0.0/30", blockSize=30)

    def read() -> Iterator[Address]:
        ipam.avoid([Address("10.66.0.1")])
        yield Address("10.66.0.0")

    ipam.avoid(read())
    assert {take(ipam, handle, pools={4: ("small",)}) for handle in ("net.c1", "net.c2")} == {("10.66.0.2",), ("10.66.0.3",)}

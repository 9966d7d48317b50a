"""Addresses of services of type LoadBalancer: a virtual host has its own blocks, and nodes are not affected."""

import pytest

from harness.ipam import (
    NODE,
    affinities,
    block_of,
    blocks,
    free,
    holdings,
    in_threads,
    put,
    put_block,
    put_node,
    put_pool,
    take,
)
from svc._core.cidr import Address, Cidr
from svc.admin.block_release import release_host, release_pool
from svc.datastore.api import Backend
from svc.ipam import load_balancer
from svc.ipam.load_balancer import LOAD_BALANCERS
from svc.ipam.requests import ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, PeerError
from svc.model.ipam import PENDING, Affinity
from svc.model.keys import VIRTUAL, AffinityKey, AffinityQuery
from svc.model.pool import LOAD_BALANCER

POOL = "10.66.0.0/28"  # four blocks of four addresses


@pytest.fixture
def store(backend: Backend) -> Backend:
    """Return a store with a pool for workloads and one for services. The controller does not run on a node."""
    put_pool(backend, "lb4", POOL, blockSize=30, allowedUses=[LOAD_BALANCER])
    put_pool(backend, "lb6", "fd66::/124", blockSize=126, allowedUses=[LOAD_BALANCER])
    put_pool(backend, "pods", "10.65.0.0/28", blockSize=30)
    put_node(backend)
    return backend


@pytest.fixture
def ipam(store: Backend) -> IpamService:
    return IpamService(store, LOAD_BALANCERS)


def serve(ipam: IpamService, handle: str, **more: object) -> tuple[str, ...]:
    return take(ipam, handle, use=LOAD_BALANCER, **more)  # type: ignore[arg-type]


def claims(store: Backend) -> dict[str, str]:
    """Return the blocks with a virtual owner, and the states of their affinities."""
    found = {}
    for entry in store.list(AffinityQuery(kind=VIRTUAL)):
        assert isinstance(entry.key, AffinityKey)
        assert isinstance(entry.value, Affinity)
        assert entry.key.host == "load-balancer"
        found[str(entry.key.cidr)] = entry.value.state
    return found


def test_services_get_addresses_of_pools_for_services(store: Backend, ipam: IpamService) -> None:
    """The virtual host needs no node of its name. The stored documents name it."""
    got = serve(ipam, "lb-a", versions=(4, 6))
    assert [Address(text) in Cidr(pool) for text, pool in zip(got, (POOL, "fd66::/124"), strict=True)] == [True, True]
    assert claims(store) == dict.fromkeys(blocks(store), "confirmed")
    assert {block.affinity for block in blocks(store).values()} == {"virtual:load-balancer"}
    assert affinities(store) == {}
    assert holdings(store) == {"lb-a": frozenset(map(Address, got))}
    (second,) = serve(IpamService(store, LOAD_BALANCERS), "lb-b")
    assert block_of(store, second).cidr == block_of(store, got[0]).cidr


def test_requested_address_claims_a_block_for_the_virtual_host(store: Backend, ipam: IpamService) -> None:
    assert serve(ipam, "lb-a", at="10.66.0.9") == ("10.66.0.9",)
    assert claims(store) == {"10.66.0.8/30": "confirmed"}
    with pytest.raises(CallerError, match=r"IP pool \(pods\) is not for load balancers"):
        serve(ipam, "lb-b", at="10.65.0.9")


def test_services_and_nodes_do_not_share_blocks(store: Backend, ipam: IpamService) -> None:
    """A service cannot get an address of a node's block, and a pod cannot get one of the virtual host's."""
    with pytest.raises(CallerError, match="addresses for load balancers cannot be assigned by node 'node1'"):
        serve(IpamService(store, NODE), "net.c")
    with pytest.raises(CallerError, match="addresses for workloads cannot be assigned by virtual host 'load-balancer'"):
        take(ipam, "lb-a")
    take(IpamService(store, NODE), "net.c")
    assert {block.affinity for block in blocks(store).values()} == {"host:node1"}


def test_refusals_name_the_virtual_host(store: Backend, ipam: IpamService) -> None:
    for number in range(16):
        serve(ipam, f"lb-{number}")
    with pytest.raises(PeerError, match="no free IPv4 address for virtual host 'load-balancer'"):
        serve(ipam, "lb-late")
    assert len(claims(store)) == 4


def test_virtual_host_keeps_its_empty_blocks(store: Backend, ipam: IpamService) -> None:
    """No node selector applies to its blocks, for a release from any node."""
    (first,) = serve(ipam, "lb-a")
    (second,) = serve(ipam, "lb-b")
    free(ipam, "lb-a")
    freed = IpamService(store, NODE).release_addresses([ReleaseTarget(Address(second), "lb-b")])
    assert freed.freed == (Address(second),)
    assert holdings(store) == {}
    assert claims(store) == {str(block_of(store, first).cidr): "confirmed"}


def test_interrupted_claim_is_completed(store: Backend, ipam: IpamService) -> None:
    """The block exists, and its affinity was never confirmed."""
    put_block(store, "10.66.0.4/30", LOAD_BALANCERS.affinity)
    put(store, LOAD_BALANCERS.affinity_key(Cidr("10.66.0.4/30")), Affinity(PENDING))
    assert serve(ipam, "lb-a") == ("10.66.0.4",)
    assert claims(store) == {"10.66.0.4/30": "confirmed"}


def test_node_with_the_name_of_the_virtual_host_is_another_owner(store: Backend, ipam: IpamService) -> None:
    """The affinities of the node can be released."""
    put_node(store, "load-balancer")
    take(IpamService(store, "load-balancer"), "net.c")
    serve(ipam, "lb-a")
    assert {block.affinity for block in blocks(store).values()} == {"host:load-balancer", "virtual:load-balancer"}
    assert release_host(store, "load-balancer") == 1
    assert list(claims(store).values()) == ["confirmed"]
    assert affinities(store) == {}
    assert release_host(store, "load-balancer", kind=VIRTUAL) == 1
    assert claims(store) == {}


def test_affinities_of_a_pool_for_services_can_be_released(store: Backend, ipam: IpamService) -> None:
    """Its blocks in use become unclaimed. Addresses can still be assigned from them."""
    (got,) = serve(ipam, "lb-a")
    assert release_pool(store, Cidr(POOL)) == 1
    assert claims(store) == {}
    assert block_of(store, got).affinity is None
    free(ipam, "lb-a")
    assert blocks(store) == {}


def test_two_controllers_share_the_virtual_host(store: Backend) -> None:
    """They overlap while one takes over from the other. No address is assigned twice, and each block has its affinity."""
    managers = [IpamService(store, LOAD_BALANCERS) for _ in range(2)]
    calls = [lambda manager=manager, n=n: serve(manager, f"lb-{n}") for n, manager in enumerate(managers * 6)]
    got = [address for answer in in_threads(calls) for address in answer]
    assert len(set(got)) == 12
    assert len(holdings(store)) == 12
    assert claims(store) == dict.fromkeys(blocks(store), "confirmed")


def test_a_service_has_one_handle(store: Backend, ipam: IpamService) -> None:
    """Repeated calls return the same addresses. The attributes name the service."""
    handle = load_balancer.handle_of("shop", "Web", "7a0c")
    attributes = load_balancer.attributes_of("shop", "Web", "LoadBalancer", 1_700_000_000_123_456_789)
    first = serve(ipam, handle, max_per_handle=1)
    assert serve(ipam, handle, max_per_handle=1) == first
    assert attributes["timestamp"] == "2023-11-14 22:13:20.123456789 +0000 UTC"
    assert [str(address) for address in ipam.addresses_of(handle)] == [*first]

"""Restoring the addresses of live attachments in a datastore that has lost their records."""

import pytest

from harness.ipam import NODE, block_of, handles, holdings, put_node, put_pool, put_reservation, put_settings, take
from svc._core.cidr import Address
from svc.datastore.api import Backend, Delete
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, Code, PeerError
from svc.model.keys import HandleKey

POOL = "10.65.0.0/28"
HERE = Address("10.65.0.5")


@pytest.fixture
def ipam(backend: Backend) -> IpamService:
    for node in (NODE, "node2"):
        put_node(backend, node)
    return IpamService(backend, NODE)


def restore(ipam: IpamService, *addresses: Address, handle: str = "net.live") -> None:
    assert ipam.assign(Assign(handle, {"node": NODE}, addresses=addresses, restores=True)).addresses == addresses


def test_restore_ignores_settings_selectors_and_limits(backend: Backend, ipam: IpamService) -> None:
    put_pool(backend, "pool", POOL, blockSize=30, disabled=True, nodeSelector="has(nothing)")
    put_settings(backend, strict_affinity=True, auto_allocate_blocks=False)
    put_reservation(backend, "all", POOL)
    restore(ipam, HERE, Address("10.65.0.9"))
    assert ipam.holds("net.live", [HERE, Address("10.65.0.9")])
    assert block_of(backend, str(HERE)).affinity == f"host:{NODE}"


def test_block_of_another_node_is_used(backend: Backend, ipam: IpamService) -> None:
    put_pool(backend, "pool", POOL, blockSize=28)
    take(IpamService(backend, "node2"), "net.theirs")
    put_settings(backend, strict_affinity=True, auto_allocate_blocks=False)
    restore(ipam, HERE)
    assert block_of(backend, str(HERE)).affinity == "host:node2"
    assert ipam.holds("net.live", [HERE])


def test_repeated_restore_only_recreates_a_lost_handle(backend: Backend, ipam: IpamService) -> None:
    put_pool(backend, "pool", POOL, blockSize=30)
    restore(ipam, HERE)
    before = holdings(backend), handles(backend)
    restore(ipam, HERE)
    assert (holdings(backend), handles(backend)) == before
    backend.write([Delete(HandleKey("net.live"))])
    restore(ipam, HERE)
    assert (holdings(backend), handles(backend)) == before
    ipam.release(Release("net.live"))
    assert handles(backend) == {}


def test_address_of_another_handle_is_not_restored(backend: Backend, ipam: IpamService) -> None:
    """None of the addresses of the request is assigned then."""
    put_pool(backend, "pool", POOL, blockSize=30)
    IpamService(backend, "node2").assign(Assign("net.stranger", {}, addresses=(HERE,)))
    with pytest.raises(CallerError, match=r"net\.stranger") as refused:
        restore(ipam, Address("10.65.0.9"), HERE)
    assert refused.value.code == Code.ADDRESS_UNAVAILABLE
    assert ipam.holds("net.stranger", [HERE])
    assert ipam.addresses_of("net.live") == ()


def test_address_in_no_pool_is_refused(backend: Backend, ipam: IpamService) -> None:
    put_pool(backend, "pool", POOL, blockSize=30)
    with pytest.raises(PeerError, match=r"10\.99\.0\.1"):
        restore(ipam, Address("10.99.0.1"))


def test_lost_addresses_are_found(backend: Backend, ipam: IpamService) -> None:
    """These have another handle or none, or are in no pool."""
    put_pool(backend, "pool", POOL, blockSize=30)
    restore(ipam, HERE)
    held = ("net.live", HERE)
    lost = {("net.other", HERE), ("net.live", Address("10.65.0.6")), ("net.live", Address("10.99.0.1"))}
    assert ipam.not_held([held, *lost]) == lost

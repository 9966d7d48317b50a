"""Releases of whole handles: all addresses that the handles hold, together with objects, or nothing."""

from dataclasses import replace

import pytest

from harness.ipam import NODE, put, put_node, put_pool
from svc._core.cidr import Address
from svc.controllers.node.addresses.held import held_in
from svc.datastore.api import Backend, Delete, KeyedError
from svc.ipam.requests import Assign, ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.errors import CallerError
from svc.model.keys import BlockQuery, HandleKey, ResourceKey
from svc.model.resource import Resource

OBJECT = ResourceKey("IPPool", "pool6")


@pytest.fixture
def ipam(backend: Backend) -> IpamService:
    put_node(backend)
    put_pool(backend, "pool4", "10.65.0.0/28", blockSize=30)
    put_pool(backend, "pool6", "fd65::/124", blockSize=126)
    return IpamService(backend, NODE)


def assigned(backend: Backend, ipam: IpamService, handle: str, count: int = 1) -> list[ReleaseTarget]:
    """Assign addresses to a handle, in several blocks if they are more than four."""
    for _ in range(count):
        ipam.assign(Assign(handle, {"node": NODE}))
    every = [found for entry in backend.list(BlockQuery()) for found in held_in(entry.value)]
    return [ReleaseTarget(Address(each.address), handle, each.sequence) for each in every if each.handle == handle]


def held(ipam: IpamService, *handles: str) -> int:
    return sum(len(ipam.addresses_of(handle)) for handle in handles)


def test_all_addresses_of_several_handles_are_released(backend: Backend, ipam: IpamService) -> None:
    targets = [*assigned(backend, ipam, "a", 6), *assigned(backend, ipam, "b")]
    kept = assigned(backend, ipam, "c")
    assert set(ipam.release_whole_handles(targets).freed) == {each.address for each in targets}
    assert backend.find(HandleKey("a")) is None
    assert [ipam.pool_and_handle(each.address)[1] for each in kept] == ["c"]


def test_handle_that_holds_more_is_kept_whole(backend: Backend, ipam: IpamService) -> None:
    """The further address may be in another block."""
    targets = [*assigned(backend, ipam, "a", 6), *assigned(backend, ipam, "b")]
    with pytest.raises(CallerError, match="handle 'a' holds"):
        ipam.release_whole_handles(targets[1:])
    assert held(ipam, "a", "b") == 7


@pytest.mark.parametrize("change", ["sequence", "handle"])
def test_other_allocation_keeps_all(backend: Backend, ipam: IpamService, change: str) -> None:
    first, *others = [*assigned(backend, ipam, "a", 6), *assigned(backend, ipam, "b")]
    assert first.sequence is not None
    wrong = replace(first, sequence=first.sequence + 1) if change == "sequence" else replace(first, handle="x")
    with pytest.raises(CallerError):
        ipam.release_whole_handles([wrong, *others])
    assert held(ipam, "a", "b") == 7


def test_free_address_is_no_obstacle(backend: Backend, ipam: IpamService) -> None:
    targets = assigned(backend, ipam, "a", 2)
    result = ipam.release_whole_handles([*targets, ReleaseTarget(Address("10.65.0.9"), "x", 1)])
    assert (len(result.freed), len(result.unallocated)) == (2, 1)


def test_object_is_deleted_with_the_addresses(backend: Backend, ipam: IpamService) -> None:
    targets, revision = assigned(backend, ipam, "a"), backend.get(OBJECT).revision
    ipam.release_whole_handles(targets, [Delete(OBJECT, revision)])
    assert held(ipam, "a") == 0
    assert (backend.find(OBJECT) is None) == backend.atomic


def test_changed_object_keeps_the_addresses(backend: Backend, ipam: IpamService) -> None:
    if not backend.atomic:
        return  # objects with addresses are only in datastores with transactions
    targets, entry = assigned(backend, ipam, "a"), backend.get(OBJECT)
    put(backend, OBJECT, Resource(OBJECT.kind, {"name": OBJECT.name, "labels": {"a": "b"}}, entry.value.spec))
    with pytest.raises(KeyedError):
        ipam.release_whole_handles(targets, [Delete(OBJECT, entry.revision)])
    assert held(ipam, "a") == 1
    assert backend.find(OBJECT) is not None

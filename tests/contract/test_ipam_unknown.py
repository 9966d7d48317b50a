"""Assignments with an unknown outcome, and deleted handles: a release leaves no allocation."""

from collections.abc import Sequence

import pytest

from harness.backend_wrappers import Through
from harness.ipam import put_node, put_pool
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, OutcomeUnknown, Write
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.ipam import Block
from svc.model.keys import BlockQuery, HandleKey


class Late(Through):
    """Keeps the write of an assignment until the test applies it, after the caller has given up."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.sent: list[Sequence[Write]] = []

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        if not self.sent and any(isinstance(write, Create) and isinstance(write.key, HandleKey) for write in writes):
            self.sent.append(writes)
            raise OutcomeUnknown("sent, and not answered")
        return super().write(writes, durable=durable)


def held(store: Backend) -> int:
    return sum(entry.value.ordinals.used for entry in store.list(BlockQuery()) if isinstance(entry.value, Block))


@pytest.mark.only_over("embedded", "etcdv3")
def test_assignment_in_flight_is_not_applied_after_its_release(backend: Backend) -> None:
    """This holds for stores that write handle and block together. Others have the handle before the block."""
    put_pool(backend, "pool4", "10.65.0.0/24")
    put_node(backend, "node1")
    late = Late(backend)
    ipam = IpamService(late, "node1")
    with pytest.raises(OutcomeUnknown):
        ipam.assign(Assign("net.c1", {"node": "node1"}))
    ipam.release(Release("net.c1"))
    with pytest.raises(Conflict):
        backend.write(late.sent[0])
    assert held(backend) == 0


def test_release_finds_the_addresses_of_a_deleted_handle(backend: Backend) -> None:
    put_pool(backend, "pool4", "10.65.0.0/24")
    put_node(backend, "node1")
    ipam = IpamService(backend, "node1")
    addresses = ipam.assign(Assign("net.c1", {"node": "node1"})).addresses
    backend.write([Delete(HandleKey("net.c1"))])
    ipam.release(Release("net.c1", addresses=addresses))
    assert held(backend) == 0

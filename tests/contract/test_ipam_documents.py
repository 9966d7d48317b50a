"""Unknown fields of stored documents, which other programs write, survive every change."""

from dataclasses import replace

import pytest

from harness.ipam import NODE, blocks, configure, free, put, put_node, put_pool, take
from svc._core.cidr import Cidr
from svc.datastore.api import Backend
from svc.ipam import claims
from svc.ipam.service import IpamService
from svc.ipam.settings import cooldown_of, read_settings
from svc.model.ipam import CONFIRMED, PENDING, PENDING_DELETION, Affinity, Attribute, Block, Handle, IpamConfig
from svc.model.keys import AffinityKey, BlockKey, HandleKey, IpamConfigKey

NOVEL = {"novel": {"deep": [1, "two"]}}
HANDLE = HandleKey("net.c1")


@pytest.fixture
def ipam(backend: Backend) -> IpamService:
    put_node(backend)
    put_pool(backend, "pool4", "10.65.0.0/30", blockSize=30)
    return IpamService(backend, NODE)


BLOCK, AFFINITY = BlockKey(Cidr("10.65.0.0/30")), AffinityKey(NODE, Cidr("10.65.0.0/30"))


def add_fields(backend: Backend) -> None:
    """Add unknown fields to all documents of one assignment, as a newer version would write them."""
    block, affinity, handle = (backend.get(key).value for key in (BLOCK, AFFINITY, HANDLE))
    assert isinstance(block, Block)
    assert isinstance(affinity, Affinity)
    assert isinstance(handle, Handle)
    block.extra = NOVEL
    block.attributes = [replace(attribute, extra=NOVEL) for attribute in block.attributes or ()]
    for key, value in ((BLOCK, block), (AFFINITY, replace(affinity, extra=NOVEL)), (HANDLE, replace(handle, extra=NOVEL))):
        put(backend, key, value)


def fields_of(backend: Backend, key: BlockKey | AffinityKey | HandleKey | IpamConfigKey) -> object:
    value = backend.get(key).value
    assert isinstance(value, Block | Affinity | Handle | IpamConfig)
    return value.extra


def test_assignment_and_release_keep_unknown_fields(ipam: IpamService, backend: Backend) -> None:
    """The fields are those of the block, of a handle whose count changes, and of an attribute that stays in use."""
    (first,) = take(ipam, HANDLE.handle)
    add_fields(backend)
    take(ipam, HANDLE.handle)
    take(ipam, "net.c2")
    free(ipam, HANDLE.handle, keep=[first])
    assert fields_of(backend, BLOCK) == fields_of(backend, HANDLE) == NOVEL
    (block,) = blocks(backend).values()
    assert [attribute.extra for attribute in block.attributes or ()] == [NOVEL, None]


@pytest.mark.parametrize("state", [PENDING, PENDING_DELETION, CONFIRMED])
def test_confirmation_of_an_affinity_keeps_unknown_fields(ipam: IpamService, backend: Backend, state: str) -> None:
    """A confirmed affinity with unknown fields counts as confirmed."""
    take(ipam, HANDLE.handle)
    add_fields(backend)
    put(backend, AFFINITY, Affinity(state, extra=NOVEL))
    take(IpamService(backend, NODE), "net.c2")
    assert backend.get(AFFINITY).value == Affinity(CONFIRMED, extra=NOVEL)


def test_unclaimed_block_keeps_unknown_fields(ipam: IpamService, backend: Backend) -> None:
    """The block stays because it has allocations."""
    take(ipam, HANDLE.handle)
    add_fields(backend)
    claims.release_affinity(backend, AFFINITY, cooldown_of(read_settings(backend)), only_empty=False)
    (block,) = blocks(backend).values()
    assert (block.affinity, block.extra) == (None, NOVEL)
    assert block.attributes == [Attribute(HANDLE.handle, {"node": NODE}, extra=NOVEL)]


def test_changed_settings_keep_unknown_fields(backend: Backend) -> None:
    put(backend, IpamConfigKey(), IpamConfig(cooldown_seconds=7, extra=NOVEL))
    configure(backend, IpamConfig(strict_affinity=True))
    assert backend.get(IpamConfigKey()).value == IpamConfig(strict_affinity=True, extra=NOVEL)

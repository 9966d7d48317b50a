"""Documents that other programs write as well: unknown fields survive every change."""

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
    """To all that one assignment has made, as a newer version would."""
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


def test_assigning_and_releasing_keep_the_fields_of_others(ipam: IpamService, backend: Backend) -> None:
    """Of the block, of the handle that grows and shrinks, and of the attribute that goes on being held."""
    (first,) = take(ipam, HANDLE.handle)
    add_fields(backend)
    take(ipam, HANDLE.handle)
    take(ipam, "net.c2")
    free(ipam, HANDLE.handle, keep=[first])
    assert fields_of(backend, BLOCK) == fields_of(backend, HANDLE) == NOVEL
    (block,) = blocks(backend).values()
    assert [attribute.extra for attribute in block.attributes or ()] == [NOVEL, None]


@pytest.mark.parametrize("state", [PENDING, PENDING_DELETION, CONFIRMED])
def test_putting_a_claim_right_keeps_the_fields_of_others(ipam: IpamService, backend: Backend, state: str) -> None:
    """Of a confirmed affinity too, whose other fields do not make it unconfirmed."""
    take(ipam, HANDLE.handle)
    add_fields(backend)
    put(backend, AFFINITY, Affinity(state, extra=NOVEL))
    take(IpamService(backend, NODE), "net.c2")
    assert backend.get(AFFINITY).value == Affinity(CONFIRMED, extra=NOVEL)


def test_a_block_that_is_given_up_keeps_the_fields_of_others(ipam: IpamService, backend: Backend) -> None:
    """It stays for the handles that hold addresses of it, unclaimed."""
    take(ipam, HANDLE.handle)
    add_fields(backend)
    claims.release_affinity(backend, AFFINITY, cooldown_of(read_settings(backend)), only_empty=False)
    (block,) = blocks(backend).values()
    assert (block.affinity, block.extra) == (None, NOVEL)
    assert block.attributes == [Attribute(HANDLE.handle, {"node": NODE}, extra=NOVEL)]


def test_new_settings_keep_the_fields_of_others(backend: Backend) -> None:
    """Which the administrator's tool did not know."""
    put(backend, IpamConfigKey(), IpamConfig(cooldown_seconds=7, extra=NOVEL))
    configure(backend, IpamConfig(strict_affinity=True))
    assert backend.get(IpamConfigKey()).value == IpamConfig(strict_affinity=True, extra=NOVEL)

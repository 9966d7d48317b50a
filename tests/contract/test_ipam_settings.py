"""The settings of address management, and the cooldown, which is one of them."""

from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from harness.backend_wrappers import Interfering
from harness.ipam import (
    NODE,
    affinities,
    block_of,
    blocks,
    configure,
    document,
    free,
    handles,
    holdings,
    put,
    put_node,
    put_pool,
    put_settings,
    take,
)
from svc.datastore.api import Backend, Delete
from svc.ipam.blocks import format_time
from svc.ipam.requests import ReleaseTarget
from svc.ipam.service import IpamService
from svc.ipam.settings import MAX_BLOCKS_PER_HOST, read_settings
from svc.model.errors import CallerError, PeerError
from svc.model.ipam import Attribute, IpamConfig
from svc.model.keys import IPAM_CONFIG, BlockKey, IpamConfigKey

POOL = "10.65.0.0/30"  # one block of four addresses


@pytest.fixture
def ipam(backend: Backend) -> IpamService:
    put_node(backend)
    put_pool(backend, "pool4", POOL, blockSize=30)
    return IpamService(backend, NODE)


# reading and writing


def test_defaults_apply_without_stored_settings(backend: Backend) -> None:
    """Reading does not store anything."""
    assert read_settings(backend) == IpamConfig(auto_allocate_blocks=True)
    assert list(document(backend)) == []


@pytest.mark.parametrize(
    "settings",
    [
        IpamConfig(),
        IpamConfig(strict_affinity=True, auto_allocate_blocks=False, max_blocks_per_host=3),
        IpamConfig(vm_address_persistence="Disabled", cooldown_seconds=30),
    ],
)
def test_stored_settings_are_read(backend: Backend, settings: IpamConfig) -> None:
    """Each write changes the generation, so that caches become invalid."""
    before = backend.generations((IPAM_CONFIG,))
    for stored in (IpamConfig(cooldown_seconds=1), settings):
        configure(backend, stored)
        assert read_settings(backend) == stored
    assert backend.generations((IPAM_CONFIG,)) != before


@pytest.mark.only_over("embedded", "piecemeal", "etcdv3")  # an API server refuses such documents
@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"auto_allocate_blocks": False}, "autoAllocateBlocks = false: set strictAffinity to true as well"),
        ({"max_blocks_per_host": 5}, "maxBlocksPerHost = 5 needs strictAffinity"),
        ({"max_blocks_per_host": -1, "strict_affinity": True}, "maxBlocksPerHost = -1 is negative"),
        ({"cooldown_seconds": -1}, "ipCooldownSeconds = -1 is negative"),
        ({"vm_address_persistence": "Perhaps"}, "kubeVirtVMAddressPersistence = 'Perhaps' is not known"),
        ({"max_blocks_per_host": 5, "auto_allocate_blocks": False}, "2 errors"),
    ],
)
def test_contradictory_settings_are_refused(backend: Backend, fields: dict[str, Any], fault: str) -> None:
    """Nothing is stored. Readers accept such settings if another program has stored them."""
    with pytest.raises(CallerError) as refusal:
        configure(backend, IpamConfig(**fields))
    assert fault in str(refusal.value)
    assert read_settings(backend) == IpamConfig()
    put_settings(backend, **fields)
    assert read_settings(backend) == IpamConfig(**fields)


def test_block_limit_has_the_same_maximum_in_every_datastore(backend: Backend) -> None:
    """svc checks it before the write, so that no datastore has to refuse it."""
    configure(backend, IpamConfig(strict_affinity=True, max_blocks_per_host=MAX_BLOCKS_PER_HOST))
    for number in (MAX_BLOCKS_PER_HOST + 1, 2**31, 2**64 - 1, 10**20 - 1):
        with pytest.raises(CallerError, match=f"maxBlocksPerHost = {number} is more than 1000000: .*give 0 to 1000000"):
            configure(backend, IpamConfig(strict_affinity=True, max_blocks_per_host=number))
    assert read_settings(backend).max_blocks_per_host == MAX_BLOCKS_PER_HOST


def test_concurrent_writers_of_settings_both_succeed(backend: Backend) -> None:
    """The settings of the later writer are stored."""
    interrupted = Interfering(backend, 1, lambda: configure(backend, IpamConfig(cooldown_seconds=1)))
    configure(interrupted, IpamConfig(cooldown_seconds=2))
    gone = Interfering(backend, 1, lambda: backend.write([Delete(IpamConfigKey())]))
    configure(gone, IpamConfig(cooldown_seconds=3))
    assert read_settings(backend).cooldown_seconds == 3


# cooldown


def age(backend: Backend, seconds: int) -> None:
    """Change all release times to so many seconds earlier."""
    for block in blocks(backend).values():
        block.attributes = [
            Attribute(released_at=_earlier(each.released_at, seconds)) if each.released_at else each
            for each in block.attributes or ()
        ]
        block.sequence += 1
        put(backend, BlockKey(block.cidr), block)


def _earlier(text: str, seconds: int) -> str:
    return format_time(datetime.fromisoformat(text.replace("Z", "+00:00")) - timedelta(seconds=seconds))


@pytest.mark.parametrize("by_address", [False, True])
def test_released_addresses_are_in_cooldown(backend: Backend, ipam: IpamService, by_address: bool) -> None:
    """They have no owner, and their handle is deleted. They are not assigned before the cooldown has passed."""
    put_settings(backend, cooldown_seconds=60)
    got = {take(ipam, f"net.c{n}")[0] for n in range(4)}
    (mine,) = map(str, holdings(backend)["net.c1"])
    if by_address:
        assert str(ipam.release_addresses([ReleaseTarget(next(iter(holdings(backend)["net.c1"])))]).freed[0]) == mine
    else:
        free(ipam, "net.c1")
    assert holdings(backend).keys() == handles(backend).keys() == {"net.c0", "net.c2", "net.c3"}
    cooling = [each for each in block_of(backend, mine).attributes or () if each.released_at]
    assert cooling == [Attribute(released_at=cooling[0].released_at)]
    for call in (partial(take, ipam, "net.late"), partial(ipam.require_capacity, (4,), {})):
        with pytest.raises(PeerError, match="no free IPv4 address"):
            call()
    with pytest.raises(CallerError, match=r"was released at .* and rests"):
        take(ipam, "net.late", at=mine)
    age(backend, 30)
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(ipam, "net.late")
    age(backend, 31)
    assert take(ipam, "net.late") == (mine,)
    assert {str(address) for held in holdings(backend).values() for address in held} == got


def test_current_cooldown_applies(backend: Backend, ipam: IpamService) -> None:
    """The setting at the time of the release does not count. An administrator who shortens it needs the addresses at once."""
    put_settings(backend, cooldown_seconds=1000)
    for number in range(4):
        take(ipam, f"net.c{number}")
        free(ipam, f"net.c{number}")
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(ipam, "net.late")
    put_settings(backend, cooldown_seconds=0)
    assert len({take(ipam, f"net.d{number}") for number in range(4)}) == 4
    assert {each.released_at for each in block_of(backend, "10.65.0.0").attributes or ()} == {None}


def test_address_after_its_cooldown_comes_before_another_block(backend: Backend, ipam: IpamService) -> None:
    """A block without a free address is passed over, but not one whose cooldown may be over."""
    put_settings(backend, cooldown_seconds=1000)
    put_pool(backend, "wide", "10.66.0.0/29", blockSize=30)
    got = [take(ipam, f"net.c{number}", pools={4: ("wide",)}) for number in range(4)]
    free(ipam, "net.c1")
    put_settings(backend, cooldown_seconds=0)
    assert take(ipam, "net.late", pools={4: ("wide",)}) == got[1]


def test_block_with_cooling_addresses_is_not_empty(backend: Backend, ipam: IpamService) -> None:
    """It is neither reclaimed nor released before the cooldown of all its addresses has passed."""
    put_settings(backend, cooldown_seconds=60)
    (got,) = take(ipam, "net.c")
    free(ipam, "net.c")
    put_pool(backend, "pool4", POOL, blockSize=30, nodeSelector="zone == 'b'")
    put_pool(backend, "next", "10.66.0.0/30", blockSize=30)
    take(ipam, "net.d")
    assert block_of(backend, got).affinity == "host:node1"
    age(backend, 61)
    take(IpamService(backend, NODE), "net.e")
    assert {cidr for _, cidr in affinities(backend)} == {"10.66.0.0/30"}


def test_repeated_release_does_not_extend_the_cooldown(backend: Backend, ipam: IpamService) -> None:
    """A release by handle finds no address. A release by address reports that it is free."""
    put_settings(backend, cooldown_seconds=60)
    take(ipam, "net.c")
    (address,) = holdings(backend)["net.c"]
    free(ipam, "net.c")
    age(backend, 30)
    before = document(backend)
    free(ipam, "net.c")
    assert ipam.release_addresses([ReleaseTarget(address)]).unallocated == (address,)
    assert document(backend) == before


@pytest.mark.only_over("embedded", "piecemeal", "etcdv3")  # an API server refuses such documents
def test_unreadable_release_times_count_as_long_ago(backend: Backend, ipam: IpamService) -> None:
    """Otherwise an error of another program would block the address for ever."""
    put_settings(backend, cooldown_seconds=60)
    for number in range(4):
        take(ipam, f"net.c{number}")
    free(ipam, "net.c2")
    (block,) = blocks(backend).values()
    block.attributes = [Attribute(released_at="soon") if each.released_at else each for each in block.attributes or ()]
    put(backend, BlockKey(block.cidr), block)
    assert take(ipam, "net.d")


def test_release_time_is_never_in_the_future(backend: Backend, ipam: IpamService) -> None:
    """Times are stored in UTC, in whole seconds."""
    put_settings(backend, cooldown_seconds=60)
    take(ipam, "net.c")
    earliest = datetime.now(timezone.utc).replace(microsecond=0)
    free(ipam, "net.c")
    (attribute,) = next(iter(blocks(backend).values())).attributes or [Attribute()]
    released = datetime.fromisoformat((attribute.released_at or "").replace("Z", "+00:00"))
    assert earliest <= released <= datetime.now(timezone.utc)

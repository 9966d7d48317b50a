"""Release of many affinities at once, and the usage report of pools."""

from typing import Any

import pytest

from harness.backend_wrappers import Interfering, Recording
from harness.fault_injection import Faults, FaultyBackend, Kind
from harness.ipam import (
    NODE,
    affinities,
    block_of,
    blocks,
    free,
    holdings,
    put,
    put_block,
    put_node,
    put_pool,
    put_reservation,
    put_settings,
    require_whole_claims,
    take,
)
from svc._core.cidr import Cidr
from svc.admin.block_release import release_host, release_pool, release_range, remove_host
from svc.admin.usage import ORPHANS, Usage, usage
from svc.datastore.api import Backend
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, PeerError
from svc.model.ipam import Affinity
from svc.model.keys import AffinityKey

POOL = "10.65.0.0/28"  # four blocks of four addresses


@pytest.fixture
def store(backend: Backend) -> Backend:
    """Return a store with two pools and two nodes.

    Each node has a block in each pool, and one of these blocks has an allocation.
    """
    for node in (NODE, "node2"):
        put_node(backend, node)
    put_pool(backend, "pool4", POOL, blockSize=30)
    put_pool(backend, "pool6", "fd65::/124", blockSize=126)
    for node in (NODE, "node2"):
        ipam = IpamService(backend, node)
        take(ipam, f"net.{node}", versions=(4, 6))
        free(ipam, f"net.{node}", keep=[str(a) for a in holdings(backend)[f"net.{node}"] if a.version == 4])
    return backend


def affinities_of(store: Backend, node: str = NODE) -> set[str]:
    return {cidr for host, cidr in affinities(store) if host == node}


def test_host_releases_all_its_affinities(store: Backend) -> None:
    """Empty blocks are deleted, and blocks in use become unclaimed. The blocks of other hosts stay."""
    recording = Recording(store)
    assert remove_host(recording, NODE) == 2
    assert recording.written == [
        ["update affinity pendingDeletion"],
        ["update block"],
        ["delete affinity"],
        ["update affinity pendingDeletion"],
        ["delete block"],
        ["delete affinity"],
    ]
    assert affinities_of(store) == set()
    assert len(affinities_of(store, "node2")) == 2
    orphan = block_of(store, str(next(iter(holdings(store)[f"net.{NODE}"]))))
    assert (orphan.affinity, orphan.claimed_at) == (None, None)
    assert "affinity_claim_time" not in orphan.to_json()
    free(IpamService(store, "node2"), f"net.{NODE}")
    assert str(orphan.cidr) not in blocks(store)
    assert remove_host(store, NODE) == 0


def test_release_can_keep_blocks_in_use(store: Backend) -> None:
    """The error lists the blocks in use. The empty ones are deleted."""
    with pytest.raises(PeerError, match="1 of 2 blocks could not be released") as refusal:
        release_host(store, NODE, only_empty=True)
    assert "addresses of it are in use" in refusal.value.details
    assert {Cidr(cidr).version for cidr in affinities_of(store)} == {4}
    require_whole_claims(store)


def test_all_hosts_release_their_affinities_in_a_pool(store: Backend) -> None:
    """An administrator does this before deleting the pool."""
    assert release_pool(store, Cidr("fd65::/124"), only_empty=True) == 2
    assert {Cidr(cidr).version for _, cidr in affinities(store)} == {4}
    assert release_pool(store, Cidr(POOL)) == 2
    assert affinities(store) == {}
    assert len(blocks(store)) == 2


def test_affinities_in_a_range_are_released_by_one_or_all_hosts(store: Backend) -> None:
    """The range must consist of blocks of a pool."""
    assert release_range(store, Cidr("fd65::/124"), host=NODE) == 1
    assert release_range(store, Cidr("fd65::/124")) == 1
    for text, message in (("10.99.0.0/24", "no pool has all of it"), ("10.65.0.0/31", "smaller than a block")):
        with pytest.raises(CallerError) as refusal:
            release_range(store, Cidr(text))
        assert message in refusal.value.details
    for text in (POOL, *(f"10.65.0.{n}/30" for n in (0, 4, 8, 12))):
        release_range(store, Cidr(text))
    assert affinities(store) == {}


def test_stale_affinities_are_deleted(store: Backend) -> None:
    """They are: without a block, to another node's block, missing, and of a virtual host."""
    (other_block,) = [cidr for cidr in affinities_of(store, "node2") if Cidr(cidr).version == 4]
    put(store, AffinityKey(NODE, Cidr(other_block)), Affinity())
    put(store, AffinityKey(NODE, Cidr("10.66.0.0/30")), Affinity())
    put_block(store, "10.67.0.0/30", f"host:{NODE}")
    put_block(store, "10.68.0.0/30", "virtual:load-balancer")
    release_host(store, NODE)
    release_host(store, "load-balancer", kind="virtual")
    assert affinities_of(store) == set()
    assert {*blocks(store)} >= affinities_of(store, "node2")
    assert not {"10.66.0.0/30", "10.67.0.0/30", "10.68.0.0/30"} & {*blocks(store)}


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.REPLY_LOST], ids=lambda kind: str(kind.value))
def test_partly_failed_release_can_be_repeated(store: Backend, kind: Kind, number: int) -> None:
    """The affinities after the failure are released at the first attempt."""
    faults = Faults()
    faults.arm(kind, number, "write")
    with pytest.raises(PeerError, match="1 of 2 blocks could not be released"):
        release_host(FaultyBackend(store, faults), NODE)
    assert len(affinities_of(store)) <= 1
    release_host(store, NODE)
    assert affinities_of(store) == set()
    assert holdings(store).keys() == {"net.node1", "net.node2"}


@pytest.mark.parametrize("number", range(1, 7))
def test_node_can_assign_while_it_is_removed(store: Backend, number: int) -> None:
    """Its addresses stay assigned, and each block and its affinity agree."""
    ipam = IpamService(store, NODE)
    interrupted = Interfering(store, number, lambda: take(ipam, "net.busy", versions=(4, 6)))
    release_host(interrupted, NODE)
    take(ipam, "net.after", versions=(4, 6))
    assert {"net.busy", "net.after"} <= holdings(store).keys()
    take(IpamService(store, NODE), "net.cold", versions=(4, 6))
    require_whole_claims(store)


# usage


def rows(store: Backend, *names: str) -> dict[str, tuple[Any, ...]]:
    return {row.name: (row.capacity, row.reserved, row.in_use, row.available, len(row.blocks)) for row in usage(store, names)}


def test_usage_counts_allocated_reserved_and_free_addresses(store: Backend) -> None:
    """It counts addresses with and without a block. Only a free address is counted as reserved."""
    assert rows(store) == {"pool4": (16, 0, 2, 14, 2), "pool6": (16, 0, 0, 16, 2)}
    held = next(iter(holdings(store)[f"net.{NODE}"]))
    put_reservation(store, "res", f"{held}/32", "fd65::/125")
    assert rows(store) == {"pool4": (16, 1, 2, 14, 2), "pool6": (16, 8, 0, 8, 2)}
    assert rows(store, "pool6") == rows(store, "fd65::/124") == {"pool6": (16, 8, 0, 8, 2)}
    with pytest.raises(CallerError, match=r"IP pool \(none\) does not exist"):
        usage(store, ["none"])


def test_usage_counts_cooling_addresses_as_in_use(store: Backend) -> None:
    put_settings(store, cooldown_seconds=60)
    free(IpamService(store, NODE), f"net.{NODE}")
    assert rows(store)["pool4"] == (16, 0, 2, 14, 2)
    put_settings(store)
    assert rows(store)["pool4"] == (16, 0, 1, 15, 2)


def test_usage_names_the_owner_of_each_block(store: Backend) -> None:
    """It also states the numbers of each block."""
    (pool,) = usage(store, ["pool4"])
    assert {block.affinity for block in pool.blocks} == {"host:node1", "host:node2"}
    assert all(block == Usage(block.cidr, 4, 0, 1, 3, affinity=block.affinity) for block in pool.blocks)


def test_usage_lists_orphaned_blocks_separately(store: Backend) -> None:
    """They are listed by family, and only in a report of all pools."""
    put_block(store, "10.99.0.0/30", None, ["net.x"])
    put_block(store, "fd99::/126", "host:node1")
    found = [row for row in usage(store) if row.name == ORPHANS]
    assert [(row.cidr, row.capacity, row.in_use, row.available) for row in found] == [
        (Cidr("0.0.0.0/0"), 4, 1, 3),
        (Cidr("::/0"), 4, 0, 4),
    ]
    assert ORPHANS not in rows(store, "pool4")

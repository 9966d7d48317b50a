"""Addresses whose cooldown is over become free, and empty blocks are released after the grace period."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from harness.driven_part import Driven, World, driven
from harness.ipam import affinities, blocks, just_now, put, put_affinity, put_block, require_whole_claims
from harness.ipam_check import spoil
from svc._core.cidr import Cidr
from svc.attach.datastore_ready import DatastoreLocked
from svc.controllers.configuration import Configuration
from svc.controllers.node.ipam_blocks import IpamBlocks
from svc.datastore.api import Conflict, NotFound, UndecodableEntry, Update
from svc.ipam import blocks as block_model
from svc.model.ipam import PENDING_DELETION, Affinity, Attribute
from svc.model.keys import VIRTUAL, AffinityKey, BlockKey

pytestmark = pytest.mark.server

FIRST, SECOND, THIRD = "10.66.0.0/26", "10.66.0.64/26", "10.66.0.128/26"
GRACE = 900.0
LONG_AGO = "2020-01-01T00:00:00Z"


@pytest.fixture
def start(world: World) -> Iterator[Callable[..., Driven]]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            driven(world.client, world.store, IpamBlocks, Configuration(**settings)),
        )


@pytest.fixture
def part(start: Callable[..., Driven]) -> Driven:
    return start()


def give(world: World, node: str, *cidrs: str, kind: str = "host") -> None:
    """Give a node empty blocks."""
    for cidr in cidrs:
        put_block(world.store, cidr, f"{kind}:{node}")
        put(world.store, AffinityKey(node, Cidr(cidr), kind), Affinity())


def change(world: World, cidr: str, changed: Callable[[Any], object]) -> None:
    entry = world.store.get(BlockKey(Cidr(cidr)))
    changed(entry.value)
    entry.value.sequence += 1
    world.store.write([Update(entry.key, entry.value, entry.revision)])


def use(world: World, cidr: str) -> None:
    change(world, cidr, lambda block: block_model.assign(block, Attribute("net.x", {"node": "node1"})))


def cool(world: World, cidr: str, since: str = LONG_AGO) -> None:
    change(world, cidr, lambda block: block_model.assign(block, Attribute(released_at=since)))


# cooldown


def test_address_becomes_free_after_its_cooldown(world: World, part: Driven) -> None:
    world.set_cooldown(600)
    give(world, "node1", FIRST, SECOND)
    cool(world, FIRST)
    cool(world, SECOND, just_now())
    use(world, FIRST)
    before = blocks(world.store)
    part.round()
    after = blocks(world.store)
    assert [after[each].ordinals.used for each in (FIRST, SECOND)] == [1, 1]
    assert after[FIRST].sequence == before[FIRST].sequence + 1
    assert after[FIRST].ordinals.unallocated()[-1] == 0  # at the end of the queue
    assert after[SECOND].sequence == before[SECOND].sequence


def test_shorter_cooldown_applies_at_once(world: World, part: Driven) -> None:
    now = just_now()
    world.set_cooldown(600)
    give(world, "node1", FIRST)
    cool(world, FIRST, now)
    part.round()
    assert blocks(world.store)[FIRST].ordinals.used == 1
    world.set_cooldown(0)
    part.round()
    assert blocks(world.store)[FIRST].ordinals.used == 0


def test_unclaimed_block_is_deleted_with_its_last_cooldown(world: World, part: Driven) -> None:
    put_block(world.store, FIRST, None)
    put_block(world.store, SECOND, None)
    cool(world, FIRST)
    cool(world, SECOND)
    use(world, SECOND)
    part.round()
    assert {cidr: block.ordinals.used for cidr, block in blocks(world.store).items()} == {SECOND: 1}


def test_virtual_hosts_have_a_cooldown_as_well(world: World, part: Driven) -> None:
    give(world, "load-balancer", FIRST, kind=VIRTUAL)
    cool(world, FIRST)
    part.round()
    assert blocks(world.store)[FIRST].ordinals.used == 0


def test_locked_datastore_keeps_addresses_in_cooldown(world: World, part: Driven) -> None:
    give(world, "node1", FIRST)
    cool(world, FIRST)
    world.lock()
    with pytest.raises(DatastoreLocked):
        part.round()
    assert blocks(world.store)[FIRST].ordinals.used == 1
    world.unlock()
    part.round()
    assert blocks(world.store)[FIRST].ordinals.used == 0


# empty blocks


def test_empty_block_is_released_after_the_grace_period(world: World, part: Driven) -> None:
    give(world, "node1", FIRST, SECOND)
    use(world, FIRST)
    assert [part.round(), part.round(GRACE - 1)] == [[], []]
    assert len(part.round(1)) == 1
    assert set(blocks(world.store)) == {FIRST}
    require_whole_claims(world.store)


def test_node_keeps_its_last_block(world: World, part: Driven) -> None:
    give(world, "node1", FIRST, SECOND, THIRD)
    part.round()
    assert len(part.round(GRACE)) == 3
    assert len(blocks(world.store)) == 1
    require_whole_claims(world.store)
    assert [part.round(), part.round(GRACE)] == [[], []]


def test_block_that_was_used_meanwhile_is_observed_anew(world: World, part: Driven) -> None:
    give(world, "node1", FIRST, SECOND)
    use(world, FIRST)
    part.round()
    use(world, SECOND)
    change(world, SECOND, lambda block: block_model.release(block, [0]))
    assert part.round(GRACE) == []
    assert len(part.round(GRACE)) == 1
    assert set(blocks(world.store)) == {FIRST}


def test_grace_period_of_0_keeps_empty_blocks(world: World, start: Callable[..., Driven]) -> None:
    part = start(leak_grace_seconds=0.0)
    give(world, "node1", FIRST, SECOND)
    put_affinity(world.store, THIRD, PENDING_DELETION)
    assert [part.round(), part.round(GRACE), part.round(GRACE)] == [[], [], []]


def test_cooling_addresses_keep_a_block(world: World, part: Driven) -> None:
    world.set_cooldown(1200)
    give(world, "node1", FIRST, SECOND)
    use(world, FIRST)
    now = just_now()
    cool(world, SECOND, now)
    part.round()
    part.round(GRACE)
    assert len(blocks(world.store)) == 2


def test_virtual_hosts_keep_their_blocks(world: World, part: Driven) -> None:
    give(world, "load-balancer", FIRST, SECOND, kind=VIRTUAL)
    assert [part.round(), part.round(GRACE)] == [[], []]


@pytest.mark.parametrize(("network", "is_released"), [("flannel", False), ("", False), ("svc", True)])
def test_node_that_moves_from_another_network_keeps_its_blocks(
    world: World, part: Driven, network: str, is_released: bool
) -> None:
    world.add_node("node2", **{"svc.internal/node-network-during-migration": network})
    give(world, "node2", FIRST, SECOND)
    part.round()
    part.round(GRACE)
    assert len(blocks(world.store)) == (1 if is_released else 2)


def test_blocks_of_a_node_that_kubernetes_lacks_stay(world: World, part: Driven) -> None:
    """Whether it is gone is judged by its claim."""
    give(world, "node9", FIRST, SECOND)
    part.round()
    part.round(GRACE)
    assert len(blocks(world.store)) == 2


def test_block_that_gets_an_address_just_now_stays(world: World, part: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    give(world, "node1", FIRST, SECOND)
    use(world, FIRST)
    part.round()
    get, others = world.client.get, iter([SECOND])

    def get_late(path: str, **params: str) -> Any:
        if cidr := next(others, None):
            use(world, cidr)
        return get(path, **params)

    monkeypatch.setattr(world.client, "get", get_late)
    assert len(part.round(GRACE)) == 1
    assert set(blocks(world.store)) == {FIRST, SECOND}


def test_write_at_the_same_time_wins(world: World, part: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    give(world, "node1", FIRST, SECOND)
    use(world, FIRST)
    part.round()
    write, others = type(world.store).write, iter([SECOND])

    def write_late(self: object, writes: object, **options: object) -> object:
        if cidr := next(others, None):
            use(world, cidr)
        return write(world.store, writes, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(world.store), "write", write_late)
    part.round(GRACE)
    monkeypatch.undo()
    assert set(blocks(world.store)) == {FIRST, SECOND}
    require_whole_claims(world.store)


def test_other_block_that_is_gone_by_now_does_not_count(world: World, part: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables may be late: then this would be the last block of the node."""
    give(world, "node1", FIRST, SECOND)
    use(world, FIRST)
    part.round()
    find = type(world.store).find

    def find_late(self: Any, key: Any) -> Any:
        return None if key == BlockKey(Cidr(FIRST)) else find(self, key)

    monkeypatch.setattr(type(world.store), "find", find_late)
    part.round(GRACE)
    monkeypatch.undo()
    assert set(blocks(world.store)) == {FIRST, SECOND}


def test_undecodable_block_stays(world: World, part: Driven) -> None:
    give(world, "node1", FIRST, SECOND, THIRD)
    use(world, FIRST)
    part.round()
    spoil(world.site, BlockKey(Cidr(SECOND)), None)
    part.round(GRACE)
    assert set(blocks(world.store)) == {FIRST}
    with pytest.raises(UndecodableEntry):
        world.store.get(BlockKey(Cidr(SECOND)))
    assert ("node1", SECOND) in affinities(world.store)


def test_release_of_a_killed_process_is_completed(world: World, part: Driven) -> None:
    """It has deleted the block, and not the affinity."""
    give(world, "node1", FIRST)
    put_affinity(world.store, SECOND, PENDING_DELETION)
    part.round()
    part.round(GRACE)
    require_whole_claims(world.store)
    assert set(blocks(world.store)) == {FIRST}


def test_claim_after_a_killed_release_stays(world: World, part: Driven) -> None:
    give(world, "node1", FIRST)
    put_affinity(world.store, SECOND, PENDING_DELETION)
    part.round()
    give(world, "node1", SECOND)
    assert part.round(GRACE) == []
    require_whole_claims(world.store)


def test_conflict_is_left_to_the_next_round(world: World, part: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    give(world, "node1", FIRST)
    cool(world, FIRST)
    for error in (Conflict, NotFound):
        with monkeypatch.context() as patched:
            patched.setattr(type(world.store), "write", _failing(error))
            part.round()
    part.round()
    assert blocks(world.store)[FIRST].ordinals.used == 0


def _failing(error: Any) -> Any:
    def write(self: object, writes: Any, **_: object) -> None:
        raise error(writes[-1].key)

    return write

"""Handles that a killed ADD or DEL has left are deleted or corrected, and those of calls in flight are not."""

from collections.abc import Iterator

import pytest

from harness.driven_part import Driven, World, driven
from harness.ipam import handles, holdings, put, put_block
from harness.ipam_check import spoil
from svc._core.cidr import Cidr
from svc.attach.datastore_ready import DatastoreLocked
from svc.controllers.node.ipam_handles import IpamHandles
from svc.datastore.api import Conflict, Create, Update
from svc.ipam import blocks
from svc.model.ipam import Attribute, Handle
from svc.model.keys import BlockKey, HandleKey

pytestmark = pytest.mark.server

BLOCK = "10.66.0.0/26"
CONFIRM = 60.0


@pytest.fixture
def part(world: World) -> Iterator[Driven]:
    with driven(world.client, world.store, IpamHandles) as made:
        yield made


def test_empty_handle_is_deleted_when_it_has_been_empty_for_a_minute(world: World, part: Driven) -> None:
    world.take("node1", "net.a")
    put(world.store, HandleKey("net.b"), Handle({BLOCK: 1}))
    put(world.store, HandleKey("net.c"), Handle({"10.66.0.128/26": 1}))  # of a block that does not exist
    put(world.store, HandleKey("net.d"), Handle({}))
    assert part.round() == []
    assert part.round(CONFIRM - 1) == []
    assert {item.handle for item in part.round(1)} == {"net.b", "net.c", "net.d"}
    assert set(holdings(world.store)) == {"net.a"}


def test_wrong_count_is_corrected(world: World, part: Driven) -> None:
    world.take("node1", "net.a")
    put(world.store, HandleKey("net.a"), Handle({BLOCK: 3, "10.66.0.64/26": 2}))
    part.round()
    part.round(CONFIRM)
    assert handles(world.store) == {"net.a": {BLOCK: 1}}
    holdings(world.store)


def test_handle_that_does_not_list_a_block_with_its_address_is_corrected(world: World, part: Driven) -> None:
    put_block(world.store, BLOCK, "host:node1", ["net.a"])
    put(world.store, HandleKey("net.a"), Handle({}))
    part.round()
    part.round(CONFIRM)
    assert handles(world.store) == {"net.a": {BLOCK: 1}}


def test_right_handles_are_not_settled(world: World, part: Driven) -> None:
    world.take("node1", "net.a")
    before = world.store.get(HandleKey("net.a")).revision
    assert [part.round(), part.round(CONFIRM)] == [[], []]
    assert world.store.get(HandleKey("net.a")).revision == before


def test_add_in_flight_keeps_its_handle(world: World, part: Driven) -> None:
    """It has written its handle, and writes its block before the minute is over."""
    world.take("node1", "net.other")
    put(world.store, HandleKey("net.a"), Handle({BLOCK: 1}))
    part.round()
    part.round(CONFIRM - 1)
    finish_add(world, "net.a", world.store.get(BlockKey(Cidr(BLOCK))).revision)
    assert part.round(1) == []
    assert set(holdings(world.store)) == {"net.a", "net.other"}


def test_add_that_was_paused_for_long_conflicts(world: World, part: Driven) -> None:
    """Its address would have no handle, and no DEL would release it."""
    world.take("node1", "net.other")
    before = world.store.get(BlockKey(Cidr(BLOCK))).revision
    put(world.store, HandleKey("net.a"), Handle({BLOCK: 1}))
    part.round()
    part.round(CONFIRM)
    with pytest.raises(Conflict):
        finish_add(world, "net.a", before)
    assert set(holdings(world.store)) == {"net.other"}


def finish_add(world: World, handle: str, revision: str) -> None:
    block = world.store.get(BlockKey(Cidr(BLOCK))).value
    blocks.assign(block, Attribute(handle, {"node": "node1"}))
    block.sequence += 1
    world.store.write([Update(BlockKey(block.cidr), block, revision)])


def test_changed_handle_is_observed_anew(world: World, part: Driven) -> None:
    put(world.store, HandleKey("net.a"), Handle({BLOCK: 1}))
    part.round()
    put(world.store, HandleKey("net.a"), Handle({BLOCK: 2}))
    assert part.round(CONFIRM) == []
    assert len(part.round(CONFIRM)) == 1
    assert handles(world.store) == {}


@pytest.mark.parametrize("what", ["handle", "block"])
def test_concurrent_write_wins(world: World, part: Driven, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write comes after the part has read what it decides by."""
    world.take("node1", "net.other")
    put(world.store, HandleKey("net.a"), Handle({BLOCK: 1}))
    part.round()
    write, store = type(world.store).write, world.store
    others = iter([what])

    def write_later(self: object, writes: object, **options: object) -> object:
        if next(others, None):
            if what == "handle":
                entry = store.get(HandleKey("net.a"))
                write(store, [Update(entry.key, Handle({BLOCK: 2}), entry.revision)])
            else:
                block = store.get(BlockKey(Cidr(BLOCK)))
                blocks.assign(block.value, Attribute("net.a", {"node": "node1"}))
                block.value.sequence += 1
                write(store, [Update(block.key, block.value, block.revision)])
        return write(store, writes, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(world.store), "write", write_later)
    part.round(CONFIRM)
    monkeypatch.undo()
    expected = {"handle": {BLOCK: 2}, "block": {BLOCK: 1}}[what]
    assert handles(world.store)["net.a"] == expected


def test_handle_of_an_unreadable_block_stays(world: World, part: Driven, caplog: pytest.LogCaptureFixture) -> None:
    world.take("node1", "net.a")
    world.take("node1", "net.b")
    spoil(world.site, BlockKey(Cidr(BLOCK)), None)
    before = handles(world.store)
    part.round()
    assert len(part.round(CONFIRM)) == 2
    part.round(CONFIRM)
    assert handles(world.store) == before == {"net.a": {BLOCK: 1}, "net.b": {BLOCK: 1}}
    assert caplog.text.count("handles of a block stay as they are") == 1


def test_locked_datastore_is_not_changed(world: World, part: Driven) -> None:
    put(world.store, HandleKey("net.a"), Handle({BLOCK: 1}))
    part.round()
    world.lock()
    with pytest.raises(DatastoreLocked):
        part.round(CONFIRM)
    assert handles(world.store) == {"net.a": {BLOCK: 1}}
    world.unlock()
    part.round()
    assert handles(world.store) == {}


def test_handle_that_an_add_uses_again_stays(world: World, part: Driven) -> None:
    put(world.store, HandleKey("net.a"), Handle({BLOCK: 1}))
    part.round()
    world.take("node1", "net.a")
    assert part.round(CONFIRM) == []
    part.round(CONFIRM)  # in etcd the handle counts the address of the killed ADD until now
    assert set(holdings(world.store)) == {"net.a"}


def test_handle_of_windows_stays(world: World, part: Driven) -> None:
    world.store.write([Create(HandleKey("windows-reserved-ipam-handle"), Handle({BLOCK: 4}))])
    assert [part.round(), part.round(CONFIRM)] == [[], []]

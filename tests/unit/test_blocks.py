"""One block: the order of its addresses, their owners, and its sequence numbers."""

import json
import tracemalloc
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from harness.blocks import CIDR, NOW, new, write
from svc._core.cidr import Address, Cidr
from svc.ipam import blocks
from svc.ipam.blocks import Cooldown
from svc.model.ipam import Attribute, Block, Handle
from svc.model.keys import BlockKey
from svc.model.kv_codec import Codec
from svc.names import DEFAULT

FIXTURES = Path(__file__).parent / "fixtures"
SIZE = 4  # addresses of the block at CIDR

Json = dict[str, Any]


def owner(handle: str, **secondary: str) -> Attribute:
    return Attribute(handle, secondary or None)


def addresses(block: Block, *ordinals: int) -> list[str]:
    return [str(block.cidr.address(ordinal)) for ordinal in ordinals]


def state(block: Block) -> tuple[Any, Any, Any, Any, Any]:
    """Return the fields that change when addresses are assigned or released."""
    data = block.to_json()
    names = ("allocations", "unallocated", "attributes", "sequenceNumber", "sequenceNumberForAllocation")
    allocations, unallocated, attributes, sequence, by_ordinal = (data[name] for name in names)
    return allocations, unallocated, attributes, sequence, by_ordinal


def test_life_cycle_of_a_block() -> None:
    """Each state equals that of other programs on the same datastore, including the order of the free addresses."""
    block = new()
    assert state(block) == ([None] * 4, [0, 1, 2, 3], None, 1000, {})
    assert blocks.assign(block, owner("a", node="node1")) == Address("10.65.0.64")
    block = write(block)
    first = {"handle_id": "a", "secondary": {"node": "node1"}}
    assert state(block) == ([0, None, None, None], [1, 2, 3], [first], 1001, {"0": 1000})
    blocks.release(block, blocks.held_by(block, "a"))
    block = write(block)
    assert state(block) == ([None] * 4, [1, 2, 3, 0], [], 1002, {})
    assigned = [blocks.assign(block, owner("b", node="node1")) for _ in range(2)]
    assert assigned == [Address("10.65.0.65"), Address("10.65.0.66")]
    block = write(block)
    second = {"handle_id": "b", "secondary": {"node": "node1"}}
    assert state(block) == ([None, 0, 0, None], [3, 0], [second], 1003, {"1": 1002, "2": 1002})
    blocks.release(block, [2])
    assert state(block) == ([None, 0, None, None], [3, 0, 2], [second], 1003, {"1": 1002})


def test_life_cycle_of_a_block_with_a_cooldown() -> None:
    """The documents in the datastore are compared byte for byte."""
    codec, key = Codec(DEFAULT), BlockKey(CIDR)
    written: list[bytes] = []

    def stored(block: Block) -> Block:
        block.sequence += 1
        written.append(codec.encode(block))
        found = codec.decode(key, written[-1])
        assert isinstance(found, Block)
        return found

    block = new()
    written.append(codec.encode(block))
    blocks.assign(block, owner("a", node="node1"))
    block = stored(block)
    blocks.release(block, blocks.held_by(block, "a"), Cooldown(60, NOW))
    block = stored(block)
    blocks.free_expired(block, Cooldown(0, NOW))
    written.append(codec.encode(block))
    for _ in range(2):
        blocks.assign(block, owner("b", node="node1"))
    block = stored(block)
    blocks.release(block, [2], Cooldown(0, NOW))
    written.append(codec.encode(block))
    a, b = '{"handle_id":"a","secondary":{"node":"node1"}}', '{"handle_id":"b","secondary":{"node":"node1"}}'
    assert [text.decode() for text in written] == [
        _document("null,null,null,null", "0,1,2,3", "null", 1000, ""),
        _document("0,null,null,null", "1,2,3", f"[{a}]", 1001, '"0":1000'),
        _document("0,null,null,null", "1,2,3", '[{"releasedAt":"2026-11-20T18:03:21Z"}]', 1002, '"0":1000'),
        _document("null,null,null,null", "1,2,3,0", "[]", 1002, ""),
        _document("null,0,0,null", "3,0", f"[{b}]", 1003, '"1":1002,"2":1002'),
        _document("null,0,null,null", "3,0,2", f"[{b}]", 1003, '"1":1002'),
    ]


def _document(allocations: str, unallocated: str, attributes: str, sequence: int, ordinals: str) -> str:
    return (
        '{"cidr":"10.65.0.64/30","affinity":"host:node1","affinity_claim_time":"2026-11-20T18:03:21Z",'
        f'"allocations":[{allocations}],"unallocated":[{unallocated}],"attributes":{attributes},"sequenceNumber":{sequence},'
        f'"sequenceNumberForAllocation":{{{ordinals}}},"deleted":false}}'
    )


@pytest.mark.parametrize(
    ("seconds", "passed", "free"), [(60, 60, 0), (60, 61, 1), (0, 0, 1), (-1, 0, 1), (3600, 61, 0), (60, -60, 0), (60, -61, 1)]
)
def test_addresses_are_freed_after_the_cooldown(seconds: int, passed: int, free: int) -> None:
    """More time than the cooldown must have passed since the release. An address is also freed if the clock is behind the
    release by more than the cooldown, because it was set back or belongs to another node."""
    block = new()
    blocks.assign(block, owner("a"))
    blocks.release(block, [0], Cooldown(60, NOW))
    assert (blocks.has_cooldown(block), blocks.is_empty(block)) == (True, False)
    blocks.free_expired(block, Cooldown(seconds, NOW.replace(microsecond=0) + timedelta(seconds=passed)))
    assert block.ordinals.free == 3 + free
    assert blocks.is_empty(block) is bool(free)


def test_addresses_released_together_share_an_attribute() -> None:
    """A release by address also changes their sequence numbers; a release by handle keeps them."""
    block = write(new())
    for _ in range(4):
        blocks.assign(block, owner("a"))
    block = write(block)
    blocks.release(block, [0, 1], Cooldown(60, NOW), restamp=True)
    blocks.release(block, [3], Cooldown(60, NOW))
    assert block.attributes == [owner("a"), Attribute(released_at="2026-11-20T18:03:21Z")]
    assert block.ordinals.allocations() == [1, 1, 0, 1]
    assert block.ordinal_sequences == {0: 1002, 1: 1002, 2: 1001, 3: 1001}
    blocks.free_expired(block, Cooldown(60, NOW + timedelta(seconds=99)))
    assert (block.ordinals.unallocated(), block.attributes) == ([0, 1, 3], [owner("a")])


def test_block_with_only_windows_reserved_addresses_is_empty() -> None:
    """A Windows node reserves the first three addresses and the last one. The case of the handle does not matter."""
    data = new(Cidr("10.65.0.64/29")).to_json()
    data |= {"allocations": [0, 0, 0, None, None, None, None, 0], "unallocated": [3, 4, 5, 6]}
    data["attributes"] = [{"handle_id": "Windows-Reserved-IPAM-Handle", "secondary": {"note": "windows host rsvd"}}]
    block = Block.from_json(data)
    assert blocks.is_empty(block)
    assert blocks.assign(block, owner("a")) == Address("10.65.0.67")
    assert not blocks.is_empty(block)
    blocks.release(block, [3])
    assert blocks.is_empty(block)
    assert block.to_json()["allocations"] == data["allocations"]


def test_new_block_equals_the_captured_one() -> None:
    """Calico wrote the captured block for its first address. The order of the fields is equal as well."""
    captured = _captured("etcd-1-add-ipv4.jsonl")
    block = blocks.new_block(Cidr("10.77.0.128/26"), "host:node1", NOW)
    block.sequence = captured["sequenceNumber"] - 1
    secondary = captured["attributes"][0]["secondary"]
    blocks.assign(block, Attribute("net1.c1", secondary))
    assert json.dumps(write(block).to_json()) == json.dumps(captured)


def test_encoded_owners_take_little_memory() -> None:
    """A result of the encoder occupies 4 KiB or more, and a node keeps one for each of its addresses."""
    owners = [owner(f"net1.c{number}", node="node1", pod=f"pod{number}") for number in range(100)]
    for each in owners:
        each.encoded()  # what is made once is not counted
    tracemalloc.start()
    try:
        owners = [owner(f"net1.c{number}", node="node1", pod=f"pod{number}") for number in range(100)]
        before, _ = tracemalloc.get_traced_memory()
        for each in owners:
            each.encoded()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100 * 400


def test_released_block_equals_the_captured_one() -> None:
    """Both handles of the captured block are released."""
    before = _captured("etcd-2-add-pod-dual.jsonl")
    block = Block.from_json(before)
    for handle, after in (("net1.c1", "etcd-3-del-ipv4.jsonl"), ("net1.c2", "etcd-4-del-all.jsonl")):
        blocks.release(block, blocks.held_by(block, handle))
        block = write(block)
        assert json.dumps(block.to_json()) == json.dumps(_captured(after))


def test_sequences_start_at_the_time_in_nanoseconds() -> None:
    """A block that is deleted and created again therefore never repeats a sequence number."""
    block = blocks.new_block(CIDR, "host:node1", NOW)
    assert block.sequence == 1_795_197_801_779_619_000
    assert block.claimed_at == "2026-11-20T18:03:21Z"
    later = blocks.new_block(CIDR, "host:node1", NOW + timedelta(microseconds=1))
    assert later.sequence == block.sequence + 1000


def test_claim_times_are_utc() -> None:
    """The time zone of the given time does not matter."""
    local = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert blocks.new_block(CIDR, "host:node1", local) == blocks.new_block(CIDR, "host:node1", NOW)


def test_first_and_last_address_are_assigned() -> None:
    """A block is not a subnet: it has no network and no broadcast address."""
    block = new()
    assert [str(blocks.assign(block, owner(str(n)))) for n in range(SIZE)] == addresses(block, 0, 1, 2, 3)


def test_full_block_assigns_nothing() -> None:
    """The attempt does not change the block."""
    block = new()
    for number in range(SIZE):
        blocks.assign(block, owner(str(number)))
    before = block.to_json()
    assert blocks.assign(block, owner("late")) is None
    assert block.to_json() == before


def test_freed_addresses_are_assigned_last() -> None:
    """The address that was freed last is assigned last."""
    block = new()
    for number in range(SIZE):
        blocks.assign(block, owner(str(number)))
    for ordinal in (2, 0, 3):
        blocks.release(block, [ordinal])
    assert [str(blocks.assign(block, owner("again"))) for _ in range(3)] == addresses(block, 2, 0, 3)


def test_addresses_released_together_queue_in_ascending_order() -> None:
    """The order of the arguments does not matter."""
    block = new()
    for _ in range(SIZE):
        blocks.assign(block, owner("a"))
    blocks.release(block, [3, 0, 2])
    assert block.ordinals.unallocated() == [0, 2, 3]


def test_equal_owners_share_an_attribute() -> None:
    """The same handle with other secondary attributes is another entry."""
    block = new()
    for attribute in (owner("a", node="n"), owner("b", node="n"), owner("a", node="n"), owner("a", node="m")):
        blocks.assign(block, attribute)
    assert block.attributes == [owner("a", node="n"), owner("b", node="n"), owner("a", node="m")]
    assert block.ordinals.allocations() == [0, 1, 0, 2]
    assert blocks.held_by(block, "a") == [0, 2, 3]


def test_unused_attributes_are_removed() -> None:
    """The remaining attributes are renumbered in their order, and every address keeps its owner."""
    block = new()
    for handle in ("a", "b", "c", "b"):
        blocks.assign(block, owner(handle))
    blocks.release(block, [0])
    assert block.attributes == [owner("b"), owner("c")]
    assert block.ordinals.allocations() == [None, 0, 1, 0]
    blocks.release(block, [2])
    assert block.attributes == [owner("b")]
    assert block.ordinals.allocations() == [None, 0, None, 0]


def test_releasing_nothing_changes_nothing() -> None:
    """An empty release and the release of a free address change neither queue nor owners."""
    block = new()
    blocks.assign(block, owner("a"))
    before = block.to_json()
    blocks.release(block, [])
    blocks.release(block, [3])
    assert block.to_json() == before


def test_address_can_be_requested() -> None:
    """The address leaves the queue; the order of the others does not change."""
    block = new()
    assert blocks.assign_at(block, Address("10.65.0.66"), owner("a"))
    assert state(block)[:3] == ([None, None, 0, None], [0, 1, 3], [{"handle_id": "a"}])
    assert block.ordinal_sequences == {2: 1000}
    assert blocks.held_by(block, "a") == [2]


def test_assigned_address_is_not_assigned_again() -> None:
    """The refusal adds no attribute."""
    block = new()
    blocks.assign_at(block, Address("10.65.0.66"), owner("a"))
    before = block.to_json()
    assert not blocks.assign_at(block, Address("10.65.0.66"), owner("b"))
    assert block.to_json() == before
    assert blocks.allocation_of(block, Address("10.65.0.66")) == owner("a")
    assert blocks.allocation_of(block, Address("10.65.0.65")) is None


def test_allocation_has_the_sequence_number_of_the_block() -> None:
    """Allocations of one write share a sequence number. A release removes it."""
    block = new(sequence=7)
    blocks.assign(block, owner("a"))
    blocks.assign(block, owner("b"))
    block = write(block)
    blocks.assign(block, owner("c"))
    assert block.ordinal_sequences == {0: 7, 1: 7, 2: 8}
    blocks.release(block, [1])
    assert block.ordinal_sequences == {0: 7, 2: 8}


def test_block_without_allocations_is_empty() -> None:
    """A block is empty again after the last release."""
    block = new()
    assert blocks.is_empty(block)
    blocks.assign(block, owner("a"))
    assert not blocks.is_empty(block)
    blocks.release(block, [0])
    assert blocks.is_empty(block)


def test_copies_are_independent() -> None:
    """A discarded plan must not change the block that it was made from."""
    block = new()
    blocks.assign(block, owner("a"))
    before = block.to_json()
    duplicate = block.copy()
    blocks.assign(duplicate, owner("b"))
    blocks.release(duplicate, [0])
    duplicate.sequence += 1
    assert block.to_json() == before


def test_addresses_in_cooldown_are_not_free() -> None:
    """An address in cooldown has no owner and is not assigned. Other programs store such addresses as well."""
    block = new()
    blocks.assign(block, Attribute(released_at="2026-11-20T18:03:21Z"))
    assert str(blocks.assign(block, owner("a"))) == "10.65.0.65"
    assert blocks.held_by(block, "") == []
    assert not blocks.assign_at(block, Address("10.65.0.64"), owner("b"))


def test_allocation_without_an_attribute_is_refused() -> None:
    """Otherwise the address would belong to the next handle in the list of attributes."""
    block = new()
    blocks.assign(block, owner("a"))
    with pytest.raises(ValueError, match="attribute 0 of 0"):
        Block.from_json(block.to_json() | {"attributes": None})


@pytest.mark.parametrize(("text", "stored"), [("10.65.0.64/30", "10.65.0.64/30"), ("FD00:0::/122", "fd00::/122")])
def test_handles_name_blocks_canonically(text: str, stored: str) -> None:
    """Other programs may store other spellings."""
    assert Handle.from_json({"block": {text: 2}}) == Handle({stored: 2})


def test_handle_with_a_malformed_block_is_refused() -> None:
    """The error is raised when the handle is read, not when its addresses are released."""
    with pytest.raises(ValueError, match="nonsense"):
        Handle.from_json({"block": {"nonsense": 1}})


@pytest.mark.parametrize("cidr", ["10.0.0.0/32", "10.0.0.0/20", "fd00::/128", "fd00::/116"])
def test_blocks_of_every_size_fill_up(cidr: str) -> None:
    """Sizes range from a single address to the largest block."""
    block = new(Cidr(cidr))
    assigned = [blocks.assign(block, owner("a")) for _ in range(block.cidr.size)]
    assert assigned == [block.cidr.address(ordinal) for ordinal in range(block.cidr.size)]
    assert blocks.assign(block, owner("a")) is None
    blocks.release(block, range(block.cidr.size))
    assert (blocks.is_empty(block), block.attributes) == (True, [])


def _captured(name: str) -> Json:
    """Return the IPv4 block of a captured datastore."""
    entries = map(json.loads, (FIXTURES / name).read_text().splitlines())
    found: Json = json.loads(next(entry["value"] for entry in entries if "/assignment/ipv4/" in entry.get("key", "")))
    return found

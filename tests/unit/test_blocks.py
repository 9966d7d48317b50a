"""One block: the order of its addresses, who holds them, and its sequence numbers."""

import json
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
FULL = 4  # addresses of that block

Json = dict[str, Any]


def owner(handle: str, **secondary: str) -> Attribute:
    return Attribute(handle, secondary or None)


def held(block: Block, *ordinals: int) -> list[str]:
    return [str(block.cidr.address(ordinal)) for ordinal in ordinals]


def state(block: Block) -> tuple[Any, Any, Any, Any, Any]:
    """The columns that tell one stage of a block's life from another."""
    data = block.to_json()
    names = ("allocations", "unallocated", "attributes", "sequenceNumber", "sequenceNumberForAllocation")
    allocations, unallocated, attributes, sequence, by_ordinal = (data[name] for name in names)
    return allocations, unallocated, attributes, sequence, by_ordinal


def test_life_of_a_block() -> None:
    """Every stage as other programs that share the datastore leave it, to the order of the free addresses."""
    block = new()
    assert state(block) == ([None] * 4, [0, 1, 2, 3], None, 1000, {})
    assert blocks.assign(block, owner("a", node="node1")) == Address("10.65.0.64")
    block = write(block)
    first = {"handle_id": "a", "secondary": {"node": "node1"}}
    assert state(block) == ([0, None, None, None], [1, 2, 3], [first], 1001, {"0": 1000})
    blocks.release(block, blocks.held_by(block, "a"))
    block = write(block)
    assert state(block) == ([None] * 4, [1, 2, 3, 0], [], 1002, {})
    taken = [blocks.assign(block, owner("b", node="node1")) for _ in range(2)]
    assert taken == [Address("10.65.0.65"), Address("10.65.0.66")]
    block = write(block)
    second = {"handle_id": "b", "secondary": {"node": "node1"}}
    assert state(block) == ([None, 0, 0, None], [3, 0], [second], 1003, {"1": 1002, "2": 1002})
    blocks.release(block, [2])
    assert state(block) == ([None, 0, None, None], [3, 0, 2], [second], 1003, {"1": 1002})


def test_life_of_a_block_with_a_cooldown() -> None:
    """The golden life cycle, byte for byte as documents in the datastore."""
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
def test_addresses_rest_for_longer_than_the_cooldown(seconds: int, passed: int, free: int) -> None:
    """The time since the release must exceed it; without one they are free at once. A clock that was set back since, or that
    of another node, keeps them for no more than the cooldown."""
    block = new()
    blocks.assign(block, owner("a"))
    blocks.release(block, [0], Cooldown(60, NOW))
    assert (blocks.has_cooldown(block), blocks.is_empty(block)) == (True, False)
    blocks.free_expired(block, Cooldown(seconds, NOW.replace(microsecond=0) + timedelta(seconds=passed)))
    assert block.ordinals.free == 3 + free
    assert blocks.is_empty(block) is bool(free)


def test_released_together_rest_together() -> None:
    """They share what is said of them; by address they get a new sequence as well, by handle they keep theirs."""
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


def test_what_another_system_sets_aside_leaves_a_block_empty() -> None:
    """As such a node makes its blocks: the first three and the last address, under a handle of any case."""
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


def test_new_blocks_look_as_captured() -> None:
    """All fields, in their order, as another program wrote them for its first address."""
    captured = _captured("etcd-1-add-ipv4.jsonl")
    block = blocks.new_block(Cidr("10.77.0.128/26"), "host:node1", NOW)
    block.sequence = captured["sequenceNumber"] - 1
    secondary = captured["attributes"][0]["secondary"]
    blocks.assign(block, Attribute("net1.c1", secondary))
    assert json.dumps(write(block).to_json()) == json.dumps(captured)


def test_released_blocks_look_as_captured() -> None:
    """What is left after both holders of the captured block have gone."""
    before = _captured("etcd-2-add-pod-dual.jsonl")
    block = Block.from_json(before)
    for handle, after in (("net1.c1", "etcd-3-del-ipv4.jsonl"), ("net1.c2", "etcd-4-del-all.jsonl")):
        blocks.release(block, blocks.held_by(block, handle))
        block = write(block)
        assert json.dumps(block.to_json()) == json.dumps(_captured(after))


def test_sequences_start_at_the_time_in_nanoseconds() -> None:
    """So a block that is deleted and made again never repeats a sequence of its former life."""
    block = blocks.new_block(CIDR, "host:node1", NOW)
    assert block.sequence == 1_795_197_801_779_619_000
    assert block.claimed_at == "2026-11-20T18:03:21Z"
    later = blocks.new_block(CIDR, "host:node1", NOW + timedelta(microseconds=1))
    assert later.sequence == block.sequence + 1000


def test_claim_times_are_utc() -> None:
    """In every time zone of the clock that was read."""
    local = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert blocks.new_block(CIDR, "host:node1", local) == blocks.new_block(CIDR, "host:node1", NOW)


def test_first_and_last_address_are_handed_out() -> None:
    """A block is not a subnet: it has no network and no broadcast address."""
    block = new()
    assert [str(blocks.assign(block, owner(str(n)))) for n in range(FULL)] == held(block, 0, 1, 2, 3)


def test_a_full_block_gives_nothing() -> None:
    """And is not changed by the question."""
    block = new()
    for number in range(FULL):
        blocks.assign(block, owner(str(number)))
    before = block.to_json()
    assert blocks.assign(block, owner("late")) is None
    assert block.to_json() == before


def test_freed_addresses_rest_longest() -> None:
    """The address freed last is handed out last."""
    block = new()
    for number in range(FULL):
        blocks.assign(block, owner(str(number)))
    for ordinal in (2, 0, 3):
        blocks.release(block, [ordinal])
    assert [str(blocks.assign(block, owner("again"))) for _ in range(3)] == held(block, 2, 0, 3)


def test_addresses_released_together_queue_in_ascending_order() -> None:
    """In any order of their names."""
    block = new()
    for _ in range(FULL):
        blocks.assign(block, owner("a"))
    blocks.release(block, [3, 0, 2])
    assert block.ordinals.unallocated() == [0, 2, 3]


def test_equal_owners_share_an_attribute() -> None:
    """Equal to the last detail: the same handle with other details is another entry."""
    block = new()
    for attribute in (owner("a", node="n"), owner("b", node="n"), owner("a", node="n"), owner("a", node="m")):
        blocks.assign(block, attribute)
    assert block.attributes == [owner("a", node="n"), owner("b", node="n"), owner("a", node="m")]
    assert block.ordinals.allocations() == [0, 1, 0, 2]
    assert blocks.held_by(block, "a") == [0, 2, 3]


def test_unused_attributes_are_dropped_and_renumbered() -> None:
    """Those that stay keep their order, and every address its holder."""
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
    """An empty release and one of a free address leave queue and holders alone."""
    block = new()
    blocks.assign(block, owner("a"))
    before = block.to_json()
    blocks.release(block, [])
    blocks.release(block, [3])
    assert block.to_json() == before


def test_an_address_can_be_asked_for() -> None:
    """It leaves the queue; the others keep their places."""
    block = new()
    assert blocks.assign_at(block, Address("10.65.0.66"), owner("a"))
    assert state(block)[:3] == ([None, None, 0, None], [0, 1, 3], [{"handle_id": "a"}])
    assert block.ordinal_sequences == {2: 1000}
    assert blocks.held_by(block, "a") == [2]


def test_a_taken_address_is_not_given_again() -> None:
    """And the refusal leaves no attribute behind."""
    block = new()
    blocks.assign_at(block, Address("10.65.0.66"), owner("a"))
    before = block.to_json()
    assert not blocks.assign_at(block, Address("10.65.0.66"), owner("b"))
    assert block.to_json() == before
    assert blocks.allocation_of(block, Address("10.65.0.66")) == owner("a")
    assert blocks.allocation_of(block, Address("10.65.0.65")) is None


def test_every_allocation_remembers_the_write_before_it() -> None:
    """Those of one write share a sequence; a release forgets it."""
    block = new(sequence=7)
    blocks.assign(block, owner("a"))
    blocks.assign(block, owner("b"))
    block = write(block)
    blocks.assign(block, owner("c"))
    assert block.ordinal_sequences == {0: 7, 1: 7, 2: 8}
    blocks.release(block, [1])
    assert block.ordinal_sequences == {0: 7, 2: 8}


def test_a_block_is_empty_until_somebody_holds_it() -> None:
    """And again afterwards."""
    block = new()
    assert blocks.is_empty(block)
    blocks.assign(block, owner("a"))
    assert not blocks.is_empty(block)
    blocks.release(block, [0])
    assert blocks.is_empty(block)


def test_copies_are_independent() -> None:
    """A plan that is thrown away must not have changed what it was made from."""
    block = new()
    blocks.assign(block, owner("a"))
    before = block.to_json()
    twin = block.copy()
    blocks.assign(twin, owner("b"))
    blocks.release(twin, [0])
    twin.sequence += 1
    assert block.to_json() == before


def test_addresses_that_cool_down_are_not_free() -> None:
    """Other programs keep a released address in cooldown: it has no owner, and is not assigned."""
    block = new()
    blocks.assign(block, Attribute(released_at="2026-11-20T18:03:21Z"))
    assert str(blocks.assign(block, owner("a"))) == "10.65.0.65"
    assert blocks.held_by(block, "") == []
    assert not blocks.assign_at(block, Address("10.65.0.64"), owner("b"))


def test_blocks_that_name_nobody_cannot_be_read() -> None:
    """An address would pass to the next handle in the list of owners."""
    block = new()
    blocks.assign(block, owner("a"))
    with pytest.raises(ValueError, match="attribute 0 of 0"):
        Block.from_json(block.to_json() | {"attributes": None})


@pytest.mark.parametrize(("text", "stored"), [("10.65.0.64/30", "10.65.0.64/30"), ("FD00:0::/122", "fd00::/122")])
def test_handles_name_blocks_canonically(text: str, stored: str) -> None:
    """However another program has spelled them."""
    assert Handle.from_json({"block": {text: 2}}) == Handle({stored: 2})


def test_handles_of_no_block_cannot_be_read() -> None:
    """It is better to fail here than where addresses are released."""
    with pytest.raises(ValueError, match="nonsense"):
        Handle.from_json({"block": {"nonsense": 1}})


@pytest.mark.parametrize("cidr", ["10.0.0.0/32", "10.0.0.0/20", "fd00::/128", "fd00::/116"])
def test_blocks_of_every_size_fill_up(cidr: str) -> None:
    """From a single address to the largest block."""
    block = new(Cidr(cidr))
    taken = [blocks.assign(block, owner("a")) for _ in range(block.cidr.size)]
    assert taken == [block.cidr.address(ordinal) for ordinal in range(block.cidr.size)]
    assert blocks.assign(block, owner("a")) is None
    blocks.release(block, range(block.cidr.size))
    assert (blocks.is_empty(block), block.attributes) == (True, [])


def _captured(name: str) -> Json:
    """The IPv4 block of a captured datastore."""
    entries = map(json.loads, (FIXTURES / name).read_text().splitlines())
    found: Json = json.loads(next(entry["value"] for entry in entries if "/assignment/ipv4/" in entry.get("key", "")))
    return found

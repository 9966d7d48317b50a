"""Blocks beside a twin that does the same the obvious way."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.blocks import new, write
from svc._core.cidr import Cidr
from svc.ipam import blocks
from svc.model.ipam import Attribute, Block


@dataclass
class Twin:
    """The same block, done the obvious way: who holds each address, and a list of the free ones."""

    holders: list[tuple[str, str] | None]
    queue: list[int]
    sequences: dict[int, int] = field(default_factory=dict)
    sequence: int = 1000

    def take(self, ordinal: int, holder: tuple[str, str]) -> None:
        self.queue.remove(ordinal)
        self.holders[ordinal] = holder
        self.sequences[ordinal] = self.sequence

    def release(self, ordinals: set[int]) -> None:
        for ordinal in sorted(ordinals):
            if self.holders[ordinal] is not None:
                self.holders[ordinal] = None
                self.queue.append(ordinal)
                del self.sequences[ordinal]

    def write(self) -> None:
        self.sequence += 1


HOLDERS = st.tuples(st.sampled_from("abc"), st.sampled_from("nm"))
ORDINALS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), HOLDERS),
        st.tuples(st.just("assign at"), ORDINALS, HOLDERS),
        st.tuples(st.just("release"), st.sets(ORDINALS)),
        st.tuples(st.just("release handle"), st.sampled_from("abc")),
        st.tuples(st.just("write")),
    ),
    max_size=40,
)


@given(STEPS)
def test_blocks_do_what_the_obvious_twin_does(steps: list[tuple[Any, ...]]) -> None:
    """Any sequence of assignments, releases and writes: same holders, same queue, same sequences."""
    block = new(Cidr("10.65.0.64/29"))
    twin = Twin([None] * 8, list(range(8)))
    for step in steps:
        block = _both(block, twin, *step)
        _demand_alike(block, twin)


def _both(block: Block, twin: Twin, what: str, *arguments: Any) -> Block:
    if what == "assign":
        got, expected = blocks.assign(block, _attribute(*arguments)), twin.queue[:1]
        assert [got] == [block.cidr.address(ordinal) for ordinal in expected] if expected else got is None
        if expected:
            twin.take(expected[0], *arguments)
    elif what == "assign at":
        ordinal, holder = arguments
        free = twin.holders[ordinal] is None
        assert blocks.assign_at(block, block.cidr.address(ordinal), _attribute(holder)) == free
        if free:
            twin.take(ordinal, holder)
    elif what == "write":
        twin.write()
        return write(block)
    elif what == "release":
        blocks.release(block, arguments[0])
        twin.release(arguments[0])
    else:
        blocks.release(block, blocks.held_by(block, arguments[0]))
        twin.release({ordinal for ordinal, who in enumerate(twin.holders) if who and who[0] == arguments[0]})
    return block


def _demand_alike(block: Block, twin: Twin) -> None:
    present = [blocks.allocation_of(block, block.cidr.address(ordinal)) for ordinal in range(8)]
    assert present == [None if who is None else _attribute(who) for who in twin.holders]
    assert block.ordinals.unallocated() == twin.queue
    assert (block.ordinal_sequences, block.sequence) == (twin.sequences, twin.sequence)
    distinct = {who for who in twin.holders if who}
    assert len(block.attributes or ()) == len(distinct)
    assert Block.from_json(block.to_json()) == block


def _attribute(holder: tuple[str, str]) -> Attribute:
    return Attribute(holder[0], {"node": holder[1]})

"""Blocks compared with a simple reference implementation."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.blocks import new, write
from svc._core.cidr import Cidr
from svc.ipam import blocks
from svc.model.ipam import Attribute, Block


@dataclass
class Reference:
    """A block as a list of owners and a list of free ordinals."""

    owners: list[tuple[str, str] | None]
    queue: list[int]
    sequences: dict[int, int] = field(default_factory=dict)
    sequence: int = 1000

    def assign(self, ordinal: int, owner: tuple[str, str]) -> None:
        self.queue.remove(ordinal)
        self.owners[ordinal] = owner
        self.sequences[ordinal] = self.sequence

    def release(self, ordinals: set[int]) -> None:
        for ordinal in sorted(ordinals):
            if self.owners[ordinal] is not None:
                self.owners[ordinal] = None
                self.queue.append(ordinal)
                del self.sequences[ordinal]

    def write(self) -> None:
        self.sequence += 1


OWNERS = st.tuples(st.sampled_from("abc"), st.sampled_from("nm"))
ORDINALS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), OWNERS),
        st.tuples(st.just("assign at"), ORDINALS, OWNERS),
        st.tuples(st.just("release"), st.sets(ORDINALS)),
        st.tuples(st.just("release handle"), st.sampled_from("abc")),
        st.tuples(st.just("write")),
    ),
    max_size=40,
)


@given(STEPS)
def test_block_behaves_like_the_reference(steps: list[tuple[Any, ...]]) -> None:
    """Owners, queue and sequence numbers are equal after any sequence of assignments, releases and writes."""
    block = new(Cidr("10.65.0.64/29"))
    reference = Reference([None] * 8, list(range(8)))
    for step in steps:
        block = _apply_to_both(block, reference, *step)
        _require_equal(block, reference)


def _apply_to_both(block: Block, reference: Reference, operation: str, *arguments: Any) -> Block:
    if operation == "assign":
        got, expected = blocks.assign(block, _attribute(*arguments)), reference.queue[:1]
        assert [got] == [block.cidr.address(ordinal) for ordinal in expected] if expected else got is None
        if expected:
            reference.assign(expected[0], *arguments)
    elif operation == "assign at":
        ordinal, owner = arguments
        free = reference.owners[ordinal] is None
        assert blocks.assign_at(block, block.cidr.address(ordinal), _attribute(owner)) == free
        if free:
            reference.assign(ordinal, owner)
    elif operation == "write":
        reference.write()
        return write(block)
    elif operation == "release":
        blocks.release(block, arguments[0])
        reference.release(arguments[0])
    else:
        blocks.release(block, blocks.held_by(block, arguments[0]))
        reference.release({ordinal for ordinal, owner in enumerate(reference.owners) if owner and owner[0] == arguments[0]})
    return block


def _require_equal(block: Block, reference: Reference) -> None:
    present = [blocks.allocation_of(block, block.cidr.address(ordinal)) for ordinal in range(8)]
    assert present == [None if owner is None else _attribute(owner) for owner in reference.owners]
    assert block.ordinals.unallocated() == reference.queue
    assert (block.ordinal_sequences, block.sequence) == (reference.sequences, reference.sequence)
    distinct = {owner for owner in reference.owners if owner}
    assert len(block.attributes or ()) == len(distinct)
    assert Block.from_json(block.to_json()) == block


def _attribute(owner: tuple[str, str]) -> Attribute:
    return Attribute(owner[0], {"node": owner[1]})

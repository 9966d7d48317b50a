"""Ordinals compared with a reference, a dict of tags and a deque of free ordinals; then edge cases and errors."""

import re
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from svc._core.bitmap import MAX_BITS, Ordinals, OrdinalSet

TAGS = st.integers(0, 5)
NUMBERS = st.integers(0, 63)
SETS = st.sets(st.integers(0, 31))


class OrdinalsBesideReference(RuleBasedStateMachine):
    """Ordinals are numbers of 0..63 modulo the size of the block, so that shrinking does not change the size."""

    @initialize(bits=st.integers(0, 5))
    def start(self, bits: int) -> None:
        self.size = 1 << bits
        self.block = Ordinals(bits)
        self.tags: dict[int, int] = {}
        self.queue = deque(range(self.size))

    def reserve(self, numbers: set[int]) -> OrdinalSet:
        return OrdinalSet(32, numbers)

    def reference_allocate(self, reserved: set[int], tag: int) -> int:
        for ordinal in self.queue:
            if ordinal not in reserved:
                self.queue.remove(ordinal)
                self.tags[ordinal] = tag
                return ordinal
        return -1

    def reference_release(self, ordinal: int) -> bool:
        if ordinal not in self.tags:
            return False
        del self.tags[ordinal]
        self.queue.append(ordinal)
        return True

    @rule(tag=TAGS, reserved=SETS)
    def allocates_first_unreserved(self, tag: int, reserved: set[int]) -> None:
        assert self.block.allocate(tag, self.reserve(reserved)) == self.reference_allocate(reserved, tag)

    @rule(tag=TAGS)
    def allocates_head_of_queue(self, tag: int) -> None:
        assert self.block.allocate(tag) == self.reference_allocate(set(), tag)

    @rule(count=st.integers(0, 40), tag=TAGS, reserved=SETS)
    def allocates_many(self, count: int, tag: int, reserved: set[int]) -> None:
        expected = [ordinal for ordinal in (self.reference_allocate(reserved, tag) for _ in range(count)) if ordinal >= 0]
        assert self.block.allocate_many(count, tag, self.reserve(reserved)) == expected

    @rule(number=NUMBERS, tag=TAGS)
    def allocates_this_ordinal(self, number: int, tag: int) -> None:
        ordinal = number % self.size
        assert self.block.allocate_at(ordinal, tag) == (ordinal not in self.tags)
        if ordinal not in self.tags:
            self.queue.remove(ordinal)
            self.tags[ordinal] = tag

    @rule(number=NUMBERS)
    def releases(self, number: int) -> None:
        assert self.block.release(number % self.size) == self.reference_release(number % self.size)

    @rule(numbers=st.lists(NUMBERS, max_size=20))
    def releases_many(self, numbers: list[int]) -> None:
        ordinals = [number % self.size for number in numbers]
        assert self.block.release_many(iter(ordinals)) == sum([self.reference_release(ordinal) for ordinal in ordinals])

    @rule(number=NUMBERS, tag=TAGS)
    def retags(self, number: int, tag: int) -> None:
        ordinal = number % self.size
        if ordinal in self.tags:
            self.block.retag(ordinal, tag)
            self.tags[ordinal] = tag
        else:
            with pytest.raises(KeyError):
                self.block.retag(ordinal, tag)

    @rule(new_tags=st.permutations(range(6)))
    def renumbers(self, new_tags: list[int]) -> None:
        self.block.renumber(new_tags)
        self.tags = {ordinal: new_tags[tag] for ordinal, tag in self.tags.items()}

    @rule()
    def continues_with_copy(self) -> None:
        original, self.block = self.block, self.block.copy()
        assert self.block == original
        original.release_many(range(self.size))
        original.allocate_many(self.size, 5)

    @rule()
    def continues_with_loaded_block(self) -> None:
        stored, self.block = self.block, Ordinals.load(self.block.allocations(), self.block.unallocated())
        assert self.block == stored

    @rule(reserved=SETS)
    def counts_available(self, reserved: set[int]) -> None:
        assert self.block.available(self.reserve(reserved)) == len(set(self.queue) - reserved)

    @invariant()
    def agrees_with_reference(self) -> None:
        assert self.block.size == self.size
        assert self.block.allocations() == [self.tags.get(ordinal) for ordinal in range(self.size)]
        assert self.block.unallocated() == list(self.queue)
        assert (self.block.free, self.block.used) == (len(self.queue), len(self.tags))
        assert self.block.available() == self.block.free
        assert [self.block.tag(ordinal) for ordinal in range(self.size)] == [
            self.tags.get(ordinal, -1) for ordinal in range(self.size)
        ]
        assert [ordinal for ordinal in range(-1, self.size + 1) if ordinal in self.block] == sorted(self.tags)
        for tag in range(6):
            assert self.block.tagged(tag) == sorted(ordinal for ordinal in self.tags if self.tags[ordinal] == tag)


TestOrdinalsBesideReference = OrdinalsBesideReference.TestCase
TestOrdinalsBesideReference.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def filled(bits: int, tag: int = 0) -> Ordinals:
    block = Ordinals(bits)
    block.allocate_many(block.size, tag)
    return block


@pytest.mark.parametrize(("bits", "size"), [(0, 1), (MAX_BITS, 4096)])
def test_smallest_and_largest_block_work(bits: int, size: int) -> None:
    block = Ordinals(bits)
    assert block.allocate_many(size + 1, 32767) == list(range(size))
    assert (block.size, block.free, block.used) == (size, 0, size)
    assert block.allocate(0) == -1
    assert block.release_many(range(size - 1, -1, -1)) == size
    assert block.unallocated() == list(range(size - 1, -1, -1))


@pytest.mark.parametrize("bits", [-1, MAX_BITS + 1, 2**70, -(2**70)])
def test_impossible_block_sizes_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=r"^bits -?\d+ is outside 0\.\.12$"):
        Ordinals(bits)


def test_released_ordinal_goes_to_the_end_of_the_queue() -> None:
    """The queue is FIFO, so that a released address is reused as late as possible."""
    block = Ordinals(2)
    assert [block.allocate(0), block.allocate(0)] == [0, 1]
    assert block.release(0)
    assert block.allocate_many(9, 0) == [2, 3, 0]


def test_reserved_ordinals_keep_their_position() -> None:
    block, reserved = Ordinals(2), OrdinalSet(4, [0, 2])
    assert block.available(reserved) == 2
    assert [block.allocate(0, reserved) for _ in range(3)] == [1, 3, -1]
    assert block.free == 2
    assert block.available(reserved) == 0
    assert block.unallocated() == [0, 2]
    assert block.allocate(0) == 0


def test_reserved_set_can_differ_in_size() -> None:
    block = Ordinals(2)
    assert block.available(OrdinalSet(2, [1])) == 3
    assert block.available(OrdinalSet(4096, [1, 4, 4095])) == 3
    assert block.allocate_many(4, 0, OrdinalSet(1, [0])) == [1, 2, 3]


def test_reserved_ordinal_can_be_requested() -> None:
    """Only a call that passes a reserved set skips its ordinals."""
    assert Ordinals(2).allocate_at(0, 1)


def test_allocate_many_accepts_any_count() -> None:
    block = Ordinals(1)
    assert block.allocate_many(0, 0) == []
    assert block.allocate_many(-1, 0) == []
    assert block.allocate_many(2**70, 0) == [0, 1]


OUTSIDE = pytest.mark.parametrize("ordinal", [-1, 4, 2**70, -(2**70)])


@OUTSIDE
@pytest.mark.parametrize(
    "call",
    [
        lambda block, ordinal: block.allocate_at(ordinal, 0),
        lambda block, ordinal: block.release(ordinal),
        lambda block, ordinal: block.release_many([ordinal]),
        lambda block, ordinal: block.tag(ordinal),
        lambda block, ordinal: block.retag(ordinal, 0),
    ],
    ids=["allocate_at", "release", "release_many", "tag", "retag"],
)
def test_ordinals_outside_are_refused(call: Callable[[Ordinals, int], object], ordinal: int) -> None:
    block = filled(2)
    with pytest.raises(IndexError, match=r"^ordinal -?\d+ is outside 0\.\.3$"):
        call(block, ordinal)
    assert block == filled(2)


@OUTSIDE
def test_ordinals_outside_are_not_members(ordinal: int) -> None:
    assert ordinal not in filled(2)


@pytest.mark.parametrize("tag", [-1, 32768, 2**70])
@pytest.mark.parametrize(
    "call",
    [
        lambda block, tag: block.allocate(tag),
        lambda block, tag: block.allocate_many(1, tag),
        lambda block, tag: block.allocate_at(1, tag),
        lambda block, tag: block.retag(0, tag),
        lambda block, tag: block.tagged(tag),
        lambda block, tag: block.renumber([tag]),
    ],
    ids=["allocate", "allocate_many", "allocate_at", "retag", "tagged", "renumber"],
)
def test_tags_outside_are_refused(call: Callable[[Ordinals, int], object], tag: int) -> None:
    block = Ordinals(1)
    block.allocate(0)
    before = block.copy()
    with pytest.raises(ValueError, match=r"^tag -?\d+ is outside 0\.\.32767$"):
        call(block, tag)
    assert block == before


@pytest.mark.parametrize("number", ["0", 0.0, None])
def test_only_integers_are_numbers(number: object) -> None:
    block = Ordinals(1)
    for call in (Ordinals, OrdinalSet, block.allocate, block.release, block.tag, block.tagged):
        with pytest.raises(TypeError):
            call(number)  # type: ignore[arg-type]
    assert block == Ordinals(1)


def test_release_many_is_atomic() -> None:
    block = filled(2)
    with pytest.raises(IndexError):
        block.release_many([0, 1, 4])
    assert block == filled(2)


def test_release_many_counts_each_ordinal_once() -> None:
    block = filled(2)
    assert block.release_many([3, 1, 3]) == 2
    assert block.unallocated() == [3, 1]


def test_retag_needs_an_allocated_ordinal() -> None:
    block = Ordinals(1)
    block.allocate_at(1, 4)
    with pytest.raises(KeyError, match="ordinal 0 is free"):
        block.retag(0, 1)
    block.retag(1, 5)
    assert block.allocations() == [None, 5]


def test_renumber_is_atomic() -> None:
    block = Ordinals(2)
    for tag in (0, 2, 1):
        block.allocate(tag)
    before = block.copy()
    with pytest.raises(IndexError, match="tag 2 of ordinal 1 has no new number: only 2 are given"):
        block.renumber([7, 8])
    assert block == before
    block.renumber([7, 8, 9])
    assert block.allocations() == [7, 9, 8, None]


def test_renumber_ignores_unused_tags() -> None:
    """The caller has no new number for an attribute that it removes."""
    block = filled(1, tag=1)
    block.renumber([-1, 0])
    assert block.allocations() == [0, 0]


@pytest.mark.parametrize(
    ("allocations", "unallocated", "error"),
    [
        ([], [], "0 allocations: not a power of two up to 4096"),
        ([None] * 3, [0, 1, 2], "3 allocations: not a power of two up to 4096"),
        ([None] * 8192, [], "8192 allocations: not a power of two up to 4096"),
        ([0, -1], [], "allocations[1] is -1, not a tag of 0..32767"),
        ([32768, 0], [], "allocations[0] is 32768, not a tag of 0..32767"),
        ([2**70, 0], [], f"allocations[0] is {2**70}, not a tag of 0..32767"),
        (["x", 0], [], "allocations[0] is 'x', not a tag of 0..32767"),
        ([0.0, 0], [], "allocations[0] is 0.0, not a tag of 0..32767"),
        ([None, 0], [2], "unallocated[0] is 2, not an ordinal of 0..1"),
        ([None, 0], [0, -1], "unallocated[1] is -1, not an ordinal of 0..1"),
        ([None, 0], [None], "unallocated[0] is None, not an ordinal of 0..1"),
        ([None, 0], [0, 1], "unallocated[1] is 1, which is allocated"),
        ([None, None], [1, 0, 1], "unallocated[2] is 1, which occurs twice"),
        ([None, 0, None, None], [3, 0], "ordinal 2 is neither allocated nor in unallocated"),
    ],
)
def test_load_names_each_error(allocations: list[int | None], unallocated: list[int], error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        Ordinals.load(allocations, unallocated)


def test_loaded_block_keeps_queue_order() -> None:
    block = Ordinals.load([None, 3, None, None], (2, 0, 3))
    assert (block.free, block.used, block.tagged(3)) == (3, 1, [1])
    assert block.allocate_many(3, 0) == [2, 0, 3]


def test_copy_is_independent() -> None:
    block = Ordinals(2)
    block.allocate(1)
    duplicate = block.copy()
    duplicate.release(0)
    duplicate.allocate_many(2, 2)
    assert block.allocations() == [1, None, None, None]
    assert block.unallocated() == [1, 2, 3]


def test_equality_compares_tags_and_queue() -> None:
    block = filled(1)
    assert block == filled(1)
    assert block != filled(1, tag=1)
    assert block != filled(2)
    block.release_many([1, 0])
    assert block != Ordinals(1)
    assert block == Ordinals.load([None, None], [1, 0])
    assert block != "block"


def test_blocks_have_no_hash() -> None:
    """Blocks are mutable, so a set could not find them again."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ordinals(1))


def test_repr_shows_the_usage() -> None:
    assert repr(filled(2)) == "<Ordinals size=4 used=4>"
    assert repr(OrdinalSet(8, [1])) == "<OrdinalSet size=8 set=1>"


@pytest.mark.parametrize("size", [0, -1, 4097, 2**70])
def test_impossible_set_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r"^size -?\d+ is outside 1\.\.4096$"):
        OrdinalSet(size)


def test_set_contains_the_added_ordinals() -> None:
    ordinals = OrdinalSet(4096, (0, 63, 64, 64))
    ordinals.add_range(4000, 4095)
    ordinals.add_range(7, 7)
    expected = {0, 7, 63, 64, *range(4000, 4096)}
    assert {ordinal for ordinal in range(-64, 4160) if ordinal in ordinals} == expected
    assert (len(ordinals), ordinals.size) == (len(expected), 4096)
    assert 2**70 not in ordinals


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (0, 8), (8, 8), (3, 2), (0, 2**70)])
def test_impossible_ranges_are_refused(first: int, last: int) -> None:
    ordinals = OrdinalSet(8)
    with pytest.raises(IndexError):
        ordinals.add_range(first, last)
    assert len(ordinals) == 0


def test_sets_refuse_ordinals_outside() -> None:
    with pytest.raises(IndexError, match=r"ordinal 8 is outside 0\.\.7"):
        OrdinalSet(8, [0, 8])

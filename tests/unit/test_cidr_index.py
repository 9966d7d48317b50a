"""The index of networks compared with a linear scan."""

import gc
import random
import weakref
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from harness.cidr_reference import EVERYWHERE, NEIGHBOURS, ReferenceNetwork, cidr, networks
from svc._core.cidr import Address, Cidr, CidrIndex


class IndexBesideReference(RuleBasedStateMachine):
    """The reference is a dict that is scanned from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.index: CidrIndex[int] = CidrIndex()
        self.reference: dict[ReferenceNetwork, int] = {}

    @rule(network=networks, value=st.integers())
    def inserts_or_replaces(self, network: ReferenceNetwork, value: int) -> None:
        self.index.insert(cidr(network), value)
        self.reference[network] = value

    @rule(network=networks)
    def removes_any(self, network: ReferenceNetwork) -> None:
        assert self.index.remove(cidr(network)) == (self.reference.pop(network, None) is not None)

    @rule(data=st.data())
    def removes_an_inserted_one(self, data: st.DataObject) -> None:
        if self.reference:
            network = data.draw(st.sampled_from(list(self.reference)))
            assert self.index.remove(cidr(network))
            del self.reference[network]

    @rule(network=networks)
    def finds_exact(self, network: ReferenceNetwork) -> None:
        assert self.index.exact(cidr(network)) == self.reference.get(network)

    @rule(network=networks)
    def matches_longest(self, network: ReferenceNetwork) -> None:
        address = network.broadcast_address
        containing = [inserted for inserted in self.reference if address in inserted]
        expected = self.reference[max(containing, key=lambda inserted: inserted.prefixlen)] if containing else None
        assert self.index.match(Address(str(address))) == expected
        assert self.index.match_text(str(address)) == expected

    @rule(network=networks)
    def lists_overlapping(self, network: ReferenceNetwork) -> None:
        expected = sorted(cidr(inserted) for inserted in self.reference if inserted.overlaps(network))
        assert self.index.overlapping(cidr(network)) == expected

    @invariant()
    def agrees_with_reference(self) -> None:
        assert len(self.index) == len(self.reference)
        assert [inserted for all_ in EVERYWHERE for inserted in self.index.overlapping(all_)] == sorted(
            map(cidr, self.reference)
        )


TestIndexBesideReference = IndexBesideReference.TestCase
TestIndexBesideReference.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_index_handles_thousands_of_changes() -> None:
    """The table grows, and closes gaps in long runs. The state machine above is too short for both."""
    source, index, reference = random.Random(7), CidrIndex[int](), dict[Cidr, int]()
    universe = [Cidr(base).block(number, length) for base, length in NEIGHBOURS for number in range(2000)]
    for step in range(1, 40_000):
        network = source.choice(universe)
        if source.random() < (0.6 if step < 20_000 else 0.4):
            index.insert(network, step)
            reference[network] = step
        else:
            assert index.remove(network) == (reference.pop(network, None) is not None)
    assert len(index) == len(reference) > 2000
    for network in universe:
        containing = (Cidr.of(network.last, length) for length in range(network.bits, -1, -1))
        assert index.exact(network) == reference.get(network)
        assert index.match(network.last) == next(filter(None, map(reference.get, containing)), None)
    assert [inserted for all_ in EVERYWHERE for inserted in index.overlapping(all_)] == sorted(reference)
    assert all(index.remove(network) for network in reference)
    assert len(index) == 0
    assert not any(index.match(network.first) for network in universe)


def test_every_length_can_be_inserted() -> None:
    index = CidrIndex[int]()
    for address in map(Address, ("255.255.255.255", "ffff::ffff")):
        for length in range(address.bits + 1):
            index.insert(Cidr.of(address, length), length)
        for length in range(address.bits, -1, -1):
            assert index.match(address) == length
            assert index.remove(Cidr.of(address, length))
        assert index.match(address) is None


def test_versions_do_not_mix() -> None:
    """An IPv4 network is stored in the same bits as `a00::/8`."""
    index = CidrIndex[str]()
    index.insert(Cidr("10.0.0.0/8"), "IPv4")
    assert index.match_text("a00::1") is None
    assert index.exact(Cidr("a00::/8")) is None
    assert index.overlapping(EVERYWHERE[1]) == []
    index.insert(Cidr("a00::/8"), "IPv6")
    assert (index.match_text("a00::1"), index.match_text("10.0.0.1")) == ("IPv6", "IPv4")


def test_value_may_be_none() -> None:
    index = CidrIndex[None]()
    index.insert(EVERYWHERE[0], None)
    assert len(index) == 1
    assert index.overlapping(EVERYWHERE[0]) == [EVERYWHERE[0]]
    assert index.remove(EVERYWHERE[0])
    assert not index.remove(EVERYWHERE[0])


def test_index_refuses_none() -> None:
    index = CidrIndex[int]()
    for call in (partial(index.insert, value=1), index.remove, index.exact, index.match, index.overlapping):
        with pytest.raises(TypeError):
            call(None)  # type: ignore[arg-type]


class Value:
    """A value that allows weak references and runs a callback when it is destroyed."""

    def __init__(self, on_delete: Callable[[], object] = int) -> None:
        self.on_delete = on_delete

    def __del__(self) -> None:
        self.on_delete()


@pytest.mark.parametrize("how", ["replace", "remove", "index"])
def test_index_releases_its_values(how: str) -> None:
    index, value = CidrIndex[object](), Value()
    reference_to_value = weakref.ref(value)
    index.insert(EVERYWHERE[0], value)
    index.insert(EVERYWHERE[1], "other")
    del value
    assert index.match_text("10.0.0.1") is reference_to_value()
    if how == "replace":
        index.insert(EVERYWHERE[0], "new")
    elif how == "remove":
        index.remove(EVERYWHERE[0])
    else:
        del index
    assert reference_to_value() is None


def test_cycles_through_values_are_collected() -> None:
    index, value = CidrIndex[object](), Value()
    reference_to_value = weakref.ref(value)
    value.on_delete = partial(index.insert, EVERYWHERE[1], "too late")
    index.insert(EVERYWHERE[0], value)
    del index, value
    gc.collect()
    assert reference_to_value() is None


@pytest.mark.parametrize("again", [*EVERYWHERE, Cidr("10.0.0.0/8")])
def test_destroyed_value_can_change_the_index(again: Cidr) -> None:
    index = CidrIndex[object]()
    index.insert(EVERYWHERE[1], "other")
    index.insert(EVERYWHERE[0], Value(lambda: index.insert(again, "last words")))
    index.insert(Cidr("11.0.0.0/8"), "moves into the hole")
    index.remove(EVERYWHERE[0])
    assert index.exact(again) == "last words"
    assert index.exact(Cidr("11.0.0.0/8")) == "moves into the hole"
    assert len(index) == (2 if again in (EVERYWHERE[1],) else 3)

"""The index of networks against a linear scan."""

import gc
import random
import weakref
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from harness.cidr_reference import EVERYWHERE, NEIGHBOURS, TwinNetwork, cidr, networks
from svc._core.cidr import Address, Cidr, CidrIndex


class IndexBesideTwin(RuleBasedStateMachine):
    """The twin is a dict that is scanned from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.index: CidrIndex[int] = CidrIndex()
        self.twin: dict[TwinNetwork, int] = {}

    @rule(network=networks, value=st.integers())
    def inserts_or_replaces(self, network: TwinNetwork, value: int) -> None:
        self.index.insert(cidr(network), value)
        self.twin[network] = value

    @rule(network=networks)
    def removes_any(self, network: TwinNetwork) -> None:
        assert self.index.remove(cidr(network)) == (self.twin.pop(network, None) is not None)

    @rule(data=st.data())
    def removes_one_of_ours(self, data: st.DataObject) -> None:
        if self.twin:
            network = data.draw(st.sampled_from(list(self.twin)))
            assert self.index.remove(cidr(network))
            del self.twin[network]

    @rule(network=networks)
    def finds_exact(self, network: TwinNetwork) -> None:
        assert self.index.exact(cidr(network)) == self.twin.get(network)

    @rule(network=networks)
    def matches_longest(self, network: TwinNetwork) -> None:
        address = network.broadcast_address
        around = [held for held in self.twin if address in held]
        expected = self.twin[max(around, key=lambda held: held.prefixlen)] if around else None
        assert self.index.match(Address(str(address))) == expected
        assert self.index.match_text(str(address)) == expected

    @rule(network=networks)
    def lists_overlapping(self, network: TwinNetwork) -> None:
        expected = sorted(cidr(held) for held in self.twin if held.overlaps(network))
        assert self.index.overlapping(cidr(network)) == expected

    @invariant()
    def holds_what_twin_holds(self) -> None:
        assert len(self.index) == len(self.twin)
        assert [held for all_ in EVERYWHERE for held in self.index.overlapping(all_)] == sorted(map(cidr, self.twin))


TestIndexBesideTwin = IndexBesideTwin.TestCase
TestIndexBesideTwin.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_thousands_come_and_go() -> None:
    """Growth of the table, and gaps closed in long runs of it, which the machine above is too short-lived to see."""
    source, index, twin = random.Random(7), CidrIndex[int](), dict[Cidr, int]()
    universe = [Cidr(base).block(number, length) for base, length in NEIGHBOURS for number in range(2000)]
    for step in range(1, 40_000):
        network = source.choice(universe)
        if source.random() < (0.6 if step < 20_000 else 0.4):
            index.insert(network, step)
            twin[network] = step
        else:
            assert index.remove(network) == (twin.pop(network, None) is not None)
    assert len(index) == len(twin) > 2000
    for network in universe:
        around = (Cidr.of(network.last, length) for length in range(network.bits, -1, -1))
        assert index.exact(network) == twin.get(network)
        assert index.match(network.last) == next(filter(None, map(twin.get, around)), None)
    assert [held for all_ in EVERYWHERE for held in index.overlapping(all_)] == sorted(twin)
    assert all(index.remove(network) for network in twin)
    assert len(index) == 0
    assert not any(index.match(network.first) for network in universe)


def test_every_length_can_be_held() -> None:
    index = CidrIndex[int]()
    for address in map(Address, ("255.255.255.255", "ffff::ffff")):
        for length in range(address.bits + 1):
            index.insert(Cidr.of(address, length), length)
        for length in range(address.bits, -1, -1):
            assert index.match(address) == length
            assert index.remove(Cidr.of(address, length))
        assert index.match(address) is None


def test_versions_do_not_mix() -> None:
    """An IPv4 network is kept in the bits where `a00::/8` is."""
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
    """Something that can be watched, and that can act when it goes."""

    def __init__(self, last_act: Callable[[], object] = int) -> None:
        self.last_act = last_act

    def __del__(self) -> None:
        self.last_act()


@pytest.mark.parametrize("drop", ["replace", "remove", "index"])
def test_values_are_let_go(drop: str) -> None:
    index, value = CidrIndex[object](), Value()
    watched = weakref.ref(value)
    index.insert(EVERYWHERE[0], value)
    index.insert(EVERYWHERE[1], "other")
    del value
    assert index.match_text("10.0.0.1") is watched()
    if drop == "replace":
        index.insert(EVERYWHERE[0], "new")
    elif drop == "remove":
        index.remove(EVERYWHERE[0])
    else:
        del index
    assert watched() is None


def test_cycles_through_values_are_collected() -> None:
    index, value = CidrIndex[object](), Value()
    watched = weakref.ref(value)
    value.last_act = partial(index.insert, EVERYWHERE[1], "too late")
    index.insert(EVERYWHERE[0], value)
    del index, value
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("again", [*EVERYWHERE, Cidr("10.0.0.0/8")])
def test_dying_value_may_change_index(again: Cidr) -> None:
    index = CidrIndex[object]()
    index.insert(EVERYWHERE[1], "other")
    index.insert(EVERYWHERE[0], Value(lambda: index.insert(again, "last words")))
    index.insert(Cidr("11.0.0.0/8"), "moves into the hole")
    index.remove(EVERYWHERE[0])
    assert index.exact(again) == "last words"
    assert index.exact(Cidr("11.0.0.0/8")) == "moves into the hole"
    assert len(index) == (2 if again in (EVERYWHERE[1],) else 3)

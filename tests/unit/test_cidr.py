"""Addresses, networks and the index against the standard library's `ipaddress` and a linear scan."""

import copy
import gc
import ipaddress
import pickle
import random
import re
import weakref
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from svc._core.cidr import Address, Cidr, CidrIndex

TwinAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
TwinNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


def grouped_address(groups: list[int]) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(b"".join(group.to_bytes(2, "big") for group in groups))


def edit(text: str, place: int, removed: int, inserted: str) -> str:
    start = place % (len(text) + 1)
    return text[:start] + inserted + text[start + removed :]


def uncompressed(address: TwinAddress) -> str:
    return address.exploded.upper()


group = st.sampled_from([0, 0, 0, 1, 0xA, 0xFF, 0xFFFF]) | st.integers(0, 0xFFFF)
addresses = (
    st.ip_addresses()
    | st.lists(group, min_size=8, max_size=8).map(grouped_address)
    | st.integers(0, 2**32 - 1).map(lambda number: ipaddress.IPv6Address(0xFFFF << 32 | number))
)
written = addresses.map(str) | addresses.map(uncompressed)
misspelt = st.builds(edit, written, st.integers(0, 45), st.integers(0, 3), st.text(":.0123456789abfAFg%/ \u0661", max_size=4))


def canonical(address: TwinAddress) -> str:
    """RFC 5952. Whether `ipaddress` prints mapped addresses with a dotted tail depends on its version."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"::ffff:{mapped}" if mapped else str(address)


def twin_of(text: str) -> TwinAddress | None:
    """None for what is no plain address; unlike ours, the twin knows zones."""
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def parsed(text: str) -> Address | None:
    try:
        return Address(text)
    except ValueError:
        return None


@given(written)
@example("::ffff:0.0.0.0")
@example("1:2:3:4:5:6:7::")
def test_address_text_becomes_canonical(text: str) -> None:
    address, twin = Address(text), ipaddress.ip_address(text)
    assert str(address) == canonical(twin)
    assert Address(str(address)) == address
    assert repr(address) == f"Address('{address}')"


@given(addresses)
def test_address_parts_equal_twin(twin: TwinAddress) -> None:
    address = Address(str(twin))
    assert (int(address), address.packed) == (int(twin), twin.packed)
    assert (address.version, address.bits) == (twin.version, twin.max_prefixlen)
    assert Address.from_packed(twin.packed) == address
    assert str(address.host()) == f"{address}/{twin.max_prefixlen}"


@given(misspelt | st.text(max_size=20))
@settings(max_examples=500)
def test_parser_accepts_what_twin_accepts(text: str) -> None:
    address, twin = parsed(text), twin_of(text)
    assert (address and address.packed) == (twin and twin.packed)


BAD_ADDRESSES = [
    ("", "a number is missing"),
    ("host", "a number is missing"),
    ("1", "an IPv4 address has four numbers"),
    ("1.2.3", "an IPv4 address has four numbers"),
    ("1.2..4", "a number is missing"),
    (".1.2.3", "a number is missing"),
    ("1.2.3.", "a number is missing"),
    ("1.2.3.4.", "more text follows"),
    ("1.2.3.4.5", "more text follows"),
    ("01.2.3.4", "a number has leading zeros"),
    ("1.2.3.00", "a number has leading zeros"),
    ("1.2.3.256", "a number is too large"),
    ("1.2.3.4294967297", "a number is too large"),
    ("1.2.3.18446744073709551617", "a number is too large"),
    ("-1.2.3.4", "a number is missing"),
    ("+1.2.3.4", "a number is missing"),
    ("0x1.2.3.4", "an IPv4 address has four numbers"),
    (" 1.2.3.4", "a number is missing"),
    ("1.2.3.4 ", "more text follows"),
    ("1.2.3.4\n", "more text follows"),
    ("1.2.3.4\0", "more text follows"),
    ("1.2.3.\0", "a number is missing"),
    ("1.2.3.4/32", "a length is not accepted"),
    ("1.2.3.٤", "a number is missing"),
    (":", "a single colon stands first"),
    (":1", "a single colon stands first"),
    (":1:2:3:4:5:6:7", "a single colon stands first"),
    (":::", "more text follows"),
    ("1:", "a group is missing"),
    ("1:::2", "more text follows"),
    ("1::2::3", "there are two '::'"),
    ("::1::", "there are two '::'"),
    ("1:2:3:4:5:6:7", "there are too few groups"),
    ("1:2:3:4:5:6:7:", "a group is missing"),
    ("1:2:3:4:5:6:7:8:", "more text follows"),
    ("1:2:3:4:5:6:7:8:9", "more text follows"),
    ("1:2:3:4:5:6:7:8::", "more text follows"),
    ("1:2:3:4::5:6:7:8", "the '::' stands for no group"),
    ("::1:2:3:4:5:6:7:8", "the '::' stands for no group"),
    ("1:2:3:4:5:6::1.2.3.4", "the '::' stands for no group"),
    ("1:2:3:4:5:6:7:1.2.3.4", "there are too many groups"),
    ("1:2:3:4:5:1.2.3.4", "there are too few groups"),
    ("::12345", "a group has more than four digits"),
    ("::00001", "a group has more than four digits"),
    ("::g", "more text follows"),
    ("::1g", "more text follows"),
    ("::1.2.3", "an IPv4 address has four numbers"),
    ("::1.2.3.04", "a number has leading zeros"),
    ("::a.2.3.4", "a number is missing"),
    ("::1.2.3.4:5", "more text follows"),
    ("1.2.3.4::", "there are too few groups"),
    ("fe80::1%eth0", "a zone is not accepted"),
    ("::1/128", "a length is not accepted"),
    ("[::1]", "a group is missing"),
    ("::1 ", "more text follows"),
    ("::\0", "more text follows"),
]


@pytest.mark.parametrize(("text", "fault"), BAD_ADDRESSES)
def test_bad_address_is_named(text: str, fault: str) -> None:
    pattern = f"^{re.escape(f'{text!r} is no IP address: {fault}')}$"
    with pytest.raises(ValueError, match=pattern):
        Address(text)
    with pytest.raises(ValueError, match=pattern):
        CidrIndex[int]().match_text(text)


@pytest.mark.parametrize("make", [Address, Cidr, Cidr.masked, CidrIndex().match_text])
def test_text_must_be_text(make: Callable[[str], object]) -> None:
    for value in (b"10.0.0.1", 167772161, None, ipaddress.ip_address("10.0.0.1")):
        with pytest.raises(TypeError, match="is a str, not"):
            make(value)  # type: ignore[arg-type]


def test_lone_surrogate_is_no_address() -> None:
    """A name the kernel gave us may hold one; it has no UTF-8."""
    with pytest.raises(ValueError, match="surrogates"):
        Address("10.0.0.\udc31")


@pytest.mark.parametrize("size", [0, 3, 5, 15, 17])
def test_packed_address_has_fixed_size(size: int) -> None:
    with pytest.raises(ValueError, match=f"has 4 or 16 bytes, not {size}"):
        Address.from_packed(bytes(size))


LENGTH_STEPS = [0, 1, 3, 4, 5, 24, 28, 29, 31, 32, 33, 64, 124, 125, 127, 128]


def near_network(version: int, head: int, tail: int, length: int) -> TwinNetwork:
    """Only the first and last four bits differ, so that any two of these are likely to touch."""
    bits = 32 if version == 4 else 128
    value = (head << bits - 4 | tail).to_bytes(bits // 8, "big")
    return ipaddress.ip_network((value, min(length, bits)), strict=False)


versions = st.sampled_from([4, 6])
nibble = st.integers(0, 15)
networks = st.builds(near_network, versions, nibble, nibble, st.sampled_from(LENGTH_STEPS) | st.integers(0, 128))
EVERYWHERE = [Cidr("0.0.0.0/0"), Cidr("::/0")]


def cidr(twin: TwinNetwork) -> Cidr:
    return Cidr(str(twin))


def holds(outer: TwinNetwork, inner: TwinNetwork) -> bool:
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def network_of(address: TwinAddress, length: int) -> TwinNetwork:
    return ipaddress.ip_network((address.packed, length), strict=False)


@given(networks)
def test_network_parts_equal_twin(twin: TwinNetwork) -> None:
    network = cidr(twin)
    assert (network.version, network.bits, network.length) == (twin.version, twin.max_prefixlen, twin.prefixlen)
    assert network.size == twin.num_addresses
    assert str(network.first) == canonical(twin.network_address)
    assert str(network.last) == canonical(twin.broadcast_address)
    assert str(network) == f"{canonical(twin.network_address)}/{twin.prefixlen}"
    assert repr(network) == f"Cidr('{network}')"


@given(addresses, st.integers(0, 128))
def test_masking_equals_loose_twin(twin: TwinAddress, length: int) -> None:
    length = min(length, twin.max_prefixlen)
    text, network = f"{twin}/{length}", cidr(network_of(twin, length))
    assert Cidr.masked(text) == Cidr.of(Address(str(twin)), length) == network
    if network.first == Address(str(twin)):
        assert Cidr(text) == network
    else:
        with pytest.raises(ValueError, match=re.escape(f"the network is '{network}'")):
            Cidr(text)


@given(addresses)
def test_bare_address_means_full_length(twin: TwinAddress) -> None:
    address = Address(str(twin))
    assert Cidr.masked(str(twin)) == address.host() == Cidr.of(address, address.bits)
    assert address.host().size == 1


BAD_NETWORKS = [
    ("10.0.0.0/", "a number is missing"),
    ("10.0.0.0/33", "a number is too large"),
    ("::/129", "a number is too large"),
    ("::/18446744073709551617", "a number is too large"),
    ("10.0.0.0/08", "a number has leading zeros"),
    ("10.0.0.0/00", "a number has leading zeros"),
    ("10.0.0.0/+8", "a number is missing"),
    ("10.0.0.0/-8", "a number is missing"),
    ("10.0.0.0/ 8", "a number is missing"),
    ("10.0.0.0/8 ", "more text follows"),
    ("10.0.0.0 /8", "more text follows"),
    ("10.0.0.0/8\0", "more text follows"),
    ("10.0.0.0/8/8", "a length is not accepted"),
    ("10.0.0.0/255.0.0.0", "a number is too large"),
    ("10.0.0.0/8.0", "more text follows"),
    ("10/8", "an IPv4 address has four numbers"),
    ("/8", "a number is missing"),
    ("fe80::%1/64", "a zone is not accepted"),
    ("fe80::/64%1", "a zone is not accepted"),
    ("fe80:/64", "a group is missing"),
]


@pytest.mark.parametrize("make", [Cidr, Cidr.masked])
@pytest.mark.parametrize(("text", "fault"), BAD_NETWORKS)
def test_bad_network_is_named(make: Callable[[str], Cidr], text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{text!r} is no network: {fault}')}$"):
        make(text)


def test_strict_network_needs_length() -> None:
    with pytest.raises(ValueError, match=r"^'10\.0\.0\.0' is no network: the length is missing$"):
        Cidr("10.0.0.0")


@given(networks, networks)
def test_containment_and_overlap_equal_twin(one: TwinNetwork, other: TwinNetwork) -> None:
    assert (cidr(one) in cidr(other)) == holds(other, one)
    assert (cidr(other) in cidr(one)) == holds(one, other)
    assert cidr(one).overlaps(cidr(other)) == cidr(other).overlaps(cidr(one)) == one.overlaps(other)
    assert (cidr(one).first in cidr(other)) == (one.network_address in other)
    assert (cidr(one).last in cidr(other)) == (one.broadcast_address in other)


def test_membership_wants_the_right_type() -> None:
    for value in ("10.0.0.1", None, 1):
        with pytest.raises(TypeError):
            assert value in EVERYWHERE[0]  # type: ignore[operator]


@given(networks, st.data())
def test_places_and_addresses_correspond(twin: TwinNetwork, data: st.DataObject) -> None:
    network, place = cidr(twin), data.draw(st.integers(0, twin.num_addresses - 1))
    address = network.address(place)
    assert str(address) == canonical(twin[place])
    assert network.ordinal(address) == place
    assert address in network


@given(networks, st.data())
def test_blocks_divide_their_network(twin: TwinNetwork, data: st.DataObject) -> None:
    length = data.draw(st.integers(twin.prefixlen, twin.max_prefixlen))
    count = 2 ** (length - twin.prefixlen)
    number = data.draw(st.integers(0, count - 1))
    network, size = cidr(twin), 2 ** (twin.max_prefixlen - length)
    block = network.block(number, length)
    assert network.block_count(length) == count
    assert block == cidr(network_of(twin[number * size], length))
    assert block in network
    assert network.block_of(block.first, length) == network.block_of(block.last, length) == block


@given(networks, st.integers(0, 128))
def test_places_outside_are_refused(twin: TwinNetwork, length: int) -> None:
    network, length = cidr(twin), min(max(length, twin.prefixlen), twin.max_prefixlen)
    for place in (-1, network.size, network.size + 2**128, -(2**128)):
        with pytest.raises(IndexError, match=f"the places of {network}"):
            network.address(place)
    for number in (-1, network.block_count(length), 2**200):
        with pytest.raises(IndexError, match=f"the places of {network}"):
            network.block(number, length)


def test_places_are_whole_numbers() -> None:
    for place in (1.0, "1", None):
        with pytest.raises(TypeError):
            EVERYWHERE[0].address(place)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [-1, 7, 33, 2**70, -(2**70)])
def test_impossible_block_lengths_are_refused(length: int) -> None:
    network, address = Cidr("10.0.0.0/8"), Address("10.1.2.3")
    for call in (network.block_count, partial(network.block, 0), partial(network.block_of, address)):
        with pytest.raises(ValueError, match=r"^length -?\d+ is outside 8\.\.32$"):
            call(length)


@pytest.mark.parametrize("length", [-1, 33, 2**70])
def test_impossible_network_lengths_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=r"^length -?\d+ is outside 0\.\.32$"):
        Cidr.of(Address("10.1.2.3"), length)


@pytest.mark.parametrize("text", ["9.255.255.255", "11.0.0.0", "::a00:0"])
def test_addresses_outside_have_no_place(text: str) -> None:
    network, address = Cidr("10.0.0.0/8"), Address(text)
    for call in (network.ordinal, partial(network.block_of, length=16)):
        with pytest.raises(ValueError, match=f"^{address} is not inside 10.0.0.0/8$"):
            call(address)


@given(st.lists(addresses, max_size=8))
def test_addresses_sort_like_numbers(twins: list[TwinAddress]) -> None:
    expected = sorted(twins, key=lambda twin: (twin.version, int(twin)))
    assert sorted(Address(str(twin)) for twin in twins) == [Address(str(twin)) for twin in expected]


@given(st.lists(networks, max_size=8))
def test_networks_sort_by_place_then_length(twins: list[TwinNetwork]) -> None:
    expected = sorted(twins, key=lambda twin: (twin.version, int(twin.network_address), twin.prefixlen))
    assert sorted(map(cidr, twins)) == [cidr(twin) for twin in expected]


@given(networks, networks)
def test_equality_is_equality_of_text(one: TwinNetwork, other: TwinNetwork) -> None:
    pairs: list[tuple[object, object]] = [(cidr(one), cidr(other)), (cidr(one).first, cidr(other).first)]
    for ours, theirs in pairs:
        assert (ours == theirs) == (str(ours) == str(theirs))
        assert (ours != theirs) == (str(ours) != str(theirs))
        assert ours != theirs or hash(ours) == hash(theirs)


@given(networks, networks)
def test_order_is_strict(one: TwinNetwork, other: TwinNetwork) -> None:
    """Exactly one of less, equal and greater holds."""
    assert [cidr(one) < cidr(other), cidr(one) == cidr(other), cidr(other) < cidr(one)].count(True) == 1


def test_address_network_and_text_differ() -> None:
    address: object = Address("10.0.0.1")
    assert address not in (Cidr("10.0.0.1/32"), "10.0.0.1", 167772161)
    assert Cidr("10.0.0.1/32") not in [address, "10.0.0.1/32"]
    with pytest.raises(TypeError, match="'<' not supported"):
        assert Address("10.0.0.1") < Cidr("10.0.0.1/32")  # type: ignore[operator]
    with pytest.raises(TypeError, match="'<' not supported"):
        assert Cidr("10.0.0.1/32") < "10.0.0.2/32"  # type: ignore[operator]


NEIGHBOURS = [("10.0.0.0/8", 20), ("10.0.0.0/8", 26), ("10.0.0.0/8", 32), ("fd00::/16", 64), ("fd00::/64", 122)]


@pytest.mark.parametrize(("base", "length"), NEIGHBOURS)
def test_hash_spreads_neighbours(base: str, length: int) -> None:
    """Random numbers would hit some 2600 of the 4096 buckets; a hash that stirs high bits only hits a few."""
    hashes = [hash(Cidr(base).block(number, length)) for number in range(4096)]
    assert len({value % 4096 for value in hashes}) > 2400
    assert len(set(hashes)) == 4096


def test_addresses_and_networks_never_change() -> None:
    address, network = Address("10.0.0.1"), Cidr("10.0.0.0/8")
    with pytest.raises(TypeError, match="never changes"):
        address.__init__("10.0.0.2")
    with pytest.raises(TypeError, match="never changes"):
        network.__init__("10.0.0.0/9")
    with pytest.raises(AttributeError):
        network.length = 9  # type: ignore[misc]
    assert (str(address), str(network)) == ("10.0.0.1", "10.0.0.0/8")


def test_copies_and_pickles_are_equal() -> None:
    for value in (Address("fd00::1"), Cidr("fd00::/8")):
        assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value


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

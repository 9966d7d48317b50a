"""Addresses and networks compared with the standard library's `ipaddress`."""

import copy
import ipaddress
import pickle
import re
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.cidr_reference import (
    EVERYWHERE,
    NEIGHBOURS,
    ReferenceAddress,
    ReferenceNetwork,
    addresses,
    canonical,
    cidr,
    holds,
    misspelt,
    network_of,
    networks,
    parsed,
    reference_address,
    written,
)
from svc._core.cidr import Address, Cidr, CidrIndex


@given(written)
@example("::ffff:0.0.0.0")
@example("1:2:3:4:5:6:7::")
def test_address_text_becomes_canonical(text: str) -> None:
    address, reference = Address(text), ipaddress.ip_address(text)
    assert str(address) == canonical(reference)
    assert Address(str(address)) == address
    assert repr(address) == f"Address('{address}')"


@given(addresses)
def test_address_attributes_equal_those_of_ipaddress(reference: ReferenceAddress) -> None:
    address = Address(str(reference))
    assert (int(address), address.packed) == (int(reference), reference.packed)
    assert (address.version, address.bits) == (reference.version, reference.max_prefixlen)
    assert Address.from_packed(reference.packed) == address
    assert str(address.host()) == f"{address}/{reference.max_prefixlen}"


@given(misspelt | st.text(max_size=20))
@settings(max_examples=500)
def test_parser_accepts_the_same_texts_as_ipaddress(text: str) -> None:
    address, reference = parsed(text), reference_address(text)
    assert (address and address.packed) == (reference and reference.packed)


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


@pytest.mark.parametrize(("text", "problem"), BAD_ADDRESSES)
def test_error_quotes_the_malformed_address(text: str, problem: str) -> None:
    pattern = f"^{re.escape(f'{text!r} is not an IP address: {problem}')}$"
    with pytest.raises(ValueError, match=pattern):
        Address(text)
    with pytest.raises(ValueError, match=pattern):
        CidrIndex[int]().match_text(text)


@pytest.mark.parametrize("make", [Address, Cidr, Cidr.masked, CidrIndex().match_text])
def test_address_text_must_be_a_string(make: Callable[[str], object]) -> None:
    for value in (b"10.0.0.1", 167772161, None, ipaddress.ip_address("10.0.0.1")):
        with pytest.raises(TypeError, match="is a str, not"):
            make(value)  # type: ignore[arg-type]


def test_lone_surrogate_is_refused() -> None:
    """Names from the kernel may contain lone surrogates, which have no UTF-8 form."""
    with pytest.raises(ValueError, match="surrogates"):
        Address("10.0.0.\udc31")


@pytest.mark.parametrize("size", [0, 3, 5, 15, 17])
def test_packed_address_has_fixed_size(size: int) -> None:
    with pytest.raises(ValueError, match=f"has 4 or 16 bytes, not {size}"):
        Address.from_packed(bytes(size))


@given(networks)
def test_network_attributes_equal_those_of_ipaddress(reference: ReferenceNetwork) -> None:
    network = cidr(reference)
    assert (network.version, network.bits, network.length) == (reference.version, reference.max_prefixlen, reference.prefixlen)
    assert network.size == reference.num_addresses
    assert str(network.first) == canonical(reference.network_address)
    assert str(network.last) == canonical(reference.broadcast_address)
    assert str(network) == f"{canonical(reference.network_address)}/{reference.prefixlen}"
    assert repr(network) == f"Cidr('{network}')"


@given(addresses, st.integers(0, 128))
def test_masking_equals_that_of_ipaddress(reference: ReferenceAddress, length: int) -> None:
    length = min(length, reference.max_prefixlen)
    text, network = f"{reference}/{length}", cidr(network_of(reference, length))
    assert Cidr.masked(text) == Cidr.of(Address(str(reference)), length) == network
    if network.first == Address(str(reference)):
        assert Cidr(text) == network
    else:
        with pytest.raises(ValueError, match=re.escape(f"the network is '{network}'")):
            Cidr(text)


@given(addresses)
def test_address_without_a_length_is_a_host_network(reference: ReferenceAddress) -> None:
    address = Address(str(reference))
    assert Cidr.masked(str(reference)) == address.host() == Cidr.of(address, address.bits)
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
@pytest.mark.parametrize(("text", "problem"), BAD_NETWORKS)
def test_error_quotes_the_malformed_network(make: Callable[[str], Cidr], text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{text!r} is not a network: {problem}')}$"):
        make(text)


def test_network_needs_a_length() -> None:
    with pytest.raises(ValueError, match=r"^'10\.0\.0\.0' is not a network: the length is missing$"):
        Cidr("10.0.0.0")


@given(networks, networks)
def test_containment_and_overlap_equal_those_of_ipaddress(one: ReferenceNetwork, other: ReferenceNetwork) -> None:
    assert (cidr(one) in cidr(other)) == holds(other, one)
    assert (cidr(other) in cidr(one)) == holds(one, other)
    assert cidr(one).overlaps(cidr(other)) == cidr(other).overlaps(cidr(one)) == one.overlaps(other)
    assert (cidr(one).first in cidr(other)) == (one.network_address in other)
    assert (cidr(one).last in cidr(other)) == (one.broadcast_address in other)


def test_membership_needs_the_right_type() -> None:
    for value in ("10.0.0.1", None, 1):
        with pytest.raises(TypeError):
            assert value in EVERYWHERE[0]  # type: ignore[operator]


@given(networks, st.data())
def test_ordinals_and_addresses_correspond(reference: ReferenceNetwork, data: st.DataObject) -> None:
    network, ordinal = cidr(reference), data.draw(st.integers(0, reference.num_addresses - 1))
    address = network.address(ordinal)
    assert str(address) == canonical(reference[ordinal])
    assert network.ordinal(address) == ordinal
    assert address in network


@given(networks, st.data())
def test_blocks_divide_their_network(reference: ReferenceNetwork, data: st.DataObject) -> None:
    length = data.draw(st.integers(reference.prefixlen, reference.max_prefixlen))
    count = 2 ** (length - reference.prefixlen)
    number = data.draw(st.integers(0, count - 1))
    network, size = cidr(reference), 2 ** (reference.max_prefixlen - length)
    block = network.block(number, length)
    assert network.block_count(length) == count
    assert block == cidr(network_of(reference[number * size], length))
    assert block in network
    assert network.block_of(block.first, length) == network.block_of(block.last, length) == block


@given(networks, st.integers(0, 128))
def test_ordinals_outside_are_refused(reference: ReferenceNetwork, length: int) -> None:
    network, length = cidr(reference), min(max(length, reference.prefixlen), reference.max_prefixlen)
    for ordinal in (-1, network.size, network.size + 2**128, -(2**128)):
        with pytest.raises(IndexError, match=f"the places of {network}"):
            network.address(ordinal)
    for number in (-1, network.block_count(length), 2**200):
        with pytest.raises(IndexError, match=f"the places of {network}"):
            network.block(number, length)


def test_ordinals_are_whole_numbers() -> None:
    for ordinal in (1.0, "1", None):
        with pytest.raises(TypeError):
            EVERYWHERE[0].address(ordinal)  # type: ignore[arg-type]


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
def test_addresses_outside_have_no_ordinal(text: str) -> None:
    network, address = Cidr("10.0.0.0/8"), Address(text)
    for call in (network.ordinal, partial(network.block_of, length=16)):
        with pytest.raises(ValueError, match=f"^{address} is not inside 10.0.0.0/8$"):
            call(address)


@given(st.lists(addresses, max_size=8))
def test_addresses_sort_like_numbers(references: list[ReferenceAddress]) -> None:
    expected = sorted(references, key=lambda reference: (reference.version, int(reference)))
    assert sorted(Address(str(reference)) for reference in references) == [Address(str(reference)) for reference in expected]


@given(st.lists(networks, max_size=8))
def test_networks_sort_by_address_then_length(references: list[ReferenceNetwork]) -> None:
    expected = sorted(
        references, key=lambda reference: (reference.version, int(reference.network_address), reference.prefixlen)
    )
    assert sorted(map(cidr, references)) == [cidr(reference) for reference in expected]


@given(networks, networks)
def test_equality_is_equality_of_text(one: ReferenceNetwork, other: ReferenceNetwork) -> None:
    pairs: list[tuple[object, object]] = [(cidr(one), cidr(other)), (cidr(one).first, cidr(other).first)]
    for left, right in pairs:
        assert (left == right) == (str(left) == str(right))
        assert (left != right) == (str(left) != str(right))
        assert left != right or hash(left) == hash(right)


@given(networks, networks)
def test_order_is_strict(one: ReferenceNetwork, other: ReferenceNetwork) -> None:
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


@pytest.mark.parametrize(("base", "length"), NEIGHBOURS)
def test_hash_spreads_neighbours(base: str, length: int) -> None:
    """Random numbers would hit about 2600 of the 4096 buckets. A hash that mixes only high bits hits a few."""
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

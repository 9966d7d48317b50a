"""Sets of reserved addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc._core.cidr import Cidr
from svc.ipam.pools import Reserved

BLOCK = Cidr("10.0.0.0/28")


def inside(first: int, bits: int) -> Cidr:
    """Return a network of up to 32 addresses in or around the block."""
    return Cidr.masked(f"10.0.0.{first}/{32 - bits}")


networks = st.lists(st.builds(inside, st.integers(0, 63), st.integers(0, 5)), max_size=8)


@given(networks)
def test_reservations_are_sets_of_addresses(given_ranges: list[Cidr]) -> None:
    """The ranges may overlap and have any order."""
    reserved = Reserved(given_ranges)
    wanted = {n for n in range(BLOCK.size) if any(BLOCK.address(n) in cidr for cidr in given_ranges)}
    mask = reserved.mask(BLOCK)
    assert {n for n in range(BLOCK.size) if mask is not None and n in mask} == wanted
    assert (mask is None) is (not wanted)
    assert reserved.count(BLOCK) == len(wanted)
    assert reserved.covers(BLOCK) is (len(wanted) == BLOCK.size)
    assert sum(cidr.size for cidr in reserved.ranges_in(BLOCK)) == len(wanted)


@pytest.mark.parametrize(("cidr", "count"), [("fd00::/64", 2**64), ("fd00::/63", 2**64), ("fd00:0:0:1::/64", 0)])
def test_addresses_of_large_ranges_are_counted_without_a_loop(cidr: str, count: int) -> None:
    """An IPv6 range has too many addresses to list them."""
    assert Reserved([Cidr("fd00::/64"), Cidr("fd00::/65")]).count(Cidr(cidr)) == count


def test_other_family_has_no_reservations() -> None:
    """A range of all IPv4 addresses contains no IPv6 address."""
    reserved = Reserved([Cidr("0.0.0.0/0")])
    assert reserved.mask(Cidr("fd00::/122")) is None
    assert not reserved.covers(Cidr("fd00::/122"))

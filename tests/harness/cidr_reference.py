"""Addresses and networks of the standard library, which those of svc are compared with."""

import ipaddress

from hypothesis import strategies as st

from svc._core.cidr import Address, Cidr

LENGTH_STEPS = [0, 1, 3, 4, 5, 24, 28, 29, 31, 32, 33, 64, 124, 125, 127, 128]
ReferenceAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
ReferenceNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


def grouped_address(groups: list[int]) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(b"".join(group.to_bytes(2, "big") for group in groups))


def edit(text: str, place: int, removed: int, inserted: str) -> str:
    start = place % (len(text) + 1)
    return text[:start] + inserted + text[start + removed :]


def uncompressed(address: ReferenceAddress) -> str:
    return address.exploded.upper()


group = st.sampled_from([0, 0, 0, 1, 0xA, 0xFF, 0xFFFF]) | st.integers(0, 0xFFFF)
addresses = (
    st.ip_addresses()
    | st.lists(group, min_size=8, max_size=8).map(grouped_address)
    | st.integers(0, 2**32 - 1).map(lambda number: ipaddress.IPv6Address(0xFFFF << 32 | number))
)
written = addresses.map(str) | addresses.map(uncompressed)
misspelt = st.builds(edit, written, st.integers(0, 45), st.integers(0, 3), st.text(":.0123456789abfAFg%/ \u0661", max_size=4))


def canonical(address: ReferenceAddress) -> str:
    """Return the text that RFC 5952 requires.

    The version of `ipaddress` decides whether it prints mapped addresses with a dotted tail.
    """
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"::ffff:{mapped}" if mapped else str(address)


def reference_address(text: str) -> ReferenceAddress | None:
    """Return None unless the text is a plain address, because the reference implementation also accepts zones."""
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def parsed(text: str) -> Address | None:
    try:
        return Address(text)
    except ValueError:
        return None


def near_network(version: int, head: int, tail: int, length: int) -> ReferenceNetwork:
    """Return a network of which only the first and the last four bits vary, so that two of them often overlap."""
    bits = 32 if version == 4 else 128
    value = (head << bits - 4 | tail).to_bytes(bits // 8, "big")
    return ipaddress.ip_network((value, min(length, bits)), strict=False)


versions = st.sampled_from([4, 6])
nibble = st.integers(0, 15)
networks = st.builds(near_network, versions, nibble, nibble, st.sampled_from(LENGTH_STEPS) | st.integers(0, 128))
EVERYWHERE = [Cidr("0.0.0.0/0"), Cidr("::/0")]


def cidr(reference: ReferenceNetwork) -> Cidr:
    return Cidr(str(reference))


def holds(outer: ReferenceNetwork, inner: ReferenceNetwork) -> bool:
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def network_of(address: ReferenceAddress, length: int) -> ReferenceNetwork:
    return ipaddress.ip_network((address.packed, length), strict=False)


NEIGHBOURS = [("10.0.0.0/8", 20), ("10.0.0.0/8", 26), ("10.0.0.0/8", 32), ("fd00::/16", 64), ("fd00::/64", 122)]

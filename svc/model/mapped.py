"""IPv4-mapped IPv6 addresses (RFC 4291 section 2.5.5.2), as programs with sockets of both families write IPv4 addresses."""

from typing import Final

from svc._core.cidr import Address

_PREFIX: Final = bytes(10) + b"\xff\xff"


def ipv4_of(address: Address) -> Address | None:
    """Return the IPv4 address in an IPv4-mapped one; None for any other address."""
    return Address.from_packed(address.packed[-4:]) if address.packed.startswith(_PREFIX) else None


def allocated_form(text: str) -> Address:
    """Parse an address, with or without a length. One that is IPv4-mapped is that of the IPv4 allocation. Raise ValueError."""
    address = Address(text.partition("/")[0])
    return ipv4_of(address) or address

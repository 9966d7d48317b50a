"""Addresses, CIDRs and the pool index. Text is parsed strictly and printed canonically (IPv6: RFC 5952)."""

from typing import Generic, TypeVar, final

_T = TypeVar("_T")

@final
class Address:
    """One IPv4 or IPv6 address; immutable, hashable, ordered (IPv4 before IPv6)."""

    def __init__(self, text: str) -> None:
        """ValueError for anything but a plain address: leading zeros, a zone, a length, white space. An IPv4-mapped
        IPv6 address stays IPv6 and prints with its dotted tail (RFC 5952 section 5)."""
    @staticmethod
    def from_packed(packed: bytes) -> Address:
        """4 or 16 bytes, network order; ValueError otherwise."""
    @property
    def version(self) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def packed(self) -> bytes: ...
    def host(self) -> Cidr:
        """This address alone: /32 or /128."""
    def __int__(self) -> int: ...
    def __str__(self) -> str: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __lt__(self, other: Address, /) -> bool: ...

@final
class Cidr:
    """A network with its length; immutable, hashable, ordered by version, network, length."""

    def __init__(self, text: str) -> None:
        """Strict: ADDRESS/LENGTH with no bits right of the length (ValueError says which fault, and the masked form)."""
    @staticmethod
    def masked(text: str) -> Cidr:
        """As the constructor, but bits right of the length are cleared and a bare address means its full length."""
    @staticmethod
    def of(address: Address, length: int) -> Cidr:
        """The network of that length around an address; ValueError when length is out of range."""
    @property
    def version(self) -> int: ...
    @property
    def bits(self) -> int:
        """32 or 128."""
    @property
    def length(self) -> int: ...
    @property
    def size(self) -> int:
        """Number of addresses: 2 ** (bits - length)."""
    @property
    def first(self) -> Address: ...
    @property
    def last(self) -> Address: ...
    def address(self, ordinal: int) -> Address:
        """The address at this place; IndexError outside."""
    def ordinal(self, address: Address) -> int:
        """The place of an address; ValueError when it is not inside."""
    def block(self, number: int, length: int) -> Cidr:
        """The number-th network of that length inside; IndexError outside, ValueError when length is shorter than ours."""
    def block_of(self, address: Address, length: int) -> Cidr:
        """The network of that length that holds an address of ours; ValueError as above, or when it is not inside."""
    def block_count(self, length: int) -> int: ...
    def overlaps(self, other: Cidr) -> bool: ...
    def __contains__(self, other: Address | Cidr, /) -> bool: ...
    def __str__(self) -> str: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __lt__(self, other: Cidr, /) -> bool: ...

@final
class CidrIndex(Generic[_T]):
    """Networks of both versions with a value each: exact lookup, longest-prefix match, overlaps.

    Made for thousands of networks in few lengths; a match costs one hash probe for each length in use. Not thread-safe
    for writers.
    """

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def insert(self, network: Cidr, value: _T) -> None:
        """Add or replaces."""
    def remove(self, network: Cidr) -> bool: ...
    def exact(self, network: Cidr) -> _T | None: ...
    def match(self, address: Address) -> _T | None:
        """The value of the longest network that holds the address."""
    def match_text(self, address: str) -> _T | None:
        """As `match`, straight from text; ValueError as Address()."""
    def overlapping(self, network: Cidr) -> list[Cidr]:
        """Every network that shares an address with this one, sorted."""

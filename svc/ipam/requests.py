"""What callers ask of IPAM, and what they get."""

from dataclasses import dataclass, field

from svc._core.cidr import Address, Cidr


@dataclass(frozen=True, slots=True)
class Assign:
    """Addresses for one handle: all of them, or none.

    `versions` lists the families wanted, one address each; `pools` names pools (by name or CIDR) for a family, where an absent
    or empty entry means all that are available to the node. With `address`, just this one is assigned and both are ignored.
    """

    handle: str
    attributes: dict[str, str]
    versions: tuple[int, ...] = (4,)
    pools: dict[int, tuple[str, ...]] = field(default_factory=dict)
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Everything that the handle holds, except the addresses in `keep`. What is free already is no error."""

    handle: str
    keep: frozenset[Address] = frozenset()


@dataclass(frozen=True, slots=True)
class Allocation:
    """One address that was assigned, and the block it is in."""

    address: Address
    block: Cidr


Request = Assign | Release

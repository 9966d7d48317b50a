"""What callers ask of IPAM, and what they get."""

from collections.abc import Callable
from dataclasses import field

from svc._core.cidr import Address, Cidr
from svc.call_trace import CallTrace, active
from svc.datastore.api import Create, Delete
from svc.model.errors import SvcError
from svc.model.pool import WORKLOAD
from svc.values import dataclass

Companion = Callable[[tuple[Address, ...]], Create]
"""Makes, of the addresses that are assigned, what is to be created along with them."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Addresses for one handle: all of them, or none.

    `versions` lists the families wanted, one address each; `pools` names pools (by name or CIDR) for a family, where an absent
    or empty entry means all that are available to the host and to a namespace with these labels. With `addresses`, just these
    are assigned, in this order, and all of those are ignored.

    `use` is what the addresses are for, which a pool must allow: `LoadBalancer` for a virtual host, `Workload` or `Tunnel` for
    a node. `max_blocks` limits the blocks that the host may own in the pools of the request (0: as the settings say; the
    smaller number wins). With `max_per_handle`, a handle that holds so many addresses of a family gets those again, and no
    further one.

    `restores`: `addresses` belong to a live attachment, of which the datastore has lost the record. They are assigned if they
    are free, or the handle's already, whatever settings, selectors, reservations and limits of blocks say.

    `companion` goes into the same write, where the datastore takes all of a write or nothing, unless it is there already.
    `trace` is that of the call: others may carry the request out.
    """

    handle: str
    attributes: dict[str, str]
    versions: tuple[int, ...] = (4,)
    pools: dict[int, tuple[str, ...]] = field(default_factory=dict)
    addresses: tuple[Address, ...] = ()
    use: str = WORKLOAD
    namespace_labels: dict[str, str] = field(default_factory=dict)
    max_blocks: int = 0
    max_per_handle: int = 0
    restores: bool = False
    companion: Companion | None = None
    trace: CallTrace | None = field(default_factory=active, compare=False, repr=False)

    def explain(self, text: Callable[[], str]) -> None:
        """A line of DEBUG in the log of the call, put into words only if it is wanted."""
        if self.trace is not None and self.trace.is_debug:
            self.trace.debug(text())


@dataclass(frozen=True, slots=True)
class Release:
    """Everything that the handle holds, except the addresses in `keep`. What is free already is no error.

    This is also how a handle is put right that counts more than it holds, as a failed or killed call may leave it. With
    `addresses`, their blocks are looked at whether the handle names them or not, as where the handle was lost: what the blocks
    say is the handle's is released.

    `companion` goes into the same write, where the datastore takes all of a write or nothing: a conflict of its key fails the
    request."""

    handle: str
    keep: frozenset[Address] = frozenset()
    addresses: tuple[Address, ...] = ()
    companion: Delete | None = None


@dataclass(frozen=True, slots=True)
class ReleaseTarget:
    """One address to release, if (where given) this handle holds it, by the allocation of this sequence number."""

    address: Address
    handle: str = ""
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class ReleaseAddresses:
    """Single addresses, whoever holds them. Where one of a block is not as expected, none of that block is released."""

    addresses: tuple[ReleaseTarget, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """One address that was assigned, and the block it is in."""

    address: Address
    block: Cidr


@dataclass(frozen=True, slots=True)
class AssignResult:
    """One allocation for each address or family wanted, in that order; `accompanied` when the companion was created.

    `faults` names the pools and reservations that were passed because they cannot be read."""

    allocations: tuple[Allocation, ...]
    accompanied: bool = False
    faults: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(allocation.address for allocation in self.allocations)


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """What became of every address of a `ReleaseAddresses`: freed, found free (or resting), or refused and why."""

    freed: tuple[Address, ...] = ()
    unallocated: tuple[Address, ...] = ()
    refused: dict[Address, SvcError] = field(default_factory=dict)


Request = Assign | Release | ReleaseAddresses
Answer = AssignResult | ReleaseResult

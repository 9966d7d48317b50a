"""Requests to IPAM and their results."""

from collections.abc import Callable

from svc._core.cidr import Address, Cidr
from svc.call_trace import CallTrace, active
from svc.datastore.api import Create, Delete
from svc.model.errors import SvcError
from svc.model.pool import WORKLOAD
from svc.values import dataclass, field

ExtraWrite = Callable[[tuple[Address, ...]], Create]  # makes the extra write of an assignment from the assigned addresses


@dataclass(frozen=True, slots=True)
class Assign:
    """A request to assign addresses to one handle: all of them, or none.

    `versions` lists the requested IP families, one address each. `pools` names pools for a family, by name or CIDR. A family
    without names gets them from all pools that select the host and `namespace_labels`. If `addresses` is set, exactly these
    are assigned, in this order; `versions`, `pools` and `namespace_labels` are ignored.

    A pool must allow `use`: `LoadBalancer` for a virtual host, `Workload` or `Tunnel` for a node. `max_blocks` limits the
    host's blocks in the pools of the request, in addition to the IPAM settings. A handle with `max_per_handle` addresses of a
    family gets those again. 0 means no such limit.

    With `restores`, `addresses` belong to a live attachment whose record the datastore has lost. They are assigned if they are
    free or if the handle holds them. Settings, selectors, reservations and block limits are ignored.

    `extra_write` makes the extra write of the same transaction, if the store has atomic writes and the object does not exist.
    `trace` is the trace of the caller, because another thread may carry out the request.
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
    extra_write: ExtraWrite | None = None
    trace: CallTrace | None = field(default_factory=active, compare=False, repr=False)

    def decide(self, text: str) -> None:
        """Record a decision in the trace of the call."""
        if self.trace is not None:
            self.trace.decide(text)

    def explain(self, text: Callable[[], str]) -> None:
        """Write a DEBUG line to the trace of the call. Call `text` only if the trace records DEBUG lines."""
        if self.trace is not None and self.trace.is_debug:
            self.trace.debug(text())


@dataclass(frozen=True, slots=True)
class Release:
    """A request to release what a handle holds, except the addresses in `keep`. A free address is not an error.

    The release also corrects a handle that counts too many addresses, as a failed or killed call may leave it. It releases the
    handle's allocations in the blocks of `addresses`, too, even if the handle does not list them or is lost.

    `extra_write` joins the transaction, if the store has atomic writes. A conflict on its key fails the request.
    """

    handle: str
    keep: frozenset[Address] = frozenset()
    addresses: tuple[Address, ...] = ()
    extra_write: Delete | None = None


@dataclass(frozen=True, slots=True)
class ReleaseTarget:
    """One address to release. If `handle` or `sequence` is set, its allocation must have this handle or sequence number."""

    address: Address
    handle: str = ""
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class ReleaseAddresses:
    """A request to release single addresses. If an allocation differs from its target, its block releases none.

    With `whole_handles`, no block releases any then, nor if one of their handles holds an address that is no target. The
    `deletions` join the transaction, if the store has atomic writes. A conflict on one of their keys fails the request.
    """

    addresses: tuple[ReleaseTarget, ...]
    whole_handles: bool = False
    deletions: tuple[Delete, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocation:
    """One assigned address, and the CIDR of its block."""

    address: Address
    block: Cidr


@dataclass(frozen=True, slots=True)
class AssignResult:
    """One allocation for each requested address or family, in that order, and whether the extra object was created.

    `errors` has the errors of the pools and reservations that were skipped because they cannot be read.
    """

    allocations: tuple[Allocation, ...]
    has_extra: bool = False
    errors: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(allocation.address for allocation in self.allocations)


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The addresses of a `ReleaseAddresses`: released, already free or in cooldown, and refused with an error."""

    freed: tuple[Address, ...] = ()
    unallocated: tuple[Address, ...] = ()
    refused: dict[Address, SvcError] = field(default_factory=dict)


Request = Assign | Release | ReleaseAddresses
Answer = AssignResult | ReleaseResult

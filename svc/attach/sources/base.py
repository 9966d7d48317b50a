"""The interface of address sources."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field

from svc._core.cidr import Address
from svc.attach.context import Context
from svc.attach.health import Dependency
from svc.attach.record import Record
from svc.attach.sessions import Session
from svc.call_trace import CallTrace
from svc.datastore.api import Delete, Found
from svc.ipam.requests import Companion
from svc.model.annotations import AnnotationSettings
from svc.model.result import Dns, IpConfig, Route
from svc.names import Names
from svc.orch.pod_info import PodInfo
from svc.values import dataclass

Valid = frozenset[tuple[str, str]]
"""Containers and interfaces that the runtime knows."""


@dataclass(frozen=True, slots=True)
class Addressing:
    """What an ADD is to get: families and the pools they are assigned from, or fixed `addresses`. `wishes` are what
    annotations of `pod` and of its namespace request."""

    pod: PodInfo
    versions: tuple[int, ...]
    pools: Mapping[int, tuple[str, ...]]
    addresses: tuple[Address, ...]
    wishes: AnnotationSettings
    renewed: "Callable[[], Addressing | None]"
    """Return the same for the namespace as it is now; None if the namespace has not changed."""


@dataclass(frozen=True, slots=True)
class AssignedAddresses:
    """What a source assigned; `ips`, `routes` and `dns` as the result of the ADD shows them."""

    addresses: tuple[Address, ...]
    ips: tuple[IpConfig, ...]
    routes: tuple[Route, ...] = ()
    dns: Dns = field(default_factory=Dns)
    has_endpoint: bool = False  # whether the endpoint was created along with them


@dataclass(frozen=True, slots=True)
class Assignment:
    """One ADD that needs addresses. `extra_write` makes the endpoint that is created along with them, if possible."""

    context: Context
    session: Session
    record: Record
    addressing: Addressing
    extra_write: Companion | None
    trace: CallTrace


class AddressSource(ABC):
    """Where the addresses of attachments come from. Immutable; usable from any thread.

    A call gets its source from the network configuration (`svc.cni.verbs`). `source_of` returns that of a record.
    """

    plugin: str  # that assigns the addresses; empty for svc itself
    uses_pools: bool = False  # whether svc assigns them, and the datastore shows them under the attachment's handle
    has_handle: bool = True  # whether `release` reads the handle, and can delete the endpoint in the same write
    only_add_tells: bool = False  # whether an ADD may find no address although every dependency is ready

    def mark(self, record: Record) -> None:  # noqa: B027
        """Set the fields of the record from which `source_of` makes the source again."""

    # ADD

    def announced(self, _session: Session) -> AbstractContextManager[None]:
        """Return a context in which this thread is going to call `assign`."""
        return nullcontext()

    def require_supported(self, names: Names, wishes: AnnotationSettings) -> None:  # noqa: B027
        """Raise CallerError if annotations request what the source cannot assign."""

    def prepared(self, _context: Context, _trace: CallTrace) -> "AddressSource":
        """Return the source with everything that `assign` needs. Raise SvcError if it cannot assign.

        The ADD has no side effect before this call."""
        return self

    def require_own_handle(self, context: Context, session: Session, record: Record) -> None:  # noqa: B027
        """Raise PeerError if another attachment has addresses under the handle of the new one."""

    def assign(self, _wanted: Assignment) -> AssignedAddresses:
        """Assign all addresses of the attachment, or raise SvcError. `release` undoes it, also if it was interrupted."""
        return AssignedAddresses((), ())

    def adopt(self, _session: Session, _record: Record, _addressing: Addressing) -> tuple[Route, ...]:
        """Complete a restored record, and return the routes that its ADD returned. Raise SvcError."""
        return ()

    # an attachment, by its record

    @abstractmethod
    def why_not_held(self, session: Session, record: Record, trace: CallTrace) -> str:
        """Return why the attachment does not have its addresses now; empty if it has them. Raise PeerError if that is not
        known."""

    @abstractmethod
    def release(
        self,
        context: Context,
        session: Session,
        record: Record,
        trace: CallTrace,
        extra_write: Delete | None,
        handle: Found | None,
    ) -> bool:
        """Release the attachment's addresses, and no other's. Return whether `extra_write` is done too.

        `handle` is what was read of it. Raise PeerError, or KeyedError of the key of `extra_write`. Idempotent.
        """

    def complete(self, record: Record) -> None:  # noqa: B027
        """Add to the record of a DEL what the call knows of the source, and the record does not."""

    # a network

    def why_unusable(self) -> str:
        """Return why the source cannot release addresses; empty if it can."""
        return ""

    def collect(self, _context: Context, _session: Session, _network: str, _valid: Valid, _trace: CallTrace) -> list[str]:
        """Release addresses of the network that belong to no attachment, or let the plugin do so. Return what failed."""
        return []

    def warning(self, _datastore: str) -> str:
        """Return a warning for networks with this kind of datastore; empty if there is none."""
        return ""

    def dependencies(self, _context: Context, _network: Hashable) -> Sequence[Dependency]:
        """Return what an ADD needs besides the datastore."""
        return ()

"""The interface of address sources."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence

from svc._core.cidr import Address
from svc.attach.context import Context
from svc.attach.health import Dependency
from svc.attach.record import Record
from svc.attach.sessions import DatastoreSession
from svc.call_trace import CallTrace
from svc.datastore.api import Delete, Found
from svc.ipam.requests import ExtraWrite
from svc.ipam.service import PlannedRelease
from svc.model.annotations import AnnotationSettings
from svc.model.ipam import Handle
from svc.model.resource import Resource
from svc.model.result import Dns, IpConfig, Route
from svc.names import Names
from svc.orch.pod_info import PodInfo
from svc.values import dataclass, field

Valid = frozenset[tuple[str, str]]
"""Containers and interfaces that the runtime knows."""


@dataclass(frozen=True, slots=True)
class Addressing:
    """The addressing of an ADD: address families with their pools, or fixed `addresses`.

    `annotation_settings` are those of `pod` and of its namespace. `renewed` resolves the addressing again from the current
    namespace; it returns None if the namespace has not changed.
    """

    pod: PodInfo
    versions: tuple[int, ...]
    pools: Mapping[int, tuple[str, ...]]
    addresses: tuple[Address, ...]
    annotation_settings: AnnotationSettings
    renewed: "Callable[[], Addressing | None]"


@dataclass(frozen=True, slots=True)
class AssignedAddresses:
    """The addresses that a source assigned. `ips`, `routes` and `dns` are in the form of the ADD result."""

    addresses: tuple[Address, ...]
    ips: tuple[IpConfig, ...]
    routes: tuple[Route, ...] = ()
    dns: Dns = field(default_factory=Dns)
    has_endpoint: bool = False  # whether the same transaction created the endpoint


@dataclass(frozen=True, slots=True)
class Assignment:
    """One ADD that needs addresses. `extra_write`, if possible, returns the write that creates the endpoint along with them."""

    context: Context
    session: DatastoreSession
    record: Record
    addressing: Addressing
    extra_write: ExtraWrite | None
    trace: CallTrace


@dataclass(slots=True)
class Holdings:
    """An attachment to release, with its endpoint and its handle in the datastore; None if they were not read.

    `planned` is the release that was planned before its time, if any.
    """

    context: Context
    session: DatastoreSession
    record: Record
    trace: CallTrace
    endpoint: Found[Resource] | None = None
    handle: Found[Handle] | None = None
    planned: PlannedRelease | None = None


class AddressSource(ABC):
    """A source of addresses. Immutable and thread-safe. `svc.cni.verbs` makes that of a call, `source_of` that of a record."""

    plugin: str  # the plugin that assigns the addresses; empty for svc itself
    uses_pools: bool = False  # whether svc assigns the addresses under the attachment's handle in the datastore
    has_handle: bool = True  # whether `release` reads the handle, and can delete the endpoint in the same write
    may_lack_addresses: bool = False  # whether an ADD may find no address although every dependency is ready

    def mark(self, record: Record) -> None:  # noqa: B027
        """Set the fields of the record from which `source_of` creates the source again."""

    # ADD

    def require_supported(self, names: Names, settings: AnnotationSettings) -> None:  # noqa: B027
        """Raise CallerError if annotations request what the source cannot assign."""

    def prepared(self, _context: Context, _trace: CallTrace) -> "AddressSource":
        """Return the source with all that `assign` needs. Raise SvcError if it cannot assign. Nothing is changed before."""
        return self

    def require_own_handle(self, context: Context, session: DatastoreSession, record: Record) -> None:  # noqa: B027
        """Raise PeerError if another attachment has addresses under the handle of the new one."""

    def assign(self, _wanted: Assignment) -> AssignedAddresses:
        """Assign all addresses of the attachment, or raise SvcError. `release` reverts also an interrupted assignment."""
        return AssignedAddresses((), ())

    def adopt(self, _session: DatastoreSession, _record: Record, _addressing: Addressing) -> tuple[Route, ...]:
        """Complete a restored record, and return the routes that its ADD returned. Raise SvcError if that fails."""
        return ()

    # an attachment, by its record

    @abstractmethod
    def why_not_held(self, session: DatastoreSession, record: Record, trace: CallTrace) -> str:
        """Return why the attachment lacks its addresses now; empty if it has them. Raise PeerError if that is not known."""

    def plan_release(self, held: Holdings, extra_write: Delete | None) -> None:  # noqa: B027
        """Prepare `release`, with the same arguments, as far as that changes nothing. Raise SvcError."""

    @abstractmethod
    def release(self, held: Holdings, extra_write: Delete | None) -> bool:
        """Release the addresses of this attachment only. Return whether `extra_write` was written too.

        Raise KeyedError with the key of `extra_write` if that write conflicts, PeerError if the release fails. Idempotent.
        """

    def complete(self, record: Record) -> None:  # noqa: B027
        """Add properties of the source that the DEL knows, and the record lacks, to the record."""

    # a network

    def why_unusable(self) -> str:
        """Return why the source cannot release addresses, or an empty string if it can."""
        return ""

    def run_gc(
        self, _context: Context, _session: DatastoreSession, _network: str, _valid: Valid, _trace: CallTrace
    ) -> list[str]:
        """Release addresses of the network without an attachment, or run the plugin's GC. Return the failures."""
        return []

    def warning(self, _datastore: str) -> str:
        """Return a warning for networks with this kind of datastore, or an empty string."""
        return ""

    def dependencies(self, _context: Context, _network: Hashable) -> Sequence[Dependency]:
        """Return the dependencies of an ADD besides the datastore."""
        return ()

"""The journal's record of an attachment, sufficient for CHECK, a repeated ADD and the teardown."""

import time
from operator import attrgetter
from types import NoneType
from typing import Any

import orjson

from svc._core.cidr import Address, Cidr
from svc.attach.handles import handle_of, plain_handle
from svc.attach.token_cache import without_secrets
from svc.dataplane.plan import VethSpec
from svc.model.endpoint import Workload, endpoint_key
from svc.model.errors import Code, PeerError
from svc.model.keys import ResourceKey
from svc.names import Names
from svc.timestamps import to_nanoseconds
from svc.values import MISSING, Field, dataclass, field, fields

WAITING = "waiting"  # for the datastore or a readiness gate, before anything is attached
ADDING = "adding"
ADDED = "added"
DELETING = "deleting"

StoreSettings = tuple[str, tuple[tuple[str, str], ...]]

_MAX_REASON = 500  # characters
UNKNOWN_SANDBOX = (0, 0)  # of a restored row, until its next ADD sets it


@dataclass(frozen=True, slots=True)
class AttachmentId:
    """The identity of an attachment in CNI: network name, container, interface."""

    network: str
    container_id: str
    ifname: str


class IntentLost(PeerError):
    """The error if a row does not exist any more, or another ADD has replaced it. The call on the old row must roll back."""

    code = Code.UNKNOWN_CONTAINER

    def __init__(self, key: AttachmentId) -> None:
        super().__init__(
            f"ADD cancelled: container {key.container_id!r} was deleted or added again while its ADD waited",
            details="nothing of it is left: if the container is still wanted, repeat the ADD",
        )


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The key of an attachment's datastore session. `profile` is its names profile; if empty, the names of svc."""

    datastore: dict[str, str]
    node: str
    profile: str = ""

    def __hash__(self) -> int:
        return hash((self.node, self.profile, *sorted(self.datastore.items())))

    @property
    def store(self) -> StoreSettings:
        """The datastore: profile and settings without secrets, which a call may renew."""
        return self.profile, tuple(sorted(without_secrets(self.datastore).items()))


@dataclass(slots=True)
class Record:
    """One attachment. `sandbox` is the namespace's (device, inode); `host_index` 0 means that nothing is wired yet.

    `host_name` is empty if another main plugin wires the attachment, which then has addresses only. `profile` and `settings`
    name the datastore session of its addresses and its endpoint. If another plugin assigned the addresses, `delegate` says how
    to call it for the release. `unmanaged` addresses bypass IPAM, so no release is needed. `routes` are the routes of the
    sandbox if they differ from the default. A new field needs a default, because rows of earlier builds lack it.
    """

    id: AttachmentId
    state: str
    boot_id: str
    sandbox: tuple[int, int]
    node: str
    settings: dict[str, str]
    host_name: str
    mac: str
    pod: str = ""
    namespace: str = ""
    mtu: int = 0
    queues: int = 1
    allow_ip_forwarding: bool = False
    addresses: list[str] = field(default_factory=list)
    host_index: int = 0
    peer_index: int = 0
    result: dict[str, Any] | None = None
    profile: str = ""
    shares: bool = False  # uses the interface and the endpoint of another network's attachment
    routes: list[str] | None = None
    delegate: dict[str, Any] | None = None
    unmanaged: bool = False
    facts: dict[str, Any] | None = None  # for rewriting the endpoint; None if the API server has them
    waits_until: float = 0.0  # deadline (Unix time) of its wait for the datastore, a gate or the policy
    outlives: bool = False  # whether the parked call continues when the agent ends
    versions: list[int] = field(default_factory=list)  # the address families of its network
    handle: str = ""  # shared by all interfaces of a container in a network. Rows of earlier builds lack it
    older_handle: str = ""  # handle that an earlier build may have used; released if `handle` has no addresses
    recorded_only: bool = False  # release only `addresses`: the handle may belong to another attachment
    begun: int = field(default=0, compare=False)  # nanoseconds from the boot to its ADD; 0 if that is not known
    pending: dict[str, Any] | None = field(default=None, compare=False)  # of a pending release; see `Record.defer`
    _generation: int = field(default=0, init=False, compare=False, repr=False)  # orjson omits names with a leading underscore

    def __post_init__(self) -> None:
        self.handle = self.handle or plain_handle(self.id.network, self.id.container_id)

    @property
    def generation(self) -> int:
        """The generation of its row in the journal; 0 if it has no row."""
        return self._generation

    @generation.setter
    def generation(self, number: int) -> None:
        self._generation = number

    @staticmethod
    def of(key: AttachmentId, workload: Workload, where: SessionKey, names: Names, boot_id: str) -> "Record":
        """Return the record of an attachment of which only the identity is known."""
        return Record(
            id=key,
            state=ADDING,
            boot_id=boot_id,
            sandbox=UNKNOWN_SANDBOX,
            node=where.node,
            settings=without_secrets(where.datastore),
            host_name="",
            mac="",
            pod=workload.pod,
            namespace=workload.namespace,
            profile=where.profile,
            handle=handle_of(names, key.network, key.container_id),
        )

    @property
    def session_key(self) -> SessionKey:
        return SessionKey(self.settings, self.node, self.profile)

    @property
    def is_wired(self) -> bool:
        return bool(self.host_name)

    @property
    def is_restored(self) -> bool:
        """Whether no ADD or DEL has completed the row since it was restored."""
        return self.sandbox == UNKNOWN_SANDBOX

    @property
    def workload(self) -> Workload:
        return Workload(self.id.container_id, self.pod, self.namespace)

    def endpoint_key(self, names: Names) -> ResourceKey:
        return endpoint_key(names, self.node, self.workload, self.id.ifname)

    def defer(self, reason: str) -> None:
        """Record that the release is pending: since when, how often it was tried, and why it failed last."""
        now, before = time.time(), self.pending or {}
        self.state = DELETING
        self.pending = {
            "since": before.get("since", now),
            "tried": now,
            "attempts": before.get("attempts", 0) + 1,
            "reason": reason[:_MAX_REASON] or before.get("reason", ""),
        }

    def address_list(self) -> tuple[Address, ...]:
        return tuple(Address(text) for text in self.addresses)

    def owner(self) -> dict[str, str]:
        """Return the attributes of the addresses, which are allocated now."""
        owner = {"node": self.node, "timestamp": to_nanoseconds(time.time_ns())}
        if self.workload.is_pod:
            owner |= {"pod": self.pod, "namespace": self.namespace}
        return owner

    def wiring(self) -> VethSpec:
        return VethSpec(
            host_name=self.host_name,
            ifname=self.id.ifname,
            mac=bytes.fromhex(self.mac.replace(":", "")),
            addresses=self.address_list(),
            mtu=self.mtu,
            queues=self.queues,
            allow_ip_forwarding=self.allow_ip_forwarding,
            routes=None if self.routes is None else tuple(map(Cidr, self.routes)),
        )

    def to_bytes(self) -> bytes:
        """Encode the row, without fields that have their defaults, and padded with spaces.

        So most rows need no overflow page, and keep their size when the result is added: a write then changes one page of the
        journal instead of four.
        """
        values = zip(_NAMES, _values_of(self), _DEFAULTS, strict=True)
        return orjson.dumps({name: value for name, value, default in values if value != default}).ljust(_ROW_BYTES)

    @staticmethod
    def from_bytes(data: bytes, generation: int = 0) -> "Record":
        """Decode a row, and ignore unknown fields. Raise ValueError if it is not a record."""
        try:
            document = orjson.loads(data)
            if not document.keys() <= _FIELDS:
                document = {name: document[name] for name in document.keys() & _FIELDS}
            device, inode = document["sandbox"]
            document["id"], document["sandbox"] = AttachmentId(**document["id"]), (device, inode)
            record = Record(**document)
            _require_kinds(record)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a record: {error}") from error
        record.generation = generation
        return record


_NAMES = tuple(each.name for each in fields(Record) if each.init)
_FIELDS = frozenset(_NAMES)
_values_of = attrgetter(*_NAMES)
_ROW_BYTES = 850  # SQLite stores rows of up to 1,002 bytes, keys included, without an overflow page


def since_boot() -> int:
    """Return the nanoseconds since the boot, by the clock that goes on in a suspended machine."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _default(default: "Field[Any]") -> Any:
    """Return the value that a row may omit; MISSING, which no value equals, if every row needs the field."""
    if default.name == "profile":  # statements of the journal read it
        return MISSING
    return default.default if default.default_factory is MISSING else default.default_factory()


_DEFAULTS = tuple(_default(each) for each in fields(Record) if each.init)
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("id", "sandbox"), (AttachmentId, tuple)),
    **dict.fromkeys(("boot_id", "node", "host_name", "mac", "pod", "namespace", "profile", "handle", "older_handle"), str),
    **dict.fromkeys(("mtu", "queues", "host_index", "peer_index", "begun"), int),
    **dict.fromkeys(("allow_ip_forwarding", "shares", "unmanaged", "recorded_only"), bool),
    **dict.fromkeys(("result", "delegate", "pending"), (dict, NoneType)),
    "state": str,
    "settings": dict,
    **dict.fromkeys(("addresses", "versions"), list),
    "routes": (list, NoneType),
}
_values = attrgetter(*_KINDS)
_known: set[tuple[type, ...]] = set()  # valid combinations of types; they are few


def _require_kinds(record: Record) -> None:
    types = tuple(map(type, _values(record)))
    if types not in _known:
        for name, kinds in _KINDS.items():
            if not isinstance(getattr(record, name), kinds):
                raise TypeError(f"{name} is a {type(getattr(record, name)).__name__}")
        _known.add(types)
    if record.state not in (WAITING, ADDING, ADDED, DELETING):
        raise TypeError(f"state is {record.state!r}")
    record.address_list()

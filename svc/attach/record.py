"""What is remembered of an attachment, enough to check it, to answer for it again, and to take it down."""

from dataclasses import field, fields
from operator import attrgetter
from types import NoneType
from typing import Any

import orjson

from svc._core.cidr import Address, Cidr
from svc.attach.handles import handle_of, plain_handle
from svc.attach.token_cache import without_secrets
from svc.dataplane.plan import Wiring
from svc.dataplane.wire import Wired
from svc.model.endpoint import Workload, endpoint_key
from svc.model.keys import ResourceKey
from svc.names import Names
from svc.values import dataclass

WAITING = "waiting"  # at a readiness gate: nothing is attached yet
ADDING = "adding"
ADDED = "added"
DELETING = "deleting"

UNKNOWN_SANDBOX = (0, 0)  # of a restored row, until the next ADD shows its own


@dataclass(frozen=True, slots=True)
class AttachmentId:
    """CNI's identity of an attachment: network name, container, interface."""

    network: str
    container_id: str
    ifname: str


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Which datastore session serves an attachment; `profile` is its names profile (empty: the names of svc)."""

    datastore: dict[str, str]
    node: str
    profile: str = ""

    def __hash__(self) -> int:
        return hash((self.node, self.profile, *sorted(self.datastore.items())))

    def without_secrets(self) -> "SessionKey":
        """Return the key as the journal stores it."""
        return SessionKey(without_secrets(self.datastore), self.node, self.profile)


@dataclass(slots=True)
class Record:
    """One attachment. `sandbox` is the namespace's (device, inode); `host_index` 0 means that nothing is wired yet.

    One that another main plugin wires has addresses only: its `host_name` is empty. `profile` and `settings` name the
    datastore session that its addresses and endpoint live in; where another plugin gave the addresses, `delegate` says how it
    is called to free them; `unmanaged` addresses are held by nobody: they bypass IPAM. `routes` are those into the sandbox,
    where they are not the default ones. A new field needs a default: rows of before lack it.
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
    shares: bool = False  # the interface of another network's attachment, by whose endpoint it is known
    routes: list[str] | None = None
    delegate: dict[str, Any] | None = None
    unmanaged: bool = False
    facts: dict[str, Any] | None = None  # what the endpoint says of the pod, where nothing else of the node knows it
    waits_until: float = 0.0  # the Unix time at which its present wait, for a gate or for policy, ends at the latest
    outlives: bool = False  # whether the call that waits goes on when the agent ends
    versions: list[int] = field(default_factory=list)  # the families that its network asked for
    handle: str = ""  # of its addresses: all interfaces of a container in a network share one. Earlier releases' rows lack it
    older_handle: str = ""  # released if `handle` has no addresses: what an earlier release may have allocated under
    recorded_only: bool = False  # release `addresses` alone: the handle may be another attachment's
    _generation: int = field(default=0, init=False, compare=False, repr=False)  # orjson leaves names with an underscore out

    def __post_init__(self) -> None:
        self.handle = self.handle or plain_handle(self.id.network, self.id.container_id)

    @property
    def generation(self) -> int:
        """The number of its row in the journal; 0 if the journal has none."""
        return self._generation

    @generation.setter
    def generation(self, number: int) -> None:
        self._generation = number

    @staticmethod
    def of(key: AttachmentId, workload: Workload, where: SessionKey, names: Names, boot_id: str) -> "Record":
        """Return the record of an attachment of which nothing but its identity is known."""
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

    def address_list(self) -> tuple[Address, ...]:
        return tuple(Address(text) for text in self.addresses)

    def wiring(self) -> Wiring:
        return Wiring(
            host_name=self.host_name,
            ifname=self.id.ifname,
            mac=bytes.fromhex(self.mac.replace(":", "")),
            addresses=self.address_list(),
            mtu=self.mtu,
            queues=self.queues,
            allow_ip_forwarding=self.allow_ip_forwarding,
            routes=None if self.routes is None else tuple(map(Cidr, self.routes)),
        )

    def wired(self) -> Wired:
        return Wired(self.host_index, self.peer_index)

    def to_bytes(self) -> bytes:
        return orjson.dumps(self)

    @staticmethod
    def from_bytes(data: bytes, generation: int = 0) -> "Record":
        """Decode a row. Fields that are not known are left out. Raise ValueError if it is not a record."""
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


_FIELDS = frozenset(each.name for each in fields(Record) if each.init)
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("id", "sandbox"), (AttachmentId, tuple)),
    **dict.fromkeys(("boot_id", "node", "host_name", "mac", "pod", "namespace", "profile", "handle", "older_handle"), str),
    **dict.fromkeys(("mtu", "queues", "host_index", "peer_index"), int),
    **dict.fromkeys(("allow_ip_forwarding", "shares", "unmanaged", "recorded_only"), bool),
    **dict.fromkeys(("result", "delegate"), (dict, NoneType)),
    "state": str,
    "settings": dict,
    **dict.fromkeys(("addresses", "versions"), list),
    "routes": (list, NoneType),
}
_values = attrgetter(*_KINDS)
_known: set[tuple[type, ...]] = set()  # the types of values that were found to be right: there are few combinations


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

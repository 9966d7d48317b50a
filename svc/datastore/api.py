"""What every datastore offers: keys with revisions, changed by compare-and-swap.

A revision is an opaque string; it changes with every change of its key's value. `write` is the one way to change anything:

1. All writes of a call are applied, or (where `atomic` is true) none. A store that cannot do that applies them in the
   given order, stops at the first failure and raises `PartialWrite`, so that the caller can take back what was done.
   Deletions in a row may be made at once: then those past the failure may be done as well.
   A call has at most `MAX_WRITES` writes, and changes no key twice.
2. A `Create` of an existing key, an `Update` or `Delete` at another revision raise `Conflict` naming the key; an
   `Update` or `Delete` of a missing key raises `NotFound` naming it. A `Check` changes nothing and raises `Conflict` unless
   its key is there at its revision; a store that is not atomic looks at all of them before the first write.
3. With `durable` the call returns when the change survives a power cut, otherwise when it survives a killed process.
4. A write whose fate is unknown is looked up before anything is reported: it is never repeated blindly.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Generic, Protocol

from svc.model.errors import Code, PeerError
from svc.model.keys import Key, Query, ResourceKey, V, V_co
from svc.retry import ATTEMPTS, attempts
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Entry(Generic[V_co]):
    """A key, its value, and the revision at which it was read or written. The value belongs to the caller."""

    key: Key[V_co]
    value: V_co
    revision: str


class Entries(list[Entry[V]]):
    """The answers to a query. `left_out` has the places of documents that cannot be decoded, each with its fault."""

    def __init__(self, entries: Iterable[Entry[V]] = (), left_out: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(entries)
        self.left_out = dict(left_out)

    def leave_out(self, place: str, fault: Exception) -> None:
        """The log has it too: most callers go on without."""
        self.left_out[place] = str(fault)
        _log.warning("left out %s: %s", place, fault)


@dataclass(frozen=True, slots=True)
class Create(Generic[V_co]):
    """Fails with Conflict when the key exists."""

    key: Key[V_co]
    value: V_co


@dataclass(frozen=True, slots=True)
class Update(Generic[V_co]):
    """Fails with Conflict unless the key stands at this revision."""

    key: Key[V_co]
    value: V_co
    revision: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Fails with Conflict unless the key stands at this revision; any revision when it is None."""

    key: Key
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Fails with Conflict unless the key stands at this revision; changes nothing."""

    key: Key
    revision: str


Write = Create | Update | Delete | Check

_log = logging.getLogger(__name__)

MAX_WRITES = 128
"""Of one call; what a server takes that was not told otherwise."""


def demand_checks(get: Callable[[Key], Entry], writes: Sequence[Write]) -> None:
    """Conflict when a check among the writes fails: for stores without transactions, which read before they write."""
    for write in writes:
        if isinstance(write, Check):
            try:
                stands = get(write.key).revision == write.revision
            except NotFound:
                stands = False
            if not stands:
                raise Conflict(write.key)


@dataclass(frozen=True, slots=True)
class Event:
    """One change: `entry` is None when the key is gone."""

    key: Key
    entry: Entry | None


class Watch(Iterator[Event], Protocol):
    """The events of a query; one thread iterates, `close` from any thread ends it."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Position:
    """Which data the servers of a session hold, as far as their answers show it.

    `cluster` is the servers' own name for the data, empty if they have none. `revision` is the newest that was seen, 0 if the
    store has no comparable revisions. `setbacks` counts answers with a revision below one that was seen before.
    """

    cluster: str = ""
    revision: int = 0
    setbacks: int = 0


class Backend(Protocol):
    """A datastore session; safe to use from several threads at once. Errors: StoreError and its subclasses.

    Stores inherit from it.
    """

    @property
    def atomic(self) -> bool:
        """Whether `write` applies all of its writes or none."""

    @property
    def needs_node(self) -> bool:
        """Whether addresses are refused to a node that has no Node resource (a cluster), or not (a store of one node)."""

    @property
    def place(self) -> str:
        """Where it is, for errors: what is asked, and the address or path."""

    def get(self, key: Key[V]) -> Entry[V]:
        """NotFound when the key does not exist, Damaged when its value cannot be decoded."""

    def find(self, key: Key[V]) -> Entry[V] | None:
        """Return the entry, or None if the key does not exist. Raise Damaged as `get`."""
        try:
            return self.get(key)
        except NotFound:
            return None

    def get_all(self, keys: Sequence[Key[V]]) -> "Sequence[Found[V]]":
        """What stands at each of these keys, or why there is nothing to be had of it: as `get`, in one request where the store
        can do that, and then of one moment. At most MAX_WRITES keys."""

    def list(self, query: Query[V]) -> Entries[V]:
        """In key order. What cannot be decoded is left out, and the answer tells of it."""

    def update(self, key: Key[V], change: Callable[[V | None], V | None], *, durable: bool = False) -> Entry[V] | None:
        """Store what `change` makes of the value at a key; return the entry as it is then, None for a missing key.

        `change` gets None for a missing key. It returns the same object to leave it as it is, another one to store, or None to
        delete the key; it does not modify what it gets. Read and call `change` again after a Conflict or NotFound, also one
        that `change` raises. Raise Contended when every attempt has failed.
        """
        for _ in attempts():
            with suppress(Conflict, NotFound):
                entry = self.find(key)
                value = None if entry is None else entry.value
                wanted = change(value)
                if wanted is not value:
                    (entry,) = self.write([_replacement(key, entry, wanted)], durable=durable)
                return entry
        raise Contended(key)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        """The new entry of each write, None for a Delete or a Check. Values are stored as they are at the call."""

    def check_writable(self) -> None:
        """StoreError where a write would be refused whatever it is, as far as that can be told without one."""

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        """A number for each kind, which changes whenever a resource of this kind (for `IPAM_CONFIG`: the IPAM settings) may
        have changed: a cache filled at one generation is worth using at the same one. In a remote store it may lag behind, so
        it may choose, but never justify a refusal."""

    def position(self) -> Position:
        """Return which data the session has spoken to so far. Asks no server."""

    def watch(self, query: Query) -> Watch:
        """First every present entry, then each change, until it is closed. A watcher that lags too far behind is told anew of
        every present entry, and of the keys gone meanwhile. The session's own changes are told; whether those of other
        processes are is the store's choice."""

    def is_current(self) -> bool:
        """False when what this session was opened on has been replaced: a new session sees the new one."""

    def close(self) -> None: ...


class StoreError(PeerError):
    """The datastore failed or refused."""

    code = Code.DATASTORE


class Forbidden(StoreError):
    """The credentials of the session lack a right that this request needs."""


class KeyedError(StoreError):
    """A write or read that failed because of the state of one key.

    `found` is what a failed write has seen of its keys, where the store says so: whoever tries again need not read it.
    """

    def __init__(self, key: Key, found: "Sequence[Entry]" = ()) -> None:
        super().__init__(f"{type(self).__name__}: {key}")
        self.key = key
        self.found = found


class NotFound(KeyedError):
    """The key does not exist."""


class Conflict(KeyedError):
    """The key exists already, or was changed by somebody else since it was read."""


class Contended(StoreError):
    """Other writers changed a key during every attempt to change it."""

    code = Code.CONCURRENCY

    def __init__(self, key: Key) -> None:
        what = f"{key.kind} {key.name!r}" if isinstance(key, ResourceKey) else str(key)
        super().__init__(f"{what} kept changing under {ATTEMPTS} attempts to change it", details="try again")


class NoSpace(StoreError):
    """There is no room for the write; a smaller one may still fit."""


class OutcomeUnknown(StoreError):
    """Whether a request was carried out, or may yet be, is not known."""


class Damaged(StoreError):
    """What is stored at one key cannot be decoded; the datastore itself is well."""


Found = Entry[V] | NotFound | Damaged
"""What `get_all` says of one key."""


def found_by(get: Callable[[Key[V]], Entry[V]], key: Key[V]) -> Found[V]:
    """As `get_all`, of one key."""
    try:
        return get(key)
    except (NotFound, Damaged) as reason:
        return reason


def _replacement(key: Key[V], entry: Entry[V] | None, value: V | None) -> Write:
    if entry is None:
        return Create(key, value)
    return Delete(key, entry.revision) if value is None else Update(key, value, entry.revision)


def entry_of(found: Found[V]) -> Entry[V] | None:
    """The entry; None when there is none. Raise Damaged."""
    if isinstance(found, Damaged):
        raise found
    return found if isinstance(found, Entry) else None


class PartialWrite(StoreError):
    """Some writes of a call were applied before one failed: `done` says which, `cause` why the next one was not."""

    def __init__(self, done: Sequence[Entry | None], cause: StoreError) -> None:
        super().__init__(cause.msg, details=cause.details)
        self.done = tuple(done)
        self.cause = cause

"""Datastore interface: keys with revisions, changed by compare-and-swap.

A revision is an opaque string. It changes with every change of its key's value. All changes go through `write`:

1. If `atomic` is true, the store applies all writes of a call or none. A store that is not atomic applies them in the given
   order and stops at the first failure. It then raises `PartialWrite`, so that the caller can revert the applied writes.
   Such a store may send consecutive deletions in parallel: deletions after the failed one may be applied as well.
   A call has at most `MAX_WRITES` writes, and changes no key twice.
2. A `Create` of an existing key raises `Conflict`, as does an `Update` or `Delete` at another revision. An `Update` or
   `Delete` of a missing key raises `NotFound`. A `Check` changes nothing and raises `Conflict` unless its key exists at its
   revision. A store that is not atomic makes all checks before the first write. The errors name the key.
3. With `durable` the call returns when the change survives a power cut, otherwise when it survives a killed process.
4. If the outcome of a write is unknown, the store reads the keys before it reports or retries.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Generic, Protocol

from svc.metrics import StoreMeter
from svc.model.errors import Code, PeerError
from svc.model.ipam import InconsistentBlock
from svc.model.keys import Key, Query, V, V_co, describe
from svc.retry import ATTEMPTS, attempts
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Entry(Generic[V_co]):
    """Key, its value, and the revision at which it was read or written. The caller may modify the value."""

    key: Key[V_co]
    value: V_co
    revision: str


class Entries(list[Entry[V]]):
    """Result of a query. `skipped` maps the path of each document that cannot be decoded, or of its bad key, to the error.

    `inconsistent` has the paths of those that are blocks whose fields contradict each other.
    """

    def __init__(self, entries: Iterable[Entry[V]] = (), skipped: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(entries)
        self.skipped = dict(skipped)
        self.inconsistent: frozenset[str] = frozenset()

    def skip_misnamed(self, place: str) -> None:
        """Record a document whose key cannot be parsed, so that svc does not find it."""
        self.skip(place, ValueError("its key is not one that svc writes"))

    def skip(self, place: str, error: Exception) -> None:
        """Record a document that cannot be decoded. Log it as well, because most callers ignore `skipped`."""
        self.skipped[place] = str(error)
        if isinstance(error, InconsistentBlock):
            self.inconsistent |= {place}
        _log.warning("left out %s: %s", place, error)


@dataclass(frozen=True, slots=True)
class Create(Generic[V_co]):
    """Creation of a key. It fails with Conflict if the key exists."""

    key: Key[V_co]
    value: V_co


@dataclass(frozen=True, slots=True)
class Update(Generic[V_co]):
    """New value of a key. It fails with Conflict if the key has another revision, and with NotFound if it does not exist."""

    key: Key[V_co]
    value: V_co
    revision: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of a key. It fails as an Update does. The revision None matches any revision."""

    key: Key
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Condition of a call's other writes. It fails with Conflict unless the key exists at this revision; it changes nothing."""

    key: Key
    revision: str


Write = Create | Update | Delete | Check

_log = logging.getLogger(__name__)

MAX_WRITES = 128
"""Limit of one call: the number of operations that an etcd server accepts in a transaction by default."""


def require_checks(find: Callable[[Key], Entry | None], writes: Sequence[Write]) -> None:
    """Make the checks among the writes, for stores without transactions. Raise Conflict if one fails."""
    for write in writes:
        if isinstance(write, Check):
            entry = find(write.key)
            if entry is None or entry.revision != write.revision:
                raise Conflict(write.key)


@dataclass(frozen=True, slots=True)
class Event:
    """One change. `entry` is None if the key was deleted."""

    key: Key
    entry: Entry | None


class Watch(Iterator[Event], Protocol):
    """Events of a query. One thread iterates; `close`, from any thread, ends the iteration.

    `interrupted_since` is since when (monotonic time) changes may be missing; None while they are reported as they come. After
    an interruption of `longest_gap` seconds a watch of a remote store reports every present entry again. `failure` is the
    error that caused the interruption; empty while changes are reported as they come.
    """

    interrupted_since: float | None = None
    longest_gap: float = math.inf
    failure: str = ""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Position:
    """Identity and age of the data that the servers of a session hold, as observed in their answers.

    `cluster` is the servers' ID of the data; empty if they have none. `revision` is the newest observed revision; 0 if the
    revisions of the store cannot be compared. `setbacks` counts answers with a revision below an earlier answer's.
    """

    cluster: str = ""
    revision: int = 0
    setbacks: int = 0


class Backend(Protocol):
    """Datastore session. Thread-safe. Its errors are StoreError and subclasses. Stores inherit from it."""

    meter: StoreMeter = StoreMeter()
    """The numbers of this session. A session that does not set its own shares one that is not read."""

    @property
    def atomic(self) -> bool:
        """Whether `write` applies all of its writes or none."""

    @property
    def requires_node(self) -> bool:
        """Whether a node needs a Node resource to get addresses: true for clusters, false for the store of one node."""

    @property
    def place(self) -> str:
        """Kind and address or path of the store, for errors."""

    @property
    def has_plain_objects(self) -> bool:
        """Whether stored resources are objects of the plain API group, which users delete there. Raise StoreError.

        Then they may have finalizers, and a controller maintains their status.
        """
        return False

    def get(self, key: Key[V]) -> Entry[V]:
        """Return the entry of a key. Raise NotFound or UndecodableEntry."""

    def find(self, key: Key[V]) -> Entry[V] | None:
        """Return the entry, or None if the key does not exist. Raise UndecodableEntry."""
        try:
            return self.get(key)
        except NotFound:
            return None

    def get_all(self, keys: Sequence[Key[V]]) -> "Sequence[Found[V]]":
        """Return the entry of each of at most MAX_WRITES keys, or the exception of `get`.

        If the store can read several keys in one request, the result shows one moment.
        """

    def list(self, query: Query[V]) -> Entries[V]:
        """Return the entries of a query in key order. Documents that cannot be decoded are in `skipped` of the result."""

    def pages(self, query: Query[V]) -> Iterator[Entries[V]]:
        """Yield the entries of a query in parts, in any order, so that the caller need not hold all of them.

        If the store reads each part by itself, the parts need not show one moment.
        """
        yield self.list(query)

    def update(self, key: Key[V], change: Callable[[V | None], V | None], *, durable: bool = False) -> Entry[V] | None:
        """Replace the value of a key by the one that `change` returns. Return the resulting entry, if any.

        `change` gets None if the key is missing. It returns the same object to keep the value, another object to store, or
        None to delete the key. It must not modify its argument. After a Conflict or NotFound, read and call `change` again,
        also if `change` raised it. Raise Contended if every attempt failed.
        """
        for _ in attempts():
            with suppress(Conflict, NotFound):
                entry = self.find(key)
                wanted = change(None if entry is None else entry.value)
                if entry is None:
                    return None if wanted is None else self.write([Create(key, wanted)], durable=durable)[0]
                if wanted is entry.value:
                    return entry
                write = Delete(key, entry.revision) if wanted is None else Update(key, wanted, entry.revision)
                return self.write([write], durable=durable)[0]
        raise Contended(key)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        """Apply the writes, and encode the values during the call. Return the new entry of each; None for a Delete or Check."""

    def check_writable(self) -> None:
        """Raise StoreError if the store would refuse any write, as far as this can be detected without a change."""

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        """Return the generation of each kind, which changes when a resource of the kind may have changed.

        The kind `IPAM_CONFIG` stands for the IPAM settings. A cache is valid for the generation at which it was filled. In a
        remote store the generation may lag: a cached object may guide a choice, but must not justify a refusal.
        """

    def position(self) -> Position:
        """Return the position that the session has observed so far. Send no request."""
        return Position()

    def token_expires(self) -> float | None:
        """Return the Unix time at which the token of the session expires; None if it has none, or none that names its end."""
        return None

    def watch(self, query: Query, listed: Callable[[], None] | None = None) -> Watch:
        """Return a watch that reports every present entry, then each change, until it is closed.

        A watch that lags too far behind reports every present entry again, and the keys that were deleted since. It reports
        the changes of this session. Whether it reports the changes of other processes depends on the store. The thread that
        iterates calls `listed` each time after it has got all present entries and those deletions.
        """

    def is_current(self) -> bool:
        """Return False if the datastore that this session has open was replaced. A new session opens the replacement."""
        return True

    def write_back(self) -> bool:
        """Save what only this session has of a datastore that is not current. Return whether it is current again.

        Raise StoreError if that fails; the session stays as it is.
        """
        return False

    def close(self) -> None: ...


class StoreError(PeerError):
    """Failure of the datastore, or its refusal of a request."""

    code = Code.DATASTORE


class Forbidden(StoreError):
    """Refusal of a request, because the credentials of the session lack a right."""

    lacks_right = True


class KeyedError(StoreError):
    """Failure because of the state of one key. `observed` has the entries that a failed write found, if the store has them.

    `remedy` is what the datastore knows of the fix; empty if only a repetition may help.
    """

    problem = "is not in the expected state"  # follows the name of the object in the message

    def __init__(self, key: Key, observed: "Sequence[Entry]" = (), *, remedy: str = "") -> None:
        super().__init__(f"{describe(key)} {self.problem}", details=remedy or "repeat the command or the call")
        self.key = key
        self.remedy = remedy
        self.observed = observed


class NotFound(KeyedError):
    """Failure because the key does not exist."""

    problem = "does not exist: another program may have deleted it"


class Conflict(KeyedError):
    """Failure of a compare-and-swap: the key already exists, or another writer changed it since it was read."""

    problem = "was changed by another program at the same time"


class Contended(StoreError):
    """Failure of every attempt of a change, because other writers changed the key."""

    code = Code.CONCURRENCY

    def __init__(self, key: Key) -> None:
        super().__init__(f"{describe(key)} kept changing under {ATTEMPTS} attempts to change it", details="try again")


class NoSpace(StoreError):
    """Refusal of a write because the datastore is full. A smaller write may still fit."""


class OutcomeUnknown(StoreError):
    """Failure that leaves the outcome of a request unknown: it may have been applied, or may still be applied."""


class UndecodableEntry(StoreError):
    """Failure to decode the value of one key. Other keys are not affected."""


Found = Entry[V] | NotFound | UndecodableEntry
"""Result of `get_all` for one key."""


def found_by(get: Callable[[Key[V]], Entry[V]], key: Key[V]) -> Found[V]:
    """Return what `get` returns or raises for a key."""
    try:
        return get(key)
    except (NotFound, UndecodableEntry) as reason:
        return reason


def entry_of(found: Found[V]) -> Entry[V] | None:
    """Return the entry; None if the key does not exist. Raise UndecodableEntry if its value cannot be decoded."""
    if isinstance(found, UndecodableEntry):
        raise found
    return found if isinstance(found, Entry) else None


class PartialWrite(StoreError):
    """Failure after some writes of a call: `done` has their results, in order, and `cause` is the error of the next write."""

    def __init__(self, done: Sequence[Entry | None], cause: StoreError) -> None:
        super().__init__(cause.msg, details=cause.details)
        self.done = tuple(done)
        self.cause = cause
        self.lacks_right = cause.lacks_right

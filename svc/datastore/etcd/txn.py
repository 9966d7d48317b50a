"""Writes as one etcd transaction, which is applied once even if its answers are lost.

Every write has the expected state of its key: absent, present, or at one revision. The transaction compares all states and
applies all writes or none. If it applies none, its answer contains the present state of all keys.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

from svc.datastore.api import (
    MAX_WRITES,
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    KeyedError,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Update,
    Write,
)
from svc.datastore.etcd.connection import Compacted, EtcdConnection, NoResponse
from svc.datastore.etcd.messages import Message, rpc
from svc.metrics import WRITE
from svc.model.keys import Key
from svc.model.kv_codec import Codec
from svc.values import dataclass

_ABSENT = 0
_PRESENT = -1
_NEVER = 2**63 - 1  # not the revision of any key

Decode = Callable[[Key, Message], Entry | None]


@dataclass(frozen=True, slots=True)
class Change:
    """Write with its path, its document and the expected state: a revision or a constant. Delete and Check have no document."""

    write: Write
    path: bytes
    data: bytes | None
    expected: int

    @property
    def is_check(self) -> bool:
        return isinstance(self.write, Check)

    def entry(self, revision: int) -> Entry | None:
        write = self.write
        return Entry(write.key, write.value, str(revision)) if isinstance(write, Create | Update) else None

    def compares(self, since: int | None) -> list[Message]:
        """Return the conditions of the write. With `since`, the state "present" means present at a revision up to that one."""
        if self.expected == _ABSENT:
            return [rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.VERSION, key=self.path, version=0)]
        if self.expected != _PRESENT:
            return [rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, key=self.path, mod_revision=self.expected)]
        present = rpc.Compare(result=rpc.Compare.GREATER, target=rpc.Compare.VERSION, key=self.path, version=0)
        if since is None:
            return [present]
        return [present, rpc.Compare(result=rpc.Compare.LESS, target=rpc.Compare.MOD, key=self.path, mod_revision=since + 1)]

    def operations(self) -> list[Message]:
        if self.is_check:
            return []
        if self.data is None:
            return [rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self.path))]
        return [rpc.RequestOp(request_put=rpc.PutRequest(key=self.path, value=self.data))]

    def refusal(self, found: Any) -> KeyedError | None:
        """Return the error if the key is not in the expected state, else None. `found` is its KeyValue, or None."""
        if found is None:
            if self.expected == _ABSENT:
                return None
            return Conflict(self.write.key) if self.is_check else NotFound(self.write.key)
        return None if self.expected in (_PRESENT, found.mod_revision) else Conflict(self.write.key)

    def has_moved(self, found: Any, since: int) -> bool:
        """Return whether the key has changed after `since`, so that it is not in the expected state."""
        if self.refusal(found) is not None:
            return True
        return self.expected == _PRESENT and bool(found.mod_revision > since)

    def is_done(self, found: Any, revision: int) -> bool:
        """Return whether the state of the key at `revision` shows that this change was applied there."""
        if self.is_check:
            return True
        if self.data is None:
            return found is None
        return found is not None and found.mod_revision == revision and bool(found.value == self.data)


def change(codec: Codec, write: Write) -> Change:
    """Return the change for a write."""
    path = codec.path(write.key).encode()
    match write:
        case Create(value=value):
            return Change(write, path, codec.encode(value), _ABSENT)
        case Update(value=value, revision=revision):
            return Change(write, path, codec.encode(value), _number(revision))
        case Delete(revision=None):
            return Change(write, path, None, _PRESENT)
        case Delete(revision=str() as revision) | Check(revision=revision):
            return Change(write, path, None, _number(revision))
    raise TypeError(write)


def _number(revision: str) -> int:
    """Return the revision as a number; _NEVER if it is not a revision of etcd."""
    return int(revision) if revision.isdecimal() and 0 < int(revision) < _NEVER else _NEVER


def _request(changes: Sequence[Change], since: int | None = None) -> Message:
    """Return the request of a transaction. A retry gives `since`, a revision before the first attempt."""
    return rpc.TxnRequest(
        compare=[compare for each in changes for compare in each.compares(since)],
        success=[operation for each in changes for operation in each.operations()],
        failure=_reads(each.path for each in changes),
    )


def _reads(paths: Iterable[bytes], revision: int = 0) -> list[Message]:
    return [rpc.RequestOp(request_range=rpc.RangeRequest(key=path, revision=revision)) for path in paths]


def reading(paths: Iterable[bytes], revision: int = 0) -> Message:
    """Return a request that reads these keys at one revision, by default the present one."""
    return rpc.TxnRequest(success=_reads(paths, revision))


def impossible(path: bytes) -> Message:
    """Return a request with a write of this key that is never applied."""
    never = rpc.Compare(result=rpc.Compare.LESS, target=rpc.Compare.VERSION, key=path, version=0)
    return rpc.TxnRequest(compare=[never], success=[rpc.RequestOp(request_put=rpc.PutRequest(key=path, value=b""))])


def states(answer: Message) -> list[Any]:
    """Return the KeyValue of each key in the answer of a reading or failed transaction; None for absent keys."""
    return [first(response.response_range.kvs) for response in answer.responses]


def first(kvs: Any) -> Any:
    """Return the only KeyValue of an answer; None if it has none."""
    return kvs[0] if kvs else None


class Commit:
    """One transaction, with its attempts."""

    def __init__(self, connection: EtcdConnection, changes: Sequence[Change]) -> None:
        """Raise StoreError if there are too many changes."""
        if len(changes) > MAX_WRITES:
            raise StoreError(f"{len(changes)} writes in one transaction are too many", details=f"etcd takes {MAX_WRITES}")
        self._connection = connection
        self._changes = changes
        self._budget = connection.budget()

    def run(self, decode: Decode) -> int:
        """Apply all changes or none. Return their revision.

        Raise KeyedError if a key is not in the expected state; its `observed` has the present entries. Raise OutcomeUnknown if
        the changes may have been applied, StoreError if the cluster is unreachable or refuses the transaction.
        """
        since = self._known_revision()
        request = _request(self._changes)
        while True:
            try:
                answer = self._connection.txn(request, self._budget.seconds, WRITE)
            except NoResponse as failure:
                self._wait(failure)
                request = _request(self._changes, since)
                continue
            if answer.succeeded:
                return int(answer.header.revision)
            found = states(answer)
            revision = self._applied_at(found, since) if self._budget.may_have_arrived else None
            if revision is None:
                raise self._refusal(found, decode)
            return revision

    def _known_revision(self) -> int:
        """Return a revision that the cluster had before the first attempt. This transaction did not make any older change."""
        if not self._connection.seen:
            self._budget.range(rpc.RangeRequest(key=self._changes[0].path, keys_only=True))
        return max(self._connection.seen, *(each.expected for each in self._changes if each.expected != _NEVER))

    def _wait(self, failure: NoResponse) -> None:
        try:
            self._budget.after(failure)
        except NoResponse:
            known = not self._budget.may_have_arrived
            raise failure if known else _unknown(failure.msg, failure.details) from failure.__cause__

    def _refusal(self, found: Sequence[Any], decode: Decode) -> StoreError:
        pairs = list(zip(self._changes, found, strict=True))
        refusal = next((error for each, kv in pairs if (error := each.refusal(kv)) is not None), None)
        if refusal is None:
            return _unknown(f"another client of {self._connection.place} has changed a key at the same time")
        entries = (decode(each.write.key, kv) for each, kv in pairs if kv is not None)
        refusal.observed = [entry for entry in entries if entry is not None]
        return refusal

    def _applied_at(self, found: Sequence[Any], since: int) -> int | None:
        """Return the revision of a transaction whose answer was lost and whose retry failed; None if it was not applied.

        If another writer applied the same changes to the same state of the keys, return the revision of that transaction.
        """
        try:
            revision = self._candidate(found, since)
            if revision is None or revision <= since:
                return None
            past = states(self._budget.txn(reading((each.path for each in self._changes), revision)))
        except (Compacted, NoResponse) as failure:
            raise _unknown(failure.msg, failure.details) from failure
        return revision if all(each.is_done(kv, revision) for each, kv in zip(self._changes, past, strict=True)) else None

    def _candidate(self, found: Sequence[Any], since: int) -> int | None:
        """Return the only possible revision of the transaction: that of the first change of a key after its expected state."""
        for each, kv in zip(self._changes, found, strict=True):
            if each.is_check or not each.has_moved(kv, since):
                continue
            if each.expected == _NEVER:
                return None
            if each.expected == _ABSENT:
                return int(kv.create_revision)
            return self._first_change(each.path, since if each.expected == _PRESENT else each.expected)
        return None

    def _first_change(self, path: bytes, revision: int) -> int:
        """Return the revision of the first change of a key after a revision. The caller knows that it exists."""
        request = rpc.WatchCreateRequest(key=path, start_revision=revision + 1)

        def first_event(seconds: float) -> int:
            with closing(self._connection.watch(request, seconds)) as stream:
                while not (events := stream.receive().events):
                    pass
                return int(events[0].kv.mod_revision)

        return self._budget.repeat(first_event)


def _unknown(reason: str, remedy: str = "") -> OutcomeUnknown:
    what = f"a write was sent, and whether it was carried out is not known: {reason}"
    return OutcomeUnknown(what, details=remedy or "try again")

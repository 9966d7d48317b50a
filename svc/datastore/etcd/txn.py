"""Writes as one etcd transaction: its request, the key that made it fail, and the outcome of a transaction without an answer.

Every write has the expected state of its key: absent, present, or at one revision. The transaction compares all states and
applies all writes or none. If it applies none, its answer contains the present state of all keys.
"""

from collections.abc import Callable, Sequence
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
    StoreError,
    Update,
    Write,
)
from svc.datastore.etcd.messages import Compare, DeleteRangeRequest, Message, PutRequest, RangeRequest, RequestOp, TxnRequest
from svc.model.kv_codec import Codec
from svc.values import dataclass

_ABSENT = 0
_PRESENT = -1
_NEVER = 2**63 - 1  # not the revision of any key


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

    @property
    def known_revision(self) -> int:
        """Return the expected revision, which the cluster has had; 0 if the write has none."""
        return self.expected if 0 < self.expected < _NEVER else 0

    def entry(self, revision: int) -> Entry | None:
        write = self.write
        return Entry(write.key, write.value, str(revision)) if isinstance(write, Create | Update) else None

    def compares(self, since: int | None) -> list[Message]:
        """Return the conditions of the write. With `since`, the state "present" means present at a revision up to that one."""
        if self.expected == _ABSENT:
            return [Compare(result=Compare.EQUAL, target=Compare.VERSION, key=self.path, version=0)]
        if self.expected != _PRESENT:
            return [Compare(result=Compare.EQUAL, target=Compare.MOD, key=self.path, mod_revision=self.expected)]
        present = Compare(result=Compare.GREATER, target=Compare.VERSION, key=self.path, version=0)
        if since is None:
            return [present]
        return [present, Compare(result=Compare.LESS, target=Compare.MOD, key=self.path, mod_revision=since + 1)]

    def operations(self) -> list[Message]:
        if self.is_check:
            return []
        if self.data is None:
            return [RequestOp(request_delete_range=DeleteRangeRequest(key=self.path))]
        return [RequestOp(request_put=PutRequest(key=self.path, value=self.data))]

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
        case Create(_, value):
            return Change(write, path, codec.encode(value), _ABSENT)
        case Update(_, value, revision):
            return Change(write, path, codec.encode(value), _number(revision))
        case Delete(_, None):
            return Change(write, path, None, _PRESENT)
        case Delete(_, str(revision)) | Check(_, revision):
            return Change(write, path, None, _number(revision))
    raise TypeError(write)


def request(changes: Sequence[Change], since: int | None = None) -> Message:
    """Return the request of a transaction. Raise StoreError if it has too many writes.

    A retry gives `since`, a revision before the first attempt.
    """
    if len(changes) > MAX_WRITES:
        raise StoreError(f"{len(changes)} writes in one transaction are too many", details=f"etcd takes {MAX_WRITES}")
    return TxnRequest(
        compare=[compare for each in changes for compare in each.compares(since)],
        success=[operation for each in changes for operation in each.operations()],
        failure=[RequestOp(request_range=RangeRequest(key=each.path)) for each in changes],
    )


def reading(paths: Sequence[bytes]) -> Message:
    """Return a request that reads these keys at one revision."""
    return TxnRequest(success=[RequestOp(request_range=RangeRequest(key=path)) for path in paths])


def impossible(path: bytes) -> Message:
    """Return a request with a write of this key that is never applied."""
    never = Compare(result=Compare.LESS, target=Compare.VERSION, key=path, version=0)
    return TxnRequest(compare=[never], success=[RequestOp(request_put=PutRequest(key=path, value=b""))])


def states(answer: Message) -> list[Any]:
    """Return the KeyValue of each key in the answer of a reading or failed transaction; None for absent keys."""
    return [first(response.response_range.kvs) for response in answer.responses]


def refusal(changes: Sequence[Change], found: Sequence[Any]) -> KeyedError | None:
    """Return the error of the first write whose key is not in the expected state; None if all are."""
    return next((error for each, kv in zip(changes, found, strict=True) if (error := each.refusal(kv)) is not None), None)


@dataclass(frozen=True, slots=True)
class History:
    """Requests for past revisions. Both may raise; the outcome is then unknown."""

    txn: Callable[[Message], Message]
    first_event: Callable[[bytes, int], Any]  # arguments: the key, and the first revision to look at


def applied_at(changes: Sequence[Change], found: Sequence[Any], since: int, history: History) -> int | None:
    """Return the revision of a transaction whose answer was lost and whose retry failed; None if it was not applied.

    If another writer applied the same changes to the same state of the keys, return the revision of that transaction.
    """
    revision = _candidate(changes, found, since, history)
    if revision is None or revision <= since:
        return None
    then = [RequestOp(request_range=RangeRequest(key=each.path, revision=revision)) for each in changes]
    past = states(history.txn(TxnRequest(success=then)))
    return revision if all(each.is_done(kv, revision) for each, kv in zip(changes, past, strict=True)) else None


def _candidate(changes: Sequence[Change], found: Sequence[Any], since: int, history: History) -> int | None:
    """Return the only possible revision of the transaction: that of the first change of a key after its expected state."""
    for each, kv in zip(changes, found, strict=True):
        if each.is_check or not each.has_moved(kv, since):
            continue
        if each.expected == _NEVER:
            return None
        if each.expected == _ABSENT:
            return int(kv.create_revision)
        start = since if each.expected == _PRESENT else each.expected
        return int(history.first_event(each.path, start + 1).kv.mod_revision)
    return None


def first(kvs: Any) -> Any:
    """Return the only KeyValue of an answer; None if it has none."""
    return kvs[0] if kvs else None


def _number(revision: str) -> int:
    """Return the revision as a number; _NEVER if it is not a revision of etcd."""
    return int(revision) if revision.isdecimal() and 0 < int(revision) < _NEVER else _NEVER

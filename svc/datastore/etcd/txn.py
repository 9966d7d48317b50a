"""A group of writes as one etcd transaction: its request, which key stood in its way, and whether a lost one was carried out.

Every write carries the state that it expects of its key: absent, present, or at one revision. The transaction compares all of
them and changes everything or nothing; where it changes nothing, its answer says how all keys stand.
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
_NEVER = 2**63 - 1  # a revision that no key has


@dataclass(frozen=True, slots=True)
class Change:
    """A write, its path, its document (None for Delete and Check), and what it expects: a revision or one of the above."""

    write: Write
    path: bytes
    data: bytes | None
    expected: int

    @property
    def is_check(self) -> bool:
        return isinstance(self.write, Check)

    @property
    def known_revision(self) -> int:
        """One that the cluster has had, if the write names one; 0 otherwise."""
        return self.expected if 0 < self.expected < _NEVER else 0

    def entry(self, revision: int) -> Entry | None:
        write = self.write
        return Entry(write.key, write.value, str(revision)) if isinstance(write, Create | Update) else None

    def compares(self, since: int | None) -> list[Message]:
        """With `since`, what any revision means is: any up to that one."""
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
        """What is wrong with the state of the key: `found` is its KeyValue, or None."""
        if found is None:
            if self.expected == _ABSENT:
                return None
            return Conflict(self.write.key) if self.is_check else NotFound(self.write.key)
        return None if self.expected in (_PRESENT, found.mod_revision) else Conflict(self.write.key)

    def has_moved(self, found: Any, since: int) -> bool:
        """Whether the key was changed since, and so is not as expected."""
        if self.refusal(found) is not None:
            return True
        return self.expected == _PRESENT and bool(found.mod_revision > since)

    def is_done(self, found: Any, revision: int) -> bool:
        """Whether the key, as it was at `revision`, shows that this change was made there."""
        if self.is_check:
            return True
        if self.data is None:
            return found is None
        return found is not None and found.mod_revision == revision and bool(found.value == self.data)


def change(codec: Codec, write: Write) -> Change:
    """The write as etcd sees it."""
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
    """All or nothing. `since` is the last revision before the first try, and given when there was one already. StoreError."""
    if len(changes) > MAX_WRITES:
        raise StoreError(f"{len(changes)} writes in one transaction are too many", details=f"etcd takes {MAX_WRITES}")
    return TxnRequest(
        compare=[compare for each in changes for compare in each.compares(since)],
        success=[operation for each in changes for operation in each.operations()],
        failure=[RequestOp(request_range=RangeRequest(key=each.path)) for each in changes],
    )


def reading(paths: Sequence[bytes]) -> Message:
    """Reads these keys as they are at one moment."""
    return TxnRequest(success=[RequestOp(request_range=RangeRequest(key=path)) for path in paths])


def impossible(path: bytes) -> Message:
    """A write of this key that is never carried out."""
    never = Compare(result=Compare.LESS, target=Compare.VERSION, key=path, version=0)
    return TxnRequest(compare=[never], success=[RequestOp(request_put=PutRequest(key=path, value=b""))])


def states(answer: Message) -> list[Any]:
    """The KeyValue of each key that a transaction has read, or a refused one found; None for absent ones."""
    return [first(response.response_range.kvs) for response in answer.responses]


def refusal(changes: Sequence[Change], found: Sequence[Any]) -> KeyedError | None:
    """Of the first write that could not be done."""
    return next((error for each, kv in zip(changes, found, strict=True) if (error := each.refusal(kv)) is not None), None)


@dataclass(frozen=True, slots=True)
class History:
    """How to look into the past of a cluster. Both may raise; then nothing is known."""

    txn: Callable[[Message], Message]
    first_event: Callable[[bytes, int], Any]  # of a key, from a revision on


def made_at(changes: Sequence[Change], found: Sequence[Any], since: int, history: History) -> int | None:
    """The revision at which a transaction, whose answer was lost and which now finds its keys changed, was carried out.

    None when it was not. Whoever made the same change at the same state of its keys counts as us: then it is made.
    """
    revision = _candidate(changes, found, since, history)
    if revision is None or revision <= since:
        return None
    then = [RequestOp(request_range=RangeRequest(key=each.path, revision=revision)) for each in changes]
    past = states(history.txn(TxnRequest(success=then)))
    return revision if all(each.is_done(kv, revision) for each, kv in zip(changes, past, strict=True)) else None


def _candidate(changes: Sequence[Change], found: Sequence[Any], since: int, history: History) -> int | None:
    """The only revision that can have been ours: the next one of a key after that which was expected of it."""
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
    """The only KeyValue of an answer; None where there is none."""
    return kvs[0] if kvs else None


def _number(revision: str) -> int:
    """A revision of another store, or of none, is at least no revision of ours."""
    return int(revision) if revision.isdecimal() and 0 < int(revision) < _NEVER else _NEVER

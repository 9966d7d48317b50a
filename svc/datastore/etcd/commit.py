"""Apply a transaction once, even if answers are lost."""

from collections.abc import Callable, Sequence
from typing import Any

from svc.datastore.api import Entry, OutcomeUnknown, StoreError
from svc.datastore.etcd import txn
from svc.datastore.etcd.connection import Compacted, EtcdConnection, NoResponse, RetryBudget
from svc.datastore.etcd.messages import Message, RangeRequest, WatchCreateRequest
from svc.model.keys import Key

_AGAIN = "try again"

Decode = Callable[[Key, Message], Entry | None]


def commit(connection: EtcdConnection, changes: Sequence[txn.Change], decode: Decode) -> int:
    """Apply all changes or none. Return their revision.

    Raise KeyedError if a key is not in the expected state; its `observed` has the present entries. Raise OutcomeUnknown if the
    changes may have been applied, StoreError if the cluster is unreachable or refuses the transaction.
    """
    budget = connection.budget()
    since = _known_revision(connection, changes, budget)
    request = txn.request(changes)
    while True:
        try:
            answer = connection.txn(request, budget.seconds)
        except NoResponse as failure:
            _wait(budget, failure)
            request = txn.request(changes, since)
        else:
            if answer.succeeded:
                return int(answer.header.revision)
            found = txn.states(answer)
            revision = _applied_at(connection, changes, found, budget, since) if budget.may_have_arrived else None
            if revision is None:
                raise _refusal(changes, found, decode, connection.place)
            return revision


def _known_revision(connection: EtcdConnection, changes: Sequence[txn.Change], budget: RetryBudget) -> int:
    """Return a revision that the cluster had before the first attempt. This transaction did not make any older change."""
    if not connection.seen:
        budget.repeat(lambda seconds: connection.range(RangeRequest(key=changes[0].path, keys_only=True), seconds))
    return max(connection.seen, *(change.known_revision for change in changes))


def _wait(budget: RetryBudget, failure: NoResponse) -> None:
    try:
        budget.after(failure)
    except NoResponse:
        raise _unknown(failure.msg, failure.details) if budget.may_have_arrived else failure from failure.__cause__


def _refusal(changes: Sequence[txn.Change], found: Sequence[Any], decode: Decode, place: str) -> StoreError:
    """Return the error for keys that are not in the expected state."""
    refusal = txn.refusal(changes, found)
    if refusal is None:
        return _unknown(f"another client of {place} has changed a key at the same time", _AGAIN)
    entries = (decode(each.write.key, kv) for each, kv in zip(changes, found, strict=True) if kv is not None)
    refusal.observed = [entry for entry in entries if entry is not None]
    return refusal


def _applied_at(
    connection: EtcdConnection, changes: Sequence[txn.Change], found: Sequence[Any], budget: RetryBudget, since: int
) -> int | None:
    def past(request: Message) -> Message:
        return budget.repeat(lambda seconds: connection.txn(request, seconds))

    def first_event(path: bytes, start: int) -> Message:
        return budget.repeat(lambda seconds: _first_event(connection, path, start, seconds))

    try:
        return txn.applied_at(changes, found, since, txn.History(past, first_event))
    except (Compacted, NoResponse) as failure:
        raise _unknown(failure.msg, failure.details or _AGAIN) from failure


def _first_event(connection: EtcdConnection, path: bytes, start: int, seconds: float) -> Message:
    """Return the first event of a key at or after a revision. The caller knows that it exists."""
    stream = connection.watch(WatchCreateRequest(key=path, start_revision=start), seconds)
    try:
        while not (events := stream.receive().events):
            pass
        return events[0]
    finally:
        stream.close()


def _unknown(reason: str, remedy: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"a write was sent, and whether it was carried out is not known: {reason}", details=remedy)

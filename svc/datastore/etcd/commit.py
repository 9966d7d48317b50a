"""Carrying a transaction out once, whatever happens to its answers."""

from collections.abc import Sequence
from typing import Any

from svc.datastore.api import StoreError
from svc.datastore.etcd import txn
from svc.datastore.etcd.link import Compacted, Link, Tries, Unanswered
from svc.datastore.etcd.messages import Message, RangeRequest, WatchCreateRequest


def commit(link: Link, changes: Sequence[txn.Change]) -> int:
    """The revision of all the changes. KeyedError when one of them could not be made, and then none is.

    StoreError when the cluster is out of reach, saying so where it is not known whether the changes were made.
    """
    tries = link.tries()
    since = _known_revision(link, changes, tries)
    request = txn.request(changes)
    while True:
        try:
            answer = link.txn(request, tries.seconds)
        except Unanswered as failure:
            _wait(tries, failure)
            request = txn.request(changes, since)
        else:
            return answer.header.revision if answer.succeeded else _refused(link, changes, txn.states(answer), tries, since)


def _known_revision(link: Link, changes: Sequence[txn.Change], tries: Tries) -> int:
    """One that the cluster has reached before the first try: whatever is older is not of our making."""
    if not link.seen:
        tries.repeat(lambda seconds: link.range(RangeRequest(key=changes[0].path, keys_only=True), seconds))
    return max(link.seen, *(change.known_revision for change in changes))


def _wait(tries: Tries, failure: Unanswered) -> None:
    try:
        tries.after(failure)
    except Unanswered:
        raise _unknown(failure.msg) if tries.may_have_arrived else failure from failure.__cause__


def _refused(link: Link, changes: Sequence[txn.Change], found: Sequence[Any], tries: Tries, since: int) -> int:
    """The keys do not stand as expected; perhaps because an earlier try has changed them."""
    revision = _made_at(link, changes, found, tries, since) if tries.may_have_arrived else None
    if revision is None:
        raise txn.refusal(changes, found) or _unknown("somebody else has changed a key meanwhile")
    return revision


def _made_at(link: Link, changes: Sequence[txn.Change], found: Sequence[Any], tries: Tries, since: int) -> int | None:
    def past(request: Message) -> Message:
        return tries.repeat(lambda seconds: link.txn(request, seconds))

    def first_event(path: bytes, start: int) -> Message:
        return tries.repeat(lambda seconds: _first_event(link, path, start, seconds))

    try:
        return txn.made_at(changes, found, since, txn.History(past, first_event))
    except (Compacted, Unanswered) as failure:
        raise _unknown(failure.msg) from failure


def _first_event(link: Link, path: bytes, start: int, seconds: float) -> Message:
    """The first one of a key at or after a revision. There must be one."""
    stream = link.watch(WatchCreateRequest(key=path, start_revision=start), seconds)
    try:
        while not (events := stream.receive().events):
            pass
        return events[0]
    finally:
        stream.cancel()


def _unknown(reason: str) -> StoreError:
    return StoreError(f"a write was sent, and whether it was carried out is not known: {reason}", details="read, and decide")

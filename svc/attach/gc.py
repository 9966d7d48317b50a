"""GC: tear down what the runtime no longer knows, in the kernel and in the datastore."""

import time
from collections.abc import Iterable

from svc.attach.context import Context
from svc.attach.record import ADDING, DELETING, WAITING, Record, SessionKey
from svc.attach.recovery import Store, store_of
from svc.attach.restore import restore_rows
from svc.attach.sources.base import AddressSource
from svc.attach.sources.own import POOLS_OF_SVC
from svc.attach.teardown import defer_release, take_down
from svc.attach.token_cache import without_secrets
from svc.call_trace import CallTrace
from svc.model.errors import PeerError, SvcError


def collect(
    context: Context,
    network: str,
    valid: Iterable[tuple[str, str]],
    where: SessionKey,
    trace: CallTrace,
    source: AddressSource = POOLS_OF_SVC,
) -> None:
    """Tear down every attachment of the network that is not in `valid` (container, interface), then let the network's source
    release the addresses of unknown containers. Continue after a failure; raise PeerError with all of them at the end.
    """
    session = context.session(where)
    session.require_ready()
    if session.claim is not None:
        session.claim.require_decided()
    restore_rows(context, session, where.profile, trace)
    known = frozenset(valid)
    failures = [
        *_take_down_unknown(context, network, known, where, trace),
        *source.collect(context, session, network, known, trace),
    ]
    if failures:
        raise PeerError(
            f"{len(failures)} attachments of network {network!r} could not be collected", details="; ".join(failures)
        )


def _take_down_unknown(
    context: Context, network: str, valid: frozenset[tuple[str, str]], where: SessionKey, trace: CallTrace
) -> list[str]:
    """A datastore that has failed once is not asked for the rest, whose releases become pending."""
    failures = []
    own: Store = (where.profile, tuple(sorted(without_secrets(where.datastore).items())), "")
    failing: set[Store] = set()
    for record in context.journal.of_network(network):
        if (record.id.container_id, record.id.ifname) in valid or _is_under_way(context, record):
            continue
        if record.state == DELETING and store_of(record) != own:
            continue  # it is retried apart from every call
        trace.info(f"collecting {record.id.container_id} {record.id.ifname}: the runtime does not know it")
        try:
            if store_of(record) in failing:
                defer_release(context, record)
            elif not take_down(context, record, trace):
                failing.add(store_of(record))
        except SvcError as failure:
            failures.append(f"{record.id.container_id} {record.id.ifname}: {failure}")
    return failures


def _is_under_way(context: Context, record: Record) -> bool:
    """Whether an ADD, which the runtime need not know yet, works on the row. In an agent every other such row is taken down by
    the recovery; a process of one call works alone, but for ADDs that wait."""
    if record.boot_id != context.boot_id:
        return False
    if record.state == WAITING:
        return record.waits_until > time.time()
    return record.state == ADDING and context.resident

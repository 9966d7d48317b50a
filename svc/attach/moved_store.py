"""Rows of a datastore that other settings reach: its endpoints were replaced, or its kubeconfig was moved.

A row follows the network configuration of its own network, never that of another one. A datastore is recognised by its
clusterGUID, which the journal has for each combination of settings.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from svc import deadline
from svc.attach.context import Context
from svc.attach.places import datastore_place
from svc.attach.record import AttachmentId, Record, SessionKey
from svc.attach.rehoming import rehome
from svc.attach.sessions import DatastoreSession
from svc.attach.store_identity import note_name, stored_identity
from svc.attach.token_cache import without_secrets
from svc.datastore.api import StoreError
from svc.model.errors import SvcError

ANSWER_SECONDS = 5.0  # timeout of the request by other settings

_log = logging.getLogger(__name__)


def follow(context: Context, record: Record, where: SessionKey | None, *, releases: bool = False) -> bool:
    """Give a row whose datastore has failed, or is locked, the settings of a call of its network. Return whether that was done.

    The call's settings reach the same datastore, or the one that its content has moved to. `releases` is whether the caller
    releases the row there."""
    if where is None or where.store == record.session_key.store:
        return False
    with suppress(SvcError), deadline.limit(ANSWER_SECONDS):
        session = context.session(where)
        session.require_ready()
        if can_follow(context, record, session):
            settings = without_secrets(session.settings)
            with suppress(StoreError):  # the journal's disk is full: the row follows at the next call
                context.journal.change_settings(record, settings)
            record.settings = settings
            context.suspects_loss = True  # the agent verifies the row there
            return True
        return not rehome(context, record, session, releases=releases)
    return False


def can_follow(context: Context, record: Record, session: DatastoreSession) -> bool:
    """Return whether the session reaches the datastore of the row, or the settings of the row were mistyped.

    Only a DEL without a row may have written mistyped settings. An ADD writes its row after it has reached its datastore.
    """
    is_of_del = record.is_restored and not (record.host_index or record.versions)
    return is_alternative(context, record.session_key, session, or_unknown=is_of_del)


def move_rows(context: Context, old: SessionKey, rows: Iterable[AttachmentId], session: DatastoreSession) -> bool:
    """Give these rows the settings of an observed session of their network if it reaches their datastore.

    If it reaches a copy of that, treat it as a datastore that has lost data. Return whether a row was changed. Raise StoreError
    if the journal fails.
    """
    if not is_alternative(context, old, session):
        return False
    if _is_copy(context, old, session):
        session.identity.note_copy(datastore_place(old.datastore))
    settings, moved = without_secrets(session.settings), 0
    for key in rows:
        record = context.journal.get(key)
        if record is not None and record.session_key == old:
            context.journal.change_settings(record, settings)
            moved += 1
    if moved:
        _log.warning("%s is reached as %s now: %d attachments are verified and released there",
                     datastore_place(old.datastore), datastore_place(settings), moved)  # fmt: skip
    return moved > 0


def is_alternative(context: Context, old: SessionKey, session: DatastoreSession, *, or_unknown: bool = False) -> bool:
    """Return whether the session reaches the datastore of `old`, or a copy, by other settings, with the same names and node.

    With `or_unknown`, also return True if this node has never reached a datastore by the settings of `old`.
    """
    names, settings = context.names_of(old.profile), without_secrets(session.settings)
    here = session.names, session.node, settings["kind"]
    if (names, old.node, old.datastore.get("kind")) != here or settings == old.datastore:
        return False
    known = stored_identity(context.journal, note_name(names.plugin, old.datastore))
    return or_unknown if known is None else known.is_or_was(session.identity.guid)


def avoid_others(
    context: Context, session: DatastoreSession, others: Iterable[SessionKey], rows: Callable[[], Iterable[Record]]
) -> None:
    """Do not assign the addresses of rows that name other datastores with the same data, for some time.

    `rows` returns all rows."""
    same = {old for old in others if is_alternative(context, old, session)}
    if same:
        session.ipam.avoid(address for record in rows() if record.session_key in same for address in record.address_list())


def _is_copy(context: Context, old: SessionKey, session: DatastoreSession) -> bool:
    """Return whether the servers of this alternative are other ones than those of `old`, as of a restored snapshot."""
    known, present = stored_identity(context.journal, note_name(session.names.plugin, old.datastore)), session.identity.known
    return bool(known and present and known.cluster and present.cluster and known.cluster != present.cluster)

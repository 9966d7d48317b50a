"""Rows of a datastore that other settings reach: its endpoints were replaced, or its kubeconfig was moved.

The rows get the settings of the newer network configuration after a request by their own settings has failed. A datastore is
recognised by its clusterGUID, which the journal has for each combination of settings.
"""

import logging
from contextlib import suppress

from svc import deadline
from svc.attach.context import Context
from svc.attach.places import datastore_place
from svc.attach.record import Record, SessionKey
from svc.attach.sessions import DatastoreSession
from svc.attach.store_identity import note_name, stored_identity
from svc.attach.token_cache import Settings, without_secrets
from svc.model.errors import SvcError

ANSWER_SECONDS = 5.0  # timeout of the request by other settings

_log = logging.getLogger(__name__)


def move_rows(context: Context, old: SessionKey, where: SessionKey | None = None) -> Settings | None:
    """Give the rows of a datastore that has failed the settings by which an open session, or that of `where`, reaches it.

    Return these settings; None if no session reaches it, or the journal fails.
    """
    with suppress(SvcError):
        if where is not None and where.store != old.store:
            with suppress(SvcError), deadline.limit(ANSWER_SECONDS):
                context.session(where).readiness.expected()  # reads its identity
        for session in context.sessions.of_node(context.names_of(old.profile), old.node):
            if is_alternative(context, old, session):
                with suppress(SvcError), deadline.limit(ANSWER_SECONDS):
                    session.require_ready()
                    return _move(context, old, without_secrets(session.settings))
    return None


def move_row(context: Context, record: Record, session: DatastoreSession) -> None:
    """Give the row the settings of the session if they reach the same datastore."""
    if is_alternative(context, record.session_key, session):
        context.journal.change_settings(record, without_secrets(session.settings))


def is_alternative(context: Context, old: SessionKey, session: DatastoreSession) -> bool:
    """Return whether the session reaches the datastore of `old` by other settings, with the same names and node."""
    names, settings = context.names_of(old.profile), without_secrets(session.settings)
    same = (session.names, session.node, settings["kind"]) == (names, old.node, old.datastore.get("kind"))
    if not same or settings == old.datastore:
        return False
    known = stored_identity(context.journal, note_name(names.plugin, old.datastore))
    return known is not None and known.guid != "" and known.guid == session.identity.guid


def _move(context: Context, old: SessionKey, settings: Settings) -> Settings:
    rows = [record for record in context.journal.all() if record.session_key == old]
    for record in rows:
        context.journal.change_settings(record, settings)
    if rows:
        _log.warning("%s has failed, and %s is the same: %d attachments are verified and released there from now on",
                     datastore_place(old.datastore), datastore_place(settings), len(rows))  # fmt: skip
    return settings

"""Rows after a move of a datastore to one of another kind: they get its settings, and the name of this node there.

A session reaches the successor of a row's datastore if its ClusterInformation has the same clusterGUID, and says that the
content of another datastore has arrived there. A row follows only if the successor has its addresses under its handle, or if it
is released there, because that frees only what its handle has. One statement changes a row, so that a killed process leaves it
at one of the two datastores; a repetition changes nothing.
"""

from contextlib import suppress
from typing import Final

from svc import deadline
from svc.attach.context import Context
from svc.attach.endpoints import endpoint_matches
from svc.attach.places import datastore_place
from svc.attach.record import ADDING, DELETING, WAITING, Record, SessionKey
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.select import source_of
from svc.attach.store_identity import note_name, stored_identity
from svc.attach.token_cache import without_secrets
from svc.model.errors import SvcError
from svc.model.move_mark import ARRIVED, any_mark
from svc.values import replace

ANSWER_SECONDS: Final = 5.0  # timeout of the request to another datastore than that of the call


def is_elsewhere(own: SessionKey, where: SessionKey) -> bool:
    """Return whether the present datastore of a network is of another kind than its row's, or has the node by another name."""
    return (own.datastore.get("kind"), own.node) != (where.datastore.get("kind"), where.node)


def is_renamed(own: SessionKey, where: SessionKey) -> bool:
    """Return whether the present datastore is of the same kind, and has the node by another name."""
    return own.datastore.get("kind") == where.datastore.get("kind") and own.node != where.node


def why_no_successor(context: Context, old: SessionKey, session: DatastoreSession) -> str:
    """Return why a session does not reach the datastore that the content of `old` has moved to; empty if it does.

    Raise StoreError if it fails or is locked."""
    names, new = context.names_of(old.profile), datastore_place(session.settings)
    if names != session.names:
        return f"{new} has other names"
    session.require_ready()
    mark = any_mark(session.readiness.expected().value.metadata)
    if mark is None or mark.state != ARRIVED:
        return f"no datastore was moved to {new}"
    known = stored_identity(context.journal, note_name(names.plugin, old.datastore))
    if known is None or not known.is_or_was(session.identity.guid):
        return f"{datastore_place(old.datastore)} is another datastore than the one that was moved to {new}"
    return ""


def datastore_of_call(context: Context, network: str, where: SessionKey) -> SessionKey:
    """Return the datastore for a call without a row: the present one of the network if the call's content has moved there.

    A runtime may keep the former network configuration for the DELs of its containers. One that fails is not asked for long."""
    with suppress(SvcError), deadline.limit(ANSWER_SECONDS):
        present = context.networks.last((where.profile, network))
        if present is None or present.datastore.get("kind") == where.datastore.get("kind"):
            return where
        if not why_no_successor(context, where, context.session(present)):
            return present
    return where


def rehome(context: Context, record: Record, session: DatastoreSession, *, releases: bool = False) -> str:
    """Give a row the settings of the successor of its datastore. Return why it cannot follow; empty if it has followed.

    `releases` is whether the caller releases it there; the agent does that with an interrupted ADD and a pending release. The
    caller excludes other calls of the container. Raise SvcError if the datastore or the journal fails."""
    if record.state == WAITING:
        return "its ADD waits, and is repeated"
    if not is_elsewhere(record.session_key, SessionKey(session.settings, session.node, record.profile)):
        return "its datastore is of the same kind"
    if reason := why_no_successor(context, record.session_key, session):
        return reason
    if is_renamed(record.session_key, SessionKey(session.settings, session.node)) and not _has_endpoint(record, session):
        return "its endpoint has the former name of the node"
    if not (releases or record.state in (ADDING, DELETING)) and (reason := _lacks(record, session)):
        return reason
    context.journal.change_settings(record, without_secrets(session.settings), session.node)
    return ""


def _has_endpoint(record: Record, session: DatastoreSession) -> bool:
    """Return whether the datastore has the endpoint of a row by the name of the node there, as it has after a move."""
    return endpoint_matches(session, replace(record, node=session.node))


def _lacks(record: Record, session: DatastoreSession) -> str:
    """Return which of its addresses the handle of a row does not hold in the datastore; empty if it holds all of them."""
    if not source_of(record).uses_pools or record.shares or record.unmanaged or not record.addresses:
        return ""
    missing = session.ipam.not_held((record.handle, address) for address in record.address_list())
    listed = ", ".join(sorted(str(address) for _, address in missing))
    return f"{datastore_place(session.settings)} does not have {listed} under the handle {record.handle}" if missing else ""

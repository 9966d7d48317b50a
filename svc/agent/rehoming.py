"""After a move of the datastore: rows of the journal follow it, and spooled DELs are carried out in the new one.

A row moves in a job of its container, so that no call works on it at the same time. One that cannot follow stays as it is, is
tried again, and is reported by STATUS, `svcctl status` and the log, unless only the name of the node was changed. Sessions with
a datastore that all have left are closed, so that the node does not keep its claim there.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from svc import deadline
from svc.agent.lanes import Lane
from svc.agent.queue import Job
from svc.attach.context import Context
from svc.attach.network_stores import Network
from svc.attach.places import datastore_place
from svc.attach.record import WAITING, AttachmentId, Record, SessionKey
from svc.attach.rehoming import is_elsewhere, is_renamed, rehome, why_no_successor
from svc.cni.call_io import CallInput
from svc.cni.verbs import session_key
from svc.model.errors import CallerError, SvcError
from svc.netconf.decoding import decode
from svc.netconf.installed import InstalledNetwork, read_networks
from svc.netconf.netconf import parse
from svc.values import replace

LOOK_SECONDS: Final = 2.0  # between looks at the journal and at the datastores of the networks
RETRY_SECONDS = 30.0  # before a row that could not follow is tried again
JOB_SECONDS: Final = 10.0  # for one row
CLOSE_SECONDS = 30.0  # after the last use of a datastore that all have left; longer than a call takes
_OF_CALL: Final = ("cniVersion", "name", "prevResult", "runtimeConfig", "args")  # what a spooled DEL keeps of its own

log = logging.getLogger("svc.agent")


class Rehoming:
    """The rows that have to follow. `put` queues a job for the agent's workers."""

    def __init__(self, context: Context, put: Callable[[Job], None]) -> None:
        self._context = context
        self._put = put
        self._seen = -1  # the journal's `changes` at the last look
        self._retry_at = 0.0
        self._stayed: set[AttachmentId] = set()  # rows that could not follow
        self._in_flight: set[AttachmentId] = set()
        self._networks: dict[Network, SessionKey] = {}
        self._left: set[SessionKey] = set()  # datastores that networks or rows have left

    def look(self) -> None:
        """Queue a job for each row whose network has a datastore of another kind than the row."""
        self._close_left()
        changes, networks, now = self._context.journal.changes, dict(self._context.networks.present), time.monotonic()
        are_new = networks != self._networks
        is_due = are_new or now >= self._retry_at
        if changes == self._seen and not (are_new or (is_due and self._stayed)):
            return
        rows = self._rows_elsewhere()
        self._seen, self._retry_at = changes, now + RETRY_SECONDS if is_due else self._retry_at
        self._left |= {old for network, old in self._networks.items() if is_elsewhere(old, networks.get(network, old))}
        self._networks = networks
        self._stayed &= rows.keys()
        for key in self._context.left_behind.keys() - rows.keys():
            self._context.left_behind.pop(key, None)
        for key, where in rows.items():
            if key not in self._in_flight and (is_due or key not in self._stayed):
                self._in_flight.add(key)
                self._put(Job(Lane("restore"), key.container_id, partial(self._follow, key, where)))

    def _rows_elsewhere(self) -> dict[AttachmentId, SessionKey]:
        """Return the rows that have to follow the present datastore of their network, which it is."""
        journal = self._context.journal
        if not any(self._present(network, own) for network, own in journal.datastores()):
            return {}  # to decode thousands of rows takes long
        rows = [record for record in journal.all() if record.state != WAITING]
        return {row.id: where for row in rows if (where := self._present(row.id.network, row.session_key))}

    def _present(self, network: str, own: SessionKey) -> SessionKey | None:
        """Return the present datastore of a network if it is elsewhere."""
        where = self._context.networks.present.get((own.profile, network))
        return where if where and is_elsewhere(own, where) else None

    def _close_left(self) -> None:
        """Close the sessions with datastores that neither a row nor a network has any more."""
        if not self._left:
            return
        used = {where.store for _, where in self._context.journal.datastores()}
        used |= {where.store for where in self._context.networks.present.values()}
        for key in [key for key in self._left if key.store not in used]:
            with suppress(CallerError):  # the file of the names profile was removed: the session ends when it is idle
                if self._context.close_former(key, CLOSE_SECONDS):
                    self._left.discard(key)

    def _follow(self, key: AttachmentId, where: SessionKey, _job: Job) -> None:
        record = None
        try:
            record = self._context.journal.get(key)
            if record is None or not is_elsewhere(record.session_key, where):
                self._settle(key)
                return
            with deadline.limit(JOB_SECONDS):
                self._carry_over(record, where)
        except SvcError as failure:
            self._stay(key, record, where, str(failure))
        finally:
            self._in_flight.discard(key)

    def _carry_over(self, record: Record, where: SessionKey) -> None:
        old, session = record.session_key, self._context.session(where)
        if reason := rehome(self._context, record, session):
            session.ipam.avoid(record.address_list())  # the row may be of a live container
            self._stay(record.id, record, where, reason)
            return
        self._settle(record.id)
        self._left.add(old)
        places = datastore_place(old.datastore), datastore_place(session.settings)
        log.info("%s (%s) follows its datastore from %s to %s", record.handle, record.id.ifname, *places)

    def _settle(self, key: AttachmentId) -> None:
        self._stayed.discard(key)
        self._context.left_behind.pop(key, None)

    def _stay(self, key: AttachmentId, record: Record | None, where: SessionKey, reason: str) -> None:
        """Note that a row does not follow. Report it, unless only the name of the node differs."""
        self._stayed.add(key)
        if record is not None and is_renamed(record.session_key, where):
            self._context.left_behind.pop(key, None)
            return
        told = f"{record.handle if record else key.container_id} ({key.ifname}) does not follow its datastore: {reason}"
        if self._context.left_behind.get(key) != told:
            log.warning("%s", told)
        self._context.left_behind[key] = told


def in_new_datastore(context: Context, state_dir: Path, call: CallInput) -> CallInput:
    """Return a spooled DEL with the installed configuration of its network, if the datastore of its own has moved to that one.

    Raise SvcError if the new datastore fails."""
    try:
        document = decode(call.stdin)
    except CallerError:  # the DEL reports it
        return call
    network = _installed(state_dir, call, document.get("name"))
    if network is None or call.name == network.names.ipam_plugin:
        return call
    try:
        own = parse(call.stdin, network.names, lenient=True)
        old = session_key(own, network.names, call.profile, lenient=True)
    except CallerError:
        return call
    new = session_key(network.netconf, network.names, call.profile)
    if own.location_errors.found or not is_elsewhere(old, new):
        return call
    with deadline.limit(JOB_SECONDS):
        if why_no_successor(context, old, context.session(new)):
            return call
    kept = {name: document[name] for name in _OF_CALL if name in document}
    return replace(call, stdin=orjson.dumps(network.netconf.raw | kept))


def _installed(state_dir: Path, call: CallInput, name: object) -> InstalledNetwork | None:
    networks, _ = read_networks(state_dir)
    return next((each for each in networks if each.profile == call.profile and each.netconf.name == name), None)

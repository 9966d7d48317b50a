"""The life of the program: it takes part in the election, runs its controllers, and ends on SIGTERM or SIGINT."""

import logging
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from svc.controllers.assembly import Part, assemble
from svc.controllers.compaction import Compaction
from svc.controllers.conditions import Conditions
from svc.controllers.configuration import Live
from svc.controllers.configuration_resource import ConfigurationResource
from svc.controllers.controller import Shared
from svc.controllers.guarded_store import guarded
from svc.controllers.health import Health
from svc.controllers.serving import Serving
from svc.controllers.settings import RIGHT_REMEDY, Settings
from svc.controllers.tables import Tables
from svc.controllers.telemetry import Telemetry
from svc.datastore.open import open_backend
from svc.datastore.orch.client import Client
from svc.end_request import EndRequest, end_signals
from svc.leader.election import Election
from svc.leader.leader_lease import LeaderLease
from svc.model.errors import SvcError
from svc.model.resource import new_uid
from svc.names import Names

if TYPE_CHECKING:
    from svc.datastore.etcd.store import EtcdStore  # loads gRPC

TRY_SECONDS = 2.0  # between attempts to obtain or renew the Lease

_SHORTEST_SECONDS = 0.1  # between attempts, if an attempt took longer than the period
_WRITE_SECONDS = 1.0  # for writes in flight at the end

log = logging.getLogger("svc.controllers")


def run(settings: Settings, names: Names, client: Client) -> int:
    """Run until SIGTERM, SIGINT or the failure of a controller. Return the exit status.

    Raise CallerError if the datastore's settings are invalid.
    """
    election = Election(f"{socket.gethostname()}_{new_uid()}")
    lease = LeaderLease(client, names.controllers, election)
    live, conditions = Live(settings.configuration, is_known=False), Conditions()
    live.on_change(lambda configuration: logging.getLogger().setLevel(configuration.log_level))
    with end_signals() as end, ExitStack() as stack:
        store = stack.enter_context(closing(open_backend(settings.datastore, Path(), names, right_remedy=RIGHT_REMEDY)))
        log.info("the datastore is %s", store.place)
        if settings.has_copies:
            stack.enter_context(_compacting(cast("EtcdStore", store), election, live))
        writable = guarded(store, election)
        tables = Tables(client, writable, end.request, names)
        shared = Shared(client, writable, tables, names, election, live, conditions, end.request)
        parts = [ConfigurationResource(shared.for_part(), settings), *assemble(settings, shared)]
        health = Health(settings.health_file, names.controllers, live, store, partial(_troubles, tables, parts))
        meters = {settings.datastore["kind"]: store.meter, "api": client.meter}
        serving = stack.enter_context(closing(Serving(live, conditions, Telemetry(shared, parts, meters).text)))
        tables.start()
        stack.callback(tables.stop)
        for part in parts:
            part.start()
        health.start()
        stack.callback(health.stop)
        _lead(lease, shared, parts, serving, health, end)
        _end(lease, election, parts)
    return 1 if end.reason else 0


def _troubles(tables: Tables, parts: Sequence[Part]) -> list[str]:
    """Return what is wrong with the threads."""
    return [*tables.troubles, *(trouble for part in parts if (trouble := part.trouble))]


@contextmanager
def _compacting(store: "EtcdStore", election: Election, live: Live) -> Iterator[None]:
    """Compact the history of etcd inside the block."""
    compaction = Compaction(store, election, live)
    compaction.start()
    try:
        yield
    finally:
        compaction.stop()


def _lead(lease: LeaderLease, shared: Shared, parts: Sequence[Part], serving: Serving, health: Health, end: EndRequest) -> None:
    """Take part in the election until the request to end."""
    failure: SvcError | None = None
    led, due, election = False, time.monotonic(), shared.election
    while True:
        try:
            lease.attempt()
            failure = None
        except SvcError as error:
            if failure is None:
                log.warning("the election is interrupted: %s", error)
            failure = error
        health.stepped(failure)
        if election.leads != led:
            led = not led
            log.info("this process leads" if led else "this process does not lead any more: it writes nothing")
            for part in parts if led else ():
                part.begin_round()
        serving.step()
        due = max(due + TRY_SECONDS, time.monotonic() + _SHORTEST_SECONDS)
        if end.wait(due - time.monotonic()):
            return


def _end(lease: LeaderLease, election: Election, parts: Sequence[Part]) -> None:
    """End the controllers, and release the Lease if no write is in flight."""
    election.resign()
    for part in parts:
        part.stop()
    until = time.monotonic() + _WRITE_SECONDS
    if not all(part.await_writes(max(0.0, until - time.monotonic())) for part in parts):
        log.warning("a write is in flight: the Lease is not released, and expires")
        return
    try:
        lease.release()
    except SvcError as failure:
        log.warning("the Lease is not released, and expires: %s", failure)

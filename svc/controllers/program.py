"""The life of the program: it takes part in the election, runs its controllers, and ends on SIGTERM or SIGINT."""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from svc.attach.datastore_ready import DatastoreReadiness, ready_checked
from svc.controllers.compaction import Compaction
from svc.controllers.copied_kind import CopiedKind
from svc.controllers.copier import Copier, Shared
from svc.controllers.election import Election
from svc.controllers.leader_lease import LeaderLease, LeaderStore
from svc.controllers.network_policies import NetworkPolicies
from svc.controllers.profiles import AccountProfiles, NamespaceProfiles
from svc.controllers.settings import ACCOUNT, NAMESPACE, POLICY, Settings
from svc.datastore.open import open_backend
from svc.datastore.orch.client import Client
from svc.end_request import EndRequest, end_signals
from svc.model.errors import SvcError
from svc.model.resource import new_uid
from svc.names import Names

if TYPE_CHECKING:
    from svc.datastore.etcd.store import EtcdStore

TRY_SECONDS = 2.0  # between attempts to obtain or renew the Lease

_SHORTEST_SECONDS = 0.1  # between attempts, if an attempt took longer than the period
_WRITE_SECONDS = 1.0  # for writes in flight at the end
_KINDS: dict[str, type[NetworkPolicies | NamespaceProfiles | AccountProfiles]] = {
    POLICY: NetworkPolicies,
    NAMESPACE: NamespaceProfiles,
    ACCOUNT: AccountProfiles,
}

_IDLE = "idle: policy agents read these objects from the Kubernetes API"

log = logging.getLogger("svc.controllers")


def run(settings: Settings, names: Names, client: Client) -> int:
    """Run until SIGTERM, SIGINT or the failure of a controller. Return the exit status.

    Raise CallerError if the datastore's settings are invalid.
    """
    election = Election(f"{socket.gethostname()}_{new_uid()}")
    lease = LeaderLease(client, names.controllers, election)
    kinds: list[CopiedKind] = [_KINDS[name](names) for name in settings.controllers]
    with end_signals() as end, ExitStack() as stack:
        copiers: list[Copier] = []
        if settings.has_copies:
            store = stack.enter_context(closing(_open(settings, names)))
            log.info("the datastore is %s", store.place)
            stack.enter_context(_compacting(store, election, settings.compaction_seconds))
            ready = ready_checked(DatastoreReadiness(LeaderStore(store, election)))
            shared = Shared(client, ready, election, settings.reconciler_seconds, end.request)
            copiers = [Copier(kind, shared) for kind in kinds]
        for kind in kinds:
            log.info("controller %s is %s", kind.controller, "enabled" if settings.has_copies else _IDLE)
        for copier in copiers:
            copier.start()
        _lead(lease, election, copiers, end)
        _end(lease, election, copiers)
    return 1 if end.reason else 0


def _open(settings: Settings, names: Names) -> "EtcdStore":
    store = open_backend(settings.datastore, Path(), names)
    from svc.datastore.etcd.store import EtcdStore  # loaded by `open_backend`, which reports a missing package

    assert isinstance(store, EtcdStore)
    return store


@contextmanager
def _compacting(store: "EtcdStore", election: Election, seconds: float) -> Iterator[None]:
    """Compact the history of etcd inside the block, every `seconds` unless they are 0."""
    compaction = Compaction(store, election, seconds)
    if seconds:
        compaction.start()
    try:
        yield
    finally:
        compaction.stop()


def _lead(lease: LeaderLease, election: Election, copiers: list[Copier], end: EndRequest) -> None:
    """Take part in the election until the request to end."""
    led, failing, due = False, False, time.monotonic()
    while True:
        try:
            lease.attempt()
            failing = False
        except SvcError as failure:
            if not failing:
                log.warning("the election is interrupted: %s", failure)
            failing = True
        if election.leads != led:
            led = not led
            log.info("this process leads" if led else "this process does not lead any more: it writes nothing")
            for copier in copiers if led else ():
                copier.begin_round()
        due = max(due + TRY_SECONDS, time.monotonic() + _SHORTEST_SECONDS)
        if end.wait(due - time.monotonic()):
            return


def _end(lease: LeaderLease, election: Election, copiers: list[Copier]) -> None:
    """End the controllers, and release the Lease if no write is in flight."""
    election.resign()
    for copier in copiers:
        copier.stop()
    until = time.monotonic() + _WRITE_SECONDS
    if not all(copier.await_writes(max(0.0, until - time.monotonic())) for copier in copiers):
        log.warning("a write is in flight: the Lease is not released, and expires")
        return
    try:
        lease.release()
    except SvcError as failure:
        log.warning("the Lease is not released, and expires: %s", failure)

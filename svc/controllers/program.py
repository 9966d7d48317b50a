"""The life of the program: it takes part in the election, runs its controllers, and ends on SIGTERM or SIGINT."""

import logging
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from svc.attach.datastore_ready import DatastoreReadiness, ready_checked
from svc.controllers.copied_kind import CopiedKind
from svc.controllers.copier import Copier
from svc.controllers.election import Election
from svc.controllers.leader_lease import LeaderLease, LeaderStore
from svc.controllers.network_policies import NetworkPolicies
from svc.controllers.profiles import AccountProfiles, NamespaceProfiles
from svc.controllers.settings import ACCOUNT, NAMESPACE, POLICY, Settings
from svc.datastore.api import StoreError
from svc.datastore.orch.client import Client
from svc.end_request import EndRequest, end_signals
from svc.model.resource import new_uid
from svc.names import Names

TRY_SECONDS = 2.0  # between attempts to obtain or renew the Lease

_SHORTEST_SECONDS = 0.1  # between attempts, if an attempt took longer than the period
_WRITE_SECONDS = 1.0  # for writes in flight at the end
_KINDS: dict[str, type[NetworkPolicies | NamespaceProfiles | AccountProfiles]] = {
    POLICY: NetworkPolicies,
    NAMESPACE: NamespaceProfiles,
    ACCOUNT: AccountProfiles,
}

log = logging.getLogger("svc.controllers")


def run(settings: Settings, names: Names, client: Client) -> int:
    """Run until SIGTERM or SIGINT. Return the exit status. Raise CallerError if the datastore's settings are invalid."""
    election = Election(f"{socket.gethostname()}_{new_uid()}")
    lease = LeaderLease(client, names.controllers, election)
    with end_signals() as end, ExitStack() as stack:
        copiers = _copiers(settings, names, client, election, stack)
        for copier in copiers:
            copier.start()
        _lead(lease, election, copiers, end)
        _end(lease, election, copiers)
    return 0


def _copiers(settings: Settings, names: Names, client: Client, election: Election, stack: ExitStack) -> list[Copier]:
    """Return the controllers that have work. Report the state of each."""
    kinds: list[CopiedKind] = [_KINDS[name](names) for name in settings.controllers]
    if not settings.has_copies:
        for kind in kinds:
            log.info("controller %s is idle: policy agents read these objects from the Kubernetes API", kind.controller)
        return []
    from svc.datastore.open import open_backend  # imported here, because only etcd needs a session

    store = open_backend(settings.datastore, Path(), names)
    stack.callback(store.close)
    ready = ready_checked(DatastoreReadiness(LeaderStore(store, election)))
    log.info("the datastore is %s; a full round is made every %g s", store.place, settings.reconciler_seconds)
    for kind in kinds:
        log.info("controller %s is enabled", kind.controller)
    return [Copier(kind, client, ready, election, settings.reconciler_seconds) for kind in kinds]


def _lead(lease: LeaderLease, election: Election, copiers: list[Copier], end: EndRequest) -> None:
    """Take part in the election until the request to end."""
    led, failing, due = False, False, time.monotonic()
    while True:
        try:
            lease.attempt()
            failing = False
        except StoreError as failure:
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
    except StoreError as failure:
        log.warning("the Lease is not released, and expires: %s", failure)

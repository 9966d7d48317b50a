"""STATUS: whether an ADD would be served right now."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from svc.attach.context import Context
from svc.attach.request import NodeSettings
from svc.attach.session import Session
from svc.deadline import limit
from svc.model.endpoint import DEFAULT_NAMESPACE
from svc.model.errors import CallerError, Code, PeerError, SvcError
from svc.trace import Trace

if TYPE_CHECKING:
    from svc.attach.delegation import Delegation


_RIGHTS_SECONDS: Final = 0.3  # an answer that comes later is not waited for


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an ADD of a network needs: its datastore, addresses of these families from these pools, or of another plugin, and
    the orchestrator's API, where `orchestrator` says how it is reached; with `policy` the pod itself is read there."""

    network: str
    where: NodeSettings
    versions: tuple[int, ...]
    pools: dict[int, tuple[str, ...]]
    delegation: "Delegation | None" = None
    orchestrator: tuple[tuple[str, str], ...] = ()
    policy: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Networks of the same needs share a probe."""
        where = self.where
        store = where.profile, where.node, tuple(sorted(where.datastore.items()))
        return *store, self.versions, tuple(self.pools.items()), self.orchestrator, self.delegation and self.network


def status(context: Context, wanted: Wanted, trace: Trace) -> None:
    """PeerError, code 50, with the cause; within a second."""

    def session() -> Session:
        where = wanted.where
        return context.session(where.profile, where.datastore, where.node)

    def look_at_books() -> None:
        _require_kubeconfig(wanted)
        context.journal.check_writable()
        session().require_ready()
        if not session().backend.needs_node:  # a file, which is no further away than the journal
            session().backend.check_writable()

    def look_at_room() -> None:
        session().require_claim()
        session().backend.check_writable()
        _require_addresses(context, session(), wanted, trace)
        if wanted.orchestrator:
            context.orchestrators.pods(wanted.orchestrator).require_access(pods=wanted.policy)

    for conflict in list(context.conflicts.values()):
        trace.warning(conflict)
    with not_ready():
        is_delegated = wanted.delegation is not None
        context.health.require(wanted.key, wanted.network, look_at_books, look_at_room, is_delegated=is_delegated)


def _require_kubeconfig(wanted: Wanted) -> None:
    """The client that reads it takes longer to load than STATUS may take."""
    name = dict(wanted.orchestrator).get("kubeconfig", "")
    if name and not os.access(name, os.R_OK):
        raise CallerError(f"kubeconfig {name!r} cannot be read", details="name a file that exists and that this user may read")


def _require_addresses(context: Context, session: Session, wanted: Wanted, trace: Trace) -> None:
    if wanted.delegation is not None:
        wanted.delegation.require_ready(context, wanted.where.datastore, trace)
        return
    for fault in session.ipam.check_room(wanted.versions, wanted.pools):
        trace.warning(f"an ADD passes {fault}")


def warn_of_rights(context: Context, orchestrator: tuple[tuple[str, str], ...], trace: Trace) -> None:
    """Warn if the API does not let this node read namespaces: an ADD goes on without their annotations (rule R3)."""
    with suppress(SvcError), limit(_RIGHTS_SECONDS):
        if warning := context.orchestrators.pods(orchestrator).namespace(DEFAULT_NAMESPACE).warning:
            trace.warning(warning)


@contextmanager
def not_ready() -> Iterator[None]:
    """Whatever fails in the block is why an ADD would: PeerError, code 50."""
    try:
        yield
    except SvcError as cause:
        raise PeerError(f"not ready: {cause.msg}", details=cause.details, code=Code.NOT_AVAILABLE) from cause

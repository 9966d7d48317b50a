"""STATUS: report whether an ADD would succeed now."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from svc.attach.context import Context
from svc.attach.health import Dependency, Probe
from svc.attach.places import datastore_place, orchestrator_place
from svc.attach.record import SessionKey
from svc.attach.sources.base import AddressSource
from svc.call_trace import CallTrace
from svc.model.errors import CallerError, Code, PeerError, SvcError
from svc.netconf import host_local
from svc.netconf.netconf import IpamConf, NetConf

_REMEDY = "look at its servers, at the network between, and at the program that gives the credentials, if there is one"


def network_key(netconf: NetConf) -> tuple[str, str]:
    """Return the key of a network for recorded failures: its name, and the `ipam` section of a delegated network."""
    return netconf.name, str(netconf.raw["ipam"]) if netconf.ipam.is_delegated else ""


def status(context: Context, netconf: NetConf, where: SessionKey, source: AddressSource, trace: CallTrace) -> None:
    """Raise PeerError, code 50, with the cause if an ADD would fail. Return or raise within 1 s."""
    for problem in (*list(context.conflicts.values()), *list(context.left_behind.values())):
        trace.warning(str(problem))
    if warning := source.warning(where.datastore["kind"]):
        trace.warning(warning)
    network = network_key(netconf)
    with not_ready():
        found = [*dependencies(context, netconf, where), *source.dependencies(context, network)]
        context.health.require(found, network, trace, may_lack_addresses=source.may_lack_addresses)


def dependencies(context: Context, netconf: NetConf, where: SessionKey) -> list[Dependency]:
    """Return the dependencies of an ADD of the network, without those of its address source."""
    found = [_journal(context), _datastore(context, netconf.ipam, where)]
    reads_api = netconf.policy or not netconf.ipam.is_delegated or host_local.families(netconf.raw)
    if netconf.orchestrator and reads_api:
        found.append(_orchestrator(context, netconf.orchestrator, policy=netconf.policy))
    return found


@contextmanager
def not_ready() -> Iterator[None]:
    """Convert each SvcError of the block to PeerError, code 50."""
    try:
        yield
    except SvcError as cause:
        raise PeerError(f"not ready: {cause.msg}", details=cause.details, code=Code.NOT_AVAILABLE) from cause


def _journal(context: Context) -> Dependency:
    def look(probe: Probe) -> None:
        with probe.answering():
            context.journal.check_writable()

    return Dependency("journal", "the journal", "look at the disk of the state directory", look)


def _datastore(context: Context, ipam: IpamConf, where: SessionKey) -> Dependency:
    versions, pools = ((), {}) if ipam.is_delegated else (ipam.versions, ipam.pools)

    def look(probe: Probe) -> None:
        _require_kubeconfig(where.datastore)
        session = context.session(where)
        with probe.answering():
            session.readiness.require_by_own_read()
            if not session.backend.requires_node:  # a file, as fast to reach as the journal
                session.backend.check_writable()
        session.require_claim()
        if session.backend.requires_node:
            session.backend.check_writable()
        if versions:
            probe.warnings += [f"an ADD passes {error}" for error in session.ipam.require_capacity(versions, pools)]

    store = where.profile, where.node, tuple(sorted(where.datastore.items()))
    key = "datastore", store, versions, tuple(pools.items())
    return Dependency(key, datastore_place(where.datastore), _REMEDY, look)


def store_dependency(context: Context, where: SessionKey) -> Dependency:
    """Return a datastore by itself, without the pools of a network and without the claim of a node's name."""

    def look(probe: Probe) -> None:
        _require_kubeconfig(where.datastore)
        session = context.session(where)
        with probe.answering():
            session.readiness.require_by_own_read()

    settings = tuple(sorted(where.datastore.items()))
    return Dependency(("datastore", (where.profile, where.node, settings)), datastore_place(where.datastore), _REMEDY, look)


def _orchestrator(context: Context, access: tuple[tuple[str, str], ...], *, policy: bool) -> Dependency:
    settings = dict(access)

    def look(probe: Probe) -> None:
        _require_kubeconfig(settings)
        pods = context.orchestrators.pods(access)
        with probe.answering():
            warning = pods.check_namespaces()
        probe.warnings += [warning] if warning else []
        if policy:
            pods.require_pods()

    return Dependency(("orchestrator", access, policy), orchestrator_place(settings), _REMEDY, look)


def _require_kubeconfig(settings: Mapping[str, str]) -> None:
    """Raise CallerError if the kubeconfig is not readable. Its client takes longer to load than STATUS may take."""
    name = settings.get("kubeconfig", "")
    if name and not os.access(name, os.R_OK):
        raise CallerError(f"kubeconfig {name!r} cannot be read", details="name a file that exists and that this user may read")

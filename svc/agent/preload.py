"""Prepare the agent for the installed networks: import the modules that their calls need, and probe their dependencies.

An upgrade in place replaces the package under a running agent. Modules that are imported later would come from the other
version or be missing. Modules that take much memory are imported only for networks and attachments that use them.
"""

import gc
import importlib
import logging
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc.attach.context import Context
from svc.attach.journal import Journal
from svc.attach.record import StoreSettings
from svc.attach.status import dependencies, network_key, store_dependency
from svc.cni.verbs import session_key
from svc.imports import whole_imports
from svc.model.errors import SvcError
from svc.netconf.installed import read_networks
from svc.netconf.netconf import NetConf

CALLED_SECONDS: Final = 900.0  # for which a datastore without attachments is probed after a call

log = logging.getLogger("svc.agent")

_SMALL: Final = (  # together less than 1 MiB
    "svc.agent.node_observation",
    "svc.attach.sources.delegated",
    "svc.logs.rotation",
    "svc.netconf.annotations",
    "svc.waits.gates",
    "svc.waits.policy",
)
_LARGE: Final[Mapping[str, tuple[str, ...]]] = {
    "embedded": (),
    "etcdv3": ("svc.datastore.etcd.store",),
    "orch": ("svc.datastore.orch.store", "svc.orch.pods"),
    "orch-client": ("svc.datastore.orch.client_access",),  # for a kubeconfig that needs it
    "orch-pods": ("svc.orch.pods",),  # pods and namespaces, with another datastore
    "srv": ("dns.resolver",),
    "tls": ("ssl",),
}


def preload(state_dir: Path, journal: Journal) -> None:
    """Import what the installed networks and recorded attachments use. A missing module fails only the calls that need it."""
    features = {feature for netconf in _networks(state_dir) for feature in _features(netconf)}
    recorded = [record.settings for record in journal.all() if record.settings.get("kind") in _LARGE]
    features |= {settings["kind"] for settings in recorded}
    if any(_needs_client(settings) for settings in recorded):
        features.add("orch-client")
    _import(_SMALL)
    for feature in sorted(features):
        _import(_LARGE[feature])
    gc.freeze()  # as `main` does for modules loaded before


def probe_dependencies(context: Context, state_dir: Path) -> None:
    """Begin a probe of each dependency, so that STATUS reports failures before the first ADD. Skip unreadable networks.

    Note the datastore of a network list that has changed. The rows of the network follow it. Begin also a probe of each other
    datastore that attachments or calls use.
    """
    installed = set()
    with suppress(SvcError):
        for network in read_networks(state_dir)[0]:
            with suppress(SvcError):
                where = session_key(network.netconf, network.names, network.profile)
                installed.add((where.store, where.node))
                context.health.require_later(
                    dependencies(context, network.netconf, where),
                    network_key(network.netconf),
                    may_lack_addresses=network.netconf.ipam.is_delegated,
                )
                context.networks.note_listed((network.profile, network.netconf.name), where)
    _probe_other_stores(context, installed)


def _probe_other_stores(context: Context, installed: Container[tuple[StoreSettings, str]]) -> None:
    with suppress(SvcError):
        attached = {where for _, where in context.journal.datastores() if "kind" in where.datastore}
        used = {(where.store, where.node): where for where in attached | context.networks.called_within(CALLED_SECONDS)}
        for key, where in used.items():
            if key not in installed:
                context.health.begin(store_dependency(context, where))


def _networks(state_dir: Path) -> list[NetConf]:
    try:
        networks, errors = read_networks(state_dir)
    except SvcError as damage:
        networks, errors = [], [damage]
    for error in errors:
        log.warning("an installed network cannot be read: %s", error)
    return [network.netconf for network in networks]


def _features(netconf: NetConf) -> Iterable[str]:
    options = dict(netconf.datastore.options)
    yield netconf.datastore.kind
    if netconf.orchestrator and netconf.policy:
        yield "orch-pods"
    if _needs_client(options) or _needs_client(dict(netconf.orchestrator)):
        yield "orch-client"
    if options.get("etcd_discovery_srv"):
        yield "srv"
    if any(url.startswith("https:") for url in netconf.gates.urls):
        yield "tls"


def _needs_client(settings: Mapping[str, str]) -> bool:
    """Return whether the access to an API server needs the Kubernetes client."""
    kubeconfig = settings.get("kubeconfig", "")
    if not kubeconfig:
        return False
    from svc.datastore.orch.plain_access import needs_client  # its packages come with an extra

    return needs_client(kubeconfig)


def _import(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ImportError, OSError), whole_imports():  # calls report a missing extra or a lack of descriptors
            importlib.import_module(name)

"""Addresses that another IPAM plugin assigns: svc executes it to assign, verify and release them.

The plugin keeps its own records. The journal stores how to call it. A release is therefore possible after a change of the
network, after a restart, and without Kubernetes.
"""

import logging
import os
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from svc._core.cidr import Address
from svc.attach.context import Context
from svc.attach.health import Dependency, Probe
from svc.attach.plugin_exec import find, run_plugin
from svc.attach.record import Record
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.base import Addressing, AddressSource, AssignedAddresses, Assignment, Holdings, Valid
from svc.attach.sources.local_ranges import exhausted
from svc.call_trace import CallTrace, new_request_id
from svc.datastore.api import Delete
from svc.model.annotations import ADDRESSES, FAMILIES, POOLS, UNMANAGED, AnnotationSettings
from svc.model.errors import Code, PeerError, PluginError
from svc.model.result import IpConfig, Result, Route
from svc.names import Names
from svc.netconf import host_local
from svc.netconf.annotations import require_svc_ipam
from svc.orch.pod_cidrs import config_warning, node_ranges
from svc.values import dataclass, replace

Json = dict[str, Any]

_log = logging.getLogger("svc.agent")

_REMEDY: Final = "delete pods, enlarge the ranges, or remove what deleted containers have left (GC does that)"
_KEPT: Final = ("CNI_PATH", "CNI_NETNS")  # variables of an ADD that later calls need again


@dataclass(frozen=True, slots=True)
class DelegatedSource(AddressSource):
    """The source that calls another plugin.

    `netconf` is the network configuration of the call. `release_netconf` is sufficient to find and release addresses. `access`
    and `node` identify the node whose pod CIDRs replace `usePodCidr`. A source from a record lacks `netconf` and these two.
    """

    plugin: str
    release_netconf: Json
    environment: Mapping[str, str]
    netconf: Json
    access: tuple[tuple[str, str], ...] = ()
    node: str = ""

    has_handle = False
    may_lack_addresses = True

    @staticmethod
    def recorded(delegate: Json) -> "DelegatedSource":
        """Return the source of a record, from its field `delegate`."""
        return DelegatedSource(delegate["plugin"], delegate["netconf"], delegate["environment"], {})

    def mark(self, record: Record) -> None:
        kept = {name: self.environment[name] for name in _KEPT if self.environment.get(name)}
        record.delegate = {"plugin": self.plugin, "netconf": self.release_netconf, "environment": kept}
        record.unmanaged = False

    # ADD

    def require_supported(self, names: Names, settings: AnnotationSettings) -> None:
        asked = (settings.sources.get(name) for name in (*POOLS.values(), FAMILIES, ADDRESSES, UNMANAGED))
        require_svc_ipam(self.plugin, names, filter(None, asked))

    def prepared(self, context: Context, trace: CallTrace) -> "DelegatedSource":
        """Insert the node's pod CIDRs. Raise PeerError if the plugin does not exist, or the node has no ranges for it."""
        find(self.plugin, self.environment.get("CNI_PATH", ""))
        with trace.phase("pod_cidrs"):
            return self._resolved(context)

    def assign(self, wanted: Assignment) -> AssignedAddresses:
        """Run the plugin's ADD. The plugin identifies the attachment by the environment of the call."""
        record = wanted.record
        _warn_once(record.id.network, self.warning(record.settings["kind"]))
        try:
            given = run_plugin(self.plugin, "ADD", self.netconf, self.environment, wanted.trace)
        except PluginError as refusal:
            raise self._exhaustion() or refusal from refusal
        assert given is not None
        wanted.trace.decide(f"addresses by plugin {self.plugin}")
        return _assigned(self.plugin, given)

    def adopt(self, _session: DatastoreSession, record: Record, _addressing: Addressing) -> tuple[Route, ...]:
        self.mark(record)
        return tuple(Route(str(route["dst"])) for route in self.netconf["ipam"].get("routes") or ())

    # an attachment, by its record

    def why_not_held(self, _session: DatastoreSession, record: Record, trace: CallTrace) -> str:
        """Run the plugin's CHECK, and return its error or an empty string.

        A row that was restored without a call lacks CNI_NETNS, so CHECK is not possible. Return an empty string for it.
        """
        if not self.environment.get("CNI_NETNS"):
            return ""
        try:
            self._run("CHECK", record, trace)
        except PluginError as refusal:
            return str(refusal)
        return ""

    def release(self, held: Holdings, extra_write: Delete | None) -> bool:
        """Run the plugin's DEL. Ignore a failure if its data directory is a file: it holds no address then. Return False."""
        assert extra_write is None, "has_handle is false"
        try:
            self._run("DEL", held.record, held.trace)
        except PluginError as refusal:
            folder = self.release_netconf["ipam"].get("dataDir", "")
            if not os.path.lexists(folder) or os.path.isdir(folder):
                raise
            held.trace.warning(f"{refusal}: it has no directory for addresses, so no release is pending")
        return False

    def complete(self, record: Record) -> None:
        """Search the plugin in CNI_PATH of this call, then in that of the ADD, because it may have moved since the ADD.

        Mark a restored record, because neither kernel nor datastore shows that another plugin assigned its addresses.
        """
        if record.delegate is not None:
            environment = record.delegate["environment"]
            folders = f"{self.environment.get('CNI_PATH', '')}:{environment.get('CNI_PATH', '')}".split(":")
            environment["CNI_PATH"] = ":".join(dict.fromkeys(filter(None, folders)))
        elif record.unmanaged and record.is_restored:
            self.mark(record)

    # a network

    def why_unusable(self) -> str:
        try:
            find(self.plugin, self.environment.get("CNI_PATH", ""))
        except PeerError as failure:
            return failure.msg
        return ""

    def run_gc(
        self, _context: Context, _session: DatastoreSession, _network: str, _valid: Valid, trace: CallTrace
    ) -> list[str]:
        """Run the plugin's GC, if its version has one. Return the failures."""
        valid = {name: value for name, value in self.netconf.items() if name.startswith("cni.dev/")}
        try:
            run_plugin(self.plugin, "GC", self.release_netconf | valid, self.environment, trace)
        except PeerError as failure:
            return [str(failure)]
        return []

    def warning(self, datastore: str) -> str:
        return config_warning(self.plugin, datastore, os.environ)

    def dependencies(self, context: Context, network: Hashable) -> Sequence[Dependency]:
        def look(_probe: Probe) -> None:
            """Raise PeerError if an ADD would find no plugin, no ranges or no free address, or if the plugin's STATUS fails."""
            source = self._resolved(context)
            run_plugin(self.plugin, "STATUS", source.netconf, self.environment, CallTrace(new_request_id()))
            if full := source._exhaustion():
                raise full

        remedy = "see whether it waits for a lock, a disk, or the Kubernetes API"
        return (Dependency(("plugin", network, self.plugin), f"plugin {self.plugin!r}", remedy, look),)

    def _resolved(self, context: Context) -> "DelegatedSource":
        """Return the source with the node's pod CIDRs, if its configuration uses them. Raise PeerError if they are missing."""
        families = host_local.families(self.netconf)
        ranges = node_ranges(context.orchestrators.pods(self.access).node(self.node), families) if families else {}
        return replace(self, netconf=host_local.resolved(self.netconf, ranges))

    def _exhaustion(self) -> PluginError | None:
        """Return the error for full host-local ranges, or None. The error of host-local itself does not say how to fix it."""
        full = exhausted(self.netconf)
        msg = f"{self.plugin}: no address is free in {full}"
        return PluginError(msg, details=_REMEDY, code=Code.DELEGATE) if full else None

    def _run(self, verb: str, record: Record, trace: CallTrace) -> None:
        identity = {"CNI_CONTAINERID": record.id.container_id, "CNI_IFNAME": record.id.ifname}
        run_plugin(self.plugin, verb, self.release_netconf, {**self.environment, **identity}, trace)


@lru_cache
def _warn_once(network: str, warning: str) -> None:
    """Log the warning once in an agent. In a one-shot process, the environment is the runtime's and shows nothing."""
    if warning and "CNI_COMMAND" not in os.environ:
        _log.warning("network %s: %s", network, warning)


def _assigned(plugin: str, given: Result) -> AssignedAddresses:
    """Return each address with its full length and without a gateway, because svc's next hop is on the link."""
    if not given.ips:
        raise PeerError(f"plugin {plugin!r} gave no address", details="see its part of the network", code=Code.DELEGATE)
    addresses = tuple(Address(ip.address.partition("/")[0]) for ip in given.ips)
    return AssignedAddresses(
        addresses,
        tuple(IpConfig(str(address.host()), interface=1) for address in addresses),
        tuple(Route(route.dst) for route in given.routes),
        given.dns,
    )

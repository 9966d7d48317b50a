"""Addresses that another IPAM plugin gives: taken, looked for and freed by executing it.

The plugin keeps its own books. The journal remembers how to call it, without a question to anybody, so that a release may come
whenever it can: after the network has changed, after a restart, without the orchestrator.
"""

import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from svc._core.cidr import Address
from svc.attach.addresses import Taken
from svc.attach.delegate import Refused, delegate, find
from svc.attach.local_ranges import exhausted
from svc.attach.record import Record
from svc.model.errors import Code, PeerError
from svc.model.result import IpConfig, Result, Route
from svc.netconf import hostlocal
from svc.orch.ranges import node_ranges, not_told
from svc.trace import Trace, new_request_id
from svc.values import dataclass

if TYPE_CHECKING:
    from svc.attach.context import Context

Json = dict[str, Any]

_log = logging.getLogger("svc.agent")

_REMEDY: Final = "delete pods, enlarge the ranges, or remove what deleted containers have left (GC does that)"
_KEPT: Final = ("CNI_PATH", "CNI_NETNS")  # variables of an ADD that whatever follows needs again


@dataclass(frozen=True, slots=True)
class Delegation:
    """Who gives the addresses of a network, and how it is called.

    `netconf` is the network's, as the call brought it; `release` is what finds and frees addresses. `access` and `node` say
    whose pod CIDRs are meant by `usePodCidr`.
    """

    plugin: str
    netconf: Json
    release: Json
    environment: Mapping[str, str]
    access: tuple[tuple[str, str], ...]
    node: str

    def remembered(self) -> Json:
        """For the journal."""
        kept = {name: self.environment[name] for name in _KEPT if self.environment.get(name)}
        return {"plugin": self.plugin, "netconf": self.release, "environment": kept}

    def warning(self, datastore: str) -> str:
        """What to warn of if the network has this kind of datastore; empty for nothing."""
        return not_told(self.plugin, datastore, os.environ)

    def require_ready(self, context: "Context") -> None:
        """PeerError when an ADD would find no plugin, no ranges or no free address, or the plugin says so itself."""
        netconf = resolved(context, self)
        delegate(self.plugin, "STATUS", netconf, self.environment, Trace(new_request_id()))
        if full := _full(self.plugin, netconf):
            raise full

    def why_missing(self) -> str:
        """Why the plugin cannot be called; empty when it is there."""
        try:
            find(self.plugin, self.environment.get("CNI_PATH", ""))
        except PeerError as failure:
            return failure.msg
        return ""

    def tell_path(self, remembered: Json) -> None:
        """The plugin may have moved since the ADD: it is looked for where this call says, then where it was."""
        environment = remembered["environment"]
        folders = f"{self.environment.get('CNI_PATH', '')}:{environment.get('CNI_PATH', '')}".split(":")
        environment["CNI_PATH"] = ":".join(dict.fromkeys(filter(None, folders)))


class Delegated:
    """The source of one ADD's addresses. PeerError when there is no such plugin, or the node has no ranges for it."""

    def __init__(self, context: "Context", delegation: Delegation, trace: Trace) -> None:
        find(delegation.plugin, delegation.environment.get("CNI_PATH", ""))
        with trace.phase("ranges"):
            self._netconf = resolved(context, delegation)
        self._delegation = delegation
        self._trace = trace

    def take(self, record: Record) -> Taken:
        """The plugin knows the attachment by the variables of the call."""
        how = self._delegation
        _warn_once(record.id.network, not_told(how.plugin, record.settings["kind"], os.environ))
        try:
            given = delegate(how.plugin, "ADD", self._netconf, how.environment, self._trace)
        except Refused as refusal:
            raise _full(how.plugin, self._netconf) or refusal from refusal
        assert given is not None
        return _taken(how.plugin, given)


def _full(plugin: str, netconf: Json) -> Refused | None:
    """Return what to raise if the ranges of host-local have no free address: its own error has no remedy."""
    full = exhausted(netconf)
    return Refused(f"{plugin}: no address is free in {full}", details=_REMEDY, code=Code.DELEGATE) if full else None


@lru_cache
def _warn_once(network: str, warning: str) -> None:
    """Not in a one-shot call: its environment is the runtime's, and tells nothing."""
    if warning and "CNI_COMMAND" not in os.environ:
        _log.warning("network %s: %s", network, warning)


def resolved(context: "Context", delegation: Delegation) -> Json:
    """The configuration with the node's pod CIDRs where it asks for them. PeerError."""
    wanted = hostlocal.families(delegation.netconf)
    if not wanted:
        return hostlocal.resolved(delegation.netconf, {})
    node = context.orchestrators.pods(delegation.access).node(delegation.node)
    return hostlocal.resolved(delegation.netconf, node_ranges(node, wanted))


def difference(record: Record, trace: Trace) -> str:
    """Why the plugin says that the attachment has no address; empty when it has, or cannot be asked, as for a row that was
    restored without a call. PeerError."""
    if record.delegate is None or not record.delegate["environment"].get("CNI_NETNS"):
        return ""
    try:
        _call(record, "CHECK", trace)
    except Refused as refusal:
        return str(refusal)
    return ""


def free(record: Record, trace: Trace) -> None:
    """As often as need be. PeerError: then it is still owed."""
    try:
        _call(record, "DEL", trace)
    except Refused as refusal:
        if _may_hold(record):
            raise
        trace.warning(f"{refusal}: it has no directory for addresses, so no release is pending")


def _may_hold(record: Record) -> bool:
    """Not where something else than a directory is in the place of the plugin's: it would be owed for ever."""
    assert record.delegate is not None
    folder = record.delegate["netconf"]["ipam"].get("dataDir", "")
    return not os.path.lexists(folder) or os.path.isdir(folder)


def collect(delegation: Delegation, trace: Trace) -> None:
    """Has the plugin free what the runtime does not know, where it is new enough for that. PeerError."""
    valid = {name: value for name, value in delegation.netconf.items() if name.startswith("cni.dev/")}
    delegate(delegation.plugin, "GC", delegation.release | valid, delegation.environment, trace)


def _call(record: Record, verb: str, trace: Trace) -> None:
    """As the ADD was called, by what the journal remembers of it."""
    how = record.delegate
    assert how is not None
    identity = {"CNI_CONTAINERID": record.id.container_id, "CNI_IFNAME": record.id.ifname}
    delegate(how["plugin"], verb, how["netconf"], {**how["environment"], **identity}, trace)


def _taken(plugin: str, given: Result) -> Taken:
    """Every address alone, and without gateways: our own next hop is on the link."""
    if not given.ips:
        raise PeerError(f"plugin {plugin!r} gave no address", details="see its part of the network", code=Code.DELEGATE)
    addresses = tuple(Address(ip.address.partition("/")[0]) for ip in given.ips)
    return Taken(
        addresses,
        tuple(IpConfig(str(address.host()), interface=1) for address in addresses),
        tuple(Route(route.dst) for route in given.routes),
        given.dns,
    )

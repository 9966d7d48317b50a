"""Explain what an ADD of a pod would get now. The code of the ADD decides; its writes stay in memory (`Overlay`)."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from svc import deadline
from svc.admin.resources import require_known_node
from svc.attach.addressing import ANNOTATION, read_pod, resolve_addressing
from svc.attach.context import Context
from svc.attach.endpoints import StoredEndpoint
from svc.attach.record import AttachmentId, Record, SessionKey
from svc.attach.request import AddCall, AddRequest
from svc.attach.sources.base import Addressing, Assignment
from svc.attach.sources.own import POOLS_OF_SVC
from svc.call_trace import CallTrace, new_request_id
from svc.cni.verbs import delegated_source
from svc.datastore.api import Backend
from svc.datastore.overlay import Overlay
from svc.ipam.preview import Preview, preview
from svc.ipam.requests import Assign
from svc.model.endpoint import PRIMARY_INTERFACE, Workload
from svc.model.errors import CallerError, SvcError
from svc.model.keys import Host
from svc.names import Names
from svc.netconf.netconf import NetConf
from svc.netconf.node_files import node_name
from svc.values import dataclass

Json = dict[str, Any]

LIMIT_SECONDS = 30.0
_CONTAINER = "explain"  # of the ADD that is not carried out


@dataclass(frozen=True, slots=True)
class Network:
    """The network whose ADD is explained. `open_store` opens a session with its datastore, and makes none."""

    names: Names
    netconf: NetConf
    open_store: Callable[[dict[str, str], Names], Backend]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an ADD would get. `previews` has the pools of each family, without one if annotations fix the addresses.

    `present` are the addresses of the pod's endpoint, if it has one. `error` is the error of the ADD, if it fails.
    """

    pod: str
    node: str
    network: str
    source: str
    annotations: tuple[str, ...]
    previews: dict[int, Preview]
    decisions: tuple[str, ...]
    warnings: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    error: SvcError | None = None


def explain(network: Network, namespace: str, pod: str, *, node: str = "", ifname: str = PRIMARY_INTERFACE) -> Explanation:
    """Explain the ADD of a pod on its node, or on `node`. Write nothing.

    Raise CallerError if no ADD is made for the pod or `node` does not exist, SvcError if the Kubernetes API or the datastore
    fails. After a KeyboardInterrupt, threads may still wait for a server.
    """
    with _context(network) as context, deadline.limit(LIMIT_SECONDS):
        document = _read_document(context, network.netconf, namespace, pod)
        asked, present = node, _node_of(document, network)
        node = node or present
        trace = CallTrace(new_request_id(), "DEBUG")
        with trace.activated():
            call = _call(context, network, Workload(_CONTAINER, pod, namespace), node, ifname, trace)
            if asked and asked not in (present, _own_node(network)):  # a node without blocks may not be registered
                require_known_node(call.session.backend, asked)
            return _Decision(call).explain()


@contextmanager
def _context(network: Network) -> Iterator[Context]:
    """Yield a context with an own journal, whose sessions write nothing."""

    def opened(settings: dict[str, str], names: Names) -> Overlay:
        return Overlay(network.open_store(settings, names), names)

    with TemporaryDirectory() as folder:
        context = Context(lambda _: network.names, Path(folder), opened)
        try:
            context.tokens.store(network.netconf.datastore.to_json())
            yield context
        except KeyboardInterrupt:  # closing waits for the requests of other threads
            raise
        except BaseException:
            context.close()
            raise
        context.close()


def _read_document(context: Context, netconf: NetConf, namespace: str, pod: str) -> Json:
    """Return the pod of the Kubernetes API; an empty one if the network names no API. Raise SvcError."""
    if not netconf.orchestrator:
        return {}
    document = context.orchestrators.pods(netconf.orchestrator).read(namespace, pod, "", lambda: None).pod or {}
    if (document.get("spec") or {}).get("hostNetwork"):
        raise CallerError(
            f"pod {namespace}/{pod} uses the network of its node",
            details="no ADD is made for it, and it has no address of its own: hostNetwork in its specification",
        )
    return document


def _node_of(document: Json, network: Network) -> str:
    return (document.get("spec") or {}).get("nodeName") or _own_node(network)


def _own_node(network: Network) -> str:
    return node_name(network.netconf, network.names, os.uname().nodename)


def _call(context: Context, network: Network, workload: Workload, node: str, ifname: str, trace: CallTrace) -> AddCall:
    netconf = network.netconf
    where = SessionKey(netconf.datastore.to_json(), node, "")
    source = delegated_source(netconf, {}, node) if netconf.ipam.is_delegated else POOLS_OF_SVC
    key = AttachmentId(netconf.name, workload.container_id, ifname)
    request = AddRequest(id=key, workload=workload, sandbox=None, where=where, netconf=netconf, source=source)
    return AddCall(context, context.session(where), request, trace)


class _Decision:
    """The decisions of one ADD, as far as they were made when it fails."""

    def __init__(self, call: AddCall) -> None:
        self._call = call
        self._record = Record.of(call.request.id, call.request.workload, call.request.where, call.session.names, "")
        self._addressing: Addressing | None = None
        self._previews: dict[int, Preview] = {}

    def explain(self) -> Explanation:
        addresses: tuple[str, ...] = ()
        error = None
        try:
            addresses = self._decide()
        except SvcError as refusal:
            error = refusal
        request = self._call.request
        settings = self._addressing.annotation_settings if self._addressing else None
        return Explanation(
            pod=f"{request.workload.namespace}/{request.workload.pod}",
            node=request.where.node,
            network=request.netconf.name,
            source=self._source(),
            annotations=tuple(dict.fromkeys(settings.sources.values())) if settings else (),
            previews=self._previews,
            decisions=tuple(text for text in self._lines(10) if not text.startswith(ANNOTATION)),  # they are above
            warnings=self._lines(30),
            addresses=addresses,
            present=self._present(),
            error=error,
        )

    def _decide(self) -> tuple[str, ...]:
        call = self._call
        addressing = self._addressing = resolve_addressing(call, read_pod(call))
        if call.request.source.plugin:
            return ()  # the plugin would have to be executed
        fixed = addressing.addresses or addressing.annotation_settings.unmanaged
        for version in () if fixed else addressing.versions:
            self._previews[version] = self._preview(version, addressing)
        wanted = Assignment(call.context, call.session, self._record, addressing, None, call.trace)
        return tuple(map(str, call.request.source.assign(wanted).addresses))

    def _preview(self, version: int, addressing: Addressing) -> Preview:
        request = Assign("", {}, (version,), dict(addressing.pools), namespace_labels=addressing.pod.namespace.labels)
        return preview(self._call.session.backend, Host(self._call.session.node), version, request)

    def _present(self) -> tuple[str, ...]:
        session = self._call.session
        entry = session.backend.find(self._record.endpoint_key(session.names))
        return () if entry is None else tuple(map(str, StoredEndpoint(entry.value).addresses))

    def _source(self) -> str:
        if plugin := self._call.request.source.plugin:
            return f"IPAM plugin {plugin}"
        unmanaged = self._addressing is not None and self._addressing.annotation_settings.unmanaged
        return "annotations, without IPAM" if unmanaged else "pools"

    def _lines(self, level: int) -> tuple[str, ...]:
        prefix = f"[{self._call.trace.request_id}] "
        return tuple(text.removeprefix(prefix) for found, text in self._call.trace.messages if found == level)

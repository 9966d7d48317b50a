"""Dispatch of a checked call to the handler of its verb in `attach`."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from svc._core.cidr import Address
from svc.attach.add import add
from svc.attach.check import check
from svc.attach.context import Context
from svc.attach.delete import delete
from svc.attach.gc import collect_garbage
from svc.attach.record import AttachmentId, SessionKey
from svc.attach.request import AddRequest, Attachment, Sandbox, open_sandbox
from svc.attach.restore import restore_for_call
from svc.attach.sources.base import AddressSource
from svc.attach.sources.own import POOLS_OF_SVC, PoolSource
from svc.attach.status import not_ready, status
from svc.call_trace import CallTrace
from svc.cni.call_io import CallInput
from svc.cni.environment import CniCall
from svc.model.endpoint import Workload
from svc.model.errors import CallerError, Code, PeerError
from svc.model.prev_result import parse_prev_result
from svc.model.result import Result
from svc.names import Names
from svc.netconf import host_local
from svc.netconf.args import Args, parse_args
from svc.netconf.netconf import NetConf
from svc.netconf.node_files import mtu, node_name
from svc.values import dataclass
from svc.waits.wait import Resumable

if TYPE_CHECKING:
    from svc.attach.sources.delegated import DelegatedSource

PTP = "ptp"  # reference plugin: each container has its own link and needs a gateway
POOLS_FOR_PTP = PoolSource(point_to_point=True)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call with everything that its verb may need."""

    context: Context
    inputs: CallInput
    call: CniCall
    netconf: NetConf
    version: str
    trace: CallTrace
    names: Names

    @property
    def id(self) -> AttachmentId:
        return AttachmentId(self.netconf.name, self.call.container_id, self.call.ifname)

    @property
    def where(self) -> SessionKey:
        lenient, ipam = self.call.verb == "DEL", self.call.ipam
        return session_key(self.netconf, self.names, self.inputs.profile, lenient=lenient, ipam=ipam)

    def note_where(self) -> SessionKey:
        """Return `where`, and note it as the present datastore of the network, which its rows follow."""
        where = self.where
        self.context.networks.note((self.inputs.profile, self.netconf.name), where)
        return where

    def args(self) -> Args:
        lenient = self.call.verb == "DEL"
        return parse_args(self.call.args, ignore_unknown=not self.call.ipam, lenient=lenient)

    def workload(self, args: Args) -> Workload:
        return Workload(self.call.container_id, args.pod_name, args.pod_namespace or self.netconf.namespace)

    @property
    def source(self) -> AddressSource:
        """Return the network's address source. Raise CallerError if svc's IPAM plugin was called for another one's network."""
        if not self.netconf.ipam.is_delegated or (self.call.ipam and self.call.verb == "DEL"):
            return POOLS_FOR_PTP if self.call.ipam and self.netconf.type == PTP else POOLS_OF_SVC
        if self.call.ipam:
            raise CallerError(
                f"ipam.type = {self.netconf.ipam.type!r}, but the IPAM plugin of svc was called",
                details="ipam.type: name the plugin that is to be called",
            )
        return delegated_source(self.netconf, self.inputs.environment, self.where.node)

    def attachment(self, sandbox: Sandbox | None) -> Attachment:
        return Attachment(self.id, self.workload(self.args()), sandbox, self.where, source=self.source)

    @contextmanager
    def sandbox(self) -> Iterator[Sandbox]:
        """Open the call's namespace for the time of the block."""
        received, self.inputs.netns_fd = self.inputs.netns_fd, -1
        sandbox = open_sandbox(self.call.netns, received, self.context.own_netns)
        try:
            yield sandbox
        finally:
            os.close(sandbox.fd)


def session_key(netconf: NetConf, names: Names, profile: str, *, lenient: bool = False, ipam: bool = False) -> SessionKey:
    """Return the datastore session key of a network on this node. Raise SvcError if the node's name cannot be determined."""
    node = node_name(netconf, names, os.uname().nodename, lenient=lenient, ipam=ipam)
    return SessionKey(netconf.datastore.to_json(), node, profile)


def delegated_source(netconf: NetConf, environment: Mapping[str, str], node: str = "") -> "DelegatedSource":
    """Return the address source of a network with another IPAM plugin. Only an ADD needs `node`, for its pod CIDRs."""
    from svc.attach.sources.delegated import DelegatedSource  # most networks do not delegate

    return DelegatedSource(
        plugin=netconf.ipam.type,
        release_netconf=host_local.for_release(netconf.name, netconf.ipam.data_dir),
        environment=environment,
        netconf=netconf.raw,
        access=netconf.orchestrator,
        node=netconf.pod_cidr_node or node,
    )


def attach(invocation: Invocation) -> Resumable[Result]:
    """Carry out ADD, the only verb that may wait."""
    if invocation.netconf.hostname:
        invocation.trace.warning("hostname is deprecated: set nodename in the network configuration")
    if invocation.call.ipam:
        return (yield from add(invocation.context, _request(invocation, None), invocation.trace))
    if invocation.netconf.prev_result is not None:
        invocation.trace.warning(
            "another plugin comes before this one in the chain, which is not supported: its result is lost"
        )
        parse_prev_result(invocation.netconf.prev_result, invocation.version)
    if invocation.netconf.features.ip_addrs_no_ipam and not invocation.args().pod_name:
        raise CallerError(
            "feature_control.ip_addrs_no_ipam = true, but the container is not a pod and has no annotations",
            details="set feature_control.ip_addrs_no_ipam to false, or pass K8S_POD_NAME and K8S_POD_NAMESPACE in CNI_ARGS",
            code=Code.INVALID_NETCONF,
        )
    with invocation.sandbox() as sandbox:
        return (yield from add(invocation.context, _request(invocation, sandbox), invocation.trace))


def _delete(invocation: Invocation) -> None:
    with ExitStack() as stack:
        own = invocation.attachment(_sandbox_if_any(stack, invocation))
        location = invocation.netconf.location_errors
        delete(invocation.context, own, invocation.trace, location, wired=not invocation.call.ipam)


def _check(invocation: Invocation) -> None:
    if invocation.netconf.prev_result is None:
        raise CallerError("prevResult is missing", details="CHECK needs the result of the ADD in prevResult")
    previous = parse_prev_result(invocation.netconf.prev_result, invocation.version)
    if invocation.call.ipam:
        check(invocation.context, invocation.id, None, previous, invocation.trace, lambda: invocation.where)
        return
    with invocation.sandbox() as sandbox:
        if invocation.context.journal.get(invocation.id) is None:
            restore_for_call(invocation.context, invocation.attachment(sandbox), invocation.trace)
        check(invocation.context, invocation.id, sandbox, previous, invocation.trace, lambda: invocation.where)


def _gc(invocation: Invocation) -> None:
    valid = invocation.netconf.valid_attachments
    if valid is None:
        raise CallerError(
            "cni.dev/valid-attachments is missing",
            details="GC without a list would remove every attachment of the network: give it, or null for none",
        )
    context, netconf, trace = invocation.context, invocation.netconf, invocation.trace
    where = invocation.where if netconf.location_errors.found else invocation.note_where()
    collect_garbage(context, netconf.name, valid, where, trace, invocation.source, netconf.location_errors)


def _status(invocation: Invocation) -> None:
    netconf = invocation.netconf
    with not_ready():
        where = invocation.note_where()
        if not invocation.call.ipam:
            mtu(netconf, invocation.names)
        source = invocation.source
    if invocation.context.restart_reason:
        invocation.trace.warning(invocation.context.restart_reason)
    status(invocation.context, netconf, where, source, invocation.trace)


HANDLERS: dict[str, Callable[[Invocation], None]] = {"DEL": _delete, "CHECK": _check, "GC": _gc, "STATUS": _status}


def _request(invocation: Invocation, sandbox: Sandbox | None) -> AddRequest:
    netconf, args, source = invocation.netconf, invocation.args(), invocation.source
    return AddRequest(
        id=invocation.id,
        workload=invocation.workload(args),
        sandbox=sandbox,
        where=invocation.note_where(),
        netconf=netconf,
        address=Address(args.ip) if args.ip and source.uses_pools else None,
        mtu=mtu(netconf, invocation.names) if sandbox else 0,
        pod_uid=args.pod_uid,
        source=source,
        intent=invocation.inputs.intent,
        resumable=invocation.inputs.resumable,
    )


def _sandbox_if_any(stack: ExitStack, invocation: Invocation) -> Sandbox | None:
    """Open the namespace for DEL; None if it does not exist any more.

    Raise CallerError for the host's own namespace, in which DEL could delete an interface. The IPAM plugin deletes none.
    """
    if not invocation.call.netns:
        return None
    try:
        return stack.enter_context(invocation.sandbox())
    except CallerError as error:
        if error.code == Code.INVALID_NETNS and not invocation.call.ipam:
            raise
        invocation.trace.debug(str(error))
        return None
    except PeerError as lack:  # out of descriptors: a journal entry that names the host's interface is enough
        if invocation.call.ipam or invocation.context.journal.get(invocation.id) is None:
            raise
        invocation.trace.debug(str(lack))
        return None

"""Sharing of one interface by several networks.

An ADD of a bare container to a second network under the same interface name creates no second interface. It adds the network's
name to the profiles of the first attachment's endpoint, and returns the first one's result.

The row of such an attachment has `shares` set, and neither interface nor addresses. Its DEL removes only the name, because
interface, addresses and endpoint belong to the first attachment (`svc.attach.sources.shared`).
"""

from contextlib import suppress

from svc.attach.context import Context
from svc.attach.endpoints import edit_profiles
from svc.attach.policy_profiles import ensure_profile
from svc.attach.record import ADDED, Record
from svc.attach.request import AddRequest
from svc.attach.sessions import Session
from svc.attach.teardown import take_down
from svc.call_trace import CallTrace
from svc.datastore.api import NotFound
from svc.model.endpoint import host_interface
from svc.model.errors import Code, PluginError, SvcError
from svc.model.result import Result

_JOINABLE = (Code.INTERFACE_EXISTS, Code.NO_ADDRESS, Code.POOL, Code.ADDRESS_UNAVAILABLE)


def can_join(refusal: SvcError) -> bool:
    """Return whether the failure of an ADD does not matter if the interface exists.

    ADD assigns addresses before the kernel reports an existing interface.
    """
    return isinstance(refusal, PluginError) or refusal.code in _JOINABLE


def join_interface(context: Context, session: Session, request: AddRequest, trace: CallTrace) -> Result | None:
    """Record the second attachment, and return the result of the first one; None if there is not an interface to join.

    Raise StoreError if the datastore or the journal fails.
    """
    host = _host(context, session, request)
    if host is None or context.journal.get(request.id) is not None:  # the row of a failed ADD with a pending release
        return None
    session.require_ready()  # the ADD may have failed before it checked this
    record = Record.of(request.id, host.workload, host.session_key, session.names, context.boot_id)
    record.sandbox, record.shares = host.sandbox, True
    try:
        with trace.phase("endpoint"):
            context.journal.begin(record)
            if session.names.network_profiles and not request.policy:
                ensure_profile(session, request.id.network, pod=False)
            edit_profiles(session, record, add=True)
            record.state, record.result = ADDED, host.result
            context.journal.update(record)
    except NotFound:
        context.journal.remove(record)
        return None
    except BaseException:
        with suppress(SvcError):  # if it fails, the row stays for recovery
            take_down(context, record, trace)
        raise
    trace.info(f"{request.id.ifname} is there, for network {host.id.network!r}: this network has joined it")
    return Result.from_json(host.result or {})


def still_shares(context: Context, record: Record) -> bool:
    """Return whether the interface that a sharing attachment uses exists."""
    host = interface_owner(context, record)
    link = context.kernel.find_link(index=host.host_index) if host else None
    return host is not None and link is not None and link["name"] == host.host_name


def interface_owner(context: Context, record: Record) -> Record | None:
    """Return the attachment whose interface a sharing one uses; None if it does not exist any more."""
    for other in context.journal.of_interface(record.id.container_id, record.id.ifname):
        if other.is_wired and other.state == ADDED and (other.boot_id, other.sandbox) == (record.boot_id, record.sandbox):
            return other
    return None


def _host(context: Context, session: Session, request: AddRequest) -> Record | None:
    if request.sandbox is None or request.workload.is_pod:
        return None
    name = host_interface(session.names, request.workload, request.id.ifname)
    for other in context.journal.with_host_name(name):
        if _is_same_interface(other, context, request) and _serves(other, request):
            return other
    return None


def _is_same_interface(other: Record, context: Context, request: AddRequest) -> bool:
    assert request.sandbox is not None
    return (other.state, other.boot_id, other.sandbox) == (ADDED, context.boot_id, request.sandbox.identity) and (
        other.id.container_id,
        other.id.ifname,
        other.workload,
    ) == (request.id.container_id, request.id.ifname, request.workload)


def _serves(other: Record, request: AddRequest) -> bool:
    """Return whether the attachment is in the datastore of the request, and has the requested address, if any."""
    if other.session_key.without_secrets() != request.where.without_secrets():
        return False
    return request.address is None or request.address in other.address_list()

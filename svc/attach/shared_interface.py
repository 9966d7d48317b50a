"""Sharing of one interface by several networks.

An ADD of a bare container to a second network under the same interface name creates no second interface. It adds the network's
name to the profiles of the first attachment's endpoint, and returns the first one's result.

The row of such an attachment has `shares` set, and neither interface nor addresses. Its DEL removes only the name, because
interface, addresses and endpoint belong to the first attachment (`SharedSource`).
"""

from contextlib import suppress

from svc.attach.context import Context
from svc.attach.endpoints import edit_profiles, ensure_profile
from svc.attach.record import ADDED, Record, since_boot
from svc.attach.request import AddCall
from svc.attach.teardown import tear_down
from svc.datastore.api import NotFound
from svc.model.endpoint import host_interface
from svc.model.errors import Code, PluginError, SvcError
from svc.model.result import Result

_JOINABLE = (Code.INTERFACE_EXISTS, Code.NO_ADDRESS, Code.POOL, Code.ADDRESS_UNAVAILABLE)


def can_join(refusal: SvcError) -> bool:
    """Return whether an ADD may have failed because its interface exists. It assigns addresses before the kernel says so."""
    return isinstance(refusal, PluginError) or refusal.code in _JOINABLE


def join_interface(call: AddCall) -> Result | None:
    """Record the second attachment, and return the result of the first one; None if it has no interface. Raise StoreError."""
    context, session, request, trace = call.context, call.session, call.request, call.trace
    host = _host(call)
    if host is None or context.journal.get(request.id) is not None:  # the row of a failed ADD with a pending release
        return None
    session.require_ready()  # the ADD may have failed before it checked this
    record = Record.of(request.id, host.workload, host.session_key, session.names, context.boot_id)
    record.sandbox, record.shares, record.begun = host.sandbox, True, since_boot()
    try:
        with trace.phase("endpoint"):
            context.journal.begin(record)
            if session.names.network_profiles and not request.netconf.policy:
                ensure_profile(session, request.id.network, pod=False)
            edit_profiles(session, record, add=True)
            record.state, record.result = ADDED, host.result
            context.require_state()
            context.journal.update(record)
    except NotFound:
        context.journal.remove(record)
        return None
    except BaseException:
        with suppress(SvcError):  # if it fails, the row stays for recovery
            tear_down(context, record, trace)
        raise
    trace.info(f"{request.id.ifname} is there, for network {host.id.network!r}: this network has joined it")
    return Result.from_json(host.result or {})


def interface_owner(context: Context, record: Record) -> Record | None:
    """Return the attachment whose interface a sharing one uses; None if it does not exist any more."""
    for other in context.journal.of_interface(record.id.container_id, record.id.ifname):
        if other.is_wired and other.state == ADDED and (other.boot_id, other.sandbox) == (record.boot_id, record.sandbox):
            return other
    return None


def _host(call: AddCall) -> Record | None:
    """Return the attachment of the same interface in the same datastore that has the requested address, if any."""
    context, request = call.context, call.request
    if request.sandbox is None or request.workload.is_pod:
        return None
    same = (ADDED, context.boot_id, request.sandbox.identity, request.id.container_id, request.id.ifname, request.workload)
    name = host_interface(call.session.names, request.workload, request.id.ifname)
    for other in context.journal.with_host_name(name):
        found = (other.state, other.boot_id, other.sandbox, other.id.container_id, other.id.ifname, other.workload)
        is_here = (other.session_key.store, other.node) == (request.where.store, request.where.node)
        if found == same and is_here and (request.address is None or request.address in other.address_list()):
            return other
    return None

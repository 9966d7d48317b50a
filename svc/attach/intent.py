"""The row of an ADD in the journal: an existing attachment, or the intent of an in-flight ADD."""

import time
from contextlib import suppress

from svc._core import netns
from svc.attach.addressing import read_pod, resolve_current_addressing
from svc.attach.endpoints import endpoint_matches
from svc.attach.record import ADDED, WAITING, IntentLost, Record, since_boot
from svc.attach.request import AddCall, AddRequest, Sandbox
from svc.attach.shared_interface import interface_owner
from svc.attach.sources.select import source_of
from svc.attach.teardown import tear_down
from svc.attach.waiting import STORE_SECONDS, await_gates, await_store, wait_for_policy
from svc.dataplane.check import stands
from svc.dataplane.kernel import link_of
from svc.dataplane.plan import effective_mtu
from svc.model.errors import Code, PeerError, SvcError
from svc.model.result import Dns, Interface, IpConfig, Result, Route
from svc.waits.wait import Resumable

NO_DNS = Dns()


def previous_row(call: AddCall) -> Record | None:
    """Return the row of the attachment, if any. Raise IntentLost if it was deleted or replaced while another process waited."""
    request = call.request
    previous = call.context.journal.get(request.id)
    if request.intent and (previous is None or previous.generation != request.intent):
        raise IntentLost(request.id)
    return previous


def wait_for_policy_again(call: AddCall, record: Record) -> Resumable[None]:
    """Wait for the policy. A call that another process began keeps its deadline."""
    if not call.request.intent:
        record.waits_until = time.time() + call.request.netconf.policy_setup.seconds
    yield from wait_for_policy(call, record)


def pass_gates(call: AddCall, previous: Record | None) -> Resumable[tuple[Record, bool]]:
    """Wait until the datastore may be used and the gates are ready. Return the row of the ADD, and whether the wait was long.

    If another process continues the call, the row shows that no DEL was answered during the wait.
    """
    context, gates = call.context, call.request.netconf.gates
    if previous is not None and previous.state == WAITING and call.request.intent:
        row = previous
    else:
        if previous is not None and previous.state != WAITING:
            tear_down_previous(call, previous)
        row = new_record(call)
        seconds = gates.seconds if gates.urls else STORE_SECONDS
        row.state, row.waits_until, row.outlives = WAITING, time.time() + seconds, not context.resident
        context.journal.begin(row)
    try:
        took_long = yield from await_store(call, row)
        if gates.urls and (yield from await_gates(call, row)):
            took_long = True
        return row, took_long
    except SvcError:
        with suppress(SvcError):
            context.journal.remove(row)
        raise


def tear_down_previous(call: AddCall, previous: Record) -> None:
    """Tear down what an earlier ADD of the container has left. Raise SvcError if a release stays pending."""
    call.trace.info(f"an attachment in state {previous.state!r} is taken down first")
    failure = tear_down(call.context, previous, call.trace, call.request.sandbox, call.request.where)
    if failure is not None:
        pending = PeerError(
            f"an earlier attachment of container {previous.id.container_id!r} still has a pending release: {failure.msg}",
            details=failure.details or "look at the datastore, or at the plugin that gave the address",
            code=Code.DATASTORE,
        )
        pending.lacks_right = isinstance(failure, PeerError) and failure.lacks_right
        raise pending


def new_record(call: AddCall) -> Record:
    """Return a record with the fields that the request determines."""
    request = call.request
    record = Record.of(request.id, request.workload, request.where, call.session.names, call.context.boot_id)
    _describe(record, request)
    record.versions, record.begun = list(request.netconf.ipam.versions), since_boot()
    request.source.mark(record)
    return record


def _describe(record: Record, request: AddRequest) -> None:
    """Set the properties of the interface in the record."""
    netconf = request.netconf
    record.sandbox, record.mtu, record.queues = _identity(request), request.mtu, netconf.num_queues
    record.allow_ip_forwarding = netconf.allow_ip_forwarding
    record.routes = None if netconf.routes is None else [str(route) for route in netconf.routes]


def recorded_result(call: AddCall, record: Record) -> Result | None:
    """Return the recorded result if sandbox and boot are the same, the interface exists, and the addresses are allocated."""
    context, session, request = call.context, call.session, call.request
    if record.state != ADDED or record.boot_id != context.boot_id or not _is_in_sandbox(record, request):
        return None
    if source_of(record).why_not_held(session, record, call.trace):
        return None
    if record.is_wired and not _wiring_stands(call, record):
        return None
    if record.shares:
        host = interface_owner(context, record)
        if host is None or not context.is_live(host):
            return None
    if record.result is None and record.is_wired:
        _adopt(call, record)
    _warn_of_families(call, record)
    return Result.from_json(record.result or {})


def _adopt(call: AddCall, record: Record) -> None:
    """Complete a restored row, so that the ADDs before and after its loss have the same result. Raise SvcError."""
    request = call.request
    assert request.sandbox is not None
    _describe(record, request)
    addressing = resolve_current_addressing(call, read_pod(call))
    ips = tuple(IpConfig(str(address.host()), interface=1) for address in record.address_list())
    routes = request.source.adopt(call.session, record, addressing)
    record.result = wired_result(record, request.sandbox, ips, routes).to_json()
    call.context.journal.update(record)


def wired_result(
    record: Record, sandbox: Sandbox, ips: tuple[IpConfig, ...], routes: tuple[Route, ...], dns: Dns = NO_DNS
) -> Result:
    """Return the result of an attachment that svc has wired."""
    mtu = effective_mtu(record.mtu)
    inside = Interface(record.id.ifname, mac=record.mac, mtu=mtu, sandbox=sandbox.path)
    return Result(interfaces=(Interface(record.host_name), inside), ips=ips, routes=routes, dns=dns)


def _is_in_sandbox(record: Record, request: AddRequest) -> bool:
    """Return whether the interface is in the sandbox. A restored row has no sandbox, so the interface pair is compared."""
    if not record.is_restored or request.sandbox is None:
        return record.sandbox == _identity(request)
    with netns.Socket(request.sandbox.fd) as socket:
        link = link_of(socket, name=record.id.ifname)
    if link is not None and not record.mac:  # a pod's endpoint in the Kubernetes API has no MAC
        record.mac = link["mac"].hex(":")
    return link is not None and (link["index"], link["peer_index"]) == (record.peer_index, record.host_index)


def _warn_of_families(call: AddCall, record: Record) -> None:
    """Warn if the network assigns other address families now: an existing attachment keeps its addresses."""
    versions = call.request.netconf.ipam.versions
    if record.versions and call.request.source.uses_pools and set(record.versions) != set(versions):
        had, wanted = (" and ".join(f"IPv{version}" for version in each) for each in (record.versions, versions))
        call.trace.warning(
            f"the attachment was made for {had}, and this ADD asks for {wanted}: DEL it and ADD it again for that"
        )


def _wiring_stands(call: AddCall, record: Record) -> bool:
    sandbox = call.request.sandbox
    if sandbox is None or not stands(call.context.kernel, record.wiring(), record, sandbox.fd):
        return False
    return endpoint_matches(call.session, record)


def _identity(request: AddRequest) -> tuple[int, int]:
    return request.sandbox.identity if request.sandbox is not None else (0, 0)

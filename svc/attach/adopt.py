"""The result of an attachment, and the completion of a restored row by a repeated ADD."""

from svc.attach.addressing import resolve_current_addressing
from svc.attach.context import Context
from svc.attach.pod import read_pod
from svc.attach.record import Record
from svc.attach.request import AddRequest, Sandbox
from svc.attach.sessions import Session
from svc.call_trace import CallTrace
from svc.dataplane.plan import effective_mtu
from svc.model.result import Dns, Interface, IpConfig, Result, Route

NO_DNS = Dns()


def wired_result(
    record: Record, sandbox: Sandbox, ips: tuple[IpConfig, ...], routes: tuple[Route, ...], dns: Dns = NO_DNS
) -> Result:
    """Return the result of an attachment that svc has wired."""
    mtu = effective_mtu(record.mtu)
    inside = Interface(record.id.ifname, mac=record.mac, mtu=mtu, sandbox=sandbox.path)
    return Result(interfaces=(Interface(record.host_name), inside), ips=ips, routes=routes, dns=dns)


def adopt(context: Context, session: Session, record: Record, request: AddRequest, trace: CallTrace) -> None:
    """Complete a restored row from a repeated ADD, so that both ADDs have the same result.

    Raise SvcError if the pod, the datastore or the journal fails.
    """
    sandbox = request.sandbox
    assert sandbox is not None
    record.sandbox, record.mtu, record.queues = sandbox.identity, request.mtu, request.queues
    record.allow_ip_forwarding = request.allow_ip_forwarding
    record.routes = None if request.routes is None else [str(route) for route in request.routes]
    addressing = resolve_current_addressing(session.names, request, read_pod(context, session, request, trace), trace)
    ips = tuple(IpConfig(str(address.host()), interface=1) for address in record.address_list())
    routes = request.source.adopt(session, record, addressing)
    record.result = wired_result(record, sandbox, ips, routes).to_json()
    context.journal.update(record)

"""DEL while another writer changes the same endpoint, and DEL of what this node does not know."""

from dataclasses import replace

import pytest

from harness.backend_wrappers import NonAtomic
from harness.fault_injection import Kind
from harness.inprocess import Host
from svc.attach import teardown
from svc.attach.context import Context
from svc.attach.record import Record
from svc.attach.request import Sandbox
from svc.attach.sources.base import Holdings
from svc.call_trace import CallTrace
from svc.datastore.api import Delete, Entry, Found, Update
from svc.ipam import service
from svc.ipam.requests import Release
from svc.ipam.service import IpamService, PlannedRelease
from svc.model.endpoint import KIND
from svc.model.errors import SvcError
from svc.model.ipam import Handle
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.root


def endpoint(host: Host) -> Entry[Resource]:
    (entry,) = host.store.list(ResourceQuery(KIND))
    return entry


def edit(host: Host, **changes: str) -> None:
    entry = endpoint(host)
    host.store.write([Update(entry.key, replace(entry.value, spec=entry.value.spec | changes), entry.revision)])


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "not atomic"])
@pytest.mark.parametrize("change", ["labels", "container", "deleted"])
def test_endpoint_that_changes_during_a_del(
    host: Host, sandbox: Sandbox, atomic: bool, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted unless another sandbox of the pod has it by then. The addresses are released in any case."""
    if not atomic:
        host.store = NonAtomic(host.store)
    host.add(sandbox)
    read = teardown._read_holdings

    def read_before_the_change(context: Context, record: Record, trace: CallTrace) -> Holdings | SvcError:
        held = read(context, record, trace)
        match change:
            case "labels":
                edit(host, ports="changed")
            case "container":
                edit(host, containerID="c2")
            case "deleted":
                host.store.write([Delete(endpoint(host).key)])
        return held

    monkeypatch.setattr(teardown, "_read_holdings", read_before_the_change)
    host.delete(sandbox)
    assert host.audit().allocations == {}
    assert host.audit().records == []
    assert len(list(host.store.list(ResourceQuery(KIND)))) == (change == "container")


def test_unknown_container_has_no_pending_release(host: Host, sandbox: Sandbox) -> None:
    """No datastore answers, but an ADD would have written its row first."""
    host.faults.arm(Kind.OUTAGE)
    host.delete(sandbox, container="c9")
    assert host.context.journal.all() == []


def test_policy_profile_of_the_network_is_created_once(host: Host, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment whose policy agent reads it names that. An administrator's changes stay."""
    monkeypatch.setattr(host.context, "names_of", lambda _: replace(DEFAULT, network_profiles=True))
    host.add(sandbox)
    (entry,) = host.store.list(ResourceQuery("Profile"))
    assert entry.key == ResourceKey("Profile", "net")
    assert entry.value.spec["ingress"] == [{"action": "Allow", "source": {"selector": "has(net)"}}]
    host.store.write([Update(entry.key, replace(entry.value, spec={}), entry.revision)])
    host.add(sandbox, ifname="eth1")
    (edited,) = host.store.list(ResourceQuery("Profile"))
    assert edited.value.spec == {}


@pytest.mark.parametrize("planning", ["succeeds", "fails", "takes too long"])
def test_release_is_planned_while_the_kernel_removes_the_interface(
    host: Host, sandbox: Sandbox, planning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DEL can do without the plan."""
    carried_out = list[PlannedRelease]()
    carry_out, plan = IpamService.carry_out, IpamService.plan_release

    def spy(ipam: IpamService, planned: PlannedRelease, stored: Found[Handle]) -> bool:
        carried_out.append(planned)
        return carry_out(ipam, planned, stored)

    def plan_or_fail(ipam: IpamService, request: Release, stored: Found[Handle]) -> PlannedRelease | None:
        if planning == "fails":
            raise RuntimeError("a defect")
        if planning == "takes too long":
            monkeypatch.setattr(service, "PLAN_SECONDS", -1.0)
        return plan(ipam, request, stored)

    monkeypatch.setattr(IpamService, "carry_out", spy)
    monkeypatch.setattr(IpamService, "plan_release", plan_or_fail)
    host.add(sandbox)
    host.delete(sandbox)
    assert len(carried_out) == (planning != "fails")
    assert host.audit().allocations == {}
    assert list(host.store.list(ResourceQuery(KIND))) == []

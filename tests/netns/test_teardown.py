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
from svc.datastore.api import Delete, Entry, Update
from svc.model.endpoint import KIND
from svc.model.errors import SvcError
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

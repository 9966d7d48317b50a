"""Rollback of ADDs with annotations: nothing is left, and allocations of other containers do not change."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.add_requests import netconf
from harness.fault_injection import Kind
from harness.inprocess import WHERE, Host, opened
from harness.netns import Netns
from svc._core.cidr import Address
from svc.attach.addressing import resolve_current_addressing
from svc.attach.datastore_ready import DatastoreLocked
from svc.attach.delete import delete
from svc.attach.record import AttachmentId
from svc.attach.request import AddCall, AddRequest, Attachment, Sandbox
from svc.attach.transaction import AddTransaction
from svc.call_trace import CallTrace
from svc.datastore.api import Update
from svc.ipam.requests import Assign, Release
from svc.model.annotations import Features
from svc.model.endpoint import Workload
from svc.model.errors import CallerError, Code, PeerError, SvcError
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.model.result import Result
from svc.names import DEFAULT
from svc.orch.pod_info import Namespace, PodInfo

pytestmark = pytest.mark.root

STEPS = ("record_intent", "assign_addresses", "wire", "write_endpoint", "record_result")
WAYS: dict[str, dict[str, Any]] = {
    "given": {"ipAddrs": ["fd65::9", "10.65.0.9"]},
    "unmanaged": {"ipAddrsNoIpam": ["203.0.113.9", "fd65::9"]},
    "pools": {"ipv4pools": ["pool4"], "ipv6pools": ["fd65::/112"], "hwAddr": "0a:00:5e:00:53:01"},
}
KINDS = pytest.mark.parametrize(
    "kind", [Kind.REFUSED, Kind.REPLY_LOST, Kind.OUTAGE], ids=lambda kind: kind.value.replace(" ", "-")
)


def prefixed(settings: dict[str, Any]) -> dict[str, str]:
    return {
        f"{DEFAULT.annotation_prefix}/{name}": orjson.dumps(text).decode() if name != "hwAddr" else text
        for name, text in settings.items()
    }


def annotated(
    settings: dict[str, Any], namespace: dict[str, Any] | None = None, now: Callable[[], Namespace] | None = None
) -> PodInfo:
    """Return a pod with cached annotations of its namespace, and a function that reads the current ones."""
    cached = Namespace(annotations=prefixed(namespace or {}))
    pod = {"metadata": {"name": "web-0", "namespace": "default", "annotations": prefixed(settings)}, "spec": {}}
    return PodInfo(pod, cached, now or (lambda: cached))


def add_transaction(host: Host, sandbox: Sandbox, pod: PodInfo, container: str = "c1") -> AddTransaction:
    session = host.context.session(WHERE)
    workload = Workload(container, "web-0", "default")
    key = AttachmentId("net", container, "eth0")
    request = AddRequest(key, workload, sandbox, WHERE, netconf((4, 6), features=Features(True, True)))
    call = AddCall(host.context, session, request, host.trace)
    return AddTransaction(call, resolve_current_addressing(call, pod))


def attach(host: Host, sandbox: Sandbox, settings: dict[str, Any], container: str = "c1") -> Result:
    added = add_transaction(host, sandbox, annotated(settings), container)
    added.run()
    return added.result


def detach(host: Host, sandbox: Sandbox, container: str) -> None:
    key, workload = AttachmentId("net", container, "eth0"), Workload(container, "web-0", "default")
    delete(host.context, Attachment(key, workload, sandbox, WHERE), CallTrace("test"))


def failure_of(call: Callable[[], object]) -> str:
    """Return the error of the call; empty if it succeeds."""
    try:
        call()
    except SvcError as failure:
        return str(failure)
    return ""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", WAYS)
def test_failed_step_leaves_nothing(host: Host, sandbox: Sandbox, pod: Netns, way: str, step: str, after: bool) -> None:
    failing = add_transaction(host, sandbox, annotated(WAYS[way]))
    original: Callable[[], None] = getattr(failing, step)

    def fail(*arguments: Any) -> None:
        if after:
            original(*arguments)
        raise PeerError("the step failed")

    setattr(failing, step, fail)
    with pytest.raises(PeerError, match="the step failed"):
        failing.run()
    assert host.left_over() == []
    assert pod.links() == []
    attach(host, sandbox, WAYS[way])
    assert host.audit().disagreements(host.links()) == []


@KINDS
@pytest.mark.parametrize("way", WAYS)
def test_store_may_fail_at_any_call(tmp_path: Path, netns: Netns, sandbox: Sandbox, way: str, kind: Kind) -> None:
    for number in itertools.count(1):
        with Host(tmp_path / str(number), netns) as host:
            host.faults.arm(kind, number)
            failure = failure_of(lambda: attach(host, sandbox, WAYS[way]))
            if failure:
                assert "ordered fault" in failure, f"call {number}: another failure hides the first"
                host.heal()
                assert host.recover() == 0, f"call {number}"
                assert host.left_over() == [], f"call {number}"
                attach(host, sandbox, WAYS[way])
            host.heal()
            assert host.audit().disagreements(host.links()) == [], f"call {number}"
            detach(host, sandbox, "c1")
            assert host.left_over() == [], f"call {number}"
            if not host.faults.struck:
                break
    assert number > 3


@KINDS
def test_takeover_may_fail_at_any_call(tmp_path: Path, netns: Netns, sandbox: Sandbox, kind: Kind) -> None:
    """The next sandbox gets the address with the second ADD at the latest. The DEL of the earlier one does not affect it."""
    for number in itertools.count(1):
        with Host(tmp_path / str(number), netns) as host, Netns("next") as namespace, opened(namespace) as next_sandbox:
            attach(host, sandbox, WAYS["given"])
            host.faults.arm(kind, number)
            failure = failure_of(lambda: attach(host, next_sandbox, WAYS["given"], "c2"))
            if failure:
                assert "ordered fault" in failure, f"call {number}: another failure hides the first"
                host.heal()
                host.recover()
                assert {record.id.container_id for record in host.audit().records} <= {"c1"}, f"call {number}"
                attach(host, next_sandbox, WAYS["given"], "c2")
            struck = host.faults.struck
            host.heal()
            detach(host, sandbox, "c1")
            assert host.audit().disagreements(host.links()) == [], f"call {number}"
            assert set(host.audit().allocations.values()) == {"net.c2"}, f"call {number}"
            detach(host, next_sandbox, "c2")
            assert host.left_over() == [], f"call {number}"
            if not struck:
                break
    assert number > 5


def test_address_with_another_handle_is_not_released(host: Host, sandbox: Sandbox) -> None:
    """Endpoint and journal entry of the earlier sandbox still have it, but it is assigned to another container."""
    attach(host, sandbox, {"ipAddrs": ["10.65.0.9"]})
    session = host.context.session(WHERE)
    session.ipam.release(Release("net.c1"))
    session.ipam.assign(Assign("net.stranger", {}, addresses=(Address("10.65.0.9"),)))
    with Netns("next") as namespace, opened(namespace) as next_sandbox, pytest.raises(CallerError) as caught:
        attach(host, next_sandbox, {"ipAddrs": ["10.65.0.9"]}, "c2")
    assert caught.value.code is Code.ADDRESS_UNAVAILABLE
    assert "net.stranger" in caught.value.details
    assert host.audit().allocations == {"10.65.0.9": "net.stranger"}


def test_locked_store_refuses_endpoints_of_unmanaged_addresses(host: Host, sandbox: Sandbox) -> None:
    attach(host, sandbox, WAYS["unmanaged"])
    detach(host, sandbox, "c1")
    entry = host.store.get(ResourceKey("ClusterInformation", "default"))
    assert isinstance(entry.value, Resource)
    entry.value.spec["datastoreReady"] = False
    host.store.write([Update(entry.key, entry.value, entry.revision)])
    with pytest.raises(DatastoreLocked):
        attach(host, sandbox, WAYS["unmanaged"])


# cached annotations of the namespace


def missing_namespace() -> Namespace:
    raise PeerError("a request to the Kubernetes API failed: namespace default does not exist", code=Code.ORCHESTRATOR)


@pytest.mark.parametrize("settings", [{"ipv4pools": ["nowhere"]}, {"ipAddrs": ["10.99.0.1"]}, {"ipAddrs": ["x"]}])
def test_deletion_of_the_namespace_during_the_add_is_reported(host: Host, sandbox: Sandbox, settings: dict[str, Any]) -> None:
    """Before a refusal, the namespace is read again. The ADD reports that it does not exist, and leaves nothing."""
    with pytest.raises(PeerError, match="namespace default does not exist") as caught:
        add_transaction(host, sandbox, annotated({}, settings, missing_namespace)).run()
    assert caught.value.code is Code.ORCHESTRATOR
    assert host.left_over() == []


@pytest.mark.parametrize(
    "settings", [{"ipv4pools": ["nowhere"]}, {"ipAddrs": ["10.99.0.1"]}, {"ipAddrs": "x"}, {"ipFamilies": []}]
)
def test_add_is_not_refused_because_of_cached_annotations(host: Host, sandbox: Sandbox, settings: dict[str, Any]) -> None:
    now = Namespace(annotations=prefixed({"ipAddrs": ["10.65.0.9"]}))
    added = add_transaction(host, sandbox, annotated({}, settings, lambda: now))
    added.run()
    result = added.result
    assert [ip.address for ip in result.ips] == ["10.65.0.9/32"]
    assert host.audit().disagreements(host.links()) == []


def test_refusal_quotes_the_current_annotations(host: Host, sandbox: Sandbox) -> None:
    now = Namespace(annotations=prefixed({"ipv4pools": ["elsewhere"]}))
    with pytest.raises(CallerError, match=r"IP pool \(elsewhere\) does not exist") as caught:
        add_transaction(host, sandbox, annotated({}, {"ipv4pools": ["nowhere"]}, lambda: now)).run()
    assert caught.value.details.count("of namespace default = ") == 1
    assert "nowhere" not in str(caught.value)
    assert host.left_over() == []

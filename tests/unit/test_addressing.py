"""What comes first: annotations, then the network configuration and what the call asks for."""

from typing import Any

import orjson
import pytest

from harness.add_requests import netconf
from svc._core.cidr import Address
from svc.attach.addressing import resolve_addressing
from svc.attach.record import AttachmentId, SessionKey
from svc.attach.request import AddRequest
from svc.attach.sources.base import Addressing
from svc.attach.sources.delegated import DelegatedSource
from svc.call_trace import CallTrace
from svc.model.annotations import Features
from svc.model.endpoint import Workload
from svc.model.errors import CallerError, Code
from svc.names import DEFAULT
from svc.orch.pod_info import Namespace, PodInfo

HOST_LOCAL = DelegatedSource("host-local", {}, {}, {})


def noted(notes: dict[str, Any]) -> dict[str, str]:
    return {f"{DEFAULT.annotation_prefix}/{name}": orjson.dumps(value).decode() for name, value in notes.items()}


def chosen(
    notes: dict[str, Any] | None,
    trace: CallTrace,
    *,
    namespace: dict[str, Any] | None = None,
    address: str = "",
    versions: tuple[int, ...] = (4,),
    ifname: str = "eth0",
    **more: Any,
) -> Addressing:
    """Without annotations, of a pod that is not read."""
    request = AddRequest(
        AttachmentId("net", "c1", ifname), Workload("c1", "web-0", "default"), None, SessionKey({}, "node1"),
        netconf(versions, features=Features(True, True), four=("four",), six=("six",)),
        Address(address) if address else None, **more,
    )  # fmt: skip
    pod = None if notes is None else {"metadata": {"annotations": noted(notes)}}
    return resolve_addressing(DEFAULT, request, PodInfo(pod, Namespace(annotations=noted(namespace or {}))), trace)


@pytest.fixture
def trace() -> CallTrace:
    return CallTrace("test")


@pytest.mark.parametrize("notes", [None, {}])
def test_network_decides_where_nobody_else_does(notes: dict[str, Any] | None, trace: CallTrace) -> None:
    found = chosen(notes, trace)
    assert (found.versions, found.pools, found.addresses) == ((4,), {4: ("four",), 6: ("six",)}, ())
    assert chosen(notes, trace, address="10.0.0.1").addresses == (Address("10.0.0.1"),)
    assert trace.lines == []


def test_namespace_counts_only_with_its_pod(trace: CallTrace) -> None:
    """Annotations are read where policy says so: then the pod was asked for."""
    assert chosen({}, trace, namespace={"ipv4pools": ["blue"]}).pools[4] == ("blue",)
    assert chosen(None, trace, namespace={"ipv4pools": ["blue"]}).pools[4] == ("four",)


def test_annotated_pools_replace_those_of_their_family(trace: CallTrace) -> None:
    assert chosen({"ipv4pools": ["blue"]}, trace, versions=(4, 6)).pools == {4: ("blue",), 6: ("six",)}
    assert chosen({"ipv6pools": ["blue"]}, trace).pools == {4: ("four",), 6: ("blue",)}
    assert "has no effect: the pod gets no IPv6 address" in trace.lines[0]


@pytest.mark.parametrize(
    ("notes", "left"),
    [
        ({"ipAddrs": ["10.0.0.9"]}, ("10.0.0.9",)), ({"ipAddrs": ["fd00::9"]}, ("fd00::9",)),
        ({"ipAddrsNoIpam": ["10.0.0.9"]}, ("10.0.0.9",)), ({"ipv4pools": ["blue"]}, ()), ({"ipFamilies": ["IPv6"]}, ()),
    ],
)  # fmt: skip
def test_annotations_come_before_the_address_of_the_call(
    notes: dict[str, Any], left: tuple[str, ...], trace: CallTrace
) -> None:
    found = chosen(notes, trace, address="10.0.0.1")
    assert found.addresses == tuple(map(Address, left))
    (line,) = trace.lines
    assert "WARNING" in line
    (name,) = notes
    assert f"CNI_ARGS IP = '10.0.0.1' is set aside: {DEFAULT.annotation_prefix}/{name} of pod default/web-0 = " in line


@pytest.mark.parametrize("notes", [{"ipv6pools": ["blue"]}, {"ipFamilies": ["IPv4", "IPv6"]}])
def test_other_annotations_leave_the_address_of_the_call(notes: dict[str, Any], trace: CallTrace) -> None:
    assert chosen(notes, trace, address="10.0.0.1", versions=(4, 6)).addresses == (Address("10.0.0.1"),)


def test_address_of_a_family_that_is_not_assigned_is_refused(trace: CallTrace) -> None:
    """Unless the pod asks for that family."""
    with pytest.raises(CallerError, match="the network assigns none of that family") as caught:
        chosen({}, trace, address="fd00::1")
    assert caught.value.code is Code.ADDRESS_UNAVAILABLE
    assert chosen({"ipFamilies": ["IPv6"]}, trace, address="fd00::1").addresses == (Address("fd00::1"),)


def test_other_interfaces_have_no_addresses_of_the_pod(trace: CallTrace) -> None:
    notes = {"ipAddrs": ["10.0.0.9"], "ipv4pools": ["blue"], "floatingIPs": ["10.0.0.8"]}
    found = chosen(notes, trace, ifname="net1")
    assert (found.addresses, found.pools[4], found.wishes.floating) == ((), ("blue",), ())
    assert chosen({"ipAddrsNoIpam": ["10.0.0.9"]}, trace, ifname="net1", address="10.0.0.1").addresses == (Address("10.0.0.1"),)
    assert not chosen({"ipAddrsNoIpam": ["10.0.0.9"]}, trace, ifname="net1").wishes.unmanaged


@pytest.mark.parametrize(
    "notes",
    [
        {"ipAddrs": ["10.0.0.9"]},
        {"ipAddrsNoIpam": ["10.0.0.9"]},
        {"ipv4pools": ["a"]},
        {"ipv6pools": ["a"]},
        {"ipFamilies": ["IPv4"]},
    ],
)
def test_other_ipam_gives_no_pod_its_own(notes: dict[str, Any], trace: CallTrace) -> None:
    """R8: refused with the reason; fields that do not concern IPAM are kept."""
    for pod, namespace in ((notes, {}), ({}, notes)):
        with pytest.raises(CallerError, match="'host-local' gives no pod an address or pool of its own") as caught:
            chosen(pod, trace, namespace=namespace, source=HOST_LOCAL)
        assert next(iter(notes)) in caught.value.details
    assert chosen({"floatingIPs": ["10.0.0.8"]}, trace, source=HOST_LOCAL).wishes.floating

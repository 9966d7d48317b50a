"""Precedence of annotations, the network configuration and CNI_ARGS in the addressing of a pod."""

from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from harness.add_requests import netconf
from svc._core.cidr import Address
from svc.attach.addressing import resolve_addressing
from svc.attach.record import AttachmentId, SessionKey
from svc.attach.request import AddCall, AddRequest
from svc.attach.sources.base import Addressing
from svc.attach.sources.delegated import DelegatedSource
from svc.call_trace import CallTrace
from svc.model.annotations import Features
from svc.model.endpoint import Workload
from svc.model.errors import CallerError, Code
from svc.names import DEFAULT
from svc.orch.pod_info import Namespace, PodInfo

HOST_LOCAL = DelegatedSource("host-local", {}, {}, {})


def encode(values: dict[str, Any]) -> dict[str, str]:
    return {f"{DEFAULT.annotation_prefix}/{name}": orjson.dumps(value).decode() for name, value in values.items()}


def resolve(
    annotations: dict[str, Any] | None,
    trace: CallTrace,
    *,
    namespace: dict[str, Any] | None = None,
    address: str = "",
    versions: tuple[int, ...] = (4,),
    ifname: str = "eth0",
    **more: Any,
) -> Addressing:
    """Resolve the addressing of a request. If `annotations` is None, the pod is not read."""
    request = AddRequest(
        AttachmentId("net", "c1", ifname), Workload("c1", "web-0", "default"), None, SessionKey({}, "node1"),
        netconf(versions, features=Features(True, True), four=("four",), six=("six",)),
        Address(address) if address else None, **more,
    )  # fmt: skip
    pod = None if annotations is None else {"metadata": {"annotations": encode(annotations)}}
    session: Any = SimpleNamespace(names=DEFAULT)
    call = AddCall(None, session, request, trace)  # type: ignore[arg-type]
    return resolve_addressing(call, PodInfo(pod, Namespace(annotations=encode(namespace or {}))))


@pytest.fixture
def trace() -> CallTrace:
    return CallTrace("test")


@pytest.mark.parametrize("annotations", [None, {}])
def test_network_configuration_is_the_default(annotations: dict[str, Any] | None, trace: CallTrace) -> None:
    found = resolve(annotations, trace)
    assert (found.versions, found.pools, found.addresses) == ((4,), {4: ("four",), 6: ("six",)}, ())
    assert resolve(annotations, trace, address="10.0.0.1").addresses == (Address("10.0.0.1"),)
    assert trace.lines == []


def test_annotations_of_the_namespace_need_those_of_the_pod(trace: CallTrace) -> None:
    """If the pod is not read, the annotations of its namespace have no effect."""
    assert resolve({}, trace, namespace={"ipv4pools": ["blue"]}).pools[4] == ("blue",)
    assert resolve(None, trace, namespace={"ipv4pools": ["blue"]}).pools[4] == ("four",)


def test_annotated_pools_replace_those_of_their_family(trace: CallTrace) -> None:
    assert resolve({"ipv4pools": ["blue"]}, trace, versions=(4, 6)).pools == {4: ("blue",), 6: ("six",)}
    assert resolve({"ipv6pools": ["blue"]}, trace).pools == {4: ("four",), 6: ("blue",)}
    assert "has no effect: the pod gets no IPv6 address" in trace.lines[0]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"ipAddrs": ["10.0.0.9"]}, ("10.0.0.9",)), ({"ipAddrs": ["fd00::9"]}, ("fd00::9",)),
        ({"ipAddrsNoIpam": ["10.0.0.9"]}, ("10.0.0.9",)), ({"ipv4pools": ["blue"]}, ()), ({"ipFamilies": ["IPv6"]}, ()),
    ],
)  # fmt: skip
def test_annotations_replace_the_address_of_the_call(
    annotations: dict[str, Any], expected: tuple[str, ...], trace: CallTrace
) -> None:
    found = resolve(annotations, trace, address="10.0.0.1")
    assert found.addresses == tuple(map(Address, expected))
    (line,) = trace.lines
    assert "WARNING" in line
    (name,) = annotations
    assert f"CNI_ARGS IP = '10.0.0.1' is set aside: {DEFAULT.annotation_prefix}/{name} of pod default/web-0 = " in line


@pytest.mark.parametrize("annotations", [{"ipv6pools": ["blue"]}, {"ipFamilies": ["IPv4", "IPv6"]}])
def test_other_annotations_keep_the_address_of_the_call(annotations: dict[str, Any], trace: CallTrace) -> None:
    assert resolve(annotations, trace, address="10.0.0.1", versions=(4, 6)).addresses == (Address("10.0.0.1"),)


def test_address_of_a_family_that_is_not_assigned_is_refused(trace: CallTrace) -> None:
    """It is accepted if an annotation of the pod requests that family."""
    with pytest.raises(CallerError, match="the network assigns none of that family") as caught:
        resolve({}, trace, address="fd00::1")
    assert caught.value.code is Code.ADDRESS_UNAVAILABLE
    assert resolve({"ipFamilies": ["IPv6"]}, trace, address="fd00::1").addresses == (Address("fd00::1"),)


def test_address_annotations_apply_only_to_the_primary_interface(trace: CallTrace) -> None:
    annotations = {"ipAddrs": ["10.0.0.9"], "ipv4pools": ["blue"], "floatingIPs": ["10.0.0.8"]}
    found = resolve(annotations, trace, ifname="net1")
    assert (found.addresses, found.pools[4], found.annotation_settings.floating) == ((), ("blue",), ())
    assert resolve({"ipAddrsNoIpam": ["10.0.0.9"]}, trace, ifname="net1", address="10.0.0.1").addresses == (
        Address("10.0.0.1"),
    )
    assert not resolve({"ipAddrsNoIpam": ["10.0.0.9"]}, trace, ifname="net1").annotation_settings.unmanaged


@pytest.mark.parametrize(
    "annotations",
    [
        {"ipAddrs": ["10.0.0.9"]},
        {"ipAddrsNoIpam": ["10.0.0.9"]},
        {"ipv4pools": ["a"]},
        {"ipv6pools": ["a"]},
        {"ipFamilies": ["IPv4"]},
    ],
)
def test_address_annotations_are_refused_with_another_ipam_plugin(annotations: dict[str, Any], trace: CallTrace) -> None:
    """R8: the error gives the reason. Annotations that do not concern IPAM still apply."""
    for pod, namespace in ((annotations, {}), ({}, annotations)):
        with pytest.raises(CallerError, match="'host-local' gives no pod an address or pool of its own") as caught:
            resolve(pod, trace, namespace=namespace, source=HOST_LOCAL)
        assert next(iter(annotations)) in caught.value.details
    assert resolve({"floatingIPs": ["10.0.0.8"]}, trace, source=HOST_LOCAL).annotation_settings.floating

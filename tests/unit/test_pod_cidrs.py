"""Pod CIDRs that Kubernetes has assigned to a node."""

from typing import Any

import pytest

from svc.model.errors import Code, PeerError
from svc.orch.pod_cidrs import node_ranges, uses_pod_cidr


def node(*ranges: str) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "spec": {"podCIDRs": list(ranges)} if ranges else {}}


def test_range_of_each_family_is_found_in_any_order() -> None:
    assert node_ranges(node("fd01::/64", "10.1.0.0/24"), {4, 6}) == {4: "10.1.0.0/24", 6: "fd01::/64"}


def test_family_that_is_not_wanted_may_be_missing() -> None:
    assert node_ranges(node("10.1.0.0/24"), {4}) == {4: "10.1.0.0/24"}


@pytest.mark.parametrize(
    ("ranges", "wanted", "error"),
    [
        ((), 4, "node 'n1' has no IPv4 pod CIDR for usePodCidr"),
        (("10.1.0.0/24",), 6, "node 'n1' has no IPv6 pod CIDR for usePodCidrIPv6"),
        (("10.1.0.0/24", "10.2.0.0/24"), 4, "node 'n1' has 2 IPv4 pod CIDRs (10.1.0.0/24, 10.2.0.0/24)"),
        (("10.1.0.0", "fd01::/64"), 6, "node 'n1' has an invalid pod CIDR: '10.1.0.0'"),
    ],
)
def test_missing_and_ambiguous_ranges_are_refused(ranges: tuple[str, ...], wanted: int, error: str) -> None:
    with pytest.raises(PeerError) as caught:
        node_ranges(node(*ranges), {wanted})
    assert error in caught.value.msg
    assert caught.value.code == Code.ORCHESTRATOR
    assert "spec.podCIDRs" in caught.value.details or "--allocate-node-cidrs" in caught.value.details


@pytest.mark.parametrize(("text", "used"), [("true", True), ("True", True), ("1", True), ("false", False), ("", False)])
def test_environment_variable_enables_pod_cidrs(text: str, used: bool) -> None:
    assert uses_pod_cidr({"USE_POD_CIDR": text}) is used
    assert uses_pod_cidr({}) is False

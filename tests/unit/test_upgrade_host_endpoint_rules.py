"""The rules of the move to automatic host endpoints."""

from typing import Any

import pytest

from svc.model.host_endpoint import KIND, endpoint_name, owner_label
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.upgrade.host_endpoint_rules import TEMPORARY_LABEL, Findings, examine, why_not_replaced

ALLOW = DEFAULT.default_allow_profile


def node(name: str, labels: dict[str, str] | None = None, *addresses: str) -> Resource:
    listed = [{"address": each, "type": "InternalIP"} for each in addresses]
    return Resource("Node", {"name": name, "labels": labels or {}}, {"addresses": listed})


def former(name: str, host: str = "node1", interface: str = "*", **labels: str) -> Resource:
    spec = {"node": host, "interfaceName": interface, "profiles": [ALLOW]}
    return Resource(KIND, {"name": name, "labels": labels}, spec)


def automatic(host: str = "node1", labels: dict[str, str] | None = None, **spec: Any) -> Resource:
    content = {"node": host, "interfaceName": "*", "profiles": [ALLOW], "expectedIPs": []} | spec
    own = {owner_label(DEFAULT): DEFAULT.controllers}
    return Resource(KIND, {"name": endpoint_name([host]), "labels": (labels or {}) | own}, content)


def found(endpoints: list[Resource], nodes: list[Resource], *, keeps_temporary: bool = False) -> Findings:
    return examine(endpoints, nodes, DEFAULT, keeps_temporary=keeps_temporary)


def test_labels_that_a_node_lacks_are_named() -> None:
    findings = found([former("old", role="web", rack="a")], [node("node1", {"rack": "a"})])
    assert findings == Findings((former("old", role="web", rack="a"),), {"node1": {"role": "web"}}, (), ())


def test_other_host_endpoints_do_not_count() -> None:
    others = [former("eth0", interface="eth0"), automatic()]
    assert found(others, [node("node1")]) == Findings((), {}, (), ())


@pytest.mark.parametrize("keeps", [True, False])
def test_temporary_label_is_copied_only_if_it_is_still_used(keeps: bool) -> None:
    labels = {TEMPORARY_LABEL: ""}
    findings = found([former("old", **labels)], [node("node1")], keeps_temporary=keeps)
    assert findings.labels == ({"node1": labels} if keeps else {})


def test_label_of_the_creator_is_not_copied() -> None:
    findings = found([former("old", **{owner_label(DEFAULT): "somebody"})], [node("node1")])
    assert findings.labels == {}
    assert [each.name for each in findings.former] == ["old"]


@pytest.mark.parametrize(
    ("endpoints", "nodes", "blocker"),
    [
        ([former("old", "lost")], [node("node1")], "names node 'lost', which does not exist"),
        ([former("old", "")], [node("node1")], "names node '', which does not exist"),
        ([former(endpoint_name(["node1"]))], [node("node1")], "has the name of the automatic one of node node1"),
        ([former("a", role="x"), former("b", role="y")], [node("node1")], "host endpoints a and b of node node1"),
        ([former("old", role="x")], [node("node1", {"role": "y"})], "node node1 has the label role = 'y'"),
    ],
)
def test_contradictions_block(endpoints: list[Resource], nodes: list[Resource], blocker: str) -> None:
    (only,) = found(endpoints, nodes).blockers
    assert blocker in only


def test_endpoint_that_blocks_is_a_warning_because_the_automatic_one_allows() -> None:
    closed = former("old")
    closed.spec["profiles"] = []
    (only,) = found([closed], [node("node1")]).warnings
    assert "traffic that no policy selects is allowed" in only


def why(endpoints: list[Resource], host: Resource | None) -> str:
    return why_not_replaced(former("old", role="web"), {each.name: each for each in endpoints}, host, DEFAULT)


def test_replaced_when_the_automatic_one_has_all() -> None:
    host = node("node1", {"role": "web"}, "10.0.0.1", "fd00::1")
    complete = automatic(labels={"role": "web", "more": "x"}, expectedIPs=["10.0.0.1", "fd00:0::1", "10.0.0.9"])
    assert why([complete], host) == ""


@pytest.mark.parametrize(
    ("endpoints", "host", "reason"),
    [
        ([], node("node1"), "does not exist yet"),
        ([former(endpoint_name(["node1"]))], node("node1"), "does not exist yet"),
        ([automatic(labels={"role": "web"})], None, "node 'node1' does not exist"),
        ([automatic(labels={"role": "db"})], node("node1"), "lacks the labels role"),
        ([automatic()], node("node1"), "lacks the labels role"),
        ([automatic(labels={"role": "web"})], node("node1", None, "10.0.0.1"), "lacks the addresses 10.0.0.1"),
        ([automatic(labels={"role": "web"}, profiles=None)], node("node1"), "lacks the profile"),
    ],
)
def test_reason_why_it_is_not_replaced(endpoints: list[Resource], host: Resource | None, reason: str) -> None:
    assert reason in why(endpoints, host)

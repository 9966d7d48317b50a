"""Rules of definitions in CEL: each refuses what it is for, and none refuses what svcctl accepts."""

from functools import cache
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from hypothesis import given
from hypothesis import strategies as some

from svc.admin.rules import check_cluster, check_host_endpoint, check_settings_document
from svc.deploy.crd_rules import VALIDATIONS
from svc.deploy.crds import definitions
from svc.model.pool import ENCAPSULATIONS, USES, Pool, check_pool
from svc.model.resource import Resource
from svc.names import DEFAULT

Json = dict[str, Any]

BACKING = DEFAULT.crd_api_version
V4, V6 = {"cidr": "10.0.0.0/16"}, {"cidr": "fd00::/48"}
BALANCER = V4 | {"allowedUses": ["LoadBalancer"]}
GUID = {"clusterGUID": "0" * 32}


def schema(kind: str, *, with_rules: bool = True) -> Json:
    (found,) = (
        each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for each in definitions(DEFAULT, BACKING, with_rules=with_rules)
        if each["spec"]["names"]["kind"] == kind
    )
    assert isinstance(found, dict)
    return found


@cache
def programs(kind: str) -> list[tuple[str, bool, Any]]:
    """Return the message of each rule of a kind's spec, whether it compares with the old object, and its program."""
    environment = celpy.Environment()
    rules = schema(kind)["properties"]["spec"][VALIDATIONS]
    return [
        (rule["message"], "oldSelf" in rule["rule"], environment.program(environment.compile(rule["rule"]))) for rule in rules
    ]


def refusals(kind: str, spec: Json, old: Json | None = None) -> list[str]:
    """Return the messages of the rules that refuse a spec: of an object to create, or to replace the old one."""
    values = {"self": json_to_cel(spec)} | ({} if old is None else {"oldSelf": json_to_cel(old)})
    return [
        message for message, is_about_change, program in programs(kind)
        if not (is_about_change and old is None) and not program.evaluate(values)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "spec", "old", "refusal"),
    [
        ("IPPool", V4, {"cidr": "10.1.0.0/16"}, "cidr cannot change"),
        ("IPPool", V4, V6 | {"blockSize": 26}, "cidr cannot change"),
        ("IPPool", V4 | {"blockSize": 27}, V4, "blockSize cannot change"),
        ("IPPool", V4 | {"blockSize": 19}, None, "blockSize: give"),
        ("IPPool", V4 | {"blockSize": 122}, None, "blockSize: give"),
        ("IPPool", V6 | {"blockSize": 26}, None, "blockSize: give"),
        ("IPPool", V6 | {"ipipMode": "Always"}, None, "ipipMode is not for IPv6"),
        ("IPPool", V4 | {"ipipMode": "Always", "vxlanMode": "CrossSubnet"}, None, "exclude each other"),
        ("IPPool", V4 | {"allowedUses": ["LoadBalancer", "Workload"]}, None, "goes with no other"),
        ("IPPool", BALANCER | {"vxlanMode": "Always"}, None, "goes with no other"),
        ("IPPool", BALANCER | {"disableBGPExport": True}, None, "goes with no other"),
        ("IPPool", BALANCER | {"nodeSelector": "has(a)"}, None, "goes with no other"),
        ("IPPool", V4, BALANCER, "keeps it"),
        ("IPPool", V4 | {"namespaceSelector": "all()"}, None, "not for use Tunnel"),
        ("IPPool", V4 | {"namespaceSelector": "all()", "allowedUses": []}, None, "not for use Tunnel"),
        ("HostEndpoint", {"interfaceName": "*"}, None, "node is missing"),
        ("HostEndpoint", {"interfaceName": "*", "node": ""}, None, "node is missing"),
        ("HostEndpoint", {"node": "a", "expectedIPs": []}, None, "interfaceName is missing"),
        ("ClusterInformation", {"clusterGUID": "1" * 32}, GUID, "clusterGUID cannot change"),
        ("IPAMConfig", {"strictAffinity": False, "autoAllocateBlocks": False}, None, "strictAffinity must be true"),
    ],
)
def test_each_rule_refuses_what_it_is_for(kind: str, spec: Json, old: Json | None, refusal: str) -> None:
    """No other rule refuses the same."""
    (found,) = refusals(kind, spec, old)
    assert refusal in found


def test_every_rule_has_a_case() -> None:
    """The cases of the test above name every rule."""
    mark = next(iter(test_each_rule_refuses_what_it_is_for.pytestmark))  # type: ignore[attr-defined]
    named = {(case[0], case[3]) for case in mark.args[1]}
    for kind in ("IPPool", "HostEndpoint", "ClusterInformation", "IPAMConfig"):
        for message, _, _ in programs(kind):
            assert any(of == kind and text in message for of, text in named), message


@pytest.mark.parametrize(
    ("kind", "spec", "old"),
    [
        ("IPPool", V4 | {"blockSize": 26}, V4),
        ("IPPool", V4 | {"blockSize": 0, "ipipMode": "Never", "allowedUses": []}, V4),
        ("IPPool", V6, {"cidr": "FD00:0::/48"}),
        ("IPPool", BALANCER | {"nodeSelector": "all()", "vxlanMode": "Never"}, V4),
        ("IPPool", V4 | {"namespaceSelector": "has(a)", "allowedUses": ["Workload"]}, V4),
        ("HostEndpoint", {"node": "a", "expectedIPs": ["10.0.0.1"]}, {"node": "b", "interfaceName": "*"}),
        ("ClusterInformation", {"datastoreReady": False}, GUID),
        ("IPAMConfig", {"strictAffinity": True, "autoAllocateBlocks": False}, None),
    ],
)
def test_valid_objects_pass(kind: str, spec: Json, old: Json | None) -> None:
    assert refusals(kind, spec, old) == []


POOLS = some.fixed_dictionaries(
    {"cidr": some.sampled_from(["10.0.0.0/16", "10.0.0.0/24", "fd00::/48", "FD00::/48", "fd01::/120"])},
    optional={
        "blockSize": some.sampled_from([0, 19, 20, 26, 32, 33, 116, 122, 128]),
        "ipipMode": some.sampled_from(ENCAPSULATIONS),
        "vxlanMode": some.sampled_from(ENCAPSULATIONS),
        "disableBGPExport": some.booleans(),
        "nodeSelector": some.sampled_from(["", "all()", "has(a)"]),
        "namespaceSelector": some.sampled_from(["", "all()"]),
        "allowedUses": some.lists(some.sampled_from(USES), max_size=3),
    },
)


def resource_of(kind: str, spec: Json) -> Resource:
    return Resource(kind, {"name": "default"}, spec)


@given(spec=POOLS, old=some.none() | POOLS)
def test_no_rule_refuses_a_pool_that_svcctl_accepts(spec: Json, old: Json | None) -> None:
    previous = None
    if old is not None:
        if check_pool(resource_of("IPPool", old), [], [], None):
            return  # svc would not have stored it
        previous = Pool.from_resource(resource_of("IPPool", old))
    refused = refusals("IPPool", spec, old)
    if refused:
        assert check_pool(resource_of("IPPool", spec), [], [], previous), refused


TEXTS = some.sampled_from(["", "a", "*"])
ENDPOINTS = some.fixed_dictionaries(
    {}, optional={"node": TEXTS, "interfaceName": TEXTS, "expectedIPs": some.lists(some.just("10.0.0.1"), max_size=1)}
)
GUIDS = some.sampled_from(["0" * 32, "1" * 32])
CLUSTERS = some.fixed_dictionaries({}, optional={"clusterGUID": GUIDS, "datastoreReady": some.booleans()})
SWITCHES = some.fixed_dictionaries({"strictAffinity": some.booleans(), "autoAllocateBlocks": some.booleans()})


@given(endpoint=ENDPOINTS, cluster=CLUSTERS, old=CLUSTERS, settings=SWITCHES)
def test_no_rule_refuses_other_objects_that_svcctl_accepts(endpoint: Json, cluster: Json, old: Json, settings: Json) -> None:
    found = resource_of("ClusterInformation", cluster)
    checks = {
        "HostEndpoint": (endpoint, None, check_host_endpoint(resource_of("HostEndpoint", endpoint), None)),
        "ClusterInformation": (cluster, old, check_cluster("svcVersion", found, resource_of("ClusterInformation", old))),
        "IPAMConfig": (settings, None, check_settings_document(resource_of("IPAMConfig", settings), None)),
    }
    for kind, (spec, before, problems) in checks.items():
        assert not refusals(kind, spec, before) or list(problems), kind


def test_only_objects_named_default_count() -> None:
    environment = celpy.Environment()
    for kind in ("ClusterInformation", "KubeControllersConfiguration", "IPAMConfig"):
        (rule,) = schema(kind)[VALIDATIONS]
        program = environment.program(environment.compile(rule["rule"]))
        verdicts = [bool(program.evaluate({"self": json_to_cel({"metadata": {"name": name}})})) for name in ("default", "a")]
        assert verdicts == [True, False]


def test_rules_change_nothing_else_but_limits() -> None:
    """Without the rules, and the limits that make their cost known, both forms are equal."""

    def stripped(node: Any) -> Any:
        if isinstance(node, dict):
            ignored = (VALIDATIONS, "maxLength", "maxItems")
            return {name: stripped(value) for name, value in node.items() if name not in ignored}
        return [stripped(each) for each in node] if isinstance(node, list) else node

    for version in (BACKING, DEFAULT.api_version):
        assert stripped(definitions(DEFAULT, version, with_rules=True)) == definitions(DEFAULT, version)

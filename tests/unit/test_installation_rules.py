"""Rules of the Installation: every error names field, value and remedy; what is not read is named."""

from typing import Any

import pytest

from svc._core.cidr import Cidr
from svc.admin.installation_resource.rules import check, check_subnets, mebibytes, unread
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

Json = dict[str, Any]

V4, V6 = {"cidr": "10.65.0.0/16"}, {"cidr": "fd65::/48"}
NETWORK = "spec.svcNetwork"


def lines(spec: Json) -> list[str]:
    return [error.line for error in check(spec, DEFAULT)]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"variant": "Svc", "kubernetesProvider": "", "registry": "r/", "controlPlaneReplicas": 1},
        {"cni": {"type": None, "ipam": {"type": "HostLocal", "Plugin": "HostLocal"}, "specVersion": "0.3.1"}},
        {"svcNetwork": {"ipPools": [V4, V6], "bgp": "Enabled", "mtu": 0}},
        {"svcNetwork": {"sysctl": [{"key": key, "value": "1"} for key in ("net.ipv4.a", "net/ipv4/conf/eth0@1/b")]}},
        {"svcNetwork": {"ipPools": None, "linuxPolicySetupTimeoutSeconds": 2**31 - 1, "linuxDataplane": "BPF"}},
        {"svcNetwork": {"ipPools": [{"cidr": f"10.{number}.0.0/16"} for number in range(25)]}},
        {"logging": {"cni": {"logFileMaxSize": "2Gi", "logSeverity": "Debug", "logFileMaxAgeDays": 1}}, "unknown": 1},
        {"nodeUpdateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 3}}},
    ],
)
def test_valid_spec(spec: Json) -> None:
    assert lines(spec) == []


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"variant": "Other"}, "spec.variant = 'Other' is not served: give Svc"),
        ({"kubernetesProvider": "Nimbus"}, "spec.kubernetesProvider = 'Nimbus' is not known: give one of '', EKS"),
        ({"registry": "r"}, "spec.registry = 'r' does not end with '/': give r/"),
        ({"controlPlaneReplicas": 0}, "spec.controlPlaneReplicas = 0 is not a number from 1"),
        ({"nodeUpdateStrategy": {"type": "OnDelete"}}, "spec.nodeUpdateStrategy.type = 'OnDelete' is not known"),
        ({"imagePullSecrets": [{}]}, "spec.imagePullSecrets[0].name is missing"),
        ({"cni": {"binDir": "opt"}}, "spec.cni.binDir = 'opt' is not an absolute path"),
        ({"cni": {"installMode": "Some"}}, "spec.cni.installMode = 'Some' is not known: give one of All, SvcOnly"),
        ({"cni": {"specVersion": "2.0"}}, "spec.cni.specVersion = '2.0' is not known"),
        (
            {"cni": {"ipam": {"type": "Svc", "Plugin": "HostLocal"}}},
            "spec.cni.ipam.Plugin = 'HostLocal' is another spelling of type",
        ),
        (
            {"cni": {"ipam": {"plugin": "Svc", "Plugin": "HostLocal"}}},
            "ipam.Plugin = 'HostLocal' is another spelling of plugin",
        ),
        (
            {"logging": {"cni": {"logFileMaxSize": "100"}}},
            "spec.logging.cni.logFileMaxSize = '100' is not a size: give one such as",
        ),
        ({"logging": {"cni": {"logFileMaxCount": 0}}}, "spec.logging.cni.logFileMaxCount = 0 is not a number from 1"),
        ({"logging": {"cni": {"logSeverity": "Loud"}}}, "spec.logging.cni.logSeverity = 'Loud' is not known"),
        ({"svcNetwork": {"linuxDataplane": "Smoke"}}, f"{NETWORK}.linuxDataplane = 'Smoke' is not known"),
        ({"svcNetwork": {"multiInterfaceMode": 1}}, f"{NETWORK}.multiInterfaceMode = 1 is not known"),
        ({"svcNetwork": {"mtu": -1}}, f"{NETWORK}.mtu = -1 is not an MTU: give 68 to 65535, or 0"),
        ({"svcNetwork": {"mtu": 5}}, f"{NETWORK}.mtu = 5 is not an MTU: give 68 to 65535, or 0"),
        ({"svcNetwork": {"mtu": 1000, "ipPools": [V6]}}, f"{NETWORK}.mtu = 1000 is too small for IPv6: give at least 1280"),
        ({"svcNetwork": {"sysctl": [{"key": "a"}]}}, f"{NETWORK}.sysctl[0].value is missing"),
        (
            {"svcNetwork": {"sysctl": [{"key": "kernel.a", "value": ""}]}},
            f"{NETWORK}.sysctl[0].key = 'kernel.a' is not a sysctl",
        ),
        ({"svcNetwork": {"sysctl": [{"key": "net/../kernel/a", "value": ""}]}}, "key = 'net/../kernel/a' is not a sysctl"),
        ({"svcNetwork": {"sysctl": [{"key": "net", "value": ""}]}}, f"{NETWORK}.sysctl[0].key = 'net' is not a sysctl"),
        (
            {"svcNetwork": {"sysctl": [{"key": key, "value": "1"} for key in ("net.ipv4.a", "net/ipv4/a")]}},
            f"{NETWORK}.sysctl[1].key = 'net/ipv4/a' is also the key of sysctl[0]",
        ),
        (
            {"svcNetwork": {"linuxPolicySetupTimeoutSeconds": -1}},
            f"{NETWORK}.linuxPolicySetupTimeoutSeconds = -1 is not a number",
        ),
        ({"svcNetwork": {"linuxPolicySetupTimeoutSeconds": 2**31}}, "= 2147483648 is not a number of seconds"),
        (
            {"svcNetwork": {"linuxPolicySetupTimeoutSeconds": 1, "linuxDataplane": "VPP"}},
            f"{NETWORK}.linuxPolicySetupTimeoutSeconds = 1 needs a data plane that reports policy",
        ),
        (
            {"svcNetwork": {"ipPools": [{"cidr": f"10.{number}.0.0/16"} for number in range(26)]}},
            "ipPools = 26 is the number of pools",
        ),
        ({"svcNetwork": {"ipPools": [V4, V4]}}, f"{NETWORK}.ipPools[1].cidr = '10.65.0.0/16' is also the range of ipPools[0]"),
        (
            {"svcNetwork": {"ipPools": [{"cidr": "10.0.0.0/8"}, V6, V4]}},
            f"{NETWORK}.ipPools[2].cidr = '10.65.0.0/16' overlaps ipPools[0]",
        ),
        (
            {"svcNetwork": {"ipPools": [V4 | {"name": "a"}, V6 | {"name": "a"}]}},
            f"{NETWORK}.ipPools[1].name = 'a' is also the name of ipPools[0]",
        ),
        ({"svcNetwork": {"ipPools": [V4 | {"blockSize": 33}]}}, f"{NETWORK}.ipPools[0].blockSize = 33 is not a prefix length"),
        ({"svcNetwork": {"ipPools": [V4 | {"name": "A!"}]}}, f"{NETWORK}.ipPools[0].name = 'A!' cannot name"),
        (
            {"svcNetwork": {"ipPools": [V4 | {"nodeSelector": "!!"}]}},
            f"{NETWORK}.ipPools[0].nodeSelector = '!!' is not a selector",
        ),
        (
            {"svcNetwork": {"ipPools": [V4 | {"allowedUses": ["LoadBalancer"]}]}},
            f"{NETWORK}.ipPools[0].encapsulation = 'Always' does not go with use LoadBalancer",
        ),
        ({"svcNetwork": {"bgp": "Disabled"}}, f"{NETWORK}.ipPools[0].encapsulation = 'IPIP' needs BGP"),
    ],
)
def test_error_names_field_value_and_remedy(spec: Json, error: str) -> None:
    found = lines(spec)
    assert any(error in line for line in found), found


def test_every_error_is_reported() -> None:
    found = lines({"registry": "r", "variant": "x", "svcNetwork": {"mtu": "x", "ipPools": [{}, {"cidr": "y"}]}})
    assert len(found) == 5


def test_every_error_of_a_pool_is_reported() -> None:
    """Those of its own fields do not hide those that the rules of pools find."""
    wrong = {"natOutgoing": True, "encapsulation": "vxlan", "nodeSelector": "a ==", "allowedUses": ["x"], "blockSize": 8}
    found = lines({"svcNetwork": {"ipPools": [V4 | wrong]}})
    assert [any(f"ipPools[0].{name}" in line for line in found) for name in wrong] == [True] * len(wrong), found
    assert len(found) == len(wrong)


def test_contradictions_are_reported_beside_other_errors() -> None:
    """An invalid pool does not hide that a valid one contradicts another field."""
    vxlan = V4 | {"encapsulation": "VXLAN"}
    network = {"ipPools": [{}, vxlan], "linuxDataplane": "VPP", "linuxPolicySetupTimeoutSeconds": 1, "mtu": "x"}
    found = lines({"registry": "r", "cni": {"ipam": {"type": "HostLocal"}}, "svcNetwork": network})
    for error in ("registry = 'r'", "ipPools[0].cidr is missing", "ipPools[1].encapsulation", "mtu", "needs a data plane"):
        assert any(error in line for line in found), found
    assert lines({"cni": [], "svcNetwork": {"ipPools": {}, "linuxDataplane": [], "linuxPolicySetupTimeoutSeconds": "x"}})
    assert lines({"svcNetwork": 1, "cni": {"ipam": 1}})


def test_fields_that_are_not_read_are_named() -> None:
    spec = {
        "typhaDeployment": {},
        "cni": {"more": 1},
        "svcNetwork": {"ipPools": [], "windowsDataplane": "HNS"},
        "logging": {"x": 1},
    }
    assert list(unread(spec, DEFAULT)) == ["typhaDeployment", "cni.more", "svcNetwork.windowsDataplane", "logging.x"]
    assert list(unread({"calicoNetwork": {}}, load_profile("calico"))) == []


def test_pools_must_lie_within_the_pod_subnets() -> None:
    subnets = [Cidr("10.64.0.0/10"), Cidr("fd00::/8")]
    assert not list(check_subnets([Cidr("10.65.0.0/16"), Cidr("fd65::/48")], subnets, "ipPools"))
    assert not list(check_subnets([Cidr("10.65.0.0/16")], [], "ipPools"))
    (found,) = check_subnets([Cidr("10.65.0.0/16"), Cidr("10.0.0.0/9")], subnets, "ipPools")
    assert found.line.startswith("ipPools[1].cidr = '10.0.0.0/9' is not within the pod subnet of kubeadm (10.64.0.0/10)")


def test_sizes_are_in_mebibytes() -> None:
    assert [mebibytes(size) for size in ("100Mi", "2Gi", "4096Ki", "1Ki")] == [100, 2048, 4, 1]

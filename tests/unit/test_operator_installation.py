"""Installation resource of the operator: its effect on the network configuration, and its errors."""

import json
from typing import Any

import pytest

from svc.admin.operator_resource import OperatorSettings, read, read_checked
from svc.model.errors import CallerError
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import load_profile

Json = dict[str, Any]

SVC_ENTRY: Json = {"type": "svc", "ipam": {"type": "svc-ipam", "ipv4_pools": ["blue"]}}
V4, V6 = {"cidr": "10.65.0.0/16", "natOutgoing": "Enabled"}, {"cidr": "fd65::/48"}


def document(spec: Any, name: str = "default", names: Names = DEFAULT) -> bytes:
    head = {"apiVersion": names.operator_api_version, "kind": "Installation", "metadata": {"name": name}}
    return json.dumps({**head, "spec": spec}).encode()


def refused(data: bytes) -> CallerError:
    with pytest.raises(CallerError) as caught:
        read(data, "FILE", DEFAULT)
    return caught.value


@pytest.mark.parametrize(
    "spec", [{}, {"svcNetwork": {"bgp": "Disabled"}, "registry": "r/"}, {"svcNetwork": {"ipPools": []}}, None]
)
def test_missing_settings_change_nothing(spec: Any) -> None:
    """Only the operator uses the other fields."""
    assert read(document(spec), "FILE", DEFAULT) == OperatorSettings()
    assert OperatorSettings().applied(SVC_ENTRY) == SVC_ENTRY


def test_timeout_of_policy_setup_is_applied() -> None:
    for seconds in (0, 30):
        spec = {"svcNetwork": {"linuxPolicySetupTimeoutSeconds": seconds}}
        entry = read(document(spec), "FILE", DEFAULT).applied({**SVC_ENTRY, "policy_setup_timeout_seconds": 5})
        assert entry == {**SVC_ENTRY, "policy_setup_timeout_seconds": seconds}


@pytest.mark.parametrize(
    ("pools", "assigned"), [([V4], ("true", "false")), ([V6], ("false", "true")), ([V6, V4, V6], ("true", "true"))]
)
def test_pools_determine_the_families(pools: list[Json], assigned: tuple[str, str]) -> None:
    ipam = read(document({"svcNetwork": {"ipPools": pools}}), "FILE", DEFAULT).applied(SVC_ENTRY)["ipam"]
    assert ipam == {**SVC_ENTRY["ipam"], "assign_ipv4": assigned[0], "assign_ipv6": assigned[1]}


@pytest.mark.parametrize("key", ["type", "plugin"])
@pytest.mark.parametrize(
    ("pools", "words"),
    [([], ["usePodCidr"]), ([V4], ["usePodCidr"]), ([V6], ["usePodCidrIPv6"]), ([V6, V4], ["usePodCidr", "usePodCidrIPv6"])],
)
def test_host_local_takes_the_ranges_of_the_node(key: str, pools: list[Json], words: list[str]) -> None:
    """The field may have its older name. Other fields of host-local in the section are kept."""
    found = read(document({"cni": {"ipam": {key: "HostLocal"}}, "svcNetwork": {"ipPools": pools}}), "FILE", DEFAULT)
    ranges = [[{"subnet": word}] for word in words]
    assert found.applied(SVC_ENTRY)["ipam"] == {"type": "host-local", "ranges": ranges}
    host_local = {"type": "host-local", "subnet": "10.0.0.0/8", "dataDir": "/d"}
    assert found.applied({"ipam": host_local})["ipam"] == {"type": "host-local", "dataDir": "/d", "ranges": ranges}


def test_names_profile_determines_the_keys() -> None:
    names = load_profile("calico")
    spec = {"cni": {"type": "Calico", "ipam": {"type": "Calico"}}, "calicoNetwork": {"linuxPolicySetupTimeoutSeconds": 7}}
    assert read(document(spec, names=names), "FILE", names) == OperatorSettings(policy_seconds=7)
    assert "is not served" in str(refused(document({"cni": {"type": "Calico"}})))


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"cni": "Svc"}, "spec.cni = 'Svc' is a string"),
        ({"cni": {"type": "AmazonVPC"}}, "spec.cni.type = 'AmazonVPC' is not served"),
        ({"cni": {"ipam": {"type": "AzureVNET"}}}, "spec.cni.ipam.type = 'AzureVNET' is not served"),
        ({"cni": {"ipam": {"type": ["HostLocal"]}}}, "spec.cni.ipam.type = ['HostLocal'] is not served"),
        ({"svcNetwork": []}, "spec.svcNetwork = [] is an array"),
        ({"svcNetwork": {"ipPools": {}}}, "spec.svcNetwork.ipPools = {} is an object"),
        ({"svcNetwork": {"ipPools": ["10.0.0.0/8"]}}, "spec.svcNetwork.ipPools[0] = '10.0.0.0/8' is a string"),
        ({"svcNetwork": {"ipPools": [V4, {}]}}, "spec.svcNetwork.ipPools[1].cidr is missing"),
        ({"svcNetwork": {"ipPools": [{"cidr": "10.0.0.1/8"}]}}, "spec.svcNetwork.ipPools[0].cidr = '10.0.0.1/8' is not a CIDR"),
        (
            {"svcNetwork": {"linuxPolicySetupTimeoutSeconds": -1}},
            "linuxPolicySetupTimeoutSeconds = -1 is not a number of seconds",
        ),
        ({"svcNetwork": {"linuxPolicySetupTimeoutSeconds": "5"}}, "linuxPolicySetupTimeoutSeconds = '5' is not a number"),
        ({"svcNetwork": {"linuxPolicySetupTimeoutSeconds": True}}, "linuxPolicySetupTimeoutSeconds = true is not a number"),
    ],
)
def test_error_names_the_field(spec: Json, error: str) -> None:
    assert error in str(refused(document(spec)))


def test_a_wrong_name_hides_no_other_error() -> None:
    with pytest.raises(CallerError) as caught:
        read_checked(document({"registry": "r"}, "other"), "FILE", DEFAULT)
    assert [line.partition(" = ")[0] for line in caught.value.errors] == ["metadata.name", "spec.registry"]


def test_exactly_one_resource_with_its_name_is_accepted() -> None:
    assert "metadata.name = 'other' is not the operator's" in str(refused(document({}, "other")))
    assert "give one Installation, 'default'" in str(refused(document({}) + b"\n---\n" + document({})))
    assert "apiVersion" in str(refused(document({}).replace(b"operator.", b"")))

"""The wanted state of an Installation: network list, environments, and server-side applies of workloads; its status."""

import json
from typing import Any

import pytest

from svc._core.cidr import Cidr
from svc.admin.installation_resource.status import MAX_MESSAGE, Findings, is_ready, status_of
from svc.admin.installation_resource.wanted import Wanted, listing, subnets_of, wanted
from svc.admin.installation_resource.workloads import manager_of, patch_of, progress_of
from svc.admin.operator_resource import named_pools
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import load_profile

Json = dict[str, Any]

ORCH = {"kind": "orch", "kubeconfig": "/k"}
ETCD = {"kind": "etcdv3", "etcd_endpoints": "https://e:2379", "etcd_ca_cert_file": "/ca"}
V4, V6 = {"cidr": "10.65.0.0/16"}, {"cidr": "fd65::/48"}


def state(spec: Json, datastore: dict[str, str] = ORCH, names: Names = DEFAULT) -> Wanted:
    listed = listing(spec, (), names)
    return wanted(spec, listed, named_pools(listed), (), datastore, names)


def part(spec: Json, datastore: dict[str, str] = ORCH) -> Json:
    found: Json = json.loads(state(spec, datastore).network)["plugins"][0]
    return found


def test_network_list_has_every_translated_field() -> None:
    spec = {
        "kubernetesProvider": "DockerEnterprise",
        "cni": {"confDir": "/c", "specVersion": "0.4.0"},
        "svcNetwork": {
            "ipPools": [V6],
            "linuxPolicySetupTimeoutSeconds": 7,
            "containerIPForwarding": "Enabled",
            "hostPorts": "Disabled",
            "mtu": 1400,
            "sysctl": [{"key": "net.core.somaxconn", "value": "100"}],
        },
        "logging": {"cni": {"logSeverity": "Debug", "logFileMaxSize": "1Gi", "logFileMaxAgeDays": 2, "logFileMaxCount": 3}},
    }
    document = json.loads(state(spec).network)
    assert (document["cniVersion"], document["name"]) == ("0.4.0", DEFAULT.network)
    assert [each["type"] for each in document["plugins"]] == ["svc", "bandwidth", "tuning"]
    assert document["plugins"][0] == {
        "type": "svc",
        "datastore_type": "orch",
        "log_file_path": "/var/log/svc/cni/cni.log",
        "ipam": {"type": "svc-ipam", "assign_ipv4": "false", "assign_ipv6": "true"},
        "policy": {"type": "orch"},
        "orch": {"kubeconfig": "/c/svc-kubeconfig"},
        "endpoint_status_dir": "/var/run/svc/endpoint-status",
        "nodename_file_optional": True,
        "policy_setup_timeout_seconds": 7,
        "mtu": 1400,
        "container_settings": {"allow_ip_forwarding": True},
        "log_level": "DEBUG",
        "log_file_max_size": 1024,
        "log_file_max_age": 2,
        "log_file_max_count": 3,
    }


def test_etcd_is_named_in_the_network_list() -> None:
    found = part({}, ETCD)
    assert (found["datastore_type"], found["etcd_endpoints"], found["etcd_ca_cert_file"]) == ("etcdv3", "https://e:2379", "/ca")
    assert found["orch"] == {"kubeconfig": "/etc/cni/net.d/svc-kubeconfig"}


@pytest.mark.parametrize("bgp", ["Enabled", "Disabled"])
@pytest.mark.parametrize("is_host_local", [True, False])
def test_environments_follow_the_table(bgp: str, is_host_local: bool) -> None:
    pool = V4 if is_host_local else V4 | {"encapsulation": "VXLAN"}
    found = state(
        {"svcNetwork": {"bgp": bgp, "ipPools": [pool]}, "cni": {"ipam": {"type": "HostLocal" if is_host_local else "Svc"}}}
    )
    node, *others = found.workloads
    assert node.variables["CLUSTER_TYPE"] == {"value": "k8s,operator,bgp" if bgp == "Enabled" else "k8s,operator"}
    assert [("USE_POD_CIDR" in each.variables) for each in found.workloads] == [is_host_local] * 4
    assert [each.variables.keys() - {"USE_POD_CIDR"} for each in others] == [set()] * 3
    assert [each.is_own for each in found.workloads] == [True, True, False, False]


def test_names_of_workloads_are_those_of_the_profile() -> None:
    found = state({}, names=load_profile("calico"))
    assert [each.name for each in found.workloads] == ["svc-node", "calico-kube-controllers", "calico-node", "calico-typha"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("networking: {podSubnet: '10.0.0.0/8,fd00::/8'}", ["10.0.0.0/8", "fd00::/8"]),
        ("networking: {}", []),
        ("[", []),
        ("networking: {podSubnet: x}", []),
        ("- a", []),
    ],
)
def test_pod_subnets_of_kubeadm(text: str, found: list[str]) -> None:
    assert subnets_of({"data": {"ClusterConfiguration": text}}) == list(map(Cidr, found))
    assert subnets_of(None) == []


def live(env: Json, owned: tuple[str, ...] = (), kind: str = "DaemonSet") -> Json:
    fields: Json = {'k:{"name":"main"}': {"f:env": {f'k:{{"name":"{name}"}}': {".": {}, "f:value": {}} for name in owned}}}
    managed = [
        {
            "manager": manager_of(DEFAULT),
            "operation": "Apply",
            "fieldsV1": {"f:spec": {"f:template": {"f:spec": {"f:containers": fields}}}},
        }
    ]
    containers = [{"name": "main", "env": [{"name": name, "value": value} for name, value in env.items()]}]
    spec = {"template": {"spec": {"containers": containers, "initContainers": [{"name": "install"}]}}}
    return {"kind": kind, "metadata": {"name": "x", "managedFields": managed if owned else []}, "spec": spec}


def test_patch_has_only_what_is_wanted() -> None:
    *_, agent, _ = state({"cni": {"ipam": {"type": "HostLocal"}}}).workloads
    wanted_env = [{"name": "USE_POD_CIDR", "value": "true"}]
    found = patch_of(live({"A": "1"}), agent, DEFAULT)
    assert found is not None
    assert found.body["spec"] == {"template": {"spec": {"containers": [{"name": "main", "env": wanted_env}]}}}
    assert patch_of(live({"USE_POD_CIDR": "true"}, ("USE_POD_CIDR",)), agent, DEFAULT) is None
    assert patch_of(live({"USE_POD_CIDR": "true"}), agent, DEFAULT) is not None, "it must be owned, or another may remove it"
    assert patch_of(live({"USE_POD_CIDR": "false"}, ("USE_POD_CIDR",)), agent, DEFAULT) is not None


def test_patch_without_variables_removes_the_owned_ones() -> None:
    *_, agent, _ = state({}).workloads
    assert patch_of(live({"USE_POD_CIDR": "true"}), agent, DEFAULT) is None, "another manager has it"
    found = patch_of(live({"USE_POD_CIDR": "true"}, ("USE_POD_CIDR",)), agent, DEFAULT)
    assert found is not None
    assert "spec" not in found.body


@pytest.mark.parametrize(
    ("kind", "status", "is_done"),
    [
        ("DaemonSet", {}, False),
        ("DaemonSet", {"observedGeneration": 2, "desiredNumberScheduled": 0}, True),
        ("DaemonSet", {"observedGeneration": 1, "desiredNumberScheduled": 0}, False),
        (
            "DaemonSet",
            {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 1},
            False,
        ),
        (
            "DaemonSet",
            {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 1, "numberAvailable": 2},
            False,
        ),
        (
            "DaemonSet",
            {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2},
            True,
        ),
        ("Deployment", {"observedGeneration": 2}, False),
        ("Deployment", {"observedGeneration": 2, "updatedReplicas": 1, "availableReplicas": 1}, True),
    ],
)
def test_progress_of_a_rollout(kind: str, status: Json, is_done: bool) -> None:
    found = progress_of({"kind": kind, "metadata": {"generation": 2}, "spec": {}, "status": status})
    assert (found == "") == is_done


def test_conditions_keep_the_time_of_their_transition() -> None:
    present: Json = {"metadata": {"generation": 3}}
    first = status_of(present, Findings(pending=["pods"]), {"a": 1})
    assert "version" not in first
    assert [(each["type"], each["status"]) for each in first["conditions"]] == [
        ("Degraded", "False"),
        ("Progressing", "True"),
        ("Ready", "False"),
    ]
    for each in first["conditions"]:
        each["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    second = status_of(present | {"status": first}, Findings(problems=["x" * 9999], reason="Bad"), None)
    times = {each["type"]: each["lastTransitionTime"] for each in second["conditions"]}
    assert times["Ready"] == "2020-01-01T00:00:00Z"
    assert times["Degraded"] != "2020-01-01T00:00:00Z"
    assert second["computed"] == {"a": 1}
    assert max(len(each["message"]) for each in second["conditions"]) == MAX_MESSAGE
    third = present | {"status": status_of(present | {"status": second}, Findings(), {"a": 2})}
    assert is_ready(third)
    assert third["status"]["version"]
    assert not is_ready(third | {"metadata": {"generation": 4}})

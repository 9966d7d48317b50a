"""svcctl installation on a real API server: what it makes, compares and refuses, and what it leaves alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import Site, set_ready
from harness.installations import (
    AGENT,
    CONFIG_MAP,
    CONFIG_MAPS,
    CONTROLLERS,
    FOUR,
    LABEL,
    MERGE,
    MINE,
    NODE_AGENT,
    PATH,
    PROXY,
    V4,
    V6,
    InstalledCluster,
    document,
    host_local,
    installed_cluster,
)
from harness.ipam import free, put_pool, take
from harness.kube import Kube, Refused
from svc.admin.installation_resource.workloads import path_of as workload_path
from svc.ipam.service import IpamService
from svc.model.keys import BlockQuery
from svc.names import DEFAULT

pytestmark = pytest.mark.server

Json = dict[str, Any]
AS_LISTED: Json = {"ipipMode": "Always", "natOutgoing": True}  # the spec of a pool that is listed without settings


@pytest.fixture
def cluster(kube: Kube, site: Site, tmp_path: Path) -> Iterator[InstalledCluster]:
    with installed_cluster(kube, site, tmp_path) as made:
        yield made


def test_apply_makes_everything_and_a_repetition_changes_nothing(cluster: InstalledCluster) -> None:
    cluster.make(*FOUR)
    resource = document({"ipPools": [V4, V6], "linuxPolicySetupTimeoutSeconds": 3})
    shown = cluster.call("diff", resource, code=3)
    assert "ippool/default-ipv4-ippool would be created" in shown
    assert "configmap/cni-config would be created" in shown
    assert f"daemonset/{AGENT[1]} would be updated" in shown
    assert cluster.pools() == {}
    cluster.call("apply", resource)
    assert {name: spec["cidr"] for name, spec in cluster.pools().items()} == {
        "default-ipv4-ippool": V4["cidr"],
        "default-ipv6-ippool": V6["cidr"],
    }
    part = cluster.network()
    assert part["policy_setup_timeout_seconds"] == 3
    assert (part["ipam"]["assign_ipv4"], part["ipam"]["assign_ipv6"]) == ("true", "true")
    assert cluster.environment(AGENT) == {
        "CLUSTER_TYPE": "k8s,operator,bgp",
        "CNI_CONF_NAME": DEFAULT.conflist,
        "CNI_NET_DIR": "/etc/cni/net.d",
        "NO_DEFAULT_POOLS": "true",
    }
    assert cluster.environment(AGENT, "install") == cluster.environment(AGENT)
    assert [cluster.environment(each) for each in (CONTROLLERS, NODE_AGENT, PROXY)] == [{}, {}, {}]
    before = cluster.revisions()
    assert "would be" not in cluster.call("diff", resource)
    cluster.call("apply", resource)
    assert cluster.revisions() == before


def test_network_list_is_for_the_datastore_of_the_pools(cluster: InstalledCluster, site: Site) -> None:
    cluster.call("apply", document({"ipPools": [V4]}))
    assert cluster.network()["datastore_type"] == site.config["datastore_type"]
    assert cluster.network().get("etcd_endpoints") == site.config.get("etcd_endpoints")


def test_status_says_whether_the_pods_are_those_of_the_resource(cluster: InstalledCluster) -> None:
    resource = document({"ipPools": [V4]})
    cluster.call("status", code=1)
    cluster.call("apply", resource)
    assert cluster.conditions() == {"Ready": "False", "Progressing": "True", "Degraded": "False"}
    assert f"DaemonSet kube-system/{AGENT[1]} does not exist" in cluster.call("status", code=3)
    cluster.make(*FOUR)
    cluster.call("apply", resource)
    assert "pods are updated" in cluster.message("Progressing") or "has not seen" in cluster.message("Progressing")
    cluster.roll_out(AGENT, CONTROLLERS)
    cluster.call("apply", resource)
    assert cluster.conditions() == {"Ready": "True", "Progressing": "False", "Degraded": "False"}
    assert cluster.resource["status"]["computed"]["svcNetwork"]["ipPools"][0]["name"] == "default-ipv4-ippool"
    assert f"version: {cluster.resource['status']['version']}" in cluster.call("status", resource)
    cluster.call("status", document({"ipPools": [V6]}), code=3)
    cluster.kube.call("PATCH", PATH, {"spec": {"registry": "r/"}}, MERGE)
    # a condition of the earlier generation says nothing about this one
    assert "the conditions are of generation 1, and the resource has generation 2: wait for the" in cluster.call(
        "status", code=3
    )


def test_host_local_sets_one_variable_on_four_workloads_and_removes_it(cluster: InstalledCluster) -> None:
    cluster.make(*FOUR, KEPT="yes")
    cluster.call("apply", document({"ipPools": [V4]}))
    before = {each: cluster.environment(each, name) for each in FOUR for name in ("main", "side", "install")}
    cluster.call("apply", host_local({"ipPools": [V4, V6]}))
    for each in FOUR:
        for name in ("main", "side"):
            assert cluster.environment(each, name)["USE_POD_CIDR"] == "true"
            assert cluster.environment(each, name)["KEPT"] == "yes"
    assert "USE_POD_CIDR" in cluster.environment(AGENT, "install")
    assert "USE_POD_CIDR" not in cluster.environment(NODE_AGENT, "install")
    assert cluster.network()["ipam"]["ranges"] == [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]
    revisions = cluster.revisions()
    cluster.call("apply", host_local({"ipPools": [V4, V6]}))
    assert cluster.revisions() == revisions
    cluster.call("apply", document({"ipPools": [V4]}))
    assert {each: cluster.environment(each, name) for each in FOUR for name in ("main", "side", "install")} == before
    managers = [each["manager"] for each in cluster.workload(*NODE_AGENT)["metadata"]["managedFields"]]
    assert f"{DEFAULT.plugin}-installation" not in managers


def test_workloads_that_do_not_exist_are_left_out(cluster: InstalledCluster) -> None:
    cluster.make(AGENT)
    cluster.call("apply", host_local({"ipPools": [V4]}))
    assert cluster.environment(AGENT)["USE_POD_CIDR"] == "true"
    cluster.make(NODE_AGENT)
    cluster.call("apply", host_local({"ipPools": [V4]}))
    assert cluster.environment(NODE_AGENT) == {"USE_POD_CIDR": "true"}


def test_other_program_keeps_what_it_sets_itself(cluster: InstalledCluster) -> None:
    """The same value is shared, and stays when svc removes its own. Another value is named."""
    cluster.make(AGENT, NODE_AGENT, USE_POD_CIDR="true")
    cluster.make(PROXY, USE_POD_CIDR="false")
    found = cluster.call("apply", host_local({"ipPools": [V4]}), code=1)
    assert f"Deployment kube-system/{PROXY[1]}" in found
    assert "USE_POD_CIDR" in found
    assert cluster.environment(PROXY) == {"USE_POD_CIDR": "false"}
    assert cluster.conditions()["Degraded"] == "True"
    cluster.call("apply", document({"ipPools": [V4]}))
    assert cluster.environment(NODE_AGENT) == {"USE_POD_CIDR": "true"}
    assert cluster.conditions()["Degraded"] == "False"


def test_foreign_pool_is_adopted_only_if_it_is_equal(cluster: InstalledCluster) -> None:
    put_pool(cluster.store, "mine", V4["cidr"], **(AS_LISTED | {"natOutgoing": False}))
    before = cluster.pools()
    assert "'mine': spec.natOutgoing" in cluster.call("apply", document({"ipPools": [V4]}), code=1)
    assert cluster.pools() == before
    with pytest.raises(Refused, match="404"):
        cluster.kube.call("GET", CONFIG_MAP)
    put_pool(cluster.store, "mine", V4["cidr"], **AS_LISTED)
    cluster.call("apply", document({"ipPools": [V4]}))
    assert list(cluster.pools()) == ["mine"]


def test_removed_pool_is_disabled_and_deleted_without_blocks(cluster: InstalledCluster) -> None:
    cluster.site.add_node("node1")
    cluster.call("apply", document({"ipPools": [{**V4, "name": "old"}]}))
    take(IpamService(cluster.store, "node1"), "h")
    wanted = document({"ipPools": [{"cidr": "10.66.0.0/16", "name": "next"}]})
    assert "disabled: 1 address is taken" in cluster.call("apply", wanted)
    assert cluster.pools()["old"]["disabled"] is True
    assert "IPPool old" in cluster.message("Progressing")
    before = cluster.revisions()
    cluster.call("apply", wanted)
    assert cluster.revisions() == before
    free(IpamService(cluster.store, "node1"), "h")
    cluster.call("apply", wanted)
    assert list(cluster.pools()) == ["next"]
    assert [each.value.cidr for each in cluster.store.list(BlockQuery())] == []


def test_deleted_resource_leaves_everything(cluster: InstalledCluster) -> None:
    cluster.make(*FOUR)
    cluster.call("apply", host_local({"ipPools": [V4]}))
    before = {name: revision for name, revision in cluster.revisions().items() if name != PATH}
    cluster.kube.call("DELETE", PATH)
    cluster.call("apply", host_local({"ipPools": [V4]}))
    assert {name: revision for name, revision in cluster.revisions().items() if name != PATH} == before


@pytest.mark.parametrize(
    ("network", "spec", "errors"),
    [
        ({"ipPools": [{"cidr": f"10.{number}.0.0/16"} for number in range(26)]}, {}, ["ipPools = 26 is the number of pools"]),
        ({"ipPools": [V4, {"cidr": "10.65.128.0/17"}]}, {}, ["ipPools[1].cidr = '10.65.128.0/17' overlaps ipPools[0]"]),
        ({"linuxPolicySetupTimeoutSeconds": -1}, {}, ["linuxPolicySetupTimeoutSeconds = -1 is not a number of seconds"]),
        ({}, {"kubernetesProvider": "Nimbus"}, ["kubernetesProvider = 'Nimbus' is not known", "EKS"]),
        ({}, {"cni": {"ipam": {"type": "Svc", "Plugin": "HostLocal"}}}, ["spec.cni.ipam.Plugin = 'HostLocal'"]),
    ],
    ids=["26 pools", "overlap", "negative seconds", "unknown provider", "two kinds of IPAM"],
)
def test_bad_input_changes_nothing(cluster: InstalledCluster, network: Json, spec: Json, errors: list[str]) -> None:
    for command in ("diff", "apply"):
        found = cluster.call(command, document(network, **spec), code=1)
        assert [error for error in errors if error not in found] == []
    with pytest.raises(Refused, match="404"):
        cluster.kube.call("GET", PATH)
    assert cluster.pools() == {}


@pytest.mark.parametrize(
    ("network", "spec", "field"),
    [
        ({"ipPools": [{"cidr": f"10.{number}.0.0/16"} for number in range(26)]}, {}, "spec.svcNetwork.ipPools"),
        ({"linuxPolicySetupTimeoutSeconds": -1}, {}, "spec.svcNetwork.linuxPolicySetupTimeoutSeconds"),
        ({}, {"kubernetesProvider": "Nimbus"}, "spec.kubernetesProvider"),
        ({"ipPools": [{"name": "x"}]}, {}, "spec.svcNetwork.ipPools.cidr"),
    ],
)
def test_definition_refuses_it_too(cluster: InstalledCluster, network: Json, spec: Json, field: str) -> None:
    with pytest.raises(Refused, match="422") as refusal:
        cluster.kube.call("POST", PATH.rpartition("/")[0], document(network, **spec))
    assert field in str(refusal.value)


def test_pod_subnet_of_kubeadm_is_the_pool_and_the_limit(cluster: InstalledCluster) -> None:
    text = "networking:\n  podSubnet: 10.65.0.0/16,fd65::/48\n"
    body = {"metadata": {"name": "kubeadm-config"}, "data": {"ClusterConfiguration": text}}
    cluster.kube.call("POST", CONFIG_MAPS, body)
    outside = cluster.call("apply", document({"ipPools": [{"cidr": "10.66.0.0/16"}]}), code=1)
    assert "ipPools[0].cidr = '10.66.0.0/16' is not within the pod subnet of kubeadm (10.65.0.0/16)" in outside
    cluster.call("apply", document())
    assert {spec["cidr"] for spec in cluster.pools().values()} == {"10.65.0.0/16", "fd65::/48"}
    before = cluster.revisions()
    cluster.call("apply", document())
    assert cluster.revisions() == before


def test_resource_without_a_list_leaves_existing_pools(cluster: InstalledCluster) -> None:
    put_pool(cluster.store, "mine", "fd66::/48")
    cluster.call("apply", document())
    assert list(cluster.pools()) == ["mine"]
    assert cluster.network()["ipam"]["assign_ipv6"] == "true"
    assert cluster.resource["status"]["computed"]["svcNetwork"]["ipPools"] == []


def test_locked_datastore_is_not_changed(cluster: InstalledCluster) -> None:
    set_ready(cluster.store, ready=False)
    assert "locked" in cluster.call("apply", document({"ipPools": [V4]}), code=1)
    assert cluster.pools() == {}
    with pytest.raises(Refused, match="404"):
        cluster.kube.call("GET", PATH)
    cluster.call("apply", document({"ipPools": [V4]}), "--while-locked")
    assert len(cluster.pools()) == 1


def test_namespace_that_does_not_exist_changes_nothing(cluster: InstalledCluster) -> None:
    found = cluster.call("apply", document({"ipPools": [V4]}), "--namespace", "nowhere", code=1)
    assert "nothing was changed: the namespace 'nowhere' does not exist: name the one that has the workloads of svc" in found
    assert cluster.pools() == {}
    with pytest.raises(Refused, match="404"):
        cluster.kube.call("GET", PATH)
    assert "'A b' is not the name of a namespace" in cluster.call("apply", document(), "--namespace", "A b", code=2)


def test_difference_of_the_resource_alone_is_shown(cluster: InstalledCluster) -> None:
    """A difference of the resource alone is a change, too: `apply` writes it."""
    before, after = document({"ipPools": [V4]}), document({"ipPools": [V4]}, controlPlaneReplicas=3)
    assert "installation/default would be created" in cluster.call("diff", before, code=3)
    assert "installation/default created" in cluster.call("apply", before)
    assert "installation/default unchanged" in cluster.call("diff", before)
    shown = cluster.call("diff", after, code=3)
    assert "installation/default would be updated\n  spec.controlPlaneReplicas: (none) -> 3\n" in shown
    assert "installation/default updated" in cluster.call("apply", after)
    after["metadata"] |= {"labels": {"team": "a"}}
    assert 'metadata.labels.team: (none) -> "a"' in cluster.call("diff", after, code=3)
    cluster.call("apply", after)
    cluster.call("diff", after)


def test_config_map_of_another_is_not_changed(cluster: InstalledCluster) -> None:
    body: Json = {"metadata": {"name": "cni-config"}, "data": {"config": "{}", "more": "x"}}
    cluster.kube.call("POST", CONFIG_MAPS, body)
    assert f"{LABEL}={MINE}" in cluster.call("apply", document({"ipPools": [V4]}), code=1)
    assert cluster.pools() == {}
    cluster.kube.call("PATCH", CONFIG_MAP, {"metadata": {"labels": {LABEL: MINE}}}, MERGE)
    cluster.call("apply", document({"ipPools": [V4]}))
    assert cluster.kube.call("GET", CONFIG_MAP)["data"]["more"] == "x"
    assert cluster.network()["type"] == DEFAULT.plugin


def test_definition_is_required_before_anything_is_written(cluster: InstalledCluster) -> None:
    cluster.uninstall()
    assert "does not serve Installation" in cluster.call("apply", document({"ipPools": [V4]}), code=1)
    assert cluster.pools() == {}
    cluster.cli.prints("crd", "apply", "--group", "operator", "--kubeconfig", str(cluster.kubeconfig))
    cluster.call("apply", document({"ipPools": [V4]}))


def test_rendered_state_is_what_an_empty_cluster_gets(cluster: InstalledCluster) -> None:
    resource = document({"ipPools": [V4]})
    rendered = json.loads(cluster.cli.prints("installation", "render", "-f", cluster.file(resource), "-o", "json"))
    cluster.call("apply", resource)
    made, config_map, pool, _ = rendered
    assert made["status"]["computed"] == cluster.resource["status"]["computed"]
    assert pool["spec"] == cluster.pools()["default-ipv4-ippool"]
    if cluster.network()["datastore_type"] == DEFAULT.orch_datastore:
        assert config_map["data"] == cluster.kube.call("GET", CONFIG_MAP)["data"]


def test_changed_network_list_starts_the_pods_of_svc_again(cluster: InstalledCluster) -> None:
    cluster.make(*FOUR)
    cluster.call("apply", document({"ipPools": [V4]}))
    before = {each: cluster.workload(*each)["metadata"]["generation"] for each in FOUR}
    cluster.call("apply", document({"ipPools": [V4], "mtu": 1400}))
    after = {each: cluster.workload(*each)["metadata"]["generation"] for each in FOUR}
    assert {each for each in FOUR if after[each] != before[each]} == {AGENT}
    assert workload_path(*AGENT).endswith(AGENT[1])

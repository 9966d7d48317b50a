"""Section 2.9: the operator's resource, and pods on the network that is made from it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite
from harness.host_local import data_dir, held, offer
from harness.kube import Kube
from harness.orch import NODES
from harness.pod import Pod
from harness.spec_rows import statement
from svc.names import DEFAULT

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

RANGED = "ranged"


@pytest.fixture
def install(cluster_node: ClusterNode, tmp_path: Path) -> Callable[..., None]:
    """Return a function that gives the pod the network that svcctl makes from its own settings and the resource."""

    def run(pod: Pod, **spec: Any) -> None:
        head = {"apiVersion": DEFAULT.operator_api_version, "kind": "Installation", "metadata": {"name": "default"}}
        network, resource = tmp_path / "network.json", tmp_path / "installation.json"
        network.write_text(json.dumps(pod.config))
        resource.write_text(json.dumps({**head, "spec": spec}))
        folders = ("--bin-dir", str(cluster_node.bin_dir), "--conf-dir", str(tmp_path), "--socket", str(cluster_node.socket))
        alone = ("--without", "portmap", "--without", "bandwidth")
        cluster_node.svcctl("install", *folders, *alone, "--netconf", str(network), "--installation", str(resource))
        written = json.loads((tmp_path / DEFAULT.conflist).read_text())
        pod.config = {"cniVersion": written["cniVersion"], "name": written["name"], **written["plugins"][0]}

    return run


@pytest.fixture
def ranged(kube: Kube) -> Iterator[str]:
    """Return a Kubernetes node with a range of each family."""
    spec = {"podCIDR": "10.83.0.0/24", "podCIDRs": ["10.83.0.0/24", "fd83::/112"]}
    kube.call("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": RANGED}, "spec": spec})
    yield RANGED
    kube.call("DELETE", f"{NODES}/{RANGED}")


@statement(
    "2.9",
    "Installation svcNetwork",
    "`spec.svcNetwork` of the operator's resource `Installation` `default` says how long pods wait for policy"
    " (`linuxPolicySetupTimeoutSeconds`) and which pools there are (`ipPools[].cidr`).",
    "`svcctl installation apply`, or the controller `operator`, makes the pools and the network list with"
    " `policy_setup_timeout_seconds` and the families to assign. `svcctl install --installation` does so on one node.",
    choice="Pools that are not listed any more are disabled, then deleted without blocks. Those of others are adopted if they"
    " are equal. [The Installation](../installation.md) has all fields.",
)
def test_operator_sets_policy_timeout_and_families(make: MakePod, install: Callable[..., None]) -> None:
    pod = make()
    pools = [{"cidr": "10.65.0.0/16"}, {"cidr": "fd65::/112"}]
    install(
        pod, svcNetwork={"linuxPolicySetupTimeoutSeconds": 1, "ipPools": pools}, cni={"type": "Svc", "ipam": {"type": "Svc"}}
    )
    called = pod.call("ADD")
    assert "policy: not set up in 1." in called.stderr
    assert [ip["address"].partition("::" if ":" in ip["address"] else ".")[0] for ip in called.output["ips"]] == ["10", "fd65"]


@statement(
    "2.9",
    "Installation cni",
    "`spec.cni.type` is this plugin, and `spec.cni.ipam.type` (or `plugin`) `HostLocal` takes addresses from the node's pod"
    " CIDR of each family that `ipPools` has a pool of.",
    "host-local with `usePodCidr`, `usePodCidrIPv6` or both, and `usePodCidr` without a pool. Other plugins are refused, and"
    " so are two spellings of the type that differ.",
)
@pytest.mark.parametrize(
    ("pools", "starts"),
    [(["10.65.0.0/16"], ["10.83."]), (["fd65::/112"], ["fd83::"]), (["fd65::/112", "10.65.0.0/16"], ["10.83.", "fd83::"])],
    ids=["IPv4", "IPv6", "both"],
)
def test_operator_chooses_host_local(
    make: MakePod, install: Callable[..., None], cluster_node: ClusterNode, orch_site: OrchSite, ranged: str,
    pools: list[str], starts: list[str],
) -> None:  # fmt: skip
    offer(cluster_node)
    access = {"kubeconfig": str(orch_site.kubeconfig), "node_name": ranged}
    ipam = {"type": "host-local", "dataDir": str(data_dir(cluster_node)), "subnet": "usePodCidr"}
    pod = make(ipam=ipam, orch=access)
    install(pod, svcNetwork={"ipPools": [{"cidr": cidr} for cidr in pools]}, cni={"type": "Svc", "ipam": {"type": "HostLocal"}})
    pod.add()
    assert [address[: len(start)] for address, start in zip(pod.addresses, starts, strict=True)] == starts
    assert set(held(cluster_node)) == set(pod.addresses)

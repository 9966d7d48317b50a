"""A node as users have it: containerd and kubelet run pods with what `svcctl install` has put there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import realnode
from harness.below import REFERENCE, demand_plugin
from harness.cluster_node import ClusterNode, remains
from harness.kube import Kube, Refused
from harness.leaks import Footprint, demand_nothing_since
from harness.realnode import RealNode
from harness.site import OrchSite, furnish
from harness.workloads import delete_pods, is_ready
from svc.deploy.rbac import role
from svc.names import DEFAULT

Json = dict[str, Any]

CHAINED = ("portmap", "bandwidth", "loopback")


@pytest.fixture(scope="package", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Looks at these tests as a whole: what runs on their node may be started again in the middle of one."""
    before = Footprint.take()
    yield
    demand_nothing_since(before)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("realnode")


@pytest.fixture(scope="package")
def node(orch_site: OrchSite, folder: Path) -> Iterator[ClusterNode]:
    """Whose node object kubelet makes."""
    furnish(orch_site, "node2")
    try:
        with ClusterNode(folder / "node", "node1", orch_site) as node:
            yield node
            assert node.stop_agent() == 0
            assert "Traceback" not in node.log.read_text()
    finally:
        orch_site.clear()


@pytest.fixture(scope="package")
def settings() -> Json:
    """What a module wants in the network configuration besides."""
    return {}


@pytest.fixture(scope="package")
def conf_dir(node: ClusterNode, kube: Kube, folder: Path, settings: Json) -> Path:
    """Installed as from a pod with a service account that has the documented rights and no others."""
    for plugin in CHAINED:
        demand_plugin(plugin)
        (node.bin_dir / plugin).symlink_to(REFERENCE / plugin)
    kube.apply(_rights())
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("token-of-plugin")
    (account / "ca.crt").write_bytes(kube.authority.read_bytes())
    conf_dir = folder / "net.d"
    entry = folder / "entry.json"
    entry.write_text(json.dumps({
        "type": "svc", "datastore_type": "orch", "nodename": "node1", "policy": {"type": "orch"},
        "orch": {"kubeconfig": str(conf_dir / "svc-kubeconfig")}, "ipam": {"type": "svc-ipam", "assign_ipv6": "true"},
        **settings,
    }))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        patch.setenv("KUBERNETES_SERVICE_PORT", str(kube.port))
        node.svcctl(
            "install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--conf-dir", str(conf_dir),
            "--datastore", "orch", "--netconf", str(entry), "--service-account", str(account),
        )  # fmt: skip
    return conf_dir


def _rights() -> list[Json]:
    rights = role(DEFAULT, DEFAULT.crd_api_version)
    api = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{api}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "plugin"},
        "subjects": [{"kind": "User", "name": "plugin", "apiGroup": api}],
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": rights["metadata"]["name"]},
    }  # fmt: skip
    return [rights, binding]


@pytest.fixture(scope="package")
def lasting(node: ClusterNode, kube: Kube, conf_dir: Path, folder: Path) -> Iterator[RealNode]:
    with realnode.running(folder, node, kube, conf_dir) as real:
        real.wait("the node is ready", lambda: node_is_ready(kube))
        yield real


def node_is_ready(kube: Kube) -> bool:
    try:
        return is_ready(kube.call("GET", "/api/v1/nodes/node1"))
    except Refused:  # kubelet has not told the server of it yet
        return False


@pytest.fixture
def real(lasting: RealNode, kube: Kube) -> Iterator[RealNode]:
    """The node, without pods: they are deleted at the end of a test, and then nothing of them may be left."""
    yield lasting
    delete_pods(kube)
    lasting.wait_none("nothing is left of the pods", lambda: remains([lasting.node]))
    delete_pods(kube, at_once=True)

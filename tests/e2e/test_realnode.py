"""A node as users have it: containerd and kubelet run pods with what `svcctl install` has put there."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness import realnode
from harness.below import REFERENCE, demand_plugin
from harness.cluster_node import ClusterNode, books, faults, remains
from harness.inside import entered
from harness.kube import Kube, Refused
from harness.netns import Netns
from harness.orch import PODS
from harness.realnode import IMAGE, RealNode
from harness.site import OrchSite, furnish
from harness.state import pod_links
from svc.deploy.rbac import role
from svc.names import DEFAULT

pytestmark = pytest.mark.root

Json = dict[str, Any]
CHAINED = ("portmap", "bandwidth", "loopback")
HOST_PORT = 18080


@pytest.fixture
def node(orch_site: OrchSite, tmp_path: Path) -> Iterator[ClusterNode]:
    """Whose node object kubelet makes."""
    furnish(orch_site, "node2")
    try:
        with ClusterNode(tmp_path / "node", "node1", orch_site) as node:
            yield node
            assert node.stop_agent() == 0
            assert "Traceback" not in node.log.read_text()
    finally:
        orch_site.clear()


@pytest.fixture
def conf_dir(node: ClusterNode, kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installed as from a pod with a service account that has the documented rights and no others."""
    for plugin in CHAINED:
        demand_plugin(plugin)
        (node.bin_dir / plugin).symlink_to(REFERENCE / plugin)
    rights = role(DEFAULT, DEFAULT.crd_api_version)
    subject = {"kind": "User", "name": "plugin", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "plugin"},
        "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": rights["metadata"]["name"]},
    }  # fmt: skip
    kube.apply([rights, binding])
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("token-of-plugin")
    (account / "ca.crt").write_bytes(kube.authority.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kube.port))
    folder = tmp_path / "net.d"
    entry = tmp_path / "entry.json"
    entry.write_text(json.dumps({
        "type": "svc", "datastore_type": "orch", "nodename": "node1", "policy": {"type": "orch"},
        "orch": {"kubeconfig": str(folder / "svc-kubeconfig")}, "ipam": {"type": "svc-ipam", "assign_ipv6": "true"},
    }))  # fmt: skip
    node.svcctl(
        "install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--conf-dir", str(folder),
        "--datastore", "orch", "--netconf", str(entry), "--service-account", str(account),
    )  # fmt: skip
    return folder


@pytest.fixture
def real(node: ClusterNode, kube: Kube, conf_dir: Path, tmp_path: Path) -> Iterator[RealNode]:
    folder = tmp_path / "real"
    folder.mkdir()
    with realnode.running(folder, node, kube, conf_dir) as real:
        real.wait("the node is ready", lambda: is_ready(kube))
        yield real


def is_ready(kube: Kube) -> bool:
    with suppress(Refused):
        node = kube.call("GET", "/api/v1/nodes/node1")
        return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", []))
    return False


def put_pod(kube: Kube, name: str) -> None:
    """One that serves a page, also through a port of the host, over a link of limited bandwidth."""
    container = {
        "name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": ["httpd", "-f", "-p", "8080", "-h", "/"],
        "ports": [{"containerPort": 8080, "hostPort": HOST_PORT}],
    }  # fmt: skip
    spec = {"nodeName": "node1", "automountServiceAccountToken": False, "containers": [container]}
    metadata = {"name": name, "annotations": {"kubernetes.io/ingress-bandwidth": "10M"}}
    kube.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def read_pod(kube: Kube, name: str) -> Json | None:
    with suppress(Refused):
        return kube.call("GET", f"{PODS}/{name}")
    return None


def addresses(kube: Kube, name: str) -> list[str]:
    """Of a pod that runs."""
    pod = read_pod(kube, name)
    status = pod["status"] if pod else {}
    return [each["ip"] for each in status.get("podIPs", [])] if status.get("phase") == "Running" else []


def test_pods_come_and_go(real: RealNode, node: ClusterNode, kube: Kube, sandbox: Callable[[], Netns]) -> None:
    put_pod(kube, "web-0")
    told = real.wait("the pod runs", lambda: addresses(kube, "web-0"))
    held = books([node]).allocations
    assert set(told) <= set(held)
    v4, v6 = sorted(held, key=lambda address: ":" in address)
    pod = read_pod(kube, "web-0")
    assert pod is not None
    notes = {name: text for name, text in pod["metadata"]["annotations"].items() if name.startswith("cni.svc.internal/")}
    container = notes.pop("cni.svc.internal/containerID")
    assert notes == {"cni.svc.internal/podIP": f"{v4}/32", "cni.svc.internal/podIPs": f"{v4}/32,{v6}/128"}
    assert set(held.values()) == {f"pods.{container}"}
    assert faults([node]) == []
    for address in (v4, v6):
        assert node.netns.run("ping", "-c", "1", "-W", "2", address, check=False).returncode == 0
    demand_chained_plugins(node)

    other = node.pod(sandbox(), args="K8S_POD_NAMESPACE=default;K8S_POD_NAME=far-0", nodename="node2")
    node.site.add_pod("far-0", "node2")
    other.add()
    assert not set(other.addresses) & {v4, v6}
    assert books([node]).allocations.keys() == {v4, v6, *other.addresses}
    other.delete()

    kube.call("DELETE", f"{PODS}/web-0?gracePeriodSeconds=1")
    real.wait("the pod is gone", lambda: read_pod(kube, "web-0") is None)
    real.wait("nothing is left", lambda: remains([node]) == [])


def demand_chained_plugins(node: ClusterNode) -> None:
    """The one for ports leads to the pod, the one for bandwidth has its queue on the pod's link."""
    with entered(node.netns), urllib.request.urlopen(f"http://192.0.2.1:{HOST_PORT}/", timeout=5) as page:
        assert page.read() == b"hello\n"
    (link,) = pod_links(node)
    assert "tbf" in node.netns.run("tc", "qdisc", "show", "dev", link).stdout

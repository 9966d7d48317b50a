"""The verbs with the Kubernetes datastore, with the rights of the plugin's role only."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.add_requests import netconf
from harness.blocking import run_blocking
from harness.kube import Kube, running
from harness.netns import Netns
from harness.orch import install, put_core_node, put_pod
from svc._core.cidr import Cidr
from svc.attach.add import add
from svc.attach.check import check
from svc.attach.context import Context
from svc.attach.delete import delete
from svc.attach.record import AttachmentId, SessionKey
from svc.attach.request import AddRequest, Attachment, Sandbox
from svc.call_trace import CallTrace
from svc.datastore.orch.store import OrchStore
from svc.deploy.rbac import binding, role
from svc.model.endpoint import Workload
from svc.names import DEFAULT

pytestmark = pytest.mark.root

API = f"/apis/{DEFAULT.crd_api_version}"
POD = "/api/v1/namespaces/default/pods/web-0"
WHERE = SessionKey({"kind": "orch"}, "node1")


@pytest.fixture
def cluster(netns: Netns, tmp_path: Path) -> Iterator[Kube]:
    """Run an API server in the namespace of the host, with the role and pools of the plugin."""
    netns.run("ip", "link", "set", "lo", "up")
    (tmp_path / "kube").mkdir()
    with running(tmp_path / "kube") as kube:
        install(kube)
        subject = {"kind": "User", "name": "plugin", "apiGroup": "rbac.authorization.k8s.io"}
        kube.apply([role(DEFAULT, DEFAULT.crd_api_version), binding(DEFAULT, subject)])
        put_core_node(kube, "node1")
        put_pod(kube, "web-0")
        for kind, plural, name, spec in (
            ("ClusterInformation", "clusterinformations", "default", {"datastoreReady": True}),
            ("IPPool", "ippools", "pool4", {"cidr": "10.65.0.0/16"}),
            ("IPPool", "ippools", "pool6", {"cidr": "fd65::/112"}),
        ):
            body = {"apiVersion": DEFAULT.crd_api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
            kube.call("POST", f"{API}/{plural}", body)
        kube.await_right("plugin", "crd.svc.internal", "clusterinformations", "get", allowed=True)
        yield kube


@pytest.fixture
def context(cluster: Kube, tmp_path: Path) -> Iterator[Context]:
    kubeconfig = str(cluster.kubeconfig(tmp_path / "kubeconfig", "token-of-plugin"))
    with closing(Context(lambda _: DEFAULT, tmp_path, lambda *_: OrchStore({"kubeconfig": kubeconfig}, DEFAULT))) as context:
        yield context
        context.kernel.host().close()


def stored_names(cluster: Kube, plural: str) -> list[str]:
    return [item["metadata"]["name"] for item in cluster.call("GET", f"{API}/{plural}")["items"]]


def annotations(cluster: Kube) -> dict[str, str]:
    found: dict[str, str] = cluster.call("GET", POD)["metadata"]["annotations"]
    return {name.rpartition("/")[2]: text for name, text in found.items() if name.startswith(DEFAULT.annotation_prefix)}


def test_pod_is_attached_and_detached(cluster: Kube, context: Context, sandbox: Sandbox) -> None:
    """Addresses are custom resources, and the endpoint is on the pod. A repeated ADD has the same result."""
    workload, key, trace = Workload("c1", "web-0", "default"), AttachmentId("net", "c1", "eth0"), CallTrace("test")
    request = AddRequest(key, workload, sandbox, WHERE, netconf((4, 6)))
    result = run_blocking(add(context, request, trace))
    addresses = [str(Cidr.masked(str(ip.address))) for ip in result.ips]
    assert annotations(cluster) == {"containerID": "c1", "podIP": addresses[0], "podIPs": ",".join(addresses)}
    assert stored_names(cluster, "ipamhandles") == ["net.c1"]
    assert len(stored_names(cluster, "ipamblocks")) == len(stored_names(cluster, "blockaffinities")) == 2
    check(context, key, sandbox, result, trace)
    assert run_blocking(add(context, request, trace)) == result
    delete(context, Attachment(key, workload, sandbox, WHERE), trace)
    assert annotations(cluster) == {"containerID": "c1", "podIP": "", "podIPs": ""}
    assert stored_names(cluster, "ipamhandles") == []
    blocks = cluster.call("GET", f"{API}/ipamblocks")["items"]
    assert {allocation for block in blocks for allocation in block["spec"]["allocations"]} == {None}

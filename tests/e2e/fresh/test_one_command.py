"""One command makes a fresh cluster run pods, in each flavour; so does kubectl, and so does helm."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.chart_site import CHARTS, HELM
from harness.datastores import EtcdSite
from harness.etcd import Cluster, cluster
from harness.fresh_cluster import IMAGE, NODE, FreshCluster
from harness.installations import PATH, document
from harness.kube import NODE_ADDRESS
from harness.node import netconf, pool_document
from harness.skips import NO_HELM, NO_KUBECTL
from harness.workloads import put_pod

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.long]

RANGE = "10.244.0.0/16"


def require_pod(fresh: FreshCluster, began: float) -> None:
    """Require a pod that the node reaches, and then that all of svc is ready. Print the time until the pod had its address."""
    put_pod(fresh.kube, "web")
    address = fresh.await_address("web")
    print(f"\nfirst pod {time.monotonic() - began:.1f} s after the command")
    assert address.startswith("10.244.")
    assert fresh.real.host("wget", "-q", "-O", "-", f"http://{address}:8080/").stdout == "hello\n"
    fresh.await_svc("svc-node", "svc-controllers")


def test_networking(fresh: FreshCluster) -> None:
    """The start of the image alone is measured beside."""
    began = time.monotonic()
    container = {"name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": ["svcctl", "--version"]}
    spec = {"nodeName": NODE, "hostNetwork": True, "restartPolicy": "Never", "containers": [container]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"}, "spec": spec}
    fresh.kube.call("POST", "/api/v1/namespaces/default/pods", body)
    path = "/api/v1/namespaces/default/pods/alone"
    fresh.real.wait("the image has run", lambda: fresh.kube.call("GET", path)["status"]["phase"] == "Succeeded")
    print(f"\nimage alone: {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    fresh.apply("--pool", RANGE)
    require_pod(fresh, began)
    require_routes(fresh)


def require_routes(fresh: FreshCluster) -> None:
    """Require that svc-routes has made the tunnel and the NAT table that the pool asks for, with the programs of the image."""

    def output(*command: str) -> str:
        return fresh.real.host(*command, check=False).stdout

    fresh.real.wait("NAT is written", lambda: "masquerade" in output("nft", "list", "table", "inet", "svc-nat"))
    fresh.real.wait("the tunnel is made", lambda: "vxlan id 4096" in output("ip", "-d", "link", "show", "dev", "vxlan.svc"))


def give_range(fresh: FreshCluster) -> None:
    """Give a range to the node, as Kubernetes does with --allocate-node-cidrs."""
    ranges = {"spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24"]}}
    fresh.kube.call("PATCH", f"/api/v1/nodes/{NODE}", ranges, "application/merge-patch+json")


@pytest.fixture
def etcd(fresh: FreshCluster, tmp_path: Path) -> Iterator[Cluster]:
    """Run an etcd that the node reaches at its own address."""
    (tmp_path / "etcd").mkdir()
    with cluster(tmp_path / "etcd") as running:
        fresh.reach(running.members[0].ports[0])
        yield running


@pytest.mark.parametrize("flavour", ["networking", "overlay"])
def test_etcd(fresh: FreshCluster, etcd: Cluster, flavour: str, tmp_path: Path) -> None:
    """An administrator makes the pools, from a machine that reaches etcd elsewhere."""
    give_range(fresh)
    began = time.monotonic()
    fresh.apply(
        "--flavour", flavour, "--datastore", "etcd", "--etcd-endpoints", etcd.endpoints.replace("127.0.0.1", NODE_ADDRESS)
    )
    if flavour == "networking":
        make_pool(fresh, tmp_path, **EtcdSite(etcd).config)
    require_pod(fresh, began)


def make_pool(fresh: FreshCluster, folder: Path, **datastore: Any) -> None:
    network, pool = folder / "netconf.json", folder / "pool.json"
    network.write_text(json.dumps(netconf(**datastore)))
    pool.write_text(pool_document("pool", RANGE))
    fresh.svcctl("--netconf", str(network), "pool", "apply", "-f", str(pool))


@pytest.mark.parametrize("flavour", ["overlay", "policy-only"])
def test_pod_cidrs(fresh: FreshCluster, flavour: str) -> None:
    """The addresses are those of the range that the node has."""
    give_range(fresh)
    began = time.monotonic()
    fresh.apply("--flavour", flavour)
    require_pod(fresh, began)


def test_operator(fresh: FreshCluster) -> None:
    """The controller `operator` writes what the Installation asks for; the pods on nodes wait for it."""
    began = time.monotonic()
    fresh.apply("--flavour", "operator")
    fresh.kube.call("POST", PATH.rpartition("/")[0], document({"ipPools": [{"cidr": RANGE}]}))
    require_pod(fresh, began)


def run(fresh: FreshCluster, *command: str, stdin: str = "") -> str:
    """Run a program of another project for the administrator."""
    environment = os.environ | {"KUBECONFIG": str(fresh.kubeconfig)}
    done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def generations(fresh: FreshCluster) -> list[int]:
    """Return how often the workloads and the definitions were changed."""
    system = "/apis/apps/v1/namespaces/kube-system"
    paths = (f"{system}/daemonsets", f"{system}/deployments", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
    return [each["metadata"]["generation"] for path in paths for each in fresh.kube.call("GET", path)["items"]]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason=NO_KUBECTL)
def test_kubectl(fresh: FreshCluster, tmp_path: Path) -> None:
    """It applies what svcctl prints. A second time changes nothing."""
    printed = fresh.svcctl("manifests", "--image", IMAGE, "--policy-api", "policy/v1beta1")
    began = time.monotonic()
    apply = ("kubectl", "apply", "--server-side", "-f", "-")
    run(fresh, *apply, stdin=printed)
    require_served(fresh)
    make_pool(fresh, tmp_path, datastore_type="orch", orch={"kubeconfig": str(fresh.kubeconfig)})
    require_pod(fresh, began)
    before = generations(fresh)
    run(fresh, *apply, stdin=printed)
    assert generations(fresh) == before


def require_served(fresh: FreshCluster) -> None:
    """Wait until pools can be made."""
    run(fresh, "kubectl", "wait", "--for=condition=established", "--timeout=60s", "crd/ippools.crd.svc.internal")


@pytest.mark.skipif(not HELM.exists(), reason=NO_HELM)
def test_charts(fresh: FreshCluster, tmp_path: Path) -> None:
    """The commands of docs/manifests.md. A second time changes nothing."""

    def install() -> None:
        for release, chart, *more in (
            ("svc-crds", "crd-chart"),
            ("svc", "chart", "--namespace", "kube-system", "--set", f"image={IMAGE}"),
        ):
            run(fresh, str(HELM), "upgrade", "--install", release, str(CHARTS / chart), *more)

    began = time.monotonic()
    install()
    make_pool(fresh, tmp_path, datastore_type="orch", orch={"kubeconfig": str(fresh.kubeconfig)})
    require_pod(fresh, began)
    before = generations(fresh)
    install()
    assert generations(fresh) == before

"""Sections 2.5, 2.6 and 5: access to the Kubernetes API, and the objects that are read there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.annotations import endpoint
from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite
from harness.kube import ADMIN_TOKEN, Kube
from harness.pod import Pod, refused
from harness.spec_rows import field, statement

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
Grant = Callable[..., None]

ON_ORCH = pytest.mark.parametrize("site", ["orch"], indirect=True, scope="module")
EMBEDDED = pytest.mark.parametrize("site", ["embedded"], indirect=True, scope="module")
POLICY = {"policy": {"type": "orch"}}


@field(
    "orch",
    "The access to the API, for the datastore `orch` and to read pods. One of the two fields below is required then.",
    choice="`kubernetes` is another name of the section.",
)
def test_api_requires_access_settings(make: MakePod) -> None:
    refused(make(orch={}, **POLICY), 7, "orch.kubeconfig is missing", "orch.orch_api_root")
    refused(make("web-1", orch="kubeconfig"), 7, "orch = 'kubeconfig' is a string")


@field(
    "orch.kubeconfig",
    "Server, authority and credentials (token, token file, certificate or exec plugin) of its current context. A file that has"
    " changed is read again.",
)
@statement(
    "5",
    "5.2",
    "`orch.kubeconfig` or `orch.orch_api_root` gives access to the API, where the plugin finds the labels of pods.",
    "Each ADD reads them and copies them to the endpoint.",
)
def test_labels_are_read_through_the_kubeconfig(make: MakePod, cluster_node: ClusterNode, orch_site: OrchSite) -> None:
    make(orch={"kubeconfig": str(orch_site.kubeconfig)}, **POLICY).add()
    assert endpoint(cluster_node).labels["app"] == "web"
    refused(make("web-1", orch={"kubeconfig": "/nowhere"}, **POLICY), 7, "/nowhere")


@field(
    "orch.orch_api_root",
    "Credentials, if needed, come from `policy.k8s_...` then. The path after `/api/` is ignored.",
    choice="Beside a kubeconfig it replaces only the kubeconfig's server.",
)
@field("policy.k8s_auth_token", "It overrides that of the kubeconfig, and is never logged.")
@field("policy.k8s_certificate_authority", "For servers with a certificate that the system's authorities did not sign.")
def test_url_of_the_api_replaces_a_kubeconfig(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    access = {"k8s_auth_token": ADMIN_TOKEN, "k8s_certificate_authority": str(kube.authority)}
    pod = make(orch={"orch_api_root": f"{kube.url}/api/v1"}, policy={"type": "orch", **access})
    pod.add()
    assert endpoint(cluster_node).labels["app"] == "web"
    assert ADMIN_TOKEN not in cluster_node.log.read_text()
    refused(make("web-1", orch={"orch_api_root": "10.0.0.1:6443"}, **POLICY), 7, "orch.orch_api_root", "is not a URL")


@ON_ORCH
@field("policy.k8s_client_certificate", "It is used with its key, instead of a token.")
@field("policy.k8s_client_key", "It is used with its certificate.")
def test_client_certificate_is_sent_to_the_api(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    identity = {
        "k8s_client_certificate": str(kube.folder / "client.crt"), "k8s_client_key": str(kube.folder / "client.key"),
        "k8s_certificate_authority": str(kube.authority),
    }  # fmt: skip
    make(orch={"orch_api_root": kube.url}, policy={"type": "orch", **identity}).add()
    assert endpoint(cluster_node).labels["app"] == "web"


@field("policy", "See `policy.type`; without it pods are not read, and the endpoint has the network's name as its profile.")
def test_without_policy_pods_are_not_read(make: MakePod, cluster_node: ClusterNode) -> None:
    make(policy={}).add()
    if not isinstance(cluster_node.site, OrchSite):  # there the endpoints are the pods themselves
        assert "app" not in endpoint(cluster_node).labels
        assert endpoint(cluster_node).spec["profiles"] == ["net"]


@field(
    "policy.type",
    "Each ADD reads labels, ports, service account and annotations of pod and namespace, and copies them to the endpoint.",
    choice="The labels of the namespace, which pools may select, are read if access to the API is configured. `k8s`, the"
    " word of the names profile `calico`, means the same.",
)
@pytest.mark.parametrize("kind", ["orch", "k8s"])
def test_policy_makes_endpoints_complete(make: MakePod, cluster_node: ClusterNode, orch_site: OrchSite, kind: str) -> None:
    make(policy={"type": kind}, orch={"kubeconfig": str(orch_site.kubeconfig)}).add()
    found = endpoint(cluster_node)
    assert found.labels["app"] == "web"
    assert found.spec["profiles"][0] == "kns.default"
    assert found.spec["ports"] == [{"name": "http", "protocol": "TCP", "port": 8080, "hostPort": 0, "hostIP": ""}]
    refused(make("web-1", policy={"type": "other"}), 7, "policy.type = 'other'", '"orch", "k8s"')


@EMBEDDED
@statement(
    "5",
    "5.3 pods",
    "With policy type `orch` the plugin needs the right to read the pods of all namespaces.",
    "`get` of pods is enough; `svcctl crd role` prints all rights.",
    choice="Pods are not listed, because each ADD reads its own. Without `get` of namespaces, their annotations and labels"
    " have no effect, and ADD and STATUS warn of it.",
)
def test_policy_needs_the_right_to_read_pods(
    make: MakePod, cluster_node: ClusterNode, kube: Kube, rights: Grant, tmp_path: Path
) -> None:
    access = {"orch": {"kubeconfig": str(kube.kubeconfig(tmp_path / "kubeconfig", "token-of-reader"))}, **POLICY}
    rights(namespaces=["get", "list", "watch"])
    pod = make(**access)
    refused(pod, 111, 'cannot get resource "pods"', "svcctl crd role")
    error = pod.failed("STATUS").output
    assert (error["code"], 'cannot get resource "pods"' in error["msg"]) == (50, True)
    rights(namespaces=["get", "list", "watch"], pods=["get"])
    pod.add()
    assert endpoint(cluster_node).labels["app"] == "web"


@EMBEDDED
def test_annotations_of_unreadable_namespaces_are_ignored(
    make: MakePod, cluster_node: ClusterNode, kube: Kube, rights: Grant, tmp_path: Path
) -> None:
    access = {"orch": {"kubeconfig": str(kube.kubeconfig(tmp_path / "kubeconfig", "token-of-reader"))}, **POLICY}
    rights(pods=["get"])
    pod = make(**access)
    for verb in ("ADD", "STATUS"):
        called = pod.call(verb)
        assert called.status == 0, called
        assert "WARNING" in called.stderr
        assert "annotations and labels of namespaces do not count: " in called.stderr
        assert 'cannot get resource "namespaces"' in called.stderr
    assert endpoint(cluster_node).labels["app"] == "web"

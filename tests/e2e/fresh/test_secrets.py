"""The Secret with the files for etcd, which an administrator makes beside the manifests."""

import base64

import pytest

from harness.fresh_cluster import FreshCluster
from harness.workloads import events

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.long]

SECRETS = "/api/v1/namespaces/kube-system/secrets"
NAME = "svc-etcd-secrets"
MERGE = "application/merge-patch+json"


def encoded(*names: str) -> dict[str, str]:
    return {name: base64.b64encode(b"content").decode() for name in names}


def test_pod_waits_for_the_third_file(fresh: FreshCluster) -> None:
    """The event names the key that is missing. With it, the pod starts without another command."""
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "data": encoded("etcd-ca", "etcd-cert")}
    fresh.kube.call("POST", SECRETS, body)
    fresh.apply("--datastore", "etcd", "--etcd-endpoints", "https://192.0.2.77:2379", "--etcd-tls")
    fresh.real.wait("kubelet names the key", lambda: any("etcd-key" in text for text in events(fresh.kube, "FailedMount")))
    assert all(pod["status"]["phase"] == "Pending" for pod in fresh.pods())
    fresh.kube.call("PATCH", f"{SECRETS}/{NAME}", {"data": encoded("etcd-key")}, MERGE)

    def has_begun() -> bool:
        states = [pod["status"].get("initContainerStatuses") for pod in fresh.pods()]
        return any(each and "waiting" not in each[0]["state"] for each in states)

    fresh.real.wait("the first container has started", has_begun)

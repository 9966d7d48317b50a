"""Nodes for the specification tests: each with the node's own file, etcd and the Kubernetes API as its datastore."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite, Site, site_called
from harness.kube import Kube
from harness.netns import Netns
from harness.orch import PODS, put_pod
from harness.pod import Pod

MakePod = Callable[..., Pod]
Grant = Callable[..., None]


@pytest.fixture(scope="module", params=["embedded", "etcdv3", "orch"])
def site(request: pytest.FixtureRequest, home: Path) -> Site:
    """Return each kind of datastore in turn."""
    return site_called(request, home)


@pytest.fixture(scope="module")
def further_sites(orch_site: OrchSite) -> Sequence[Site]:
    """Return the Kubernetes API, because pods are read from it with any datastore."""
    return [orch_site]


@pytest.fixture
def make(cluster_node: ClusterNode, orch_site: OrchSite, sandbox: Callable[[], Netns]) -> Iterator[MakePod]:
    """Return a function that makes pods, in the Kubernetes API as well. At the end, delete what is left of them.

    `annotations` are the pod's; with `with_policy` they are read. Everything else goes to the network configuration.
    """
    made: list[Pod] = []

    def pod(
        web: str = "web-0",
        /,
        *,
        annotations: dict[str, str] | None = None,
        with_policy: bool = False,
        args: str = "",
        **config: Any,
    ) -> Pod:
        put_pod(orch_site.kube, web, annotations=annotations)
        access = {"policy": {"type": "orch"}, "orch": {"kubeconfig": str(orch_site.kubeconfig)}} if with_policy else {}
        args = ";".join(filter(None, (f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={web}", args)))
        made.append(cluster_node.pod(sandbox(), f"container-of-{web}", args=args, **{**access, **config}))
        return made[-1]

    yield pod
    for each in made:
        each.call("DEL")
    orch_site.kube.call("DELETE", f"{PODS}?gracePeriodSeconds=0")


@pytest.fixture
def rights(kube: Kube) -> Iterator[Grant]:
    """Return a function that gives the user `reader` these rights, and no others. They are removed at the end."""
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "User", "name": "reader", "apiGroup": group}
    name = {"metadata": {"name": "reader"}}
    binding = {"roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "reader"}, "subjects": [subject]}

    granted: dict[str, str] = {}

    def grant(**resources: list[str]) -> None:
        rules = [{"apiGroups": [""], "resources": [plural], "verbs": verbs} for plural, verbs in resources.items()]
        documents: list[dict[str, Any]] = [{"kind": "ClusterRole", "rules": rules}, {"kind": "ClusterRoleBinding", **binding}]
        kube.apply([{"apiVersion": f"{group}/v1", **name, **document} for document in documents])
        for plural, verbs in resources.items():
            kube.await_right("reader", "", plural, verbs[0], allowed=True)
            granted[plural] = verbs[0]

    yield grant
    for plural in ("clusterroles", "clusterrolebindings"):
        kube.call("DELETE", f"/apis/{group}/v1/{plural}/reader")
    for plural, verb in granted.items():
        kube.await_right("reader", "", plural, verb, allowed=False)

"""Pods with annotations, on a node with any datastore that reaches the API server."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.annotations import NAMESPACE, annotate, with_prefix
from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite, Site, site_called
from harness.kube import Kube
from harness.netns import Netns
from harness.orch import PODS, put_pod
from harness.pod import Pod

Json = dict[str, Any]
MakePod = Callable[..., Pod]

BOTH = {"assign_ipv6": "true"}
ALL = {"ip_addrs_no_ipam": True, "floating_ips": True}


@pytest.fixture(scope="module", params=["embedded", "etcdv3", "orch"])
def site(request: pytest.FixtureRequest, home: Path) -> Site:
    """Return each kind of datastore in turn."""
    return site_called(request, home)


@pytest.fixture(scope="module")
def further_sites(orch_site: OrchSite) -> Sequence[Site]:
    return [orch_site]


@pytest.fixture
def make(cluster_node: ClusterNode, orch_site: OrchSite, kube: Kube, sandbox: Callable[[], Netns]) -> Iterator[MakePod]:
    """Return a function that makes pods with annotations. At the end, delete the attachments that are left."""
    made: list[Pod] = []

    def pod(
        name: str = "web-0", container: str = "c1", *, notes: Json | None = None, args: str = "", bound: str = "node1",
        **config: Any,
    ) -> Pod:  # fmt: skip
        if notes is not None:
            put_pod(kube, name, bound, annotations=with_prefix(notes))
        arguments = f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}{args}"
        access = {"policy": {"type": "orch"}, "orch": {"kubeconfig": str(orch_site.kubeconfig)}, "feature_control": ALL}
        made.append(cluster_node.pod(sandbox(), container, args=arguments, **{**access, "ipam": BOTH, **config}))
        return made[-1]

    try:
        yield pod
        for each in made:
            each.delete()
    finally:
        annotate(kube, NAMESPACE, **dict.fromkeys(("ipv4pools", "ipFamilies", "ipAddrs", "floatingIPs")))
        kube.call("DELETE", f"{PODS}?gracePeriodSeconds=0")

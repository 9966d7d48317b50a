"""Fixtures of a datastore that moves."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, remains
from harness.datastores import EtcdSite, OrchSite, Site, furnish, session
from harness.etcd import Cluster, cluster, free_ports
from harness.moving import AGENT, MakePod, Moving, identify
from harness.netns import Netns
from harness.pod import Pod


@pytest.fixture
def moving(site: Site, tmp_path: Path) -> Iterator[Moving]:
    furnish(site, "node1")
    with session(site) as store:
        identify(store, "the-guid")
    (inside,) = free_ports(1)
    old: dict[str, Any]
    new: dict[str, Any]
    if isinstance(site, OrchSite):
        old, new = ({"orch": {"kubeconfig": str(tmp_path / name)}} for name in ("old", "new"))
        (tmp_path / "old").write_bytes(site.kubeconfig.read_bytes())
    else:
        old, new = dict(site.config), {"etcd_endpoints": f"http://127.0.0.1:{inside}"}
    try:
        with ClusterNode(tmp_path / "node", "node1", site, agent_program=AGENT) as node:
            made = Moving(node, old, new, inside)
            yield made
            made.close()
            assert "Traceback" not in node.log.read_text()
            assert remains([node]) == []
    finally:
        site.clear()


@pytest.fixture
def pod_on(moving: Moving, sandbox: Callable[[], Netns]) -> MakePod:
    """Make a pod with the old settings."""

    def make(pod: str = "web", **config: Any) -> Pod:
        moving.node.site.add_pod(pod)
        args = f"K8S_POD_NAME={pod};K8S_POD_NAMESPACE=default"
        return moving.node.pod(sandbox(), f"container-{pod}", args=args, **{**moving.old, **config})

    return make


@pytest.fixture
def other_etcd(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "other"
    folder.mkdir()
    with cluster(folder) as running:
        yield running


@pytest.fixture
def copy(moving: Moving, other_etcd: Cluster) -> EtcdSite:
    """Return another etcd with the same clusterGUID that has none of the allocations, as after a restored snapshot."""
    made = EtcdSite(other_etcd)
    furnish(made, "node1")
    with session(made) as store:
        identify(store, "the-guid")
    moving.reach(other_etcd.members[0].ports[0])
    return made

"""A production-like node: containerd and kubelet run pods with the installation of `svcctl install`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import kubelet_node
from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite, furnish
from harness.installed import install, revoke_rights
from harness.kube import Kube
from harness.kubelet_node import RealNode
from harness.leaks import Footprint, require_nothing_since
from harness.workloads import clear_pods


@pytest.fixture(scope="package", autouse=True)
def nothing_left_behind(orch_site: OrchSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Require that these tests together leave nothing. During one test, programs of the node may be restarted.

    The API server outlives them.
    """
    before = Footprint.take(tmp_path_factory.getbasetemp())
    yield
    require_nothing_since(before)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("realnode")


@pytest.fixture(scope="package")
def node(orch_site: OrchSite, folder: Path) -> Iterator[ClusterNode]:
    """Return a node whose node object kubelet creates."""
    furnish(orch_site, "node2")
    try:
        with ClusterNode(folder / "node", "node1", orch_site) as node:
            yield node
            assert node.stop_agent() == 0
            assert "Traceback" not in node.log.read_text()
    finally:
        orch_site.clear()


@pytest.fixture(scope="package")
def shared_real_node(node: ClusterNode, kube: Kube, folder: Path) -> Iterator[RealNode]:
    with kubelet_node.running(folder, node, kube, install(folder, node, kube)) as real, kube.controllers("namespace"):
        real.wait_ready()
        yield real
    revoke_rights(kube)


@pytest.fixture
def real(shared_real_node: RealNode, kube: Kube) -> Iterator[RealNode]:
    """Return the node without pods. At the end, delete the pods of the test, and require that nothing of them is left."""
    yield shared_real_node
    clear_pods(shared_real_node, kube)

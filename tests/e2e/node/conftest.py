"""A node as users have it: containerd and kubelet run pods with what `svcctl install` has put there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import kubelet_node
from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite, furnish
from harness.installed import install
from harness.kube import Kube
from harness.kubelet_node import RealNode
from harness.leaks import Footprint, require_nothing_since
from harness.workloads import clear_pods


@pytest.fixture(scope="package", autouse=True)
def nothing_left_behind(orch_site: OrchSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Looks at these tests as a whole: what runs on their node may be started again in the middle of one.

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
def lasting(node: ClusterNode, kube: Kube, folder: Path) -> Iterator[RealNode]:
    with kubelet_node.running(folder, node, kube, install(folder, node, kube)) as real, kube.controllers("namespace"):
        real.wait_ready()
        yield real


@pytest.fixture
def real(lasting: RealNode, kube: Kube) -> Iterator[RealNode]:
    """The node, without pods: those of a test are deleted at its end, and then nothing of them may be left."""
    yield lasting
    clear_pods(lasting, kube)

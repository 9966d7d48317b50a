"""A real node that runs the pods of svc from the built image."""

from collections.abc import Iterator

import pytest

from harness import built_image, kubelet_node
from harness.built_image import BuiltImage
from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite, furnish
from harness.kube import Kube
from harness.leaks import Footprint, require_nothing_since
from harness.svc_pods import SvcPods


@pytest.fixture(scope="package", autouse=True)
def nothing_left_behind(orch_site: OrchSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Require that these tests together leave nothing. During one test, containers of the node may be restarted."""
    before = Footprint.take(tmp_path_factory.getbasetemp())
    yield
    require_nothing_since(before)


@pytest.fixture(scope="session")
def image() -> BuiltImage:
    return built_image.require()


@pytest.fixture(scope="package")
def pods(image: BuiltImage, kube: Kube, orch_site: OrchSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SvcPods]:
    """Return a node that has the image and the objects of the manifests, and no pod yet."""
    folder = tmp_path_factory.mktemp("imagenode")
    furnish(orch_site, "node2")
    try:
        with ClusterNode(folder / "node", "node1", orch_site, agent=False) as node:
            with kubelet_node.running(folder, node, kube, archive=image.archive) as real:
                real.wait("containerd has the image", lambda: built_image.NAME in _images(real))
                pods = SvcPods(real, kube)
                yield pods
                pods.close()
    finally:
        orch_site.clear()


def _images(real: kubelet_node.RealNode) -> str:
    return real.host("ctr", "-a", "/run/containerd.sock", "-n", "k8s.io", "images", "list", "-q", check=False).stdout

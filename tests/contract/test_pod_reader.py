"""Pods, namespaces and nodes, read from a real API server."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.kube import Kube
from harness.orch import put_core_node, put_pod
from harness.polling import wait_until
from svc.datastore.open import open_client
from svc.model.errors import PeerError
from svc.orch.pods import Forbidden, Missing, PodReader

pytestmark = pytest.mark.server


@pytest.fixture
def reader(clean_kube: Kube, tmp_path: Path) -> Iterator[PodReader]:
    """Return the reader of an administrator. One pod exists, on `node1`."""
    put_core_node(clean_kube, "node1")
    put_pod(clean_kube, "web-0", annotations={"color": "blue"})
    with closing(PodReader(open_client({"kubeconfig": str(clean_kube.kubeconfig(tmp_path / "kubeconfig"))}))) as reader:
        yield reader


def test_pod_is_read_with_its_namespace(reader: PodReader) -> None:
    """A pod that was deleted and created again is another one."""
    steps: list[str] = []
    info = reader.read("default", "web-0", "", lambda: steps.append("step"))
    assert info.annotations == {"color": "blue"}
    assert info.pod is not None
    assert info.pod["metadata"]["labels"] == {"app": "web"}
    assert info.namespace == info.refreshed().namespace
    assert info.namespace.warning == ""
    assert reader.read("default", "", "", lambda: None).annotations == {}
    uid = info.pod["metadata"]["uid"]
    assert reader.read("default", "web-0", uid, lambda: None).pod == info.pod
    with pytest.raises(PeerError, match="web-0 is another one by now"):
        reader.read("default", "web-0", "another-uid", lambda: None)
    with pytest.raises(Missing, match="does not know pod default/web-9"):
        reader.read("default", "web-9", "", lambda: None)
    assert steps == ["step"]


def test_node_is_read(reader: PodReader) -> None:
    assert reader.node("node1")["metadata"]["name"] == "node1"
    with pytest.raises(Missing) as missing:
        reader.node("node9")
    assert "orch.node_name" in missing.value.details
    assert reader.check_namespaces() == ""
    reader.require_pods()


def test_caller_without_permissions(clean_kube: Kube, tmp_path: Path) -> None:
    """A namespace that it may not read has no labels, with a warning. A pod is required."""
    kubeconfig = clean_kube.kubeconfig(tmp_path / "kubeconfig", "token-of-plugin")
    with closing(PodReader(open_client({"kubeconfig": str(kubeconfig)}))) as reader:
        wait_until(lambda: "grant the verb get on namespaces" in reader.check_namespaces())  # roles end later
        namespace = reader.namespace("default")
        assert (namespace.labels, "403" in namespace.warning) == ({}, True)
        with pytest.raises(Forbidden):
            reader.require_pods()

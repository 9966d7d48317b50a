"""The state directory is read-only, as after a disk error: no agent can start, and the DELs are one-shot calls."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from harness import state
from harness.cluster_node import ClusterNode, audit, remains
from harness.datastores import Site, furnish, session
from harness.etcd import free_ports
from harness.ipam import put
from harness.netns import Netns
from harness.node import Node, netconf
from harness.pod import Pod
from harness.port_forward import PortForward
from svc.attach.datastore_ready import KEY as READY
from svc.model.resource import Resource

pytestmark = pytest.mark.root

STOPS = pytest.mark.parametrize("stop", ["stop_agent", "kill_agent"])


@contextmanager
def own_file_system(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", directory], check=True)


@pytest.fixture
def cluster(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    furnish(site, "node1")
    try:
        with own_file_system(tmp_path / "node" / "state"), ClusterNode(tmp_path / "node", "node1", site) as node:
            yield node
    finally:
        site.clear()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with own_file_system(tmp_path / "node" / "state"), Node(tmp_path / "node") as node:
        node.apply_pools()
        yield node


def make_pod(cluster: ClusterNode, netns: Netns, name: str) -> Pod:
    cluster.site.add_pod(name)
    return cluster.pod(netns, name, args=f"K8S_POD_NAME={name};K8S_POD_NAMESPACE=default")


@STOPS
def test_delete_in_a_cluster_releases_the_address(cluster: ClusterNode, sandbox: Callable[[], Netns], stop: str) -> None:
    pod, unattached = (make_pod(cluster, sandbox(), name) for name in ("c0", "c1"))
    pod.add()
    getattr(cluster, stop)()
    with read_only(cluster.state_dir):
        unattached.delete()
        pod.delete()
        assert pod.netns.links() == []
        error = unattached.failed("ADD").output
        assert (error["code"], "Read-only file system" in error["msg"]) == (5, True), error
    cluster.start_agent()
    pod.delete()
    assert remains([cluster]) == []


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_delete_by_other_settings_of_the_datastore(cluster: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """The row cannot get these settings."""
    pod, (port,) = make_pod(cluster, sandbox(), "c0"), free_ports(1)
    with session(cluster.site) as store:
        put(store, READY, Resource(READY.kind, {"name": READY.name}, {"datastoreReady": True, "clusterGUID": "the-guid"}))
    pod.add()
    cluster.stop_agent()
    with closing(PortForward(cluster.netns, cluster.site.port, port)), cluster.cut_off(), read_only(cluster.state_dir):
        pod.copy(config=pod.config | {"etcd_endpoints": f"http://127.0.0.1:{port}"}).delete()
        assert audit([cluster]).allocations == {}
    cluster.start_agent()
    pod.delete()
    assert remains([cluster]) == []


@STOPS
def test_delete_on_the_embedded_store_names_the_cause(node: Node, sandbox: Callable[[], Netns], stop: str) -> None:
    pod, unattached = (Pod(node, sandbox(), container, netconf()) for container in ("c0", "c1"))
    pod.add()
    getattr(node, stop)()
    with read_only(node.state_dir):
        unattached.delete()
        error = pod.failed("DEL").output
        assert "readonly" in error["msg"], error
        assert "writable" in error["details"], error
    node.start_agent()
    pod.delete()
    assert state.remains(node) == []

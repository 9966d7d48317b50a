"""The node's disk is full: every caller gets an error, nothing is lost, and it works again when there is space."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.cluster_node import remains as cluster_remains
from harness.datastores import Site, furnish
from harness.netns import Netns
from harness.node import Called, Node, agent_with, netconf
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import faults, remains
from svc.agent import maintenance, server
from svc.attach.journal import Journal

pytestmark = pytest.mark.root

SPACE = "2m"
MakePod = Callable[[], Pod]

# An agent that allocates the reserve again every moment.
HASTY = agent_with({f"{server.__name__}.PERIOD_SECONDS": 0.1, f"{maintenance.__name__}.RETRY_SECONDS": 0.1})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Its state directory is a file system of its own, which is small."""
    state = tmp_path / "node" / "state"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SPACE}", "tmpfs", state], check=True)
    try:
        with Node(tmp_path / "node") as node:
            node.apply_pools()
            yield node
            assert node.stop_agent() == 0
            assert "Traceback" not in node.log.read_text()
            subprocess.run(["umount", state], check=True)
    finally:
        if state.is_mount():
            subprocess.run(["umount", "--lazy", state], check=True)


@pytest.fixture
def cluster(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """The same with a datastore that nodes share, whose disk has room."""
    state = tmp_path / "node" / "state"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SPACE}", "tmpfs", state], check=True)
    furnish(site, "node1")
    try:
        with ClusterNode(tmp_path / "node", "node1", site) as node:
            yield node
            node.stop_agent()
    finally:
        site.clear()
        subprocess.run(["umount", "--lazy", state], check=True)


@pytest.fixture
def make(node: Node, sandbox: Callable[[], Netns]) -> MakePod:
    numbers = iter(range(100))
    return lambda: Pod(node, sandbox(), f"c{next(numbers)}", netconf(ipam={"assign_ipv6": "true"}))


def fill(node: Node) -> Path:
    ballast = node.state_dir / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def fails_in_time(make: MakePod) -> dict[str, object]:
    """What is written before may still fit: the error of the first ADD that does not."""
    for _ in range(200):
        called = make().call("ADD")
        if called.status:
            return dict(called.output)
    raise AssertionError("the disk never was full")


def status(node: Node, config: dict[str, Any]) -> Called:
    return node.call("STATUS", config, container="", ifname="")


def demand_status_tells(node: Node, config: dict[str, Any], file: str) -> None:
    """Before any ADD has failed, and no longer than the disk is full."""
    wait_until(lambda: status(node, config).status == 0)  # the client of the datastore is loaded
    for _ in range(2):
        ballast = fill(node)
        told = status(node, config).output
        assert (told["code"], str(node.state_dir / file) in told["msg"]) == (50, True), told
        assert "disk is full" in told["msg"]
        assert "free space on its file system" in told["details"]
        ballast.unlink()
        assert status(node, config).status == 0


def test_status_tells_of_a_full_disk(node: Node, make: MakePod) -> None:
    pod = make()
    pod.add()
    demand_status_tells(node, netconf(), "journal.db")
    pod.delete()


def test_status_tells_of_a_full_disk_in_a_cluster(cluster: ClusterNode) -> None:
    demand_status_tells(cluster, cluster.netconf(), "journal.db")


def test_full_disk(node: Node, make: MakePod) -> None:
    kept = make()
    kept.add()
    ballast = fill(node)
    made: list[Pod] = []

    def another() -> Pod:
        made.append(make())
        return made[-1]

    error = fails_in_time(another)
    assert error["code"] == 104
    assert "database or disk is full" in str(error["msg"])
    assert "free space on its file system" in str(error["details"])
    told = status(node, netconf(ipam={"assign_ipv6": "true"})).output
    assert told["code"] == 50
    assert "full" in told["msg"]
    failed = made[-1]
    assert failed.netns.links() == []
    assert kept.check().status == 0
    ballast.unlink()
    assert status(node, netconf(ipam={"assign_ipv6": "true"})).status == 0, "at once"
    failed.add()
    assert failed.check().status == 0
    assert faults(node) == []
    for pod in (kept, *made):
        pod.delete()
    assert remains(node) == []


def demand_only_pending(node: Node) -> None:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        assert {record.state for record in journal.all()} <= {"deleting"}


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_delete_on_a_full_disk(node: Node, make: MakePod, agent: bool) -> None:
    """Each succeeds at once: its interface goes, and what it holds in the store is released when there is room again."""
    pods = [make() for _ in range(8)]
    for pod in pods:
        pod.add()
    if not agent:
        node.stop_agent()
    ballast = fill(node)
    for pod in pods:
        pod.delete()
    assert [pod.netns.links() for pod in pods] == [[]] * len(pods)
    demand_only_pending(node)
    if agent:
        node.stop_agent()
    ballast.unlink()
    node.start_agent()
    wait_until(lambda: remains(node) == [])


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
@pytest.mark.parametrize("reachable", [True, False], ids=["reachable", "unreachable"])
@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_delete_in_a_cluster(cluster: ClusterNode, sandbox: Callable[[], Netns], reachable: bool, agent: bool) -> None:
    """The datastore has room: what it holds is released at once, or the reserve keeps what is to be released later."""
    pods = [cluster.pod(sandbox(), f"c{number}") for number in range(2)]
    for pod in pods:
        pod.add()
    if not agent:
        cluster.stop_agent()
    ballast = fill(cluster)
    with nullcontext() if reachable else cluster.cut_off():
        for pod in pods:
            pod.delete()
    assert [pod.netns.links() for pod in pods] == [[]] * len(pods)
    demand_only_pending(cluster)
    assert bool(cluster_remains([cluster])) is not reachable
    if agent:
        cluster.stop_agent()
    ballast.unlink()
    cluster.start_agent()
    wait_until(lambda: cluster_remains([cluster]) == [])


def test_delete_without_room_to_open_the_journal(cluster: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """The reserve is used up, and the datastore answers: the calls and the agent need no file of their own."""
    pods = []
    for name in ("c0", "c1", "c2", "c3"):
        cluster.site.add_pod(name)
        pods.append(cluster.pod(sandbox(), name, args=f"K8S_POD_NAME={name};K8S_POD_NAMESPACE=default"))
        pods[-1].add()
    fill(cluster)
    cluster.kill_agent()
    pods[0].delete()
    ballast = fill(cluster)
    pods[1].delete()
    cluster.start_agent(*HASTY)
    pods[2].delete()
    assert [pod.netns.links() for pod in pods[:3]] == [[]] * 3
    assert "the disk is full" in str(status(cluster, cluster.netconf()).output)
    ballast.unlink()
    wait_until(lambda: cluster.ctl("pending", "get", check=False).returncode == 0)
    pods[3].delete()
    collect = {**cluster.netconf(), "cni.dev/valid-attachments": []}  # rows that could not be removed
    assert cluster.call("GC", collect, container="", ifname="").status == 0
    assert cluster_remains([cluster]) == []


def test_delete_without_room_for_the_embedded_store(node: Node, make: MakePod) -> None:
    """It cannot release. A container that was never attached is gone, and the error of the others names the disk."""
    never, *pods = [make() for _ in range(3)]
    for pod in pods:
        pod.add()
    fill(node)
    node.kill_agent()
    pods[0].delete()
    ballast = fill(node)
    never.delete()
    called = pods[1].call("DEL")
    assert called.status == 0 or "full" in called.output["msg"], called
    ballast.unlink()
    node.start_agent()
    pods[1].delete()
    wait_until(lambda: remains(node) == [])

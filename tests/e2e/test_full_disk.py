"""A full disk of the node: calls fail with an error, no state is lost, and calls work again when there is space."""

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
from harness.polling import eventually, wait_until
from harness.state import disagreements, remains
from svc.agent import maintenance, server
from svc.attach.journal import Journal
from svc.attach.record import ADDED, AttachmentId, Record

pytestmark = pytest.mark.root

SPACE = "2m"
MakePod = Callable[[], Pod]

# An agent that allocates the reserve again every 0.1 s.
FREQUENT_MAINTENANCE = agent_with({f"{server.__name__}.PERIOD_SECONDS": 0.1, f"{maintenance.__name__}.RETRY_SECONDS": 0.1})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Start a node whose state directory is a small file system."""
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
    """Start such a node on a shared datastore, whose disk is not full."""
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


def first_error(make: MakePod) -> dict[str, object]:
    """Return the error of the first ADD that fails. Earlier ADDs may succeed, because their writes still fit."""
    for _ in range(200):
        called = make().call("ADD")
        if called.status:
            return dict(called.output)
    raise AssertionError("no ADD failed, so the disk did not become full")


def status(node: Node, config: dict[str, Any]) -> Called:
    return node.call("STATUS", config, container="", ifname="")


def require_error_of_status(node: Node, config: dict[str, Any], file: str) -> None:
    """Require that STATUS reports a full disk before an ADD fails, and succeeds when there is space."""
    wait_until(lambda: status(node, config).status == 0)  # the first call loads the client of the datastore
    for _ in range(2):
        ballast = fill(node)
        error = eventually(lambda: status(node, config), lambda called: called.status).output  # a success counts for 1 s
        assert (error["code"], str(node.state_dir / file) in error["msg"]) == (50, True), error
        assert "disk is full" in error["msg"]
        assert "free space on its file system" in error["details"]
        ballast.unlink()
        assert status(node, config).status == 0


def test_status_reports_a_full_disk(node: Node, make: MakePod) -> None:
    pod = make()
    pod.add()
    require_error_of_status(node, netconf(), "journal.db")
    pod.delete()


def test_status_reports_a_full_disk_in_a_cluster(cluster: ClusterNode) -> None:
    require_error_of_status(cluster, cluster.netconf(), "journal.db")


def test_calls_work_again_when_the_disk_has_space(node: Node, make: MakePod) -> None:
    kept = make()
    kept.add()
    ballast = fill(node)
    made: list[Pod] = []

    def another() -> Pod:
        made.append(make())
        return made[-1]

    error = first_error(another)
    assert error["code"] == 104
    assert "database or disk is full" in str(error["msg"])
    assert "free space on its file system" in str(error["details"])
    shown = node.svcctl("status", check=False)
    assert (shown.returncode, "disk is full" in shown.stdout) == (3, True)  # before the next probe, too
    reported = status(node, netconf(ipam={"assign_ipv6": "true"})).output
    assert reported["code"] == 50
    assert "full" in reported["msg"]
    failed = made[-1]
    assert failed.netns.links() == []
    assert kept.check().status == 0
    ballast.unlink()
    assert status(node, netconf(ipam={"assign_ipv6": "true"})).status == 0, "STATUS must succeed at once"
    failed.add()
    assert failed.check().status == 0
    assert disagreements(node) == []
    for pod in (kept, *made):
        pod.delete()
    assert remains(node) == []


def require_only_pending_releases(node: Node) -> None:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        assert {record.state for record in journal.all()} <= {"deleting"}


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_del_on_a_full_disk_leaves_pending_releases(node: Node, make: MakePod, agent: bool) -> None:
    """Each DEL succeeds and removes the interface. The agent releases the addresses when there is space."""
    pods = [make() for _ in range(8)]
    for pod in pods:
        pod.add()
    if not agent:
        node.stop_agent()
    ballast = fill(node)
    for pod in pods:
        pod.delete()
    assert [pod.netns.links() for pod in pods] == [[]] * len(pods)
    require_only_pending_releases(node)
    if agent:
        node.stop_agent()
    ballast.unlink()
    node.start_agent()
    wait_until(lambda: remains(node) == [])


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
@pytest.mark.parametrize("reachable", [True, False], ids=["reachable", "unreachable"])
@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_del_on_a_full_disk_in_a_cluster_succeeds(
    cluster: ClusterNode, sandbox: Callable[[], Netns], reachable: bool, agent: bool
) -> None:
    """svc releases the addresses at once if it can reach the datastore. Otherwise, the reserve stores pending releases."""
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
    require_only_pending_releases(cluster)
    assert bool(cluster_remains([cluster])) is not reachable
    if agent:
        cluster.stop_agent()
    ballast.unlink()
    cluster.start_agent()
    wait_until(lambda: cluster_remains([cluster]) == [])


def test_del_works_without_space_to_open_the_journal(cluster: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """The reserve is used up, but the datastore answers, so calls and agent need no file on the full disk."""
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
    cluster.start_agent(*FREQUENT_MAINTENANCE)
    pods[2].delete()
    assert [pod.netns.links() for pod in pods[:3]] == [[]] * 3
    assert "the disk is full" in str(status(cluster, cluster.netconf()).output)
    ballast.unlink()
    wait_until(lambda: cluster.ctl("pending", "get", check=False).returncode == 0)
    pods[3].delete()
    collect = {**cluster.netconf(), "cni.dev/valid-attachments": []}  # also removes journal entries that DEL could not remove
    assert cluster.call("GC", collect, container="", ifname="").status == 0
    assert cluster_remains([cluster]) == []


def test_rows_get_other_settings_on_a_full_disk(node: Node) -> None:
    """The reserve has space for it. Otherwise, live addresses are not claimed where their network has moved to."""
    node.stop_agent()
    moved = {"kind": "etcdv3", "etcd_endpoints": "http://new"}
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        for number in range(100):
            key = AttachmentId("net", f"c{number}", "eth0")
            journal.begin(
                Record(key, ADDED, "boot", (1, 2), "node1", {"kind": "etcdv3", "etcd_endpoints": "http://old"}, "", "")
            )
        ballast = fill(node)
        for record in journal.all():
            journal.change_settings(record, moved)
        ballast.unlink()
        assert [record.settings for record in journal.all()] == [moved] * 100
        for record in journal.all():
            journal.remove(record)
    node.start_agent()


def test_del_without_space_for_the_embedded_store_names_the_disk(node: Node, make: MakePod) -> None:
    """svc cannot release addresses. DEL of a container that was never attached still succeeds."""
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

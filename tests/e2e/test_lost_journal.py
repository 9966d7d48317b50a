"""The journal is lost or damaged while pods are attached: svc restores it from the kernel and the datastore."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode
from harness.cluster_node import disagreements as cluster_disagreements
from harness.cluster_node import remains as cluster_remains
from harness.datastores import Site
from harness.netns import Netns
from harness.node import Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import disagreements, pod_links, remains
from svc.attach.journal import Journal

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
WEB = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"


@pytest.fixture
def base_node(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """A node for each test, because the tests stop its agent."""
    with ClusterNode(tmp_path / "node", "node1", site) as node:
        yield node


def remove_files(node: Node) -> None:
    for path in node.state_dir.glob("journal.db*"):
        path.unlink()


def damage_file(node: Node) -> None:
    (node.state_dir / "journal.db").write_bytes(b"this is not a database, and it is longer than a header of one would be" * 20)
    for suffix in ("-wal", "-shm"):
        (node.state_dir / f"journal.db{suffix}").unlink(missing_ok=True)


def empty_file(node: Node) -> None:
    damage_file(node)
    (node.state_dir / "journal.db").write_bytes(b"")


def break_rows(node: Node) -> None:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        journal._connection.execute("UPDATE attachments SET record = '{\"id\"'")


LOSSES = {"missing": remove_files, "garbage": damage_file, "empty": empty_file, "bad rows": break_rows}


def restart(node: Node, damage: Callable[[Node], None], *, agent: bool = True) -> None:
    """Damage the journal while the agent is stopped, and start the agent again."""
    node.stop_agent()
    damage(node)
    if agent:
        node.start_agent()


@pytest.mark.parametrize("damage", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("args", ["", WEB], ids=["bare", "pod"])
def test_attachments_survive_the_loss_of_their_rows(
    own_pods: MakePod, node: Node, damage: Callable[[Node], None], args: str
) -> None:
    """A repeated ADD returns the first result, CHECK succeeds, and each DEL removes only its own attachment."""
    first = own_pods(args=args, ipam={"assign_ipv6": "true"})
    second = first.copy(ifname="eth1")
    first.add()
    second.add()
    restart(node, damage)
    assert first.check().status == 0
    assert first.copy().add() == first.result
    assert second.copy().add() == second.result
    assert disagreements(node) == []
    other = own_pods()
    other.add()
    second.delete()
    assert first.check().status == 0
    assert disagreements(node) == []
    first.delete()
    other.delete()
    assert remains(node) == []


def test_one_shot_call_restores_the_row(own_pods: MakePod, node: Node) -> None:
    """The journal is lost before an ADD, and again before a DEL."""
    pod = own_pods()
    pod.add()
    restart(node, remove_files, agent=False)
    assert pod.copy().add() == pod.result
    remove_files(node)
    pod.delete()
    assert remains(node) == []


def test_row_of_an_earlier_sandbox_does_not_affect_the_current_one(
    own_pods: MakePod, node: Node, sandbox: Callable[[], Netns], tmp_path: Path
) -> None:
    """Both sandboxes have interfaces of one name, but with different indexes. The current one keeps its address."""
    earlier = own_pods(args=WEB)
    earlier.add()
    node.stop_agent()
    for path in node.state_dir.glob("journal.db*"):
        shutil.copy(path, tmp_path)
    node.start_agent()
    earlier.delete()
    current = own_pods(args=WEB)
    current.add()

    def restore_older_journal(node: Node) -> None:
        remove_files(node)
        for path in tmp_path.glob("journal.db*"):
            shutil.copy(path, node.state_dir)

    restart(node, restore_older_journal)
    assert current.check().status == 0
    assert current.copy().add() == current.result
    earlier.delete()
    assert current.check().status == 0
    assert disagreements(node) == []
    current.delete()
    assert remains(node) == []


def test_agent_restores_a_row_that_it_cannot_decode(own_pods: MakePod, node: Node) -> None:
    """The row is damaged while the agent runs."""
    pod = own_pods()
    pod.add()
    break_rows(node)
    assert pod.check().status == 0
    assert pod.copy().add() == pod.result
    pod.delete()
    assert remains(node) == []


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_attachment_in_a_cluster_survives_a_lost_journal(web: Pod, cluster_node: ClusterNode, agent: bool) -> None:
    web.add()
    restart(cluster_node, remove_files, agent=agent)
    assert web.check().status == 0
    assert web.copy().add() == web.result
    assert cluster_disagreements([cluster_node]) == []
    if not agent:
        cluster_node.start_agent()
    web.delete()


def test_pending_release_survives_the_removal_of_the_journal(web: Pod, cluster_node: ClusterNode) -> None:
    """After the removal the running agent records the release, and is killed before it retries the release."""
    web.add()
    remove_files(cluster_node)
    wait_until((cluster_node.state_dir / "journal.db").exists)
    with cluster_node.cut_off():
        web.delete()
        cluster_node.kill_agent()
    with closing(Journal(cluster_node.state_dir / "journal.db")) as journal:
        assert [each.id.container_id for each in journal.pending_releases()] == [web.container]
    cluster_node.start_agent()
    wait_until(lambda: cluster_remains([cluster_node]) == [])
    assert "its content is written back" in cluster_node.log.read_text()


# the journal or the endpoint says to which container an interface belongs


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_del_of_another_container_keeps_the_interface_in_the_sandbox(own_pods: MakePod, node: Node, agent: bool) -> None:
    """The ADD of the other container failed. Its DEL may be late or repeated."""
    attached = own_pods()
    attached.add()
    if not agent:
        node.stop_agent()
    refused = attached.copy(container="another")
    refused.failed("ADD")
    for _ in range(2):
        refused.delete()
    assert attached.check().status == 0
    if agent:
        restart(node, remove_files)
    else:
        remove_files(node)
    refused.delete()
    assert attached.check().status == 0
    attached.delete()
    assert remains(node) == []
    if not agent:
        node.start_agent()


def test_late_del_in_a_cluster_keeps_the_interface_in_the_sandbox(
    web: Pod, cluster_node: ClusterNode, sandbox: Callable[[], Netns]
) -> None:
    """The datastore may be unreachable."""
    web.add()
    late = web.copy(container="fedcba9876543210", args="K8S_POD_NAME=web-1;K8S_POD_NAMESPACE=default")
    late.delete()
    assert web.check().status == 0
    restart(cluster_node, remove_files)
    with cluster_node.cut_off():
        late.delete()
        assert web.netns.links() == ["eth0"]
    restart(cluster_node, remove_files)
    late.delete()
    assert web.check().status == 0
    web.delete()


def test_del_finds_a_renamed_interface(own_pods: MakePod, node: Node) -> None:
    """No endpoint has the new name, so DEL finds the interface in the sandbox."""
    pod = own_pods()
    pod.add()
    (name,) = pod_links(node)
    node.netns.ip("link", "set", name, "down")
    node.netns.ip("link", "set", name, "name", "svcrenamed")
    restart(node, remove_files)
    pod.delete()
    assert pod.netns.links() == []
    assert remains(node) == []


def test_damaged_file_is_kept_with_its_date(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    restart(node, damage_file)
    assert [file.name[:19] for file in node.state_dir.glob("*.damaged-*")] == ["journal.db.damaged-"]
    assert "is damaged (file is not a database): it is kept as" in node.log.read_text()

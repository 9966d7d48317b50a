"""The journal is lost or damaged while pods live: kernel and datastore tell what it has forgotten."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode
from harness.cluster_node import faults as cluster_faults
from harness.cluster_node import remains as cluster_remains
from harness.datastores import Site
from harness.netns import Netns
from harness.node import Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import faults, pod_links, remains
from svc.attach.journal import Journal

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
WEB = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"


@pytest.fixture
def lasting_node(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """One for each test: its agent is ended."""
    with ClusterNode(tmp_path / "node", "node1", site) as node:
        yield node


def lose(node: Node) -> None:
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


LOSSES = {"missing": lose, "garbage": damage_file, "empty": empty_file, "bad rows": break_rows}


def restart(node: Node, damage: Callable[[Node], None], *, agent: bool = True) -> None:
    """Damage the journal while the agent is stopped, and start the agent again."""
    node.stop_agent()
    damage(node)
    if agent:
        node.start_agent()


@pytest.mark.parametrize("damage", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("args", ["", WEB], ids=["bare", "pod"])
def test_attachments_outlive_their_rows(own_pods: MakePod, node: Node, damage: Callable[[Node], None], args: str) -> None:
    """The agent serves; a repeated ADD gives the first one's result, CHECK finds nothing, DEL of each takes what is its."""
    first = own_pods(args=args, ipam={"assign_ipv6": "true"})
    second = first.copy(ifname="eth1")
    first.add()
    second.add()
    restart(node, damage)
    assert first.check().status == 0
    assert first.copy().add() == first.result
    assert second.copy().add() == second.result
    assert faults(node) == []
    other = own_pods()
    other.add()
    second.delete()
    assert first.check().status == 0
    assert faults(node) == []
    first.delete()
    other.delete()
    assert remains(node) == []


def test_attachment_without_an_agent(own_pods: MakePod, node: Node) -> None:
    """The next one-shot call restores the row."""
    pod = own_pods()
    pod.add()
    restart(node, lose, agent=False)
    assert pod.copy().add() == pod.result
    lose(node)
    pod.delete()
    assert remains(node) == []


def test_older_journal_has_a_row_of_an_earlier_sandbox(
    own_pods: MakePod, node: Node, sandbox: Callable[[], Netns], tmp_path: Path
) -> None:
    """Its interface has the name of the live one, and another index: the live one gets its row, and keeps its address."""
    earlier = own_pods(args=WEB)
    earlier.add()
    node.stop_agent()
    for path in node.state_dir.glob("journal.db*"):
        shutil.copy(path, tmp_path)
    node.start_agent()
    earlier.delete()
    live = own_pods(args=WEB)
    live.add()

    def put_back(node: Node) -> None:
        lose(node)
        for path in tmp_path.glob("journal.db*"):
            shutil.copy(path, node.state_dir)

    restart(node, put_back)
    assert live.check().status == 0
    assert live.copy().add() == live.result
    earlier.delete()
    assert live.check().status == 0
    assert faults(node) == []
    live.delete()
    assert remains(node) == []


def test_journal_that_is_lost_in_use(own_pods: MakePod, node: Node) -> None:
    """The agent meets a row that it cannot decode."""
    pod = own_pods()
    pod.add()
    break_rows(node)
    assert pod.check().status == 0
    assert pod.copy().add() == pod.result
    pod.delete()
    assert remains(node) == []


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_attachment_of_a_cluster(web: Pod, cluster_node: ClusterNode, agent: bool) -> None:
    web.add()
    restart(cluster_node, lose, agent=agent)
    assert web.check().status == 0
    assert web.copy().add() == web.result
    assert cluster_faults([cluster_node]) == []
    if not agent:
        cluster_node.start_agent()
    web.delete()


def test_pending_release_outlives_the_file_under_the_agent(web: Pod, cluster_node: ClusterNode) -> None:
    """Removed while the agent runs; the release is noted after that, and the agent is killed before it could be made good."""
    web.add()
    lose(cluster_node)
    wait_until((cluster_node.state_dir / "journal.db").exists)
    with cluster_node.cut_off():
        web.delete()
        cluster_node.kill_agent()
    with closing(Journal(cluster_node.state_dir / "journal.db")) as journal:
        assert [each.id.container_id for each in journal.pending_releases()] == [web.container]
    cluster_node.start_agent()
    wait_until(lambda: cluster_remains([cluster_node]) == [])
    assert "its content is written back" in cluster_node.log.read_text()


# an interface is the container's that the journal, or its endpoint, gives it to


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_del_of_another_container_in_the_same_sandbox(own_pods: MakePod, node: Node, agent: bool) -> None:
    """Refused before, or late, or repeated: the container that lives there now keeps its interface."""
    living = own_pods()
    living.add()
    if not agent:
        node.stop_agent()
    refused = living.copy(container="another")
    refused.failed("ADD")
    for _ in range(2):
        refused.delete()
    assert living.check().status == 0
    if agent:
        restart(node, lose)
    else:
        lose(node)
    refused.delete()
    assert living.check().status == 0
    living.delete()
    assert remains(node) == []
    if not agent:
        node.start_agent()


def test_late_del_in_the_sandbox_of_a_cluster(web: Pod, cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """Also where the server is away, so that no answer says it."""
    web.add()
    late = web.copy(container="fedcba9876543210", args="K8S_POD_NAME=web-1;K8S_POD_NAMESPACE=default")
    late.delete()
    assert web.check().status == 0
    restart(cluster_node, lose)
    with cluster_node.cut_off():
        late.delete()
        assert web.netns.links() == ["eth0"]
    restart(cluster_node, lose)
    late.delete()
    assert web.check().status == 0
    web.delete()


def test_interface_under_another_name(own_pods: MakePod, node: Node) -> None:
    """Its endpoint is not found by the name; the DEL of its own container finds it in the sandbox."""
    pod = own_pods()
    pod.add()
    (name,) = pod_links(node)
    node.netns.ip("link", "set", name, "down")
    node.netns.ip("link", "set", name, "name", "svcrenamed")
    restart(node, lose)
    pod.delete()
    assert pod.netns.links() == []
    assert remains(node) == []


def test_damaged_file_is_kept_with_its_date(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    restart(node, damage_file)
    assert [file.name[:19] for file in node.state_dir.glob("*.damaged-*")] == ["journal.db.damaged-"]
    assert "is damaged (file is not a database): it is kept as" in node.log.read_text()

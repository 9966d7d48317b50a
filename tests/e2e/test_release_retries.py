"""The running agent retries pending releases: they complete when the datastore is back, without another call."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness import state
from harness.cluster_node import ClusterNode, remains
from harness.datastores import Site
from harness.node import Node, agent_with
from harness.pod import Pod
from harness.polling import wait_until
from svc.agent import maintenance, server
from svc.attach import teardown
from svc.attach.journal import Journal
from svc.attach.record import ADDING

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

# An agent that retries several times a second, and waits less for a datastore that does not answer.
FAST_RETRIES = agent_with(
    {
        f"{server.__name__}.PERIOD_SECONDS": 0.1,
        f"{maintenance.__name__}.RETRY_SECONDS": 0.1,
        f"{maintenance.__name__}.MAX_RETRY_SECONDS": 0.3,
        f"{teardown.__name__}.ANSWER_SECONDS": 2.0,
    }
)


@pytest.fixture
def base_node(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """A node for each test, whose agent retries several times a second."""
    with ClusterNode(tmp_path / "node", "node1", site, agent_program=FAST_RETRIES) as node:
        yield node


def retries(node: Node) -> int:
    """Return the number of retries that have failed."""
    return node.log.read_text().count("is still pending")


def test_agent_retries_until_the_datastore_is_back(web: Pod, cluster_node: ClusterNode) -> None:
    node = cluster_node
    web.add()
    with node.cut_off():
        web.delete()
        wait_until(lambda: retries(node) >= 2)
        assert remains([node]) != []
    wait_until(lambda: remains([node]) == [])


def test_agent_retries_until_the_file_is_back(own_pods: MakePod, node: Node) -> None:
    """The datastore is the embedded store."""
    pod = own_pods()
    pod.add()
    node.stop_agent()
    store, kept = node.state_dir / "store.db", node.directory / "kept.db"
    store.rename(kept)
    store.mkdir()
    node.start_agent(*FAST_RETRIES)
    pod.delete()
    wait_until(lambda: retries(node) >= 2)
    store.rmdir()
    kept.rename(store)
    wait_until(lambda: state.remains(node) == [])


def test_agent_removes_what_a_failed_add_has_left(web: Pod, cluster_node: ClusterNode) -> None:
    """The rollback of the ADD failed, and the runtime makes no further call."""
    web.add()
    with closing(Journal(cluster_node.state_dir / "journal.db")) as journal:
        (record,) = journal.all()
        record.state = ADDING
        journal.update(record)
    wait_until(lambda: remains([cluster_node]) == [])
    assert web.netns.links() == []

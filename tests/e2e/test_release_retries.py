"""A pending release is retried by the agent that runs: its datastore comes back, and nothing else has to happen."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import state
from harness.cluster_node import ClusterNode, remains
from harness.datastores import Site
from harness.node import Node
from harness.pod import Pod
from harness.polling import wait_until

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

HASTY = """
import sys
from svc.agent import main, maintenance, server
server.PERIOD_SECONDS = 0.1
maintenance.RETRY_SECONDS, maintenance.MAX_RETRY_SECONDS = 0.1, 0.3
sys.exit(main.main())
"""


@pytest.fixture
def lasting_node(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """One for each test. Its agent retries every moment."""
    with ClusterNode(tmp_path / "node", "node1", site, agent=False) as node:
        node.start_agent(sys.executable, "-c", HASTY)
        yield node


def retries(node: Node) -> int:
    """Return the number of those that have failed."""
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
    """Of the embedded store."""
    pod = own_pods()
    pod.add()
    node.stop_agent()
    store, kept = node.state_dir / "store.db", node.directory / "kept.db"
    store.rename(kept)
    store.mkdir()
    node.start_agent(sys.executable, "-c", HASTY)
    pod.delete()
    wait_until(lambda: retries(node) >= 2)
    store.rmdir()
    kept.rename(store)
    wait_until(lambda: state.remains(node) == [])

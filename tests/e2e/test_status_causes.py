"""STATUS tells what an ADD would meet, within a second, whatever the servers and files do."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.node import Called, Node, netconf
from harness.proxy import mute, proxy
from harness.site import session, set_ready
from harness.way import Way

pytestmark = pytest.mark.root

DEAD = "http://127.0.0.1:1"


@pytest.fixture
def lasting_node(site: Any, tmp_path: Path) -> Iterator[ClusterNode]:
    """One for each test: its datastore is not reached."""
    with ClusterNode(tmp_path / "node", "node1", site) as node:
        yield node


def status(node: Node, config: dict[str, Any]) -> Called:
    return node.call("STATUS", config, container="", ifname="")


def cause(node: Node, config: dict[str, Any]) -> str:
    """Of a node that is not ready."""
    called = status(node, config)
    assert called.status == 1, called
    assert called.output["code"] == 50, called
    said = f"{called.output['msg']} {called.output['details']}"
    assert "did not answer within" not in said.partition("datastore")[0], said
    assert "no sign of life" not in said, said
    return said


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process writes for as long as the block lasts."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("name", ["journal.db", "store.db"])
def test_a_locked_file_is_the_cause(node: Node, name: str) -> None:
    with locked(node.state_dir / name):
        status(node, netconf())
        time.sleep(0.5)
        assert name in cause(node, netconf())
    until = time.monotonic() + 20
    while status(node, netconf()).status:
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_silent_server_is_the_cause(cluster_node: ClusterNode) -> None:
    config = cluster_node.netconf()
    assert status(cluster_node, config).status == 0
    with cluster_node.silenced(cluster_node.site):
        assert "no answer in time" in cause(cluster_node, config)
    until = time.monotonic() + 20
    while status(cluster_node, config).status:
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_dead_server_is_the_cause(cluster_node: ClusterNode) -> None:
    config = cluster_node.netconf()
    with cluster_node.cut_off():
        assert "refused" in cause(cluster_node, config)


def test_a_server_that_never_was_is_the_cause(node: Node) -> None:
    assert DEAD.removeprefix("http://") in cause(node, netconf(datastore_type="etcdv3", etcd_endpoints=DEAD))
    with mute(node.netns) as authority:
        said = cause(node, netconf(datastore_type="etcdv3", etcd_endpoints=f"http://{authority}"))
    assert authority in said


def test_a_locked_datastore_is_the_cause(cluster_node: ClusterNode) -> None:
    with session(cluster_node.site) as store:
        set_ready(store, ready=False)
    assert "locked" in cause(cluster_node, cluster_node.netconf())


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_a_far_server_is_ready(cluster_node: ClusterNode) -> None:
    """Where an ADD works, although its requests take 300 ms each."""
    with proxy(cluster_node.site.port) as far, closing(Way(cluster_node.netns, int(far.authority.rpartition(":")[2]))):
        far.delay = 0.3
        config = cluster_node.netconf(etcd_endpoints=f"http://{far.authority}")
        until = time.monotonic() + 30
        while status(cluster_node, config).status:
            assert time.monotonic() < until
        time.sleep(1.0)
        assert status(cluster_node, config).status == 0


def test_a_missing_kubeconfig_of_policy_is_the_cause(node: Node) -> None:
    config = netconf(policy={"type": "orch"}, orch={"kubeconfig": "/nonexistent/kubeconfig"})
    assert "/nonexistent/kubeconfig" in cause(node, config)


def test_a_dead_server_of_policy_is_the_cause(node: Node) -> None:
    config = netconf(policy={"type": "orch"}, orch={"orch_api_root": DEAD})
    status(node, config)
    time.sleep(2.5)
    assert DEAD in cause(node, config)

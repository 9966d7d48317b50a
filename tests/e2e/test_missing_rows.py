"""Journal rows are lost while their interfaces exist: svc restores the rows, and removes nothing that is in use."""

import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode
from harness.cluster_node import disagreements as cluster_disagreements
from harness.datastores import Site
from harness.host_local import data_dir, held, offer, section
from harness.netns import Netns
from harness.node import Node, pool_document
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import audit, disagreements, remains, store_of
from svc.attach.journal import Journal
from svc.datastore.api import Delete
from svc.model.endpoint import KIND
from svc.model.keys import ResourceQuery
from svc.netconf.installed import Installed, add_installed

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
WEB = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"
DUAL = {"assign_ipv6": "true"}

# Start an agent whose periodic tasks run often.
_FREQUENT_TASKS = "from svc.agent import main, server; server.PERIOD_SECONDS = 0.5; raise SystemExit(main.main())"


@pytest.fixture
def base_node(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """A node for each test, because the tests stop its agent."""
    with ClusterNode(tmp_path / "node", "node1", site) as node:
        yield node


def install(node: Node, config: dict[str, object]) -> None:
    """Record the network as `svcctl install` does."""
    path = node.directory / "net.conflist"
    path.write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [config]}))
    add_installed(node.state_dir, Installed("", str(node.bin_dir), (), str(path)))


def restart_without_journal(node: Node) -> None:
    """Restart the agent without the journal."""
    node.stop_agent()
    for path in node.state_dir.glob("journal.db*"):
        path.unlink()
    node.start_agent()


def remove_rows(node: Node) -> None:
    """Remove the rows while the agent runs, as another program may do."""
    with closing(sqlite3.connect(node.state_dir / "journal.db")) as journal:
        journal.execute("DELETE FROM attachments")
        journal.commit()


def rows(node: Node) -> list[tuple[str, str]]:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        return sorted((record.id.container_id, record.id.ifname) for record in journal.all())


def ids(*pods: Pod) -> list[tuple[str, str]]:
    return sorted((pod.container, pod.ifname) for pod in pods)


def delete_endpoints(node: Node) -> None:
    with store_of(node) as store:
        store.write([Delete(entry.key, entry.revision) for entry in store.list(ResourceQuery(KIND))])


@pytest.mark.parametrize("args", ["", WEB], ids=["bare", "pod"])
def test_rows_are_restored_at_the_start(own_pods: MakePod, node: Node, args: str) -> None:
    """The agent restores them before the first call."""
    first = own_pods(args=args)
    second = first.copy(ifname="eth1")
    install(node, dict(first.config))
    first.add()
    second.add()
    restart_without_journal(node)
    wait_until(lambda: rows(node) == ids(first, second))
    assert disagreements(node) == []
    first.delete()
    second.delete()
    assert remains(node) == []


def test_rows_of_a_cluster_are_restored_at_the_start(web: Pod, cluster_node: ClusterNode) -> None:
    install(cluster_node, dict(web.config))
    web.add()
    restart_without_journal(cluster_node)
    wait_until(lambda: rows(cluster_node) == ids(web))
    assert web.copy().add() == web.result
    web.delete()


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "unknown"])
def test_addresses_of_host_local_are_kept(own_pods: MakePod, node: Node, installed: bool) -> None:
    """At its start the agent restores rows of installed networks only. Otherwise the next call restores its own row."""
    offer(node)
    pod = own_pods(args=WEB, ipam=section(node, "10.71.0.0/24", routes=[{"dst": "10.0.0.0/8"}]))
    if installed:
        install(node, dict(pod.config))
    pod.add()
    before = held(node)
    restart_without_journal(node)
    if installed:
        wait_until(lambda: rows(node) == ids(pod))
    assert pod.copy().add() == pod.result
    assert pod.check().status == 0
    assert held(node) == before
    restart_without_journal(node)
    pod.delete()
    assert held(node) == {}
    assert pod.netns.links() == []
    assert data_dir(node).exists()


@pytest.mark.parametrize("args", ["", WEB], ids=["bare", "pod"])
def test_calls_change_only_their_own_interface_without_endpoints(own_pods: MakePod, node: Node, args: str) -> None:
    """A repeated ADD replaces its interface, and a DEL removes it. The other interface stays as it is."""
    first = own_pods(args=args, ipam=DUAL)
    second = first.copy(ifname="eth1")
    first.add()
    second.add()
    delete_endpoints(node)
    restart_without_journal(node)
    again = second.copy()
    again.add()
    assert again.check().status == 0
    assert set(first.addresses) <= set(audit(node).allocations)
    second.delete()
    assert first.netns.links() == ["eth0"]
    assert set(first.addresses) <= set(audit(node).allocations)
    first.delete()
    assert remains(node) == []


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_del_keeps_the_addresses_of_other_interfaces_in_the_sandbox(own_pods: MakePod, node: Node, agent: bool) -> None:
    """Another main plugin has made both interfaces."""
    first = own_pods(plugin="svc-ipam", type="bridge", ipam=DUAL)
    second = first.copy(ifname="eth1")
    for pod in (first, second):
        pod.add()
        pod.netns.ip("link", "add", pod.ifname, "type", "veth", "peer", "name", f"{pod.ifname}peer")
        for address in pod.addresses:
            pod.netns.ip("address", "add", address, "dev", pod.ifname)
    restart_without_journal(node)
    if not agent:
        node.stop_agent()
    second.delete()
    assert set(audit(node).allocations) == set(first.addresses)
    second.delete()
    assert set(audit(node).allocations) == set(first.addresses)
    first.delete()
    assert audit(node).entries() == []
    if not agent:
        node.start_agent()


def test_failed_add_releases_only_its_own_addresses(own_pods: MakePod, node: Node) -> None:
    """svc does not find the interface under its new name, and leaves it as it is."""
    pod = own_pods(ipam=DUAL)
    pod.add()
    node.netns.ip("link", "set", pod.host_name, "down")
    node.netns.ip("link", "set", pod.host_name, "name", "other")
    restart_without_journal(node)
    assert pod.copy().failed("ADD").output["code"] == 108
    assert pod.netns.links() == ["eth0"]
    assert set(audit(node).allocations) == set(pod.addresses)
    pod.delete()
    assert audit(node).entries() == []


@pytest.mark.parametrize("args", ["", WEB], ids=["bare", "pod"])
def test_calls_restore_rows_that_vanish_while_the_agent_runs(own_pods: MakePod, node: Node, args: str) -> None:
    """A repeated ADD, a CHECK and a GC restore all rows, and change no interface."""
    first = own_pods(args=args, ipam=DUAL)
    second = first.copy(ifname="eth1")
    first.add()
    second.add()
    valid = [{"containerID": pod.container, "ifname": pod.ifname} for pod in (first, second)]
    index = first.host_link["ifindex"]
    calls: dict[str, Callable[[], object]] = {
        "ADD": lambda: first.copy().add() == first.result,
        "CHECK": lambda: first.check().status == 0,
        "GC": lambda: (
            node.call("GC", {**first.config, "cni.dev/valid-attachments": valid}, container="", ifname="").status == 0
        ),
    }
    for verb, call in calls.items():
        remove_rows(node)
        assert call(), verb
        assert rows(node) == ids(first, second), verb
        assert first.host_link["ifindex"] == index, verb
        assert disagreements(node) == [], verb
    remove_rows(node)
    second.delete()
    assert first.check().status == 0
    assert disagreements(node) == []
    first.delete()
    assert remains(node) == []


def test_add_in_a_cluster_restores_a_vanished_row(web: Pod, cluster_node: ClusterNode) -> None:
    web.add()
    remove_rows(cluster_node)
    assert web.copy().add() == web.result
    assert rows(cluster_node) == ids(web)
    assert cluster_disagreements([cluster_node]) == []
    web.delete()


@pytest.mark.parametrize("args", ["", WEB], ids=["bare", "pod"])
def test_failed_add_without_the_row_keeps_the_address(own_pods: MakePod, node: Node, args: str) -> None:
    """The pool is full. Neither the ADD of the interface nor that of another one releases the address."""
    node.prepare("pool", "apply", "-f", "-", stdin=pool_document("single", "10.79.0.0/32", blockSize=32))
    pod = own_pods(args=args, ipam={"ipv4_pools": ["10.79.0.0/32"]})
    pod.add()
    remove_rows(node)
    assert pod.copy(ifname="eth1").failed("ADD").output["code"] == 101
    assert set(audit(node).allocations) == set(pod.addresses)
    assert pod.copy().add() == pod.result
    assert disagreements(node) == []
    pod.delete()
    assert remains(node) == []


def test_add_without_the_row_keeps_the_address_of_host_local(own_pods: MakePod, node: Node) -> None:
    """host-local refuses to assign a second address to the interface. This does not release the first one."""
    offer(node)
    pod = own_pods(args=WEB, ipam=section(node, "10.71.0.0/24", routes=[{"dst": "10.0.0.0/8"}]))
    pod.add()
    before, index = held(node), pod.host_link["ifindex"]
    remove_rows(node)
    assert pod.copy().add() == pod.result
    assert (held(node), pod.host_link["ifindex"]) == (before, index)
    pod.delete()
    assert held(node) == {}


def test_agent_restores_vanished_rows_without_a_call(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    install(node, dict(pod.config))
    node.stop_agent()
    node.start_agent(sys.executable, "-c", _FREQUENT_TASKS)
    pod.add()
    remove_rows(node)
    wait_until(lambda: rows(node) == ids(pod))
    assert pod.copy().add() == pod.result
    pod.delete()
    assert remains(node) == []


def test_next_sandbox_of_a_pod_replaces_an_interface_without_a_row(
    own_pods: MakePod, node: Node, sandbox: Callable[[], Netns]
) -> None:
    """svc restores the row of the previous sandbox, and that sandbox's DEL releases the address."""
    first = own_pods(args=WEB)
    first.add()
    remove_rows(node)
    second = own_pods(args=WEB)
    second.add()
    assert second.check().status == 0
    assert rows(node) == ids(first, second)
    first.delete()
    assert second.check().status == 0
    second.delete()
    assert remains(node) == []


def test_rows_that_cannot_be_restored_are_reported_once(web: Pod, cluster_node: ClusterNode) -> None:
    """The agent logs one message for all its attempts."""
    install(cluster_node, dict(web.config))
    web.add()
    cluster_node.stop_agent()
    for path in cluster_node.state_dir.glob("journal.db*"):
        path.unlink()
    with cluster_node.cut_off():
        cluster_node.start_agent(sys.executable, "-c", _FREQUENT_TASKS)
        told = "rows of the journal cannot be restored now"
        wait_until(lambda: told in cluster_node.log.read_text())
        time.sleep(5.0)
        assert cluster_node.log.read_text().count(told) == 1
    wait_until(lambda: rows(cluster_node) == ids(web))
    web.delete()

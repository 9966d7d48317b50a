"""A bare container in several networks with one interface name: the networks share the interface of the first one."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from harness.cluster_node import IMPATIENT, ClusterNode
from harness.cluster_node import remains as cluster_remains
from harness.datastores import EtcdSite, furnish, session
from harness.host_local import held, offer, section
from harness.netns import Netns
from harness.node import Called, Node
from harness.pod import Pod
from harness.state import State, audit, edit_journal, remains, store_of
from svc.attach.journal import Journal
from svc.attach.record import ADDING, AttachmentId, Record
from svc.datastore.api import Backend
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


def in_network(pod: Pod, name: str, **changes: object) -> Pod:
    """Return the same container, interface and sandbox in another network."""
    return pod.copy(config={**pod.config, "name": name, **changes})


def profiles_in(store: Backend) -> list[list[str]]:
    found = [entry.value for entry in store.list(ResourceQuery("WorkloadEndpoint"))]
    return [each.spec.get("profiles", []) for each in found if isinstance(each, Resource)]


def profiles(node: Node) -> list[list[str]]:
    """Return the profiles of each endpoint."""
    with store_of(node) as store:
        return profiles_in(store)


def row(node: Node, pod: Pod) -> Record:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        found = journal.get(AttachmentId(pod.config["name"], pod.container, pod.ifname))
    assert found is not None
    return found


def run_gc(pod: Pod, *valid: dict[str, str]) -> Called:
    config: dict[str, Any] = {"cni.dev/valid-attachments": list(valid)}
    return pod.call("GC", **config)


@pytest.fixture
def first(pods: MakePod) -> Pod:
    pod = pods()
    pod.add()
    return pod


@pytest.fixture
def second(first: Pod) -> Iterator[Pod]:
    """Attach the container to a second network, and detach it after the test."""
    pod = in_network(first, "other")
    pod.add()
    yield pod
    pod.delete()


def test_second_network_shares_the_interface(first: Pod, second: Pod) -> None:
    """Its ADD returns the first result, makes no interface and assigns no address."""
    assert second.result == first.result
    assert profiles(first.node) == [["net", "other"]]
    assert list(audit(first.node).handles) == [f"net.{first.container}"]
    assert first.check().status == second.check().status == 0


def test_del_of_the_second_network_keeps_the_interface(first: Pod, second: Pod) -> None:
    """The runtime may repeat the DEL."""
    for _ in range(2):
        second.delete()
        assert profiles(first.node) == [["net"]]
        assert first.check().status == 0
        assert first.netns.links() == ["eth0"]
    assert second.failed("CHECK", prevResult=first.result).output["code"] == 3


def test_repeated_adds_change_nothing(first: Pod, second: Pod) -> None:
    before = State.read(first.node)
    assert second.add() == first.result
    assert first.add() == first.result
    assert State.read(first.node) == before


def test_third_network_shares_the_interface(first: Pod, second: Pod) -> None:
    third = in_network(first, "third")
    assert third.add() == first.result
    second.delete()
    assert profiles(first.node) == [["net", "third"]]
    assert third.check().status == 0
    third.delete()


def test_second_network_needs_no_address(first: Pod) -> None:
    """The second network has no pool that could assign one."""
    second = in_network(first, "other", ipam={"type": "svc-ipam", "ipv4_pools": ["nowhere"]})
    assert second.add() == first.result
    second.delete()


def test_second_network_needs_no_address_of_another_plugin(first: Pod, pods: MakePod) -> None:
    """If the plugin assigns one, svc releases it. If the plugin has none left, the ADD succeeds as well."""
    offer(first.node)
    ipam = section(first.node, "10.72.0.0/30")  # one address besides that of the gateway
    second = in_network(first, "other", ipam=ipam)
    assert second.add() == first.result
    assert held(first.node, "other") == {}
    second.delete()
    last = pods(name="other", ipam=ipam)
    last.add()
    assert second.add() == first.result
    assert profiles(first.node).count(["net", "other"]) == 1
    second.delete()
    assert first.check().status == last.check().status == 0
    last.delete()
    assert held(first.node, "other") == {}


def test_request_for_an_address_that_the_interface_lacks_fails(first: Pod) -> None:
    other = in_network(first, "other")
    other.args = "IP=10.65.99.99"
    assert other.failed("ADD").output["code"] == 108
    other.args = f"IP={first.addresses[0]}"
    assert other.add() == first.result
    other.delete()
    assert profiles(first.node) == [["net"]]


def test_del_of_the_first_network_removes_the_interface(first: Pod, second: Pod) -> None:
    """In the second network CHECK then fails, a repeated ADD makes its own interface, and DEL succeeds."""
    first.delete()
    assert profiles(first.node) == []
    found = second.check()
    assert found.output["code"] == 107
    assert "the network that 'eth0' was made for has left it" in found.output["details"]
    second.add()
    assert profiles(first.node) == [["other"]]
    assert second.check().status == 0
    second.delete()
    assert remains(first.node) == []


def test_add_restores_the_network_in_an_endpoint_that_lost_it(first: Pod, second: Pod) -> None:
    first.netns.run("ip", "link", "delete", "eth0")
    first.add()
    assert profiles(first.node) == [["net"]]
    assert "does not name network other" in second.check().output["details"]
    second.add()
    assert profiles(first.node) == [["net", "other"]]


def test_gc_of_the_second_network_keeps_the_interface(first: Pod, second: Pod) -> None:
    collected = run_gc(second)
    assert collected.status == 0, collected
    assert profiles(first.node) == [["net"]]
    assert first.check().status == 0


def test_gc_keeps_valid_attachments_of_both_networks(first: Pod, second: Pod) -> None:
    for pod in (first, second):
        assert run_gc(pod, {"containerID": first.container, "ifname": "eth0"}).status == 0
    assert first.check().status == second.check().status == 0


@pytest.mark.parametrize("endpoint_written", [False, True])
def test_interrupted_add_of_the_second_network_is_rolled_back(own_pods: MakePod, node: Node, endpoint_written: bool) -> None:
    """The next agent rolls it back, and keeps the interface of the first network."""
    first = own_pods()
    first.add()
    second = in_network(first, "other")
    second.add()
    unfinished = replace(row(node, second), state=ADDING, result=None)
    if not endpoint_written:
        second.delete()
    node.kill_agent()
    edit_journal(node, unfinished)
    node.start_agent()
    assert profiles(node) == [["net"]]
    assert first.check().status == 0
    assert [record.id.network for record in audit(node).records] == ["net"]


def test_one_shot_calls_share_an_interface(own_pods: MakePod, node: Node) -> None:
    node.stop_agent()
    first = own_pods()
    first.add()
    second = in_network(first, "other")
    assert second.add() == first.result
    assert profiles(node) == [["net", "other"]]
    second.delete()
    assert first.check().status == 0
    first.delete()
    assert remains(node) == []


def test_del_of_the_second_network_without_its_row_keeps_the_interface(own_pods: MakePod, node: Node) -> None:
    first = own_pods()
    first.add()
    second = in_network(first, "other")
    second.add()
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        journal.remove(row(node, second))
    second.delete()
    assert profiles(node) == [["net"]]
    assert first.check().status == 0


def test_del_of_the_second_network_without_any_row_keeps_the_interface(own_pods: MakePod, node: Node) -> None:
    """The endpoint names the network that made the interface."""
    first = own_pods()
    first.add()
    second = in_network(first, "other")
    second.add()
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        for pod in (first, second):
            journal.remove(row(node, pod))
    second.delete()
    assert profiles(node) == [["net"]]
    assert first.netns.links() == ["eth0"]
    first.delete()
    assert first.netns.links() == []
    assert remains(node) == []


def test_del_without_the_shared_datastore_leaves_a_pending_release(
    etcd_site: EtcdSite, tmp_path_factory: pytest.TempPathFactory, sandbox: Callable[[], Netns]
) -> None:
    """DEL succeeds, and the endpoint still names the network until the datastore answers."""
    furnish(etcd_site, "node1")
    try:
        with ClusterNode(tmp_path_factory.mktemp("node") / "node", "node1", etcd_site, agent_program=IMPATIENT) as node:
            first = node.pod(sandbox())
            first.add()
            second = in_network(first, "other")
            assert second.add() == first.result
            with node.cut_off():
                second.delete()
            with session(etcd_site) as store:
                assert profiles_in(store) == [["net", "other"]]
            node.kill_agent()
            node.start_agent()
            with session(etcd_site) as store:
                assert profiles_in(store) == [["net"]]
            first.delete()
            assert cluster_remains([node]) == []
            assert node.stop_agent() == 0
    finally:
        etcd_site.clear()

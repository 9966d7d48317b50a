"""A bare container in several networks under one interface name: they share the interface that the first of them made."""

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
    """The same container, interface and sandbox in another network."""
    return pod.copy(config={**pod.config, "name": name, **changes})


def profiles_in(store: Backend) -> list[list[str]]:
    found = [entry.value for entry in store.list(ResourceQuery("WorkloadEndpoint"))]
    return [each.spec.get("profiles", []) for each in found if isinstance(each, Resource)]


def profiles(node: Node) -> list[list[str]]:
    """Of each endpoint."""
    with store_of(node) as store:
        return profiles_in(store)


def row(node: Node, pod: Pod) -> Record:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        found = journal.get(AttachmentId(pod.config["name"], pod.container, pod.ifname))
    assert found is not None
    return found


def collect(pod: Pod, *valid: dict[str, str]) -> Called:
    config: dict[str, Any] = {"cni.dev/valid-attachments": list(valid)}
    return pod.call("GC", **config)


@pytest.fixture
def first(pods: MakePod) -> Pod:
    pod = pods()
    pod.add()
    return pod


@pytest.fixture
def second(first: Pod) -> Iterator[Pod]:
    """It has joined; at the end of every test it leaves."""
    pod = in_network(first, "other")
    pod.add()
    yield pod
    pod.delete()


def test_second_network_joins(first: Pod, second: Pod) -> None:
    """With the first one's result; nothing is wired, and no address is taken."""
    assert second.result == first.result
    assert profiles(first.node) == [["net", "other"]]
    assert list(audit(first.node).handles) == [f"net.{first.container}"]
    assert first.check().status == second.check().status == 0


def test_second_network_leaves(first: Pod, second: Pod) -> None:
    """As often as the runtime likes; the first one stays as it is."""
    for _ in range(2):
        second.delete()
        assert profiles(first.node) == [["net"]]
        assert first.check().status == 0
        assert first.netns.links() == ["eth0"]
    assert second.failed("CHECK", prevResult=first.result).output["code"] == 3


def test_joining_again_changes_nothing(first: Pod, second: Pod) -> None:
    before = State.read(first.node)
    assert second.add() == first.result
    assert first.add() == first.result
    assert State.read(first.node) == before


def test_third_network_joins_too(first: Pod, second: Pod) -> None:
    third = in_network(first, "third")
    assert third.add() == first.result
    second.delete()
    assert profiles(first.node) == [["net", "third"]]
    assert third.check().status == 0
    third.delete()


def test_no_address_is_needed_to_join(first: Pod) -> None:
    """Not even one that the second network could have."""
    second = in_network(first, "other", ipam={"type": "svc-ipam", "ipv4_pools": ["nowhere"]})
    assert second.add() == first.result
    second.delete()


def test_no_address_of_another_plugin_is_needed_to_join(first: Pod, pods: MakePod) -> None:
    """Neither where it has one, which goes back, nor where it has none left."""
    offer(first.node)
    ipam = section(first.node, "10.72.0.0/30")  # one beside the gateway's
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


def test_address_that_the_interface_lacks_cannot_be_asked_for(first: Pod) -> None:
    other = in_network(first, "other")
    other.args = "IP=10.65.99.99"
    assert other.failed("ADD").output["code"] == 108
    other.args = f"IP={first.addresses[0]}"
    assert other.add() == first.result
    other.delete()
    assert profiles(first.node) == [["net"]]


def test_first_network_takes_the_interface_with_it(first: Pod, second: Pod) -> None:
    """The second one's CHECK tells, its ADD gets an interface of its own, its DEL finds nothing to do."""
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


def test_endpoint_that_lost_the_network_is_told_and_mended(first: Pod, second: Pod) -> None:
    first.netns.run("ip", "link", "delete", "eth0")
    first.add()
    assert profiles(first.node) == [["net"]]
    assert "does not name network other" in second.check().output["details"]
    second.add()
    assert profiles(first.node) == [["net", "other"]]


def test_collection_leaves_the_interface(first: Pod, second: Pod) -> None:
    collected = collect(second)
    assert collected.status == 0, collected
    assert profiles(first.node) == [["net"]]
    assert first.check().status == 0


def test_collection_of_the_first_network_spares_the_second(first: Pod, second: Pod) -> None:
    for pod in (first, second):
        assert collect(pod, {"containerID": first.container, "ifname": "eth0"}).status == 0
    assert first.check().status == second.check().status == 0


@pytest.mark.parametrize("endpoint_written", [False, True])
def test_join_that_was_killed_is_taken_back(own_pods: MakePod, node: Node, endpoint_written: bool) -> None:
    """At the next start; the interface is not its."""
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


def test_one_shot_calls_join_and_leave(own_pods: MakePod, node: Node) -> None:
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


def test_lost_row_of_the_second_network_spares_the_interface(own_pods: MakePod, node: Node) -> None:
    first = own_pods()
    first.add()
    second = in_network(first, "other")
    second.add()
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        journal.remove(row(node, second))
    second.delete()
    assert profiles(node) == [["net"]]
    assert first.check().status == 0


def test_lost_journal_spares_the_interface(own_pods: MakePod, node: Node) -> None:
    """The endpoint tells which network made it."""
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

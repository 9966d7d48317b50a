"""ADD of a container or pod that already has an attachment, an older sandbox, another interface or another network."""

import ipaddress
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from harness.netns import Netns, run
from harness.node import Node, agent_with
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import State, audit, disagreements, pod_links, remains
from svc.attach import store_identity

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

WEB = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"


def delete_rows(node: Node, like: str) -> None:
    """Delete these rows, as if the store had been restored from a copy without them."""
    with closing(sqlite3.connect(node.state_dir / "store.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM entries WHERE path LIKE ?", (like,))


def pings(source: Netns, address: str) -> bool:
    return source.run("ping", "-c", "1", "-W", "1", address, check=False).returncode == 0


def test_identical_add_returns_the_recorded_result_and_changes_nothing(pods: MakePod, shared_node: Node) -> None:
    pod = pods(ipam={"assign_ipv6": "true"})
    first = pod.call("ADD")
    before = State.read(shared_node)
    second = pod.call("ADD")
    assert (second.status, second.stdout) == (0, first.stdout)
    assert State.read(shared_node) == before


def test_identical_add_logs_that_it_requests_other_families(pods: MakePod) -> None:
    """The attachment keeps its addresses, because the pod is running."""
    pod = pods()
    first = pod.call("ADD")
    second = pod.call("ADD", ipam={"type": "svc-ipam", "assign_ipv6": "true"})
    assert second.output["ips"] == first.output["ips"]
    assert "the attachment was made for IPv4, and this ADD asks for IPv4 and IPv6" in second.stderr
    assert "asks for" not in pod.call("ADD").stderr


def test_identical_add_answers_in_the_requested_version(pods: MakePod) -> None:
    pod = pods(cniVersion="0.4.0")
    old = pod.add()
    new = pod.add(cniVersion="1.1.0")
    assert (old["cniVersion"], new["cniVersion"]) == ("0.4.0", "1.1.0")
    assert [ip["address"] for ip in new["ips"]] == [ip["address"] for ip in old["ips"]]
    assert (old["interfaces"][1].get("mtu"), new["interfaces"][1]["mtu"]) == (None, 1500)


def test_new_sandbox_of_the_same_container_is_attached(pods: MakePod, sandbox: Callable[[], Netns]) -> None:
    pod = pods()
    pod.add()
    (address,), old = pod.addresses, pod.netns
    pod.netns = sandbox()
    pod.add()
    assert old.links() == []
    assert pod.netns.addresses("eth0") == [f"{pod.addresses[0]}/32"]
    assert pod.addresses != [address]
    assert audit(pod.node).allocations == {pod.addresses[0]: f"net.{pod.container}"}
    assert disagreements(pod.node) == []


def test_new_sandbox_at_the_old_path_is_attached(pods: MakePod) -> None:
    """The path stays the same, but it leads to another namespace."""
    pod = pods()
    pod.add()
    pod.netns.delete()
    run("ip", "netns", "add", pod.netns.name)
    pod.add()
    assert pod.netns.addresses("eth0") == [f"{pod.addresses[0]}/32"]
    assert pings(pod.node.netns, pod.addresses[0])
    assert disagreements(pod.node) == []


def test_repeated_add_recreates_a_deleted_interface(pods: MakePod) -> None:
    pod = pods()
    pod.add()
    pod.netns.run("ip", "link", "delete", "eth0")
    pod.add()
    assert pings(pod.node.netns, pod.addresses[0])
    assert disagreements(pod.node) == []


def test_repeated_add_recreates_a_deleted_endpoint(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    delete_rows(shared_node, "/svc/resources/%/workloadendpoints/%")
    pod.add()
    assert disagreements(shared_node) == []
    assert pings(shared_node.netns, pod.addresses[0])


@pytest.mark.parametrize("lost", ["all of it", "addresses"])
def test_repeated_add_assigns_addresses_again_in_a_wiped_store(own_pods: MakePod, node: Node, lost: str) -> None:
    pod = own_pods(ipam={"assign_ipv6": "true"})
    pod.add()
    wipe(node) if lost == "all of it" else delete_rows(node, "/svc/ipam/%")
    pod.add()
    assert audit(node).allocations == dict.fromkeys(pod.addresses, f"net.{pod.container}")
    assert disagreements(node) == []
    assert pings(node.netns, pod.addresses[1])


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "no agent"])
def test_addresses_of_running_pods_are_not_assigned_from_a_wiped_store(own_pods: MakePod, node: Node, agent: bool) -> None:
    """The kernel still has their routes, so ADDs get other addresses. svc restores the records of the running pods."""
    running = [own_pods() for _ in range(6)]
    for pod in running:
        pod.add()
    if not agent:
        node.stop_agent()
    wipe(node)
    others = [own_pods() for _ in range(3)]
    calls = [pod.call("ADD") for pod in others]
    assert [call.status for call in calls] == [0] * len(others), calls
    assert f"container {running[0].container!r} (eth0) of this node has it: another address is assigned" in calls[0].stderr
    assert len({call.output["ips"][0]["address"] for call in calls} | {pod.addresses[0] for pod in running}) == 9
    wait_until(lambda: disagreements(node) == [])
    assert pings(running[0].netns, calls[0].output["ips"][0]["address"].partition("/")[0])


def test_address_with_the_route_of_another_program_is_skipped(own_pods: MakePod, node: Node) -> None:
    """Later ADDs skip it as well. An ADD that requests this address is refused."""
    first, second, third = own_pods(), own_pods(), own_pods()
    first.add()
    (address,) = first.addresses
    first.delete()
    neighbours = [str(ipaddress.ip_address(address) + number) for number in range(3)]
    for each in neighbours:
        node.netns.run("ip", "route", "add", each, "dev", "uplink")
    second.add()
    assert not {*second.addresses} & {*neighbours}
    assert "the host has a route to it" not in third.call("ADD").stderr
    refused = own_pods(args=f"IP={neighbours[0]}").failed("ADD").output
    assert (refused["code"], "IPReservation" in refused["details"]) == (106, True)
    assert disagreements(node) == []


def rename_in_sandbox(pod: Pod, _: Netns) -> None:
    pod.netns.run("ip", "link", "set", "eth0", "down")
    pod.netns.run("ip", "link", "set", "eth0", "name", "other0")


def flush_addresses(pod: Pod, _: Netns) -> None:
    pod.netns.run("ip", "address", "flush", "dev", "eth0")


def delete_route(pod: Pod, _: Netns) -> None:
    pod.node.netns.run("ip", "route", "delete", pod.addresses[0])


def move_inside(pod: Pod, elsewhere: Netns) -> None:
    pod.netns.run("ip", "link", "set", "eth0", "netns", elsewhere.name)


def move_outside(pod: Pod, elsewhere: Netns) -> None:
    pod.node.netns.run("ip", "link", "set", pod.host_name, "netns", elsewhere.name)


CHANGES = [rename_in_sandbox, flush_addresses, delete_route, move_inside, move_outside]


@pytest.mark.parametrize("change", CHANGES)
def test_repeated_add_replaces_an_interface_that_was_changed_by_hand(
    own_pods: MakePod, node: Node, sandbox: Callable[[], Netns], change: Callable[[Pod, Netns], None]
) -> None:
    """A repeated ADD does not report an interface, address or route that does not exist."""
    pod, elsewhere = own_pods(), sandbox()
    pod.add()
    change(pod, elsewhere)
    pod.add()
    assert pod.check().status == 0
    assert pings(node.netns, pod.addresses[0])
    assert disagreements(node) == []
    assert elsewhere.links() == []


@pytest.mark.parametrize("change", [move_inside, move_outside])
def test_del_removes_both_sides_if_one_was_moved(
    own_pods: MakePod, node: Node, sandbox: Callable[[], Netns], change: Callable[[Pod, Netns], None]
) -> None:
    pod, elsewhere = own_pods(), sandbox()
    pod.add()
    change(pod, elsewhere)
    pod.delete()
    assert (pod.netns.links(), elsewhere.links(), list(pod_links(node))) == ([], [], [])
    assert remains(node) == []


def wipe(node: Node) -> None:
    delete_rows(node, "/svc/ipam/%")
    delete_rows(node, "/svc/resources/%/workloadendpoints/%")


def test_agent_uses_a_store_file_that_was_replaced(own_pods: MakePod, node: Node) -> None:
    """An administrator moves a damaged store away, and svcctl creates a new one in its place."""
    node.stop_agent()
    node.start_agent(*agent_with({f"{store_identity.__name__}.HOLD_SECONDS": 1.0}))
    first, second = own_pods(), own_pods()
    first.add()
    for file in node.state_dir.glob("store.db*"):
        file.rename(file.with_name(f"old-{file.name}"))
    node.apply_pool("fresh", "10.66.0.0/24")
    second.add()
    assert second.addresses[0].startswith("10.66.0.")
    first.add()
    assert first.addresses[0].startswith("10.66.0.")
    assert disagreements(node) == []


# several interfaces and networks


def test_second_interface_is_a_separate_attachment(pods: MakePod) -> None:
    first = pods()
    first.add()
    second = first.copy(ifname="eth1")
    second.add()
    assert first.addresses != second.addresses
    assert first.netns.addresses("eth1") == [f"{second.addresses[0]}/32"]
    assert disagreements(first.node) == []
    second.delete()
    assert first.netns.links() == ["eth0"]
    assert first.check().status == 0
    assert audit(first.node).allocations == {first.addresses[0]: f"net.{first.container}"}
    assert pings(first.node.netns, first.addresses[0])


def test_first_interface_can_be_deleted_before_the_second(pods: MakePod) -> None:
    first = pods()
    first.add()
    second = first.copy(ifname="eth1")
    second.add()
    first.delete()
    assert second.netns.links() == ["eth1"]
    assert second.check().status == 0, second.check()
    second.delete()


def test_second_network_is_a_separate_attachment(pods: MakePod) -> None:
    first = pods()
    first.add()
    second = first.copy(ifname="net1", config=first.config | {"name": "other"})
    second.add()
    assert set(audit(first.node).handles) == {f"net.{first.container}", f"other.{first.container}"}
    second.delete()
    assert first.check().status == 0
    assert pings(first.node.netns, first.addresses[0])


def test_second_network_of_a_pod_cannot_have_the_same_interface(pods: MakePod) -> None:
    """When the runtime calls DEL after that failure, the first network does not change."""
    first = pods(args=WEB)
    first.add()
    second = first.copy(config=first.config | {"name": "other"})
    before = State.read(first.node)
    assert second.failed("ADD").output["code"] == 108
    assert unchanged_except_for_revisions(first.node, before)
    second.delete()
    assert first.check().status == 0, first.check()
    assert pings(first.node.netns, first.addresses[0])
    assert disagreements(first.node) == []


def unchanged_except_for_revisions(node: Node, before: State) -> bool:
    """Compare all but the datastore: an address that was assigned and released changes the sequence number of its block."""
    now = State.read(node)
    return (now.journal, now.links, now.addresses, now.routes) == (
        before.journal,
        before.links,
        before.addresses,
        before.routes,
    )


# an older sandbox of the same pod


def test_new_sandbox_of_a_pod_replaces_the_old_one(pods: MakePod) -> None:
    old = pods(args=WEB)
    old.add()
    new = pods(args=WEB)
    new.add()
    assert new.host_name == old.host_name
    assert list(pod_links(new.node)) == [new.host_name]
    assert pings(new.node.netns, new.addresses[0])


def test_late_del_of_the_old_sandbox_does_not_change_the_new_one(pods: MakePod) -> None:
    old, new = pods(args=WEB), pods(args=WEB)
    old.add()
    new.add()
    old.delete()
    assert new.check().status == 0, new.check()
    assert pings(new.node.netns, new.addresses[0])
    assert disagreements(new.node) == []


def delete_journal_entries(node: Node) -> None:
    with closing(sqlite3.connect(node.state_dir / "journal.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM attachments")


def test_late_del_keeps_the_new_sandbox_if_the_journal_has_lost_both(own_pods: MakePod, node: Node) -> None:
    """The endpoint in the datastore names the container that has the interface, which is named after the pod."""
    old, new = own_pods(args=WEB), own_pods(args=WEB)
    old.add()
    new.add()
    delete_journal_entries(node)
    old.delete()
    assert list(pod_links(node)) == [new.host_name]
    assert pings(node.netns, new.addresses[0])
    assert list(audit(node).allocations) == new.addresses
    new.delete()
    assert remains(node) == []


def test_late_del_keeps_the_new_sandbox_if_the_journal_has_lost_the_old_one(pods: MakePod, shared_node: Node) -> None:
    old, new = pods(args=WEB), pods(args=WEB)
    old.add()
    delete_journal_entries(shared_node)
    new.add()
    old.delete()
    assert new.check().status == 0, new.check()
    assert pings(shared_node.netns, new.addresses[0])
    assert disagreements(shared_node) == []


@pytest.mark.parametrize("lost", [False, True], ids=["in the journal", "not in the journal"])
def test_next_container_of_a_pod_uses_the_same_sandbox(own_pods: MakePod, node: Node, lost: bool) -> None:
    """svc replaces interface and address. The late DEL of the earlier container releases only its own address."""
    old = own_pods(args=WEB)
    old.add()
    if lost:
        delete_journal_entries(node)
    new = old.copy(container="next")
    new.add()
    assert new.addresses != old.addresses
    assert new.netns.addresses("eth0") == [f"{new.addresses[0]}/32"]
    assert list(pod_links(node)) == [new.host_name]
    old.call("DEL", netns="")
    assert new.check().status == 0, new.check()
    assert pings(node.netns, new.addresses[0])
    assert audit(node).allocations == {new.addresses[0]: "net.next"}
    assert disagreements(node) == []


def test_interface_without_a_host_side_of_svc_is_not_replaced(own_pods: MakePod, node: Node) -> None:
    old = own_pods(args=WEB)
    old.add()
    node.netns.run("ip", "link", "set", old.host_name, "name", "other0")
    assert old.copy(container="next").failed("ADD").output["code"] == 108
    assert old.netns.links() == ["eth0"]
    assert pings(node.netns, old.addresses[0])


# a host interface that was renamed


def test_repeated_add_replaces_a_renamed_host_interface(own_pods: MakePod, node: Node) -> None:
    pod = own_pods(args=WEB)
    pod.add()
    name = pod.host_name
    node.netns.run("ip", "link", "set", name, "name", "renamed0")
    pod.add()
    assert list(pod_links(node)) == [name]
    assert pod.check().status == 0, pod.check()
    assert pings(node.netns, pod.addresses[0])
    assert disagreements(node) == []


def test_del_removes_a_renamed_host_interface(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    node.netns.run("ip", "link", "set", pod.host_name, "name", "renamed0")
    pod.delete()
    assert (pod.netns.links(), node.netns.links()) == ([], ["uplink"])
    assert remains(node) == []

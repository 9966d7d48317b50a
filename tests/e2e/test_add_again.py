"""ADD where something is there already: the same attachment, an older sandbox, another interface, another network."""

import ipaddress
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from harness.netns import Netns, run
from harness.node import Node, agent_with
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import State, audit, faults, pod_links, remains
from svc.attach import store_identity

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

WEB = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"


def forget_rows(node: Node, like: str) -> None:
    """As if the store had been restored from a copy without them."""
    with closing(sqlite3.connect(node.state_dir / "store.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM entries WHERE path LIKE ?", (like,))


def pings(source: Netns, address: str) -> bool:
    return source.run("ping", "-c", "1", "-W", "1", address, check=False).returncode == 0


def test_identical_add_returns_the_recorded_result_and_redoes_nothing(pods: MakePod, shared_node: Node) -> None:
    pod = pods(ipam={"assign_ipv6": "true"})
    first = pod.call("ADD")
    before = State.read(shared_node)
    second = pod.call("ADD")
    assert (second.status, second.stdout) == (0, first.stdout)
    assert State.read(shared_node) == before


def test_other_families_than_the_standing_attachment_has_are_told(pods: MakePod) -> None:
    """It keeps its addresses: the pod runs."""
    pod = pods()
    first = pod.call("ADD")
    second = pod.call("ADD", ipam={"type": "svc-ipam", "assign_ipv6": "true"})
    assert second.output["ips"] == first.output["ips"]
    assert "the attachment was made for IPv4, and this ADD asks for IPv4 and IPv6" in second.stderr
    assert "asks for" not in pod.call("ADD").stderr


def test_identical_add_answers_in_the_version_asked_for(pods: MakePod) -> None:
    pod = pods(cniVersion="0.4.0")
    old = pod.add()
    new = pod.add(cniVersion="1.1.0")
    assert (old["cniVersion"], new["cniVersion"]) == ("0.4.0", "1.1.0")
    assert [ip["address"] for ip in new["ips"]] == [ip["address"] for ip in old["ips"]]
    assert (old["interfaces"][1].get("mtu"), new["interfaces"][1]["mtu"]) == (None, 1500)


def test_new_sandbox_behind_the_same_container_is_attached_afresh(pods: MakePod, sandbox: Callable[[], Netns]) -> None:
    pod = pods()
    pod.add()
    (address,), old = pod.addresses, pod.netns
    pod.netns = sandbox()
    pod.add()
    assert old.links() == []
    assert pod.netns.addresses("eth0") == [f"{pod.addresses[0]}/32"]
    assert pod.addresses != [address]
    assert audit(pod.node).allocations == {pod.addresses[0]: f"net.{pod.container}"}
    assert faults(pod.node) == []


def test_new_sandbox_under_the_old_path_is_attached_afresh(pods: MakePod) -> None:
    """The path is the same, the namespace is not."""
    pod = pods()
    pod.add()
    pod.netns.delete()
    run("ip", "netns", "add", pod.netns.name)
    pod.add()
    assert pod.netns.addresses("eth0") == [f"{pod.addresses[0]}/32"]
    assert pings(pod.node.netns, pod.addresses[0])
    assert faults(pod.node) == []


def test_interface_lost_behind_our_back_is_made_anew(pods: MakePod) -> None:
    pod = pods()
    pod.add()
    pod.netns.run("ip", "link", "delete", "eth0")
    pod.add()
    assert pings(pod.node.netns, pod.addresses[0])
    assert faults(pod.node) == []


def test_endpoint_lost_behind_our_back_makes_the_add_a_fresh_one(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    forget_rows(shared_node, "/svc/resources/%/workloadendpoints/%")
    pod.add()
    assert faults(shared_node) == []
    assert pings(shared_node.netns, pod.addresses[0])


@pytest.mark.parametrize("lost", ["all of it", "addresses"])
def test_store_wiped_behind_the_agent_gets_the_addresses_anew(own_pods: MakePod, node: Node, lost: str) -> None:
    pod = own_pods(ipam={"assign_ipv6": "true"})
    pod.add()
    wipe(node) if lost == "all of it" else forget_rows(node, "/svc/ipam/%")
    pod.add()
    assert audit(node).allocations == dict.fromkeys(pod.addresses, f"net.{pod.container}")
    assert faults(node) == []
    assert pings(node.netns, pod.addresses[1])


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "no agent"])
def test_addresses_that_a_wiped_store_forgot_are_not_taken_from_running_pods(
    own_pods: MakePod, node: Node, agent: bool
) -> None:
    """The kernel knows them still: ADDs get others, and the running pods get their records back."""
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
    wait_until(lambda: faults(node) == [])
    assert pings(running[0].netns, calls[0].output["ips"][0]["address"].partition("/")[0])


def test_address_with_a_foreign_route_is_passed(own_pods: MakePod, node: Node) -> None:
    """By the ADDs that follow, too; one that asks for this very address is refused."""
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
    assert faults(node) == []


def lose_in_sandbox(pod: Pod, _: Netns) -> None:
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


CHANGES = [lose_in_sandbox, flush_addresses, delete_route, move_inside, move_outside]


@pytest.mark.parametrize("change", CHANGES)
def test_interface_that_was_changed_by_hand_is_made_anew(
    own_pods: MakePod, node: Node, sandbox: Callable[[], Netns], change: Callable[[Pod, Netns], None]
) -> None:
    """A repeated ADD never reports what is not there."""
    pod, elsewhere = own_pods(), sandbox()
    pod.add()
    change(pod, elsewhere)
    pod.add()
    assert pod.check().status == 0
    assert pings(node.netns, pod.addresses[0])
    assert faults(node) == []
    assert elsewhere.links() == []


@pytest.mark.parametrize("change", [move_inside, move_outside])
def test_del_removes_both_sides_wherever_one_was_moved(
    own_pods: MakePod, node: Node, sandbox: Callable[[], Netns], change: Callable[[Pod, Netns], None]
) -> None:
    pod, elsewhere = own_pods(), sandbox()
    pod.add()
    change(pod, elsewhere)
    pod.delete()
    assert (pod.netns.links(), elsewhere.links(), list(pod_links(node))) == ([], [], [])
    assert remains(node) == []


def wipe(node: Node) -> None:
    forget_rows(node, "/svc/ipam/%")
    forget_rows(node, "/svc/resources/%/workloadendpoints/%")


def test_store_file_replaced_behind_the_agent_is_the_one_that_counts(own_pods: MakePod, node: Node) -> None:
    """An administrator moves a damaged store away, and svcctl makes a fresh one in its place."""
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
    assert faults(node) == []


# several interfaces and networks


def test_second_interface_is_an_attachment_of_its_own(pods: MakePod) -> None:
    first = pods()
    first.add()
    second = first.copy(ifname="eth1")
    second.add()
    assert first.addresses != second.addresses
    assert first.netns.addresses("eth1") == [f"{second.addresses[0]}/32"]
    assert faults(first.node) == []
    second.delete()
    assert first.netns.links() == ["eth0"]
    assert first.check().status == 0
    assert audit(first.node).allocations == {first.addresses[0]: f"net.{first.container}"}
    assert pings(first.node.netns, first.addresses[0])


def test_first_interface_may_go_before_the_second(pods: MakePod) -> None:
    first = pods()
    first.add()
    second = first.copy(ifname="eth1")
    second.add()
    first.delete()
    assert second.netns.links() == ["eth1"]
    assert second.check().status == 0, second.check()
    second.delete()


def test_second_network_is_an_attachment_of_its_own(pods: MakePod) -> None:
    first = pods()
    first.add()
    second = first.copy(ifname="net1", config=first.config | {"name": "other"})
    second.add()
    assert set(audit(first.node).handles) == {f"net.{first.container}", f"other.{first.container}"}
    second.delete()
    assert first.check().status == 0
    assert pings(first.node.netns, first.addresses[0])


def test_second_network_of_a_pod_cannot_have_the_same_interface(pods: MakePod) -> None:
    """And when the runtime cleans up after that failure, the first network stays as it is."""
    first = pods(args=WEB)
    first.add()
    second = first.copy(config=first.config | {"name": "other"})
    before = State.read(first.node)
    assert second.failed("ADD").output["code"] == 108
    assert unchanged_but_for_revisions(first.node, before)
    second.delete()
    assert first.check().status == 0, first.check()
    assert pings(first.node.netns, first.addresses[0])
    assert faults(first.node) == []


def unchanged_but_for_revisions(node: Node, before: State) -> bool:
    """An address that was taken and freed again leaves its block with another sequence."""
    now = State.read(node)
    return (now.journal, now.links, now.addresses, now.routes) == (
        before.journal,
        before.links,
        before.addresses,
        before.routes,
    )


# an older sandbox of the same pod


def test_stale_sandbox_of_a_pod_makes_room_for_the_new_one(pods: MakePod) -> None:
    old = pods(args=WEB)
    old.add()
    new = pods(args=WEB)
    new.add()
    assert new.host_name == old.host_name
    assert list(pod_links(new.node)) == [new.host_name]
    assert pings(new.node.netns, new.addresses[0])


def test_late_del_of_a_stale_sandbox_does_not_hurt_the_new_one(pods: MakePod) -> None:
    old, new = pods(args=WEB), pods(args=WEB)
    old.add()
    new.add()
    old.delete()
    assert new.check().status == 0, new.check()
    assert pings(new.node.netns, new.addresses[0])
    assert faults(new.node) == []


def forget_attachments(node: Node) -> None:
    with closing(sqlite3.connect(node.state_dir / "journal.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM attachments")


def test_late_del_spares_the_new_sandbox_although_the_journal_forgot_both(own_pods: MakePod, node: Node) -> None:
    """The datastore says whose the endpoint is, and with it the interface that is named after the pod."""
    old, new = own_pods(args=WEB), own_pods(args=WEB)
    old.add()
    new.add()
    forget_attachments(node)
    old.delete()
    assert list(pod_links(node)) == [new.host_name]
    assert pings(node.netns, new.addresses[0])
    assert list(audit(node).allocations) == new.addresses
    new.delete()
    assert remains(node) == []


def test_late_del_spares_the_new_sandbox_although_the_journal_forgot_the_old_one(pods: MakePod, shared_node: Node) -> None:
    old, new = pods(args=WEB), pods(args=WEB)
    old.add()
    forget_attachments(shared_node)
    new.add()
    old.delete()
    assert new.check().status == 0, new.check()
    assert pings(shared_node.netns, new.addresses[0])
    assert faults(shared_node) == []


@pytest.mark.parametrize("forgotten", [False, True], ids=["known", "forgotten"])
def test_next_container_of_a_pod_takes_over_the_sandbox(own_pods: MakePod, node: Node, forgotten: bool) -> None:
    """Interface and address are replaced; the earlier container's late DEL frees its address and nothing else."""
    old = own_pods(args=WEB)
    old.add()
    if forgotten:
        forget_attachments(node)
    new = old.copy(container="next")
    new.add()
    assert new.addresses != old.addresses
    assert new.netns.addresses("eth0") == [f"{new.addresses[0]}/32"]
    assert list(pod_links(node)) == [new.host_name]
    old.call("DEL", netns="")
    assert new.check().status == 0, new.check()
    assert pings(node.netns, new.addresses[0])
    assert audit(node).allocations == {new.addresses[0]: "net.next"}
    assert faults(node) == []


def test_interface_that_is_no_pair_of_ours_is_not_replaced(own_pods: MakePod, node: Node) -> None:
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
    assert faults(node) == []


def test_del_removes_a_renamed_host_interface(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    node.netns.run("ip", "link", "set", pod.host_name, "name", "renamed0")
    pod.delete()
    assert (pod.netns.links(), node.netns.links()) == ([], ["uplink"])
    assert remains(node) == []

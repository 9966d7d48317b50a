"""The address that an ADD assigns: by pool, node label or request. The error if no address is free."""

import ipaddress
import re
from collections.abc import Callable
from typing import Any

import pytest

from harness.node import POOL4, POOL6, Node
from harness.pod import Pod
from harness.state import State, audit, disagreements, store_of
from svc.ipam.requests import Release
from svc.ipam.service import IpamService
from svc.model.keys import AffinityQuery, BlockQuery

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


@pytest.fixture(scope="module")
def shared_node(shared_node: Node) -> Node:
    """Add three small pools to the shared node. svc assigns from them only if the configuration names them."""
    shared_node.apply_pool("blue", "10.71.0.0/29", blockSize=30, assignmentMode="Manual")
    shared_node.apply_pool("green", "10.72.0.0/29", blockSize=30, assignmentMode="Manual")
    shared_node.apply_pool("blue6", "fd71::/120", assignmentMode="Manual")
    return shared_node


def inside(address: str, network: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network)


def refused(pod: Pod) -> dict[str, Any]:
    """Return the error of an ADD that must fail and change nothing."""
    before = State.read(pod.node)
    output = pod.failed("ADD").output
    assert State.read(pod.node) == before
    return dict(output)


# pools


def test_default_pools_are_used_if_no_pool_is_named(pods: MakePod) -> None:
    pod = pods(ipam={"assign_ipv6": "true"})
    pod.add()
    v4, v6 = pod.addresses
    assert inside(v4, POOL4)
    assert inside(v6, POOL6)


@pytest.mark.parametrize("pool", ["blue", "10.71.0.0/29", "10.71.0.3/29"])
def test_pool_can_be_given_by_name_or_range(pods: MakePod, pool: str) -> None:
    pod = pods(ipam={"ipv4_pools": [pool]})
    pod.add()
    assert inside(pod.addresses[0], "10.71.0.0/29")


def test_pools_of_both_families_are_used(pods: MakePod) -> None:
    pod = pods(ipam={"assign_ipv6": "true", "ipv4_pools": ["green"], "ipv6_pools": ["fd71:0::/120"]})
    pod.add()
    v4, v6 = pod.addresses
    assert inside(v4, "10.72.0.0/29")
    assert inside(v6, "fd71::/120")


def test_ipv6_pools_are_ignored_if_ipv6_is_not_assigned(pods: MakePod) -> None:
    pod = pods(ipam={"ipv6_pools": ["no-such-pool"]})
    pod.add()
    assert len(pod.addresses) == 1


def test_pools_are_filled_in_the_order_given(own_pods: MakePod, node: Node) -> None:
    node.apply_pool("a-last", "10.75.0.0/30", blockSize=30)
    node.apply_pool("z-first", "10.76.0.0/30", blockSize=30)
    made = [own_pods(ipam={"ipv4_pools": ["z-first", "10.75.0.0/30"]}) for _ in range(5)]
    for pod in made:
        pod.add()
    assert [pod.addresses[0][:6] for pod in made] == ["10.76."] * 4 + ["10.75."]


def test_block_with_free_addresses_is_used_before_another_is_claimed(own_pods: MakePod, node: Node) -> None:
    """This holds even if the block is in a later pool, because blocks are scarcer than addresses."""
    node.apply_pool("first", "10.75.0.0/24")
    node.apply_pool("second", "10.76.0.0/24")
    own_pods(ipam={"ipv4_pools": ["second"]}).add()
    pod = own_pods(ipam={"ipv4_pools": ["first", "second"]})
    pod.add()
    assert inside(pod.addresses[0], "10.76.0.0/24")


def test_full_block_makes_the_node_claim_another(pods: MakePod, shared_node: Node) -> None:
    made = [pods(ipam={"ipv4_pools": ["blue"]}) for _ in range(5)]
    for pod in made:
        pod.add()
    with store_of(shared_node) as store:
        affinities = {str(entry.key) for entry in store.list(AffinityQuery()) if "10.71." in str(entry.key)}
        claimed = {str(entry.key) for entry in store.list(BlockQuery(4)) if "10.71." in str(entry.key)}
    assert (len(affinities), len(claimed)) == (2, 2)
    assert len({address for pod in made for address in pod.addresses}) == 5


@pytest.mark.parametrize("pool", ["nowhere", "10.99.0.0/24", "10.71.0.0/30"])
def test_pool_that_does_not_exist_is_named(pods: MakePod, pool: str) -> None:
    """A part of a pool is not a pool either."""
    output = refused(pods(ipam={"ipv4_pools": ["blue", pool]}))
    assert output["code"] == 102
    assert f"({pool}) does not exist" in output["msg"]


def test_pool_of_the_other_family_is_refused(pods: MakePod) -> None:
    output = refused(pods(ipam={"ipv4_pools": ["blue6"]}))
    assert output["code"] == 102
    assert "(blue6) is not an IPv4 pool" in output["msg"]


def test_new_pool_can_be_used_at_once(own_pods: MakePod, node: Node) -> None:
    own_pods().add()
    node.apply_pool("late", "10.73.0.0/24")
    pod = own_pods(ipam={"ipv4_pools": ["late"]})
    pod.add()
    assert inside(pod.addresses[0], "10.73.0.0/24")


def test_disabled_pool_is_not_used(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    node.apply_pool("pool4", POOL4, disabled=True)
    assert own_pods().failed("ADD").output["code"] == 102
    assert own_pods(ipam={"ipv4_pools": ["pool4"]}).failed("ADD").output["code"] == 102
    assert pod.check().status == 0
    pod.delete()


# exhaustion


def test_error_gives_the_usage_of_an_exhausted_pool(pods: MakePod, shared_node: Node) -> None:
    made = [pods(ipam={"ipv4_pools": ["blue"]}) for _ in range(8)]
    for pod in made:
        pod.add()
    late = pods(ipam={"ipv4_pools": ["blue"]})
    output = late.failed("ADD").output
    assert output["code"] == 101
    assert "blue 10.71.0.0/29 (2 of 2 blocks are the node's, 8 addresses used in them)" in output["details"]
    assert len(audit(shared_node).allocations) == 8
    made[3].delete()
    late.add()
    assert late.addresses == made[3].addresses


def test_address_that_another_process_released_can_be_assigned(own_pods: MakePod, node: Node) -> None:
    """The agent caches its blocks, but does not fail an ADD because of a stale cache.

    The agent does not claim the address again, because the interface of its pod does not exist any more.
    """
    node.apply_pool("tiny", "10.70.0.0/31", blockSize=31)
    first, second, third = (own_pods(ipam={"ipv4_pools": ["tiny"]}) for _ in range(3))
    first.add()
    second.add()
    node.netns.run("ip", "link", "delete", first.host_name)
    with store_of(node) as store:
        IpamService(store, "another").release(Release(f"net.{first.container}"))
    third.add()
    assert third.addresses == first.addresses


def test_add_assigns_no_address_if_one_family_is_exhausted(pods: MakePod, shared_node: Node) -> None:
    for _ in range(8):
        pods(ipam={"ipv4_pools": ["blue"]}).add()
    late = pods(ipam={"assign_ipv6": "true", "ipv4_pools": ["blue"]})
    assert late.failed("ADD").output["code"] == 101
    assert disagreements(shared_node) == []
    assert len(audit(shared_node).allocations) == 8
    assert late.netns.links() == []


# the node


def test_node_labels_choose_the_pools(own_pods: MakePod, node: Node) -> None:
    node.apply_pool("pool4", POOL4, nodeSelector="!has(rack)")
    node.apply_pool("rack-a", "10.74.0.0/24", nodeSelector="rack == 'a'")
    unknown, labelled, moved = (own_pods(nodename="node-x") for _ in range(3))
    unknown.add()
    assert inside(unknown.addresses[0], POOL4)
    node.svcctl("node", "apply", "node-x", "--label", "rack=a")
    labelled.add()
    assert inside(labelled.addresses[0], "10.74.0.0/24")
    node.svcctl("node", "apply", "node-x", "--label", "rack=b")
    output = moved.failed("ADD").output
    assert output["code"] == 102
    assert "no IPv4 pool is available to node 'node-x'" in output["msg"]


def test_named_pool_is_used_although_its_selector_does_not_match(own_pods: MakePod, node: Node) -> None:
    node.apply_pool("rack-a", "10.74.0.0/24", nodeSelector="rack == 'a'")
    pod = own_pods(nodename="node-x", ipam={"ipv4_pools": ["rack-a"]})
    pod.add()
    assert inside(pod.addresses[0], "10.74.0.0/24")


def test_each_node_name_has_its_own_blocks(pods: MakePod, shared_node: Node) -> None:
    first, second = pods(nodename="node-a"), pods(nodename="node-b")
    first.add()
    second.add()
    blocks = {str(ipaddress.ip_interface(f"{pod.addresses[0]}/26").network) for pod in (first, second)}
    assert len(blocks) == 2
    with store_of(shared_node) as store:
        hosts = {re.search(r"host='([^']*)'", str(entry.key))[1] for entry in store.list(AffinityQuery())}  # type: ignore[index]
    assert {"node-a", "node-b"} <= hosts


# a requested address


@pytest.mark.parametrize("address", ["10.65.3.4", "fd65::304"])
def test_requested_address_is_assigned(pods: MakePod, address: str) -> None:
    pod = pods(args=f"IP={address}", ipam={"assign_ipv6": "true"})
    pod.add()
    assert pod.addresses == [address]
    assert pod.netns.addresses("eth0") == [f"{address}/{128 if ':' in address else 32}"]


def test_requested_address_need_not_be_canonical(pods: MakePod) -> None:
    pod = pods(args="IP=FD65:0:0::5", ipam={"assign_ipv6": "true"})
    pod.add()
    assert pod.addresses == ["fd65::5"]


def test_requested_address_overrides_the_pools(pods: MakePod) -> None:
    pod = pods(args="IP=10.71.0.3", ipam={"ipv4_pools": ["green"]})
    pod.add()
    assert pod.addresses == ["10.71.0.3"]


def test_requested_address_is_free_after_del(pods: MakePod) -> None:
    for _ in range(2):
        pod = pods(args="IP=10.65.3.4")
        pod.add()
        assert pod.addresses == ["10.65.3.4"]
        pod.delete()


@pytest.mark.parametrize(
    ("address", "expected"),
    [("203.0.113.9", "not in any enabled IP pool"), ("fd65::9", "assigns none of that family"), ("fd99::1", "family")],
)
def test_address_that_cannot_be_assigned_is_refused(pods: MakePod, address: str, expected: str) -> None:
    output = refused(pods(args=f"IP={address}"))
    assert output["code"] == 103
    assert expected in output["msg"]
    assert address in output["msg"]


def test_error_names_the_holder_of_a_requested_address(pods: MakePod) -> None:
    holder = pods(args="IP=10.65.3.4")
    holder.add()
    output = refused(pods(args="IP=10.65.3.4"))
    assert output["code"] == 103
    assert "10.65.3.4" in output["msg"]
    assert f"net.{holder.container}" in output["details"]
    assert holder.check().status == 0

"""DEL removes every existing part of an attachment. A missing part is not an error, and the addresses are free again."""

from collections.abc import Callable

import pytest

from harness.netns import Netns
from harness.node import Node, netconf
from harness.pod import Pod
from harness.state import State, audit, disagreements, remains, store_of
from svc.datastore.api import Update
from svc.model.keys import BlockQuery, ResourceKey
from svc.model.resource import Resource

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


def lock(node: Node, ready: bool | None) -> None:
    """Set the flag that locks the datastore for a migration. None deletes the flag."""
    key = ResourceKey("ClusterInformation", "default")
    with store_of(node) as store:
        entry = store.get(key)
        assert isinstance(entry.value, Resource)
        entry.value.spec.pop("datastoreReady", None)
        if ready is not None:
            entry.value.spec["datastoreReady"] = ready
        store.write([Update(key, entry.value, entry.revision)])


def test_del_before_add_succeeds_and_changes_nothing(pods: MakePod, shared_node: Node) -> None:
    pods().add()
    before = State.read(shared_node)
    pods().delete()
    assert State.read(shared_node) == before


def test_repeated_del_succeeds_and_changes_nothing(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    pod.delete()
    before = State.read(shared_node)
    pod.delete()
    assert State.read(shared_node) == before


def test_del_prints_nothing_on_standard_output(pods: MakePod) -> None:
    pod = pods()
    pod.add()
    assert pod.call("DEL").stdout == b""


@pytest.mark.parametrize("path", ["", "/run/netns/was-never-there", "not/absolute"])
def test_del_works_without_a_usable_namespace(pods: MakePod, shared_node: Node, path: str) -> None:
    pod = pods()
    pod.add()
    assert pod.call("DEL", netns=path).status == 0
    assert remains(shared_node) == []
    assert pod.netns.links() == []


def test_del_works_after_the_namespace_was_deleted(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    pod.netns.delete()
    pod.delete()
    assert remains(shared_node) == []


def test_del_works_after_the_interface_was_deleted(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    pod.netns.run("ip", "link", "delete", "eth0")
    pod.delete()
    assert remains(shared_node) == []


def test_del_keeps_an_interface_of_another_program(pods: MakePod) -> None:
    pod = pods()
    pod.netns.run("ip", "link", "add", "eth0", "type", "bridge")
    pod.delete()
    assert pod.netns.links() == ["eth0"]


@pytest.mark.parametrize(
    "broken",
    [{"mtu": "big"}, {"ipam": {"type": "svc-ipam", "ipv4_pools": 7}}, {"ipam": None}, {"log_level": "LOUD"}, {"type": ""}],
    ids=lambda broken: next(iter(broken)),
)
def test_del_works_with_a_netconf_that_add_would_refuse(pods: MakePod, shared_node: Node, broken: dict[str, object]) -> None:
    """The configuration may have been edited while the pod was running. DEL must still remove the attachment."""
    pod = pods()
    pod.add()
    pod.delete(**broken)
    assert remains(shared_node) == []


def test_del_works_with_and_without_the_previous_result(pods: MakePod, shared_node: Node) -> None:
    for with_result in (True, False):
        pod = pods()
        pod.add()
        pod.delete(**({"prevResult": pod.result} if with_result else {}))
        assert remains(shared_node) == []


def test_del_works_with_arguments_that_add_would_refuse(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    pod.args = "IP=nonsense;=;K8S_POD_NAME"
    pod.delete()
    assert remains(shared_node) == []


def test_del_of_one_container_keeps_the_others(pods: MakePod, shared_node: Node) -> None:
    first, second = pods(), pods()
    first.add()
    second.add()
    first.delete()
    assert list(audit(shared_node).allocations) == second.addresses
    assert second.check().status == 0
    assert disagreements(shared_node) == []


def test_del_keeps_a_container_whose_id_begins_with_the_same_text(pods: MakePod, shared_node: Node) -> None:
    short, long = pods(container="abc"), pods(container="abc.d")
    short.add()
    long.add()
    short.delete()
    assert list(audit(shared_node).allocations) == long.addresses
    assert long.check().status == 0


def test_locked_store_refuses_add_and_del_and_nothing_changes(own_pods: MakePod, node: Node) -> None:
    pod, other = own_pods(), own_pods()
    pod.add()
    for ready in (False, None):
        lock(node, ready)
        before = State.read(node)
        assert other.failed("ADD").output["code"] == 105
        assert pod.failed("ADD").output["code"] == 105
        refused = pod.failed("DEL")
        assert refused.output["code"] == 105
        assert "datastoreReady" in refused.output["details"]
        assert State.read(node) == before
    lock(node, True)
    pod.delete()
    assert remains(node) == []


def test_locked_store_refuses_the_del_of_an_unknown_container(own_pods: MakePod, node: Node) -> None:
    """The datastore may have an attachment of the container that the journal does not have."""
    lock(node, False)
    assert own_pods().failed("DEL").output["code"] == 105


# released addresses


def test_released_address_is_assigned_last(own_pods: MakePod, node: Node) -> None:
    """Clients may still send to a released address, so svc assigns all other addresses first."""
    node.apply_pool("tiny", "10.70.0.0/30", blockSize=30)
    first, *others = (own_pods(ipam={"ipv4_pools": ["tiny"]}) for _ in range(4))
    first.add()
    first.delete()
    for pod in others:
        pod.add()
        assert pod.addresses != first.addresses
    again = own_pods(ipam={"ipv4_pools": ["tiny"]})
    again.add()
    assert again.addresses == first.addresses


def test_every_address_of_a_pool_can_be_assigned_again(own_pods: MakePod, node: Node) -> None:
    node.apply_pool("tiny", "10.70.0.0/30", blockSize=30)
    seen: list[str] = []
    for _ in range(8):
        pod = own_pods(ipam={"ipv4_pools": ["tiny"]})
        pod.add()
        seen += pod.addresses
        pod.delete()
    assert seen[:4] == seen[4:]
    assert sorted(seen[:4]) == [f"10.70.0.{n}" for n in range(4)]
    assert remains(node) == []


def test_node_keeps_its_block_after_del(own_pods: MakePod, node: Node) -> None:
    """Claiming a block for every pod would be slow, and would scatter the addresses of a node."""
    for _ in range(3):
        pod = own_pods()
        pod.add()
        pod.delete()
    with store_of(node) as store:
        assert len(store.list(BlockQuery())) == 1


def test_del_frees_both_families(own_pods: MakePod, node: Node, sandbox: Callable[[], Netns]) -> None:
    pod = own_pods(ipam={"assign_ipv6": "true"})
    pod.add()
    assert len(audit(node).allocations) == 2
    pod.delete(ipam=netconf()["ipam"])
    assert remains(node) == []

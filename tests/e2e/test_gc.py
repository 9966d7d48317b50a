"""GC: what the runtime no longer knows goes, what it knows stays, and nothing of anybody else is touched."""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from harness.node import Called, Node, netconf
from harness.pod import Pod
from harness.spec_rows import field
from harness.state import State, audit, faults, remains, store_of
from svc._core.cidr import Cidr
from svc.attach.handles import handle_of
from svc.attach.journal import Journal
from svc.attach.record import AttachmentId
from svc.datastore.api import Create, Delete, Update
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.ipam import Block, Handle
from svc.model.keys import BlockKey, HandleKey, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

HOST = os.uname().nodename.lower()


def gc(node: Node, plugin: str = "svc", **config: Any) -> Called:
    """The call is about a network, not about a container."""
    return node.call("GC", netconf(**config), plugin=plugin, container="", ifname="")


def keep(*pods: Pod) -> dict[str, Any]:
    """What the runtime says of the attachments that it knows."""
    return {"cni.dev/valid-attachments": [{"containerID": pod.container, "ifname": pod.ifname} for pod in pods]}


def leak(node: Node, handle: str, by: str = HOST) -> str:
    """An address held by a container that this node has no memory of; another process writes it."""
    with store_of(node) as store:
        (allocation,) = IpamService(store, by).assign(Assign(handle, {"node": by})).allocations
    return str(allocation.address)


@field(
    "cni.dev/valid-attachments", "What the network has beside them goes. `cni.dev/attachments`, its older name, is understood."
)
def test_gc_takes_down_what_is_not_valid(pods: MakePod, shared_node: Node) -> None:
    known, unknown = pods(ipam={"assign_ipv6": "true"}), pods(ipam={"assign_ipv6": "true"})
    known.add()
    unknown.add()
    called = gc(shared_node, **keep(known))
    assert (called.status, called.stdout) == (0, b"")
    assert unknown.netns.links() == []
    assert set(audit(shared_node).allocations) == set(known.addresses)
    assert faults(shared_node) == []


def test_gc_leaves_valid_attachments_untouched(pods: MakePod, shared_node: Node) -> None:
    made = [pods() for _ in range(3)]
    for pod in made:
        pod.add()
    before = State.read(shared_node)
    assert gc(shared_node, **keep(*made)).status == 0
    assert State.read(shared_node) == before
    assert [pod.check().status for pod in made] == [0, 0, 0]


@pytest.mark.parametrize("nothing", [None, []], ids=["null", "empty"])
def test_nothing_valid_means_that_everything_goes(pods: MakePod, shared_node: Node, nothing: Any) -> None:
    """A runtime without pods of the network sends null."""
    for _ in range(2):
        pods().add()
    assert gc(shared_node, **{"cni.dev/valid-attachments": nothing}).status == 0
    assert remains(shared_node) == []


def test_missing_list_is_refused_and_nothing_goes(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    before = State.read(shared_node)
    output = gc(shared_node).output
    assert output["code"] == 7
    assert "cni.dev/valid-attachments is missing" in output["msg"]
    assert State.read(shared_node) == before


def test_older_name_of_the_list_is_understood(pods: MakePod, shared_node: Node) -> None:
    known, unknown = pods(), pods()
    known.add()
    unknown.add()
    (listed,) = keep(known).values()
    assert gc(shared_node, **{"cni.dev/attachments": listed}).status == 0
    assert list(audit(shared_node).allocations) == known.addresses


@pytest.mark.parametrize(
    "listed", [7, "all", {}, [7], [{"containerID": "a"}], [{"containerID": "", "ifname": "eth0"}], [{"ifname": "eth0"}]]
)
def test_malformed_list_is_refused_and_nothing_goes(pods: MakePod, shared_node: Node, listed: Any) -> None:
    pods().add()
    before = State.read(shared_node)
    called = gc(shared_node, **{"cni.dev/valid-attachments": listed})
    assert called.output["code"] == 7
    assert "cni.dev/valid-attachments" in called.output["details"]
    assert State.read(shared_node) == before


def test_one_interface_of_a_container_may_go_and_another_stay(pods: MakePod, shared_node: Node) -> None:
    first = pods()
    first.add()
    second = first.copy(ifname="eth1")
    second.add()
    assert gc(shared_node, **keep(first)).status == 0
    assert first.netns.links() == ["eth0"]
    assert first.check().status == 0
    assert faults(shared_node) == []


def test_gc_again_finds_nothing_to_do(pods: MakePod, shared_node: Node) -> None:
    pods().add()
    assert gc(shared_node, **keep()).status == 0
    before = State.read(shared_node)
    assert gc(shared_node, **keep()).status == 0
    assert State.read(shared_node) == before


def test_gc_works_after_the_sandboxes_are_gone(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    pod.netns.delete()
    assert gc(shared_node, **keep()).status == 0
    assert remains(shared_node) == []


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
def test_gc_came_with_1_1_0(pods: MakePod, shared_node: Node, version: str) -> None:
    pods().add()
    before = State.read(shared_node)
    assert gc(shared_node, cniVersion=version, **keep()).output["code"] == 1
    assert State.read(shared_node) == before


def test_gc_without_the_plugins_path_is_refused(shared_node: Node) -> None:
    called = shared_node.call("GC", netconf(**keep()), extra={"CNI_PATH": ""})
    assert called.output["code"] == 4
    assert "CNI_PATH" in called.output["msg"]


def test_locked_store_refuses_gc(own_pods: MakePod, node: Node) -> None:
    own_pods().add()
    key = ResourceKey("ClusterInformation", "default")
    with store_of(node) as store:
        entry = store.get(key)
        assert isinstance(entry.value, Resource)
        entry.value.spec["datastoreReady"] = False
        store.write([Update(key, entry.value, entry.revision)])
    before = State.read(node)
    assert gc(node, **keep()).output["code"] == 105
    assert State.read(node) == before


# addresses without a record on this node


def test_address_of_a_forgotten_container_is_freed(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    address = leak(shared_node, "net.ghost")
    assert gc(shared_node, **keep(pod)).status == 0
    assert address not in audit(shared_node).allocations
    assert faults(shared_node) == []


def test_address_of_a_container_that_the_runtime_knows_is_kept(pods: MakePod, shared_node: Node) -> None:
    """Its journal row may be lost, its pod may live."""
    ghost = pods(container="ghost")
    address = leak(shared_node, "net.ghost")
    assert gc(shared_node, **keep(ghost)).status == 0
    assert audit(shared_node).allocations == {address: "net.ghost"}
    ghost.delete()


@pytest.mark.parametrize("node", ["other-node", f"{HOST}-2"])
def test_address_that_another_node_assigned_is_kept(pods: MakePod, shared_node: Node, node: str) -> None:
    address = leak(shared_node, "net.far-away", by=node)
    assert gc(shared_node, **keep()).status == 0
    assert audit(shared_node).allocations == {address: "net.far-away"}
    pods(container="far-away").delete()


def test_address_alive_in_a_valid_attachment_is_kept_whoever_holds_it(pods: MakePod, shared_node: Node) -> None:
    """A damaged store says that the address belongs to a container that is gone; a pod uses it."""
    pod = pods()
    pod.add()
    handle = f"net.{pod.container}"
    with store_of(shared_node) as store:
        old = store.get(HandleKey(handle))
        assert isinstance(old.value, Handle)
        (cidr,) = old.value.blocks
        block = store.get(BlockKey(Cidr(cidr)))
        assert isinstance(block.value, Block)
        for attribute in block.value.attributes or ():
            attribute.handle_id = "net.ghost" if attribute.handle_id == handle else attribute.handle_id
        renamed = Create(HandleKey("net.ghost"), old.value)
        store.write([Update(block.key, block.value, block.revision), Delete(old.key), renamed])
    assert gc(shared_node, **keep(pod)).status == 0
    assert audit(shared_node).allocations == {pod.addresses[0]: "net.ghost"}
    pods(container="ghost").delete()


# networks


def test_other_networks_are_left_alone(pods: MakePod, shared_node: Node) -> None:
    here, there = pods(name="here"), pods(name="there")
    here.add()
    there.add()
    address = leak(shared_node, "there.ghost")
    assert gc(shared_node, name="here", **keep()).status == 0
    assert set(audit(shared_node).allocations) == {*there.addresses, address}
    assert there.check().status == 0
    assert gc(shared_node, name="there", **keep()).status == 0
    assert remains(shared_node) == []


@pytest.mark.parametrize(("name", "longer"), [("a", "a.b"), ("a.b", "a.b.c"), ("net", "net-2")])
def test_network_whose_name_goes_on_is_another_one(pods: MakePod, shared_node: Node, name: str, longer: str) -> None:
    """The name and the container are joined by a dot, and either may have dots."""
    pod = pods(name=longer)
    pod.add()
    address = leak(shared_node, handle_of(DEFAULT, longer, "ghost"))
    assert gc(shared_node, name=name, **keep()).status == 0
    assert set(audit(shared_node).allocations) == {*pod.addresses, address}
    assert gc(shared_node, name=longer, **keep()).status == 0
    assert remains(shared_node) == []


@pytest.fixture
def lost(pods: MakePod, shared_node: Node) -> Pod:
    """A pod whose row and sandbox are gone."""
    pod = pods()
    pod.add()
    with closing(Journal(shared_node.state_dir / "journal.db")) as journal:
        record = journal.get(AttachmentId("net", pod.container, pod.ifname))
        assert record is not None
        journal.remove(record)
    shared_node.netns.run("ip", "link", "delete", pod.host_name)
    return pod


@pytest.mark.parametrize("is_free", [False, True], ids=["allocated", "free"])
def test_gc_deletes_the_endpoint_of_an_unknown_container(lost: Pod, pods: MakePod, shared_node: Node, *, is_free: bool) -> None:
    """With the address, or after another program has released it. Endpoints of live attachments stay."""
    live = pods()
    live.add()
    if is_free:
        with store_of(shared_node) as store:
            IpamService(store, HOST).release(Release(handle_of(DEFAULT, "net", lost.container)))
    called = gc(shared_node, **keep(live))
    assert called.status == 0, called
    assert audit(shared_node).endpoints == {live.host_name: [f"{live.addresses[0]}/32"]}
    assert faults(shared_node) == []


@pytest.mark.parametrize("kept", ["address of another", "node", "orchestrator", "valid", "row", "interface"])
def test_gc_keeps_other_endpoints(lost: Pod, pods: MakePod, shared_node: Node, kept: str) -> None:
    """Those of other nodes and programs, and of containers that the runtime, the journal or the kernel knows."""
    other = pods(container=lost.container, ifname="eth1", name="second")
    heir = pods(args=f"IP={lost.addresses[0]}")
    with store_of(shared_node) as store:
        (entry,) = (each for each in store.list(ResourceQuery(ENDPOINT)) if each.value.spec["containerID"] == lost.container)
        if kept in ("node", "orchestrator"):
            spec = entry.value.spec | {kept: "another"}
            store.write([Update(entry.key, replace(entry.value, spec=spec), entry.revision)])
        if kept == "address of another":
            IpamService(store, HOST).release(Release(handle_of(DEFAULT, "net", lost.container)))
            heir.add()
        if kept == "row":
            other.add()
        if kept == "interface":
            shared_node.netns.run("ip", "link", "add", lost.host_name, "type", "bridge")
        called = gc(shared_node, **keep(*([lost] if kept == "valid" else []), heir))
        assert called.status == 0, called
        assert store.find(entry.key) is not None
        store.write([Delete(entry.key)])
        IpamService(store, HOST).release(Release(handle_of(DEFAULT, "net", lost.container)))
    if kept == "interface":
        shared_node.netns.run("ip", "link", "delete", lost.host_name)

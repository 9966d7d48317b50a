"""GC removes attachments that the runtime does not list. It keeps those of other nodes, networks and programs."""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from harness.node import Called, Node, netconf
from harness.pod import Pod
from harness.spec_rows import field
from harness.state import State, audit, disagreements, remains, store_of
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
    """Call GC, which is for a network and names no container."""
    return node.call("GC", netconf(**config), plugin=plugin, container="", ifname="")


def keep(*pods: Pod) -> dict[str, Any]:
    """Return the field that lists the valid attachments."""
    return {"cni.dev/valid-attachments": [{"containerID": pod.container, "ifname": pod.ifname} for pod in pods]}


def leak(node: Node, handle: str, by: str = HOST) -> str:
    """Assign an address, without a journal entry, to a handle. Return the address."""
    with store_of(node) as store:
        (allocation,) = IpamService(store, by).assign(Assign(handle, {"node": by})).allocations
    return str(allocation.address)


@field(
    "cni.dev/valid-attachments",
    "GC removes all other attachments of the network. The older name `cni.dev/attachments` is accepted.",
)
def test_gc_removes_attachments_that_are_not_valid(pods: MakePod, shared_node: Node) -> None:
    known, unknown = pods(ipam={"assign_ipv6": "true"}), pods(ipam={"assign_ipv6": "true"})
    known.add()
    unknown.add()
    called = gc(shared_node, **keep(known))
    assert (called.status, called.stdout) == (0, b"")
    assert unknown.netns.links() == []
    assert set(audit(shared_node).allocations) == set(known.addresses)
    assert disagreements(shared_node) == []


def test_gc_does_not_change_valid_attachments(pods: MakePod, shared_node: Node) -> None:
    made = [pods() for _ in range(3)]
    for pod in made:
        pod.add()
    before = State.read(shared_node)
    assert gc(shared_node, **keep(*made)).status == 0
    assert State.read(shared_node) == before
    assert [pod.check().status for pod in made] == [0, 0, 0]


@pytest.mark.parametrize("nothing", [None, []], ids=["null", "empty"])
def test_gc_with_an_empty_list_removes_all_attachments(pods: MakePod, shared_node: Node, nothing: Any) -> None:
    """A runtime without pods of the network sends null."""
    for _ in range(2):
        pods().add()
    assert gc(shared_node, **{"cni.dev/valid-attachments": nothing}).status == 0
    assert remains(shared_node) == []


def test_gc_without_a_list_is_refused(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    before = State.read(shared_node)
    output = gc(shared_node).output
    assert output["code"] == 7
    assert "cni.dev/valid-attachments is missing" in output["msg"]
    assert State.read(shared_node) == before


def test_older_name_of_the_list_is_accepted(pods: MakePod, shared_node: Node) -> None:
    known, unknown = pods(), pods()
    known.add()
    unknown.add()
    (listed,) = keep(known).values()
    assert gc(shared_node, **{"cni.dev/attachments": listed}).status == 0
    assert list(audit(shared_node).allocations) == known.addresses


@pytest.mark.parametrize(
    "listed", [7, "all", {}, [7], [{"containerID": "a"}], [{"containerID": "", "ifname": "eth0"}], [{"ifname": "eth0"}]]
)
def test_gc_with_a_malformed_list_is_refused(pods: MakePod, shared_node: Node, listed: Any) -> None:
    pods().add()
    before = State.read(shared_node)
    called = gc(shared_node, **{"cni.dev/valid-attachments": listed})
    assert called.output["code"] == 7
    assert "cni.dev/valid-attachments" in called.output["details"]
    assert State.read(shared_node) == before


def test_gc_can_remove_one_interface_of_a_container(pods: MakePod, shared_node: Node) -> None:
    first = pods()
    first.add()
    second = first.copy(ifname="eth1")
    second.add()
    assert gc(shared_node, **keep(first)).status == 0
    assert first.netns.links() == ["eth0"]
    assert first.check().status == 0
    assert disagreements(shared_node) == []


def test_repeated_gc_changes_nothing(pods: MakePod, shared_node: Node) -> None:
    pods().add()
    assert gc(shared_node, **keep()).status == 0
    before = State.read(shared_node)
    assert gc(shared_node, **keep()).status == 0
    assert State.read(shared_node) == before


def test_gc_works_after_the_sandbox_was_deleted(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    pod.netns.delete()
    assert gc(shared_node, **keep()).status == 0
    assert remains(shared_node) == []


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
def test_versions_before_1_1_0_do_not_have_gc(pods: MakePod, shared_node: Node, version: str) -> None:
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


def test_gc_releases_the_address_of_an_unknown_container(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    pod.add()
    address = leak(shared_node, "net.ghost")
    assert gc(shared_node, **keep(pod)).status == 0
    assert address not in audit(shared_node).allocations
    assert disagreements(shared_node) == []


def test_gc_keeps_the_address_of_a_valid_container(pods: MakePod, shared_node: Node) -> None:
    """Its journal entry may be lost although its pod is running."""
    ghost = pods(container="ghost")
    address = leak(shared_node, "net.ghost")
    assert gc(shared_node, **keep(ghost)).status == 0
    assert audit(shared_node).allocations == {address: "net.ghost"}
    ghost.delete()


@pytest.mark.parametrize("node", ["other-node", f"{HOST}-2"])
def test_gc_keeps_an_address_that_another_node_assigned(pods: MakePod, shared_node: Node, node: str) -> None:
    address = leak(shared_node, "net.far-away", by=node)
    assert gc(shared_node, **keep()).status == 0
    assert audit(shared_node).allocations == {address: "net.far-away"}
    pods(container="far-away").delete()


def test_gc_keeps_the_address_of_a_valid_attachment_under_another_handle(pods: MakePod, shared_node: Node) -> None:
    """In a damaged store, the handle of an unknown container has the address that a valid pod uses."""
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


def test_gc_keeps_attachments_of_other_networks(pods: MakePod, shared_node: Node) -> None:
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
def test_gc_keeps_a_network_whose_name_begins_with_the_same_text(
    pods: MakePod, shared_node: Node, name: str, longer: str
) -> None:
    """A dot joins network and container in a handle, and both may contain dots."""
    pod = pods(name=longer)
    pod.add()
    address = leak(shared_node, handle_of(DEFAULT, longer, "ghost"))
    assert gc(shared_node, name=name, **keep()).status == 0
    assert set(audit(shared_node).allocations) == {*pod.addresses, address}
    assert gc(shared_node, name=longer, **keep()).status == 0
    assert remains(shared_node) == []


@pytest.fixture
def lost(pods: MakePod, shared_node: Node) -> Pod:
    """Return a pod that has lost its journal entry and its interface."""
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
    """GC also releases the address, if no other program has released it. Endpoints of valid attachments stay."""
    live = pods()
    live.add()
    if is_free:
        with store_of(shared_node) as store:
            IpamService(store, HOST).release(Release(handle_of(DEFAULT, "net", lost.container)))
    called = gc(shared_node, **keep(live))
    assert called.status == 0, called
    assert audit(shared_node).endpoints == {live.host_name: [f"{live.addresses[0]}/32"]}
    assert disagreements(shared_node) == []


@pytest.mark.parametrize("kept", ["address of another", "node", "orchestrator", "valid", "row", "interface"])
def test_gc_keeps_other_endpoints(lost: Pod, pods: MakePod, shared_node: Node, kept: str) -> None:
    """Other nodes or programs may own them, or the container may be in the list, the journal or the kernel."""
    other = pods(container=lost.container, ifname="eth1", name="second")
    successor = pods(args=f"IP={lost.addresses[0]}")
    with store_of(shared_node) as store:
        (entry,) = (each for each in store.list(ResourceQuery(ENDPOINT)) if each.value.spec["containerID"] == lost.container)
        if kept in ("node", "orchestrator"):
            spec = entry.value.spec | {kept: "another"}
            store.write([Update(entry.key, replace(entry.value, spec=spec), entry.revision)])
        if kept == "address of another":
            IpamService(store, HOST).release(Release(handle_of(DEFAULT, "net", lost.container)))
            successor.add()
        if kept == "row":
            other.add()
        if kept == "interface":
            shared_node.netns.run("ip", "link", "add", lost.host_name, "type", "bridge")
        called = gc(shared_node, **keep(*([lost] if kept == "valid" else []), successor))
        assert called.status == 0, called
        assert store.find(entry.key) is not None
        store.write([Delete(entry.key)])
        IpamService(store, HOST).release(Release(handle_of(DEFAULT, "net", lost.container)))
    if kept == "interface":
        shared_node.netns.run("ip", "link", "delete", lost.host_name)

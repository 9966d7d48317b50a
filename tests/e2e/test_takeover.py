"""The takeover of a Calico deployment under its own names: the state of its nodes, and the calls of its runtimes."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, audit, remains
from harness.datastores import EtcdSite, OrchSite, Site, furnish, session
from harness.netns import Netns
from harness.pod import Pod
from svc.ipam.blocks import allocation_of
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.ipam import Block
from svc.model.keys import BlockQuery
from svc.netconf.names_profiles import load_profile

pytestmark = pytest.mark.root

Json = dict[str, Any]
MakeSandbox = Callable[[], Netns]
MakePod = Callable[..., Pod]

CALICO = load_profile("calico")
WEB = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"


@pytest.fixture(scope="module", params=["etcdv3", "orch"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    if request.param == "etcdv3":
        return EtcdSite(request.getfixturevalue("etcd"), CALICO)
    return OrchSite(request.getfixturevalue("kube"), tmp_path_factory.mktemp("site"), CALICO)


@pytest.fixture(scope="module")
def base_node(site: Site, home: Path) -> Iterator[ClusterNode]:
    with ClusterNode(home, "node1", site) as node:
        node.svcctl("install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--names", "calico")
        yield node


@pytest.fixture
def node(base_node: ClusterNode) -> Iterator[ClusterNode]:
    """A node in a datastore with the pod `web-0`. Nothing must be left after the test."""
    furnish(base_node.site, "node1")
    base_node.site.add_pod("web-0")
    try:
        yield base_node
        assert remains([base_node]) == []
    finally:
        base_node.site.clear()


@pytest.fixture
def make(node: ClusterNode, sandbox: MakeSandbox) -> Iterator[MakePod]:
    """Make attachments of the pod in the network `net1`, or as the keywords say."""
    made: list[Pod] = []

    def attach(container: str = "c1", *, netns: Netns | None = None, args: str = WEB, **config: Any) -> Pod:
        given: Json = {"name": "net1", "type": "calico", "ipam": {"type": "calico-ipam"}, **config}
        made.append(node.pod(netns or sandbox(), container, args=args, **given))
        return made[-1]

    yield attach
    for pod in made:
        pod.call("DEL")


def attributes(site: Site) -> dict[str, dict[str, str]]:
    """Return the attributes of every allocation, by its address."""
    with session(site) as store:
        blocks = [entry.value for entry in store.list(BlockQuery())]
    found = {}
    for block in blocks:
        assert isinstance(block, Block)
        for ordinal, tag in enumerate(block.ordinals.allocations()):
            attribute = allocation_of(block, block.cidr.address(ordinal))
            if tag is not None and attribute is not None and attribute.handle_id:
                found[str(block.cidr.address(ordinal))] = dict(attribute.secondary or {})
    return found


# the node's name


def test_ipam_plugin_uses_the_host_name_without_the_file(make: MakePod, node: ClusterNode, tmp_path: Path) -> None:
    """The main plugin waits for the node agent's file; the IPAM plugin reads it if it exists."""
    node.site.add_node(os.uname().nodename.lower())
    pod = make(nodename="", nodename_file=str(tmp_path / "nodename"))
    missing = pod.failed("ADD").output
    assert (missing["code"], "is missing or empty" in missing["msg"]) == (5, True)
    pod.plugin = "calico-ipam"
    pod.add()
    assert attributes(node.site)[pod.addresses[0]]["node"] == os.uname().nodename.lower()
    pod.delete()
    (tmp_path / "nodename").write_text("node1")
    pod.add()
    assert attributes(node.site)[pod.addresses[0]]["node"] == "node1"
    pod.delete()
    assert audit([node]).allocations == {}


# interfaces that the sandbox already has


def test_next_container_of_a_pod_takes_over_the_sandbox(make: MakePod, node: ClusterNode) -> None:
    """svc finds a renamed host interface by its index."""
    old = make()
    old.add()
    new = make("c2", netns=old.netns)
    new.add()
    assert new.addresses != old.addresses
    assert new.netns.addresses("eth0") == [f"{new.addresses[0]}/32"]
    old.call("DEL", netns="")
    assert audit([node]).allocations == {new.addresses[0]: "net1.c2"}
    node.netns.run("ip", "link", "set", new.host_name, "name", "renamed0")
    new.add()
    assert node.netns.links() == ["uplink", new.host_name]
    assert new.check().status == 0, new.check()


def test_pod_of_before_keeps_its_address_and_is_torn_down(make: MakePod, node: ClusterNode) -> None:
    """Documents and interface are as the other product's ADD leaves them, and svc has no row of it."""
    pod = make()
    pod.add()
    with closing(sqlite3.connect(node.state_dir / "journal.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM attachments")
    assert pod.check().status == 0, pod.check()
    assert pod.netns.addresses("eth0") == [f"{pod.addresses[0]}/32"]
    assert audit([node]).allocations == {pod.addresses[0]: "net1.c1"}
    with closing(sqlite3.connect(node.state_dir / "journal.db", isolation_level=None)) as connection:
        assert connection.execute("SELECT count(*) FROM attachments").fetchone() == (1,)
        connection.execute("DELETE FROM attachments")
    pod.delete()
    assert audit([node]).allocations == {}
    assert node.netns.links() == ["uplink"]


# handles


def allocate(site: Site, handle: str, **attributes: str) -> str:
    """Assign an address as an earlier release of the deployment's plugin did."""
    with session(site) as store:
        (address,) = IpamService(store, "node1").assign(Assign(handle, {"node": "node1", **attributes})).addresses
    return str(address)


def test_handle_of_another_attachment_is_refused(make: MakePod, node: ClusterNode) -> None:
    """The form of handles is fixed. The DEL of the refused attachment keeps the address of the other one."""
    node.site.add_pod("web-1")
    one = make("a.b", name="net1")
    one.add()
    other = make("b", name="net1.a", args=WEB.replace("web-0", "web-1"))
    error = other.failed("ADD").output
    assert (error["code"], error["msg"]) == (103, "handle 'net1.a.b' is in use by container 'a.b' of network 'net1'")
    other.delete()
    assert audit([node]).allocations == {one.addresses[0]: "net1.a.b"}
    with closing(sqlite3.connect(node.state_dir / "journal.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM attachments")
    assert other.failed("ADD").output["msg"] == f"handle 'net1.a.b' is in use by address {one.addresses[0]}"
    other.delete()
    assert audit([node]).allocations == {one.addresses[0]: "net1.a.b"}
    one.delete()
    assert audit([node]).allocations == {}


def test_del_releases_the_older_form_of_the_handle(make: MakePod, node: ClusterNode) -> None:
    """That form is the workload's ID alone. Addresses of other pods, or of pods on other nodes, stay."""
    address = allocate(node.site, "default.web-0", pod="web-0", namespace="default")
    others = [allocate(node.site, "default.web-0", node="node2"), allocate(node.site, "default.web-0", pod="web-1")]
    make().delete()
    assert set(audit([node]).allocations) == set(others)
    assert address not in others
    with session(node.site) as store:
        IpamService(store, "node1").release(Release("default.web-0"))


def test_del_of_a_bare_container_releases_the_handle_with_its_id(make: MakePod, node: ClusterNode) -> None:
    allocate(node.site, "c7")
    pod = make("c7", args="")
    pod.plugin = "calico-ipam"
    pod.delete()
    assert audit([node]).allocations == {}


def test_older_form_is_not_released_while_the_current_one_exists(make: MakePod, node: ClusterNode) -> None:
    """This includes the DEL of a sandbox whose endpoint now belongs to the next sandbox."""
    old, new = make("c1"), make("c2")
    old.add()
    address = allocate(node.site, "default.web-0")
    old.delete()
    assert list(audit([node]).allocations) == [address]
    new.add()
    old.delete()
    assert set(audit([node]).allocations) == {address, *new.addresses}
    with session(node.site) as store:
        IpamService(store, "node1").release(Release("default.web-0"))

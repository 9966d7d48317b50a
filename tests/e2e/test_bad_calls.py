"""Invalid names, container IDs, arguments and namespaces: svc refuses the call and changes nothing."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.netns import Netns
from harness.node import Called, Node, netconf
from harness.pod import Pod
from harness.state import State, audit, disagreements

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

BAD_INTERFACES = [
    *(".", "..", "a/b", "/", "a:b", "eth0:1", "a b", " eth0", "eth0\n", "eth\t0", "e" * 16, "\u00e9" * 8, "\x7f"),
    *("eth%d", "%", "all", "default"),
]
BAD_CONTAINERS = ["a/b", "../c1", ".", "..", "-c1", "_c1", " c1", "c1\n", "c 1", "c:1", "\u00e9", "c" * 129]
BAD_ARGUMENTS = [
    "IP",
    "IP=a=b",
    "IP=nonsense",
    "IP=10.65.3.4/16",
    "IP=10.65.3.999",
    "A=1;;B=2",
    "IgnoreUnknown=perhaps",
    "K8S_POD_NAMESPACE=a/b;K8S_POD_NAME=c",
    "K8S_POD_NAMESPACE=n;K8S_POD_NAME=" + "p" * 254,
]


@pytest.fixture
def unchanged(shared_node: Node) -> Iterator[None]:
    """Fail the test if it changes the store, the journal or the kernel."""
    before = State.read(shared_node)
    yield
    assert State.read(shared_node) == before


def refused(called: Called) -> dict[str, Any]:
    assert called.status == 1, called
    assert set(called.output) == {"cniVersion", "code", "msg", "details"}
    return dict(called.output)


# names


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK"])
@pytest.mark.parametrize("ifname", BAD_INTERFACES, ids=ascii)
def test_invalid_interface_name_is_refused(pods: MakePod, verb: str, ifname: str) -> None:
    pod = pods(ifname=ifname)
    error = refused(pod.call(verb))
    assert (error["code"], "CNI_IFNAME" in error["msg"]) == (4, True)
    assert pod.netns.links() == []


def test_longest_interface_name_is_accepted(pods: MakePod) -> None:
    pod = pods(ifname="e" * 15)
    pod.add()
    assert pod.netns.links() == ["e" * 15]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK"])
@pytest.mark.parametrize("container", BAD_CONTAINERS, ids=ascii)
def test_invalid_container_id_is_refused(pods: MakePod, verb: str, container: str) -> None:
    error = refused(pods(container=container).call(verb))
    assert (error["code"], "CNI_CONTAINERID" in error["msg"]) == (4, True)


@pytest.mark.parametrize("container", ["c" * 128, "0", "a.b_c-d.", "A1"])
def test_valid_container_id_is_accepted(pods: MakePod, container: str) -> None:
    pod = pods(container=container)
    pod.add()
    assert pod.check().status == 0


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"])
def test_missing_variable_is_named(pods: MakePod, shared_node: Node, name: str) -> None:
    called = shared_node.call("ADD", netconf(), netns=pods().netns.path, extra={name: ""})
    error = refused(called)
    assert (error["code"], name in error["msg"]) == (4, True)


@pytest.mark.usefixtures("unchanged")
def test_all_missing_variables_are_named_at_once(shared_node: Node) -> None:
    error = refused(shared_node.call("ADD", netconf(), container="", ifname="", netns=""))
    assert all(name in error["msg"] for name in ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("verb", ["add", "UPDATE", "ADD ", "\u00e9"])
def test_unknown_verb_is_refused(pods: MakePod, verb: str) -> None:
    assert refused(pods().call(verb))["code"] == 4


# arguments


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("args", BAD_ARGUMENTS, ids=lambda args: args[:40])
def test_malformed_arguments_are_refused(pods: MakePod, args: str) -> None:
    error = refused(pods(args=args).call("ADD"))
    assert (error["code"], "CNI_ARGS" in error["msg"] + error["details"]) == (4, True)


def test_unknown_arguments_are_ignored(pods: MakePod) -> None:
    pods(args="IgnoreUnknown=1;K8S_POD_TAINT=x;FOO=bar").add()
    pods(args="FOO=bar").add()


# namespaces


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "path",
    ["/run/netns/was-never-there", "/etc/hostname", "/etc", "/proc/self/ns/mnt", "/dev/null", "netns/relative", "/run/netns/"],
)
def test_path_that_is_not_a_network_namespace_is_refused(pods: MakePod, path: str) -> None:
    error = refused(pods().call("ADD", netns=path))
    assert (error["code"], path in error["msg"]) == (4, True)


@pytest.mark.usefixtures("unchanged")
def test_pipe_in_place_of_a_namespace_does_not_block_the_call(pods: MakePod, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(pods().call("ADD", netns=str(tmp_path / "pipe")))["code"] == 4


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK"])
@pytest.mark.parametrize("by", ["name", "process"])
def test_namespace_of_the_node_itself_is_refused(pods: MakePod, shared_node: Node, verb: str, by: str) -> None:
    """svc must not treat an interface of the host as one of a container."""
    pod = pods()
    pod.add()
    before = State.read(shared_node)
    path = shared_node.netns.path if by == "name" else "/proc/self/ns/net"
    error = refused(pod.call(verb, netns=path, prevResult=pod.result))
    assert (error["code"], "host's own network namespace" in error["msg"]) == (8, True)
    assert State.read(shared_node) == before


@pytest.mark.parametrize("kind", ["bridge", "veth"])
def test_existing_interface_in_the_sandbox_is_not_changed(pods: MakePod, shared_node: Node, kind: str) -> None:
    pod = pods()
    pod.netns.run("ip", "link", "add", "eth0", "type", kind)
    links = pod.netns.ip("link")
    error = refused(pod.call("ADD"))
    assert (error["code"], "interface 'eth0' already exists" in error["msg"]) == (108, True)
    assert pod.netns.ip("link") == links
    assert audit(shared_node).entries() == []
    assert [name for name in shared_node.netns.links() if name != "uplink"] == []
    pod.netns.delete()


def test_requested_address_that_the_host_routes_elsewhere_is_refused(pods: MakePod, shared_node: Node) -> None:
    """Another program has a route to the same address. The route must stay, and the pod must not get part of its traffic."""
    host = shared_node.netns
    host.run("ip", "route", "add", "10.65.3.4/32", "dev", "uplink")
    try:
        error = refused(pods(args="IP=10.65.3.4").call("ADD"))
        assert error["code"] == 106
        assert "the host already has a route to 10.65.3.4" in error["msg"]
        assert audit(shared_node).entries() == []
        assert host.links() == ["uplink"]
        assert [route["dev"] for route in host.ip("route", "show", "10.65.3.4")] == ["uplink"]
    finally:
        host.run("ip", "route", "del", "10.65.3.4/32")


def test_pod_can_be_added_after_a_failed_add(pods: MakePod, sandbox: Callable[[], Netns]) -> None:
    pod = pods(mtu=60)
    assert refused(pod.call("ADD"))["code"] == 7
    pod.add(mtu=1400)
    assert disagreements(pod.node) == []

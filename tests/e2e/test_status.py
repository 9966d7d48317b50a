"""STATUS and VERSION: whether an ADD would succeed, answered in bounded time, and the supported versions."""

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.node import POOL4, Called, Node, netconf
from harness.pod import Pod
from harness.state import State, store_of
from harness.stopped import stopped
from svc.datastore.api import Delete, Update
from svc.model.keys import ResourceKey
from svc.model.resource import Resource

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
CLUSTER = ResourceKey("ClusterInformation", "default")


def status(node: Node, plugin: str = "svc", **config: Any) -> Called:
    """Call STATUS as runtimes do, without a container."""
    return node.call("STATUS", netconf(**config), plugin=plugin, container="", ifname="")


def refused(called: Called) -> tuple[int, str]:
    """Return the code and the whole text of the error."""
    assert called.status == 1, called
    assert called.output["cniVersion"] == "1.1.0"
    return called.output["code"], called.output["msg"] + " " + called.output["details"]


@pytest.mark.parametrize("plugin", ["svc", "svc-ipam"])
def test_status_of_a_ready_node_is_empty(shared_node: Node, plugin: str) -> None:
    before = State.read(shared_node)
    called = status(shared_node, plugin, ipam={"assign_ipv6": "true"})
    assert (called.status, called.stdout) == (0, b"")
    assert State.read(shared_node) == before


def test_status_needs_no_container(shared_node: Node) -> None:
    environment = {"CNI_COMMAND": "STATUS"}
    done = subprocess.run(
        [shared_node.bin_dir / "svc"], env=environment, input=b'{"cniVersion":"1.1.0"}', capture_output=True, check=False
    )
    assert (done.returncode, b'"code":7' in done.stdout) == (1, True), "the error is not about the network configuration"


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_status_requires_version_1_1_0(shared_node: Node, version: str) -> None:
    called = status(shared_node, cniVersion=version)
    assert (called.output["code"], called.output["cniVersion"]) == (1, version)


def test_node_without_a_pool_is_not_ready(node: Node) -> None:
    node.svcctl("pool", "delete", "pool4")
    code, text = refused(status(node))
    assert code == 50
    assert "no IPv4 pool is available" in text


def test_pool_that_does_not_exist_is_named(shared_node: Node) -> None:
    code, text = refused(status(shared_node, ipam={"ipv4_pools": ["nowhere"]}))
    assert code == 50
    assert "(nowhere) does not exist" in text


def test_disabled_pool_makes_the_node_not_ready(node: Node) -> None:
    node.apply_pool("pool4", POOL4, disabled=True)
    assert refused(status(node))[0] == 50


def test_exhausted_pool_makes_the_node_not_ready_until_a_pod_is_deleted(own_pods: MakePod, node: Node) -> None:
    node.apply_pool("tiny", "10.70.0.0/31", blockSize=31)
    tiny: dict[str, Any] = {"ipam": {"ipv4_pools": ["tiny"]}}
    made = [own_pods(**tiny) for _ in range(2)]
    assert status(node, **tiny).status == 0
    for pod in made:
        pod.add()
    code, text = refused(status(node, **tiny))
    assert code == 50
    assert "tiny 10.70.0.0/31 (1 of 1 blocks are the node's, 2 addresses used in them)" in text
    made[0].delete()
    assert status(node, **tiny).status == 0


def test_one_exhausted_family_makes_the_node_not_ready(own_pods: MakePod, node: Node) -> None:
    node.apply_pool("tiny6", "fd70::/127", blockSize=127)
    conf: dict[str, Any] = {"ipam": {"assign_ipv6": "true", "ipv6_pools": ["tiny6"]}}
    for _ in range(2):
        own_pods(**conf).add()
    code, text = refused(status(node, **conf))
    assert code == 50
    assert "IPv6" in text


def test_locked_store_makes_the_node_not_ready(node: Node) -> None:
    with store_of(node) as store:
        entry = store.get(CLUSTER)
        assert isinstance(entry.value, Resource)
        entry.value.spec["datastoreReady"] = False
        (locked,) = store.write([Update(CLUSTER, entry.value, entry.revision)])
        assert locked is not None
        code, text = refused(status(node))
        assert (code, "the datastore is locked" in text) == (50, True)
        store.write([Delete(CLUSTER)])
    code, text = refused(status(node))
    assert (code, "the datastore is not initialised" in text) == (50, True)


def test_missing_agent_is_the_cause(node: Node) -> None:
    """An ADD would succeed as a one-shot call, but a node is ready only with its agent."""
    node.stop_agent()
    code, text = refused(status(node))
    assert code == 50
    assert "the agent is not running" in text
    node.start_agent()
    assert status(node).status == 0


def test_silent_agent_is_the_cause_within_a_second(node: Node) -> None:
    with stopped(node.agent_pid):
        code, text = refused(status(node))
    assert code == 50
    assert "no sign of life within 1 s" in text


# VERSION


@pytest.mark.parametrize("plugin", ["svc", "svc-ipam"])
@pytest.mark.parametrize("stdin", [b"", b"{}", b'{"cniVersion":"1.0.0"}', b"nonsense"], ids=["none", "empty", "1.0.0", "junk"])
def test_version_needs_neither_an_agent_nor_a_netconf(node_without_agent: Node, plugin: str, stdin: bytes) -> None:
    called = node_without_agent.call("VERSION", stdin, plugin=plugin)
    assert called.status == 0
    expected = "1.0.0" if b"1.0.0" in stdin else "1.1.0"
    assert called.output == {"cniVersion": expected, "supportedVersions": VERSIONS}


@pytest.fixture(scope="module")
def node_without_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("idle") / "node", agent=False) as node:
        yield node

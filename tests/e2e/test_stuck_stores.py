"""A datastore that does not answer: other networks are not delayed, and every call ends in time."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cluster_node import ClusterNode, remains
from harness.netns import Netns
from harness.node import agent_with, netconf
from harness.pod import Pod
from svc.cni import handler
from svc.cni.call_io import CallInput
from svc.cni.frame import pack_request
from svc.deadline import RESERVED_SECONDS

pytestmark = [pytest.mark.root, pytest.mark.slow]

MakeSandbox = Callable[[], Netns]

WAITING_ADDS = 200
ADD_SECONDS, DEL_SECONDS, AT_ONCE_SECONDS = 15.0, 20.0, 5.0  # an ADD has half of the usual time
AGENT = agent_with({f"{handler.__name__}.WORK_SECONDS['ADD']": ADD_SECONDS - RESERVED_SECONDS})
CLEANUP_SECONDS = 60.0
START_SECONDS = 1.0  # for processes to start


@pytest.fixture
def base_node(site: Any, tmp_path: Path) -> Iterator[ClusterNode]:
    """A node for each test, because the tests cut off its datastore."""
    with ClusterNode(tmp_path / "node", "node1", site, agent_program=AGENT) as node:
        yield node


def send_add(stack: ExitStack, node: ClusterNode, config: dict[str, Any], netns: Netns, number: int) -> None:
    """Send an ADD. Its client waits until the stack is closed."""
    environment = {
        "CNI_COMMAND": "ADD", "CNI_CONTAINERID": f"stuck{number}", "CNI_NETNS": netns.path, "CNI_IFNAME": "eth0",
        "CNI_PATH": str(node.bin_dir), "CNI_ARGS": "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default",
    }  # fmt: skip
    client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    client.connect(str(node.socket))
    client.sendall(pack_request(CallInput("svc", environment, orjson.dumps(config))))


def test_a_silent_datastore_does_not_delay_other_networks(web: Pod, cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """While many ADDs wait, an ADD in another network succeeds at once. A DEL succeeds, with a pending release."""
    node = cluster_node
    node.apply_pools()
    web.add()
    here = Pod(node, sandbox(), "here", netconf(name="here"))
    with ExitStack() as stack:
        with node.silenced(node.site):
            elsewhere = sandbox()
            for number in range(WAITING_ADDS):
                send_add(stack, node, node.netconf(), elsewhere, number)
            began = time.monotonic()
            here.add()
            assert time.monotonic() - began < AT_ONCE_SECONDS
            web.delete()
            assert time.monotonic() - began < DEL_SECONDS + AT_ONCE_SECONDS
            assert web.netns.links() == []
            here.delete()
    until = time.monotonic() + CLEANUP_SECONDS
    while remains([node]):  # some of the waiting ADDs may have succeeded
        assert time.monotonic() < until, remains([node])
        node.call("GC", node.netconf(**{"cni.dev/valid-attachments": []}), container="", ifname="")
        web.delete()


def test_an_add_ends_in_time(cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """This holds although the ADDs share the requests without an answer."""
    node = cluster_node
    for number in range(8):
        node.site.add_pod(f"web-{number}")
    pods = [node.pod(sandbox(), f"c{n}", args=f"K8S_POD_NAME=web-{n};K8S_POD_NAMESPACE=default") for n in range(8)]
    pods[0].add()
    with node.silenced(node.site):
        began = time.monotonic()
        callings = [pod.begin("ADD") for pod in pods[1:]]
        outcomes = [calling.result() for calling in callings]
        assert time.monotonic() - began < ADD_SECONDS + START_SECONDS
    assert {called.output["code"] for called in outcomes} <= {104, 111}
    assert all(f"127.0.0.1:{node.site.port} " in called.output["msg"] for called in outcomes), outcomes
    for pod in pods:
        pod.delete()

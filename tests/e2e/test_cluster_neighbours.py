"""Two nodes, each with its own agent, that share a datastore and a pool."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from harness.clients import Client, Register
from harness.cluster_node import ClusterNode, audit, disagreements, remains
from harness.datastores import Site, furnish, session
from harness.ipam import put_pool
from harness.netns import Netns
from harness.pod import Pod

pytestmark = pytest.mark.root

CLIENTS_PER_NODE = 4
PODS_PER_CLIENT = 3
CALLS_PER_CLIENT = 20  # each is an ADD or a DEL
SMALL = {"assign_ipv6": "true", "ipv4_pools": ["small"], "ipv6_pools": ["small6"]}


@pytest.fixture
def nodes(site: Site, tmp_path: Path) -> Iterator[list[ClusterNode]]:
    furnish(site, "node1", "node2")
    try:
        with ClusterNode(tmp_path / "one", "node1", site) as first, ClusterNode(tmp_path / "two", "node2", site) as second:
            yield [first, second]
            for node in (first, second):
                assert node.stop_agent() == 0
                assert "Traceback" not in node.log.read_text()
    finally:
        site.clear()


@pytest.fixture
def pods(site: Site, nodes: list[ClusterNode]) -> Iterator[list[list[Pod]]]:
    """Return the pods of each client, beginning with the first node. There are few more addresses than pods."""
    with session(site) as store:
        put_pool(store, "small", "10.66.0.0/27", blockSize=29)
        put_pool(store, "small6", "fd66::/123", blockSize=125)
    with ExitStack() as stack:
        yield [
            [pod(node, client, each, stack) for each in range(PODS_PER_CLIENT)]
            for node in nodes
            for client in range(CLIENTS_PER_NODE)
        ]


def pod(node: ClusterNode, client: int, number: int, stack: ExitStack) -> Pod:
    name = f"{node.name}-{client}-{number}"
    node.site.add_pod(name, node.name)
    args = f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}"
    return node.pod(stack.enter_context(Netns("sandbox")), args=args, ipam=SMALL)


def test_no_address_is_assigned_twice(nodes: list[ClusterNode], pods: list[list[Pod]]) -> None:
    register = Register()
    clients = [Client(own, register, Random(number)) for number, own in enumerate(pods)]

    def work(client: Client) -> None:
        for _ in range(CALLS_PER_CLIENT):
            client.step()

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(work, clients))
        assert register.failures == set()
        assert disagreements(nodes) == []
        assert sorted(audit(nodes).allocations) == sorted(register.holders)
        for pod in (pod for own in pods for pod in own if pod.result):
            assert pod.check().status == 0
        list(pool.map(Client.delete_all, clients))
    assert remains(nodes) == []

"""Repeated kills of the agent while pods are added and deleted. No address is lost, leaked, or assigned twice."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random

import pytest

from harness.clients import Client, Register
from harness.netns import Netns
from harness.node import Node, netconf
from harness.pod import Pod
from harness.state import audit, disagreements, remains

pytestmark = [pytest.mark.root, pytest.mark.slow]

CLIENTS = 8
PODS_PER_CLIENT = 3
DURATION_SECONDS = 5.0
TIMEOUT_SECONDS = 120.0
KILLED = "the agent closed the connection before the end of its reply"  # also for a one-shot call that forwards to the agent
NETCONF = netconf(ipam={"assign_ipv6": "true", "ipv4_pools": ["small"], "ipv6_pools": ["small6"]})


class Killer:
    """A loop that kills the agent at random moments, and starts it again."""

    def __init__(self, node: Node, random: Random) -> None:
        self._node = node
        self._random = random
        self.kills = 0

    def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            time.sleep(self._random.uniform(0.05, 0.8))
            self._node.kill_agent()
            self.kills += 1
            time.sleep(self._random.choice((0, 0, 0.2)))
            self._node.start_agent()


@pytest.fixture
def pods(node: Node) -> Iterator[list[Pod]]:
    with ExitStack() as stack:
        netns = [stack.enter_context(Netns("sandbox")) for _ in range(CLIENTS * PODS_PER_CLIENT)]
        yield [Pod(node, each, "", NETCONF) for each in netns]


def test_agent_can_be_killed_at_any_time(node: Node, pods: list[Pod]) -> None:
    """One-shot processes execute calls while the agent is down. Its next start removes what the killed agent has left.

    The pools have few more addresses than there are pods, so another pod soon gets one that is released too early.
    """
    node.apply_pool("small", "10.66.0.0/27", blockSize=29)
    node.apply_pool("small6", "fd66::/123", blockSize=125)
    register, killer = Register(), Killer(node, Random(CLIENTS))
    clients = [
        Client(pods[number * PODS_PER_CLIENT : (number + 1) * PODS_PER_CLIENT], register, Random(number))
        for number in range(CLIENTS)
    ]
    start = time.monotonic()

    def is_over() -> bool:
        """Return True after the duration, but not before enough happened: a slow machine takes longer."""
        lasted = time.monotonic() - start
        assert lasted < TIMEOUT_SECONDS, f"only {killer.kills} kills and {register.deleted} pods"
        return lasted > DURATION_SECONDS and killer.kills > 3 and register.deleted > 40

    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        for done in [pool.submit(work, is_over) for work in (*(client.work for client in clients), killer.work)]:
            done.result()
    assert all(text.endswith(KILLED) for text in register.failures), register.failures
    alive = [pod for pod in pods if pod.result is not None]
    assert disagreements(node) == []
    assert sorted(audit(node).allocations) == sorted(register.holders)
    for pod in alive:
        assert pod.check().status == 0
    for client in clients:
        client.delete_all()
    assert remains(node) == []

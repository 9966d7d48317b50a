"""A namespace as a node: an interface `up0` on a subnet of each family, and the kernel part in it."""

from collections.abc import Iterator

import pytest

from harness.netns import Netns
from svc.names import DEFAULT
from svc.routes.kernel_part import KernelPart


@pytest.fixture
def node(netns: Netns) -> Netns:
    """Return the namespace, which the test has entered."""
    for command in (
        "link set lo up",
        "link add up0 type veth peer name up1",
        "link set up0 up",
        "link set up1 up",
        "address add 192.168.0.1/16 dev up0",
        "-6 address add fd99::1/64 dev up0 nodad",
    ):
        netns.run("ip", *command.split())
    for path in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        netns.run("sh", "-c", f"echo 1 > /proc/sys/net/{path}")
    return netns


@pytest.fixture
def part(node: Netns) -> Iterator[KernelPart]:
    made = KernelPart(DEFAULT)
    yield made
    made.close()

"""Own routes in a real kernel, read by pyroute2: added, replaced, deleted, kept apart from those of other programs."""

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from select import select
from time import monotonic

import pytest

from harness.inprocess import opened
from harness.netns import Netns
from harness.route_reader import PROTOCOL, SeenRoute, own_routes
from svc._core import rtnl
from svc._core.cidr import Address, Cidr
from svc.dataplane.kernel import Kernel
from svc.dataplane.plan import HOST_MAC, VethSpec
from svc.dataplane.wire import wire
from svc.model.errors import PeerError
from svc.routes.applied import Applied
from svc.routes.kernel_part import KernelPart
from svc.routes.wanted import Blackhole, Direct, Wanted, Way

pytestmark = pytest.mark.root

HIGHEST = 2**32 - 1
BLOCK, OTHER, OWN = Cidr("10.65.0.0/26"), Cidr("10.65.0.64/26"), Cidr("10.65.0.128/26")
BLOCK6, OWN6 = Cidr("fd00::/122"), Cidr("fd00::40/122")
FIRST, SECOND = Direct(Address("192.168.0.2")), Direct(Address("192.168.0.3"))
FIRST6 = Direct(Address("fd99::2"))
SYS_SETRESUID = {"x86_64": 117, "aarch64": 147}
NOBODY, SAME = 65534, -1
TIMEOUT_SECONDS = 20.0  # only a failing test waits that long


@dataclass
class Pair:
    host_index: int = 0
    peer_index: int = 0


def via(network: Cidr, gateway: str, **others: object) -> SeenRoute:
    metric = {"metric": 1024} if network.version == 6 else {}
    return SeenRoute(str(network), gateway, "up0", **{**metric, **others})  # type: ignore[arg-type]


def hole(network: Cidr) -> SeenRoute:
    return SeenRoute(str(network), None, None, "blackhole", HIGHEST)


def apply(part: KernelPart, routes: dict[Cidr, Way], *, may_delete: bool = True) -> Applied:
    return part.apply(Wanted(routes), may_delete=may_delete)


def wait_for_change(part: KernelPart) -> None:
    deadline = monotonic() + TIMEOUT_SECONDS
    while not part.changed(0.1):
        assert monotonic() < deadline


@contextmanager
def unprivileged() -> Iterator[None]:
    """Take the capabilities from the calling thread alone."""
    libc, number = ctypes.CDLL(None, use_errno=True), SYS_SETRESUID[os.uname().machine]
    assert libc.syscall(number, SAME, NOBODY, SAME) == 0
    try:
        yield
    finally:
        assert libc.syscall(number, SAME, 0, SAME) == 0


def test_routes_are_written_in_both_families(part: KernelPart) -> None:
    """Blackholes have the highest metric, so that the route of a pod or of another node goes first."""
    wanted: dict[Cidr, Way] = {BLOCK: FIRST, BLOCK6: FIRST6, OWN: Blackhole(), OWN6: Blackhole()}
    applied = apply(part, wanted)
    assert (dict(applied.routes), dict(applied.failures), dict(applied.foreign), applied.problems) == (wanted, {}, {}, ())
    assert own_routes() == {via(BLOCK, "192.168.0.2"), via(BLOCK6, "fd99::2"), hole(OWN), hole(OWN6)}
    assert part.own_routes() == 4


@contextmanager
def told() -> Iterator[list[tuple[bool, Cidr]]]:
    """Yield a list that gets what the kernel tells about routes of the main table: is it a deletion, and the network."""
    found: list[tuple[bool, Cidr]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE) as groups:
        groups.bind((0, 1 << 6 | 1 << 10))  # RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE
        yield found
        with suppress(BlockingIOError):
            while True:
                for kind, _, message in rtnl.split(groups.recv(65536)):
                    route = rtnl.unpack_route(message)
                    if route["table"] == rtnl.RT_TABLE_MAIN:
                        network = Cidr.of(Address.from_packed(route["destination"]), route["length"])
                        found.append((kind == rtnl.RTM_DELROUTE, network))


def test_second_comparison_changes_nothing(part: KernelPart) -> None:
    """The same holds for a process that reads what another one has written."""
    wanted: dict[Cidr, Way] = {BLOCK: FIRST, BLOCK6: FIRST6, OWN: Blackhole(), OWN6: Blackhole()}
    apply(part, wanted)
    part.forget()
    with told() as messages:
        assert dict(apply(part, wanted).routes) == wanted
    assert messages == []


def test_moved_block_is_one_replacement(part: KernelPart) -> None:
    """It needs no right to delete, and the kernel tells of no deletion."""
    apply(part, {BLOCK: FIRST, BLOCK6: FIRST6})
    with told() as messages:
        apply(part, {BLOCK: SECOND, BLOCK6: Direct(Address("fd99::3"))}, may_delete=False)
    assert own_routes() == {via(BLOCK, "192.168.0.3"), via(BLOCK6, "fd99::3")}
    assert sorted(messages) == [(False, BLOCK), (False, BLOCK6)]


def test_block_that_becomes_an_own_one_loses_its_route(part: KernelPart) -> None:
    """The blackhole is added first. The way back is the same."""
    apply(part, {BLOCK: FIRST, BLOCK6: FIRST6})
    apply(part, {BLOCK: Blackhole(), BLOCK6: Blackhole()})
    assert own_routes() == {hole(BLOCK), hole(BLOCK6)}
    apply(part, {BLOCK: FIRST, BLOCK6: FIRST6})
    assert own_routes() == {via(BLOCK, "192.168.0.2"), via(BLOCK6, "fd99::2")}


def test_nothing_is_deleted_without_leave(part: KernelPart) -> None:
    """The caller decides, as it knows whether the datastore was read completely."""
    apply(part, {BLOCK: FIRST, OTHER: FIRST})
    apply(part, {OTHER: SECOND}, may_delete=False)
    assert own_routes() == {via(BLOCK, "192.168.0.2"), via(OTHER, "192.168.0.3")}
    assert part.own_routes() == 2
    apply(part, {OTHER: SECOND})
    assert own_routes() == {via(OTHER, "192.168.0.3")}


def test_old_route_stays_while_the_new_one_waits(part: KernelPart) -> None:
    """The caller names networks whose refused route is not due yet. Their routes do not count as unwanted."""
    apply(part, {BLOCK: FIRST, OTHER: FIRST, BLOCK6: FIRST6})
    applied = part.apply(Wanted({OTHER: FIRST}), may_delete=False, kept={BLOCK})
    assert (dict(applied.routes), applied.unwanted) == ({OTHER: FIRST}, 1)
    applied = part.apply(Wanted({OTHER: FIRST}), may_delete=True, kept={BLOCK})
    assert applied.unwanted == 0
    assert own_routes() == {via(BLOCK, "192.168.0.2"), via(OTHER, "192.168.0.2")}


@pytest.mark.parametrize(
    "foreign",
    [
        "via 192.168.0.9 proto 80",
        "via 192.168.0.9 proto 80 metric 7",
        "via 192.168.0.9 proto bird",
        "dev up0",
        "nexthop via 192.168.0.8 nexthop via 192.168.0.9",
        "blackhole",
    ],
)
def test_foreign_route_stays(part: KernelPart, node: Netns, foreign: str) -> None:
    """The report names the foreign route of any metric. After the deletion, the own route is added."""
    kind = ["blackhole"] if foreign == "blackhole" else []
    rest = [] if kind else foreign.split()
    node.run("ip", "route", "add", *kind, str(BLOCK), *rest)
    before = node.run("ip", "route", "show", str(BLOCK)).stdout
    applied = apply(part, {BLOCK: FIRST, OTHER: FIRST})
    assert (set(applied.routes), set(applied.foreign), dict(applied.failures)) == ({OTHER}, {BLOCK}, {})
    assert applied.foreign[BLOCK].protocol != PROTOCOL
    assert applied.foreign[BLOCK].text
    assert node.run("ip", "route", "show", str(BLOCK)).stdout == before
    node.run("ip", "route", "del", *kind, str(BLOCK))
    wait_for_change(part)
    assert set(apply(part, {BLOCK: FIRST, OTHER: FIRST}).routes) == {BLOCK, OTHER}
    assert own_routes() == {via(BLOCK, "192.168.0.2"), via(OTHER, "192.168.0.2")}


def test_foreign_route_in_ipv6_stays(part: KernelPart, node: Netns) -> None:
    """Its metric is the same, so that the kernel would refuse another one."""
    node.run("ip", "-6", "route", "add", str(BLOCK6), "via", "fd99::9", "proto", "80")
    applied = apply(part, {BLOCK6: FIRST6})
    assert (set(applied.routes), applied.foreign[BLOCK6].text) == (set(), "via fd99::9 on up0 with metric 1024")
    assert own_routes(80) == {via(BLOCK6, "fd99::9")}


def test_foreign_route_that_came_unnoticed_is_found(part: KernelPart, node: Netns) -> None:
    """The kernel refuses the own route, and is read again."""
    apply(part, {OTHER: FIRST})
    node.run("ip", "route", "add", str(BLOCK), "via", "192.168.0.9", "proto", "80")
    part._notifications.wait = lambda _: False  # type: ignore[assignment,method-assign]
    applied = apply(part, {BLOCK: FIRST, OTHER: FIRST})
    assert (set(applied.routes), set(applied.foreign), dict(applied.failures)) == ({OTHER}, {BLOCK}, {})


def test_own_route_stays_beside_a_later_foreign_one(part: KernelPart, node: Netns) -> None:
    """It carries packets. A move replaces it, and does not change the foreign one."""
    apply(part, {BLOCK: FIRST})
    node.run("ip", "route", "add", str(BLOCK), "via", "192.168.0.9", "proto", "80", "metric", "7")
    applied = apply(part, {BLOCK: SECOND})
    assert (set(applied.routes), set(applied.foreign)) == ({BLOCK}, {BLOCK})
    assert own_routes() == {via(BLOCK, "192.168.0.3")}
    apply(part, {})
    assert own_routes() == set()
    assert own_routes(80) == {via(BLOCK, "192.168.0.9", metric=7)}


def test_appended_foreign_route_is_not_replaced(part: KernelPart, node: Netns) -> None:
    """With the same metric, a replacement could hit it. The own one, which is wrong, is deleted."""
    apply(part, {BLOCK: FIRST})
    node.run("ip", "route", "append", str(BLOCK), "via", "192.168.0.9", "proto", "80")
    applied = apply(part, {BLOCK: SECOND})
    assert (set(applied.routes), set(applied.foreign)) == (set(), {BLOCK})
    assert own_routes() == set()
    assert own_routes(80) == {via(BLOCK, "192.168.0.9")}


def test_refused_route_fails_alone(part: KernelPart) -> None:
    """One of 4,000 has a gateway that is on no subnet."""
    big = Cidr("10.64.0.0/12")
    wanted: dict[Cidr, Way] = {big.block(number, 26): FIRST for number in range(4000)}
    unreachable = big.block(1234, 26)
    wanted[unreachable] = Direct(Address("172.16.0.1"))
    applied = apply(part, wanted)
    assert len(applied.routes) == len(own_routes()) == 3999
    assert {network: failure.errno for network, failure in applied.failures.items()} == {unreachable: errno.ENETUNREACH}
    assert set(apply(part, dict.fromkeys(wanted, FIRST)).routes) == set(wanted)


def test_refused_move_keeps_the_old_route(part: KernelPart) -> None:
    """The caller tries the new one again."""
    apply(part, {BLOCK: FIRST})
    applied = apply(part, {BLOCK: Direct(Address("172.16.0.1"))})
    assert (dict(applied.routes), applied.failures[BLOCK].errno) == ({}, errno.ENETUNREACH)
    assert own_routes() == {via(BLOCK, "192.168.0.2")}


def test_missing_capability_fails_every_route(part: KernelPart) -> None:
    """Routes that are there remain and are counted; deletions are a problem."""
    apply(part, {BLOCK: FIRST})
    with ThreadPoolExecutor(1) as pool:
        applied = pool.submit(apply_unprivileged, part, {OTHER: FIRST, BLOCK6: FIRST6}).result()
    assert {failure.errno for failure in applied.failures.values()} == {errno.EPERM}
    assert set(applied.failures) == {OTHER, BLOCK6}
    assert applied.problems == (f"1 own routes cannot be deleted, such as {BLOCK}: Operation not permitted",)
    assert own_routes() == {via(BLOCK, "192.168.0.2")}


def apply_unprivileged(part: KernelPart, routes: dict[Cidr, Way]) -> Applied:
    with unprivileged():
        return apply(part, routes)


def test_flushed_routes_come_back(part: KernelPart, node: Netns) -> None:
    """The kernel tells of the flush."""
    apply(part, {BLOCK: FIRST, OWN: Blackhole()})
    node.run("ip", "route", "flush", "proto", str(PROTOCOL))
    wait_for_change(part)
    apply(part, {BLOCK: FIRST, OWN: Blackhole()}, may_delete=False)
    assert own_routes() == {via(BLOCK, "192.168.0.2"), hole(OWN)}


def test_interface_that_goes_down_and_up(part: KernelPart, node: Netns) -> None:
    """The kernel drops the routes with it, without a notification for each."""
    apply(part, {BLOCK: FIRST, OWN: Blackhole()})
    node.run("ip", "link", "set", "up0", "down")
    wait_for_change(part)
    assert part.connected_device(FIRST.gateway) is None
    applied = apply(part, {BLOCK: FIRST, OWN: Blackhole()})
    assert (set(applied.routes), applied.failures[BLOCK].errno) == ({OWN}, errno.ENETUNREACH)
    node.run("ip", "link", "set", "up0", "up")
    wait_for_change(part)
    assert set(apply(part, {BLOCK: FIRST, OWN: Blackhole()}).routes) == {BLOCK, OWN}


def test_renamed_interface_keeps_its_routes(part: KernelPart, node: Netns) -> None:
    """Routes name its index."""
    apply(part, {BLOCK: FIRST})
    node.run("ip", "link", "set", "up0", "down")
    node.run("ip", "link", "set", "up0", "name", "lan0")
    node.run("ip", "link", "set", "lan0", "up")
    wait_for_change(part)
    assert part.connected_device(FIRST.gateway) == "lan0"
    apply(part, {BLOCK: FIRST})
    assert own_routes() == {SeenRoute(str(BLOCK), "192.168.0.2", "lan0")}


def test_gateway_that_moves_to_another_interface(part: KernelPart, node: Netns) -> None:
    """The route follows, by a replacement."""
    apply(part, {BLOCK: FIRST})
    node.run("ip", "route", "add", "192.168.0.2/32", "dev", "up1")
    wait_for_change(part)
    apply(part, {BLOCK: FIRST}, may_delete=False)
    assert own_routes() == {SeenRoute(str(BLOCK), "192.168.0.2", "up1")}


def test_node_without_ipv6(part: KernelPart, node: Netns) -> None:
    """Only the routes of IPv6 fail."""
    node.run("sh", "-c", "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 > $f; done")
    assert part.connected_device(FIRST6.gateway) is None
    applied = apply(part, {BLOCK: FIRST, BLOCK6: FIRST6})
    assert (set(applied.routes), set(applied.failures)) == ({BLOCK}, {BLOCK6})


def test_connected_device_is_that_of_a_route_without_a_gateway(part: KernelPart, node: Netns) -> None:
    """An own address is on the loopback. The answer is asked for once."""
    node.run("ip", "route", "add", "default", "via", "192.168.0.254")
    node.run("ip", "route", "add", "192.168.7.0/24", "via", "192.168.0.254")
    wait_for_change(part)
    expected = {"192.168.1.1": "up0", "192.168.0.1": "lo", "192.168.7.1": None, "8.8.8.8": None, "fd99::5": "up0"}
    expected["fd98::1"] = None
    for _ in range(2):
        assert {address: part.connected_device(Address(address)) for address in expected} == expected


def test_clean_removes_own_routes_only(part: KernelPart, node: Netns) -> None:
    """A second call finds nothing and succeeds."""
    node.run("ip", "route", "add", str(OTHER), "via", "192.168.0.9", "proto", "80")
    apply(part, {BLOCK: FIRST, BLOCK6: FIRST6, OWN: Blackhole(), OWN6: Blackhole()})
    part.clean()
    assert own_routes() == set()
    assert len(own_routes(80)) == 1
    part.clean()


def test_clean_without_the_capability_fails(part: KernelPart) -> None:
    """It says what is left."""
    apply(part, {BLOCK: FIRST})
    text = r"1 own routes cannot be deleted, such as 10\.65\.0\.0/26"
    with ThreadPoolExecutor(1) as pool, pytest.raises(PeerError, match=text):
        pool.submit(clean_unprivileged, part).result()


def clean_unprivileged(part: KernelPart) -> None:
    with unprivileged():
        part.clean()


def test_lost_answers_cause_a_comparison(part: KernelPart) -> None:
    """Which of the messages the kernel has accepted is read from it."""
    with socket.socket(fileno=os.dup(part._socket.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the minimum of the kernel: room for a few answers
    big = Cidr("10.64.0.0/12")
    wanted: dict[Cidr, Way] = {big.block(number, 26): FIRST for number in range(1500)}
    applied = apply(part, wanted)
    assert (len(applied.routes), dict(applied.failures)) == (1500, {})
    assert len(own_routes()) == 1500


def test_gateway_of_the_other_family_is_one(part: KernelPart, node: Netns) -> None:
    """A node behind it is not connected."""
    node.run("ip", "route", "add", "192.168.9.0/24", "via", "inet6", "fd99::9", "dev", "up0")
    wait_for_change(part)
    assert part.connected_device(Address("192.168.9.1")) is None


def test_own_changes_are_not_reported(part: KernelPart) -> None:
    """Otherwise each would cause a comparison."""
    apply(part, {BLOCK: FIRST, BLOCK6: FIRST6, OWN: Blackhole()})
    apply(part, {BLOCK: SECOND, OTHER: FIRST})
    assert not part.changed(0)


def test_attachment_of_a_pod_is_not_reported(part: KernelPart, node: Netns) -> None:
    """A busy node adds a hundred pods a second. A route to a wanted network is reported nevertheless."""
    apply(part, {BLOCK: FIRST, Cidr("10.65.9.9/32"): FIRST})
    mac = ["address", HOST_MAC.hex(":")]  # also of the other end, which is in a sandbox otherwise
    node.run("ip", "link", "add", "svc0", *mac, "type", "veth", "peer", "name", "eth7", *mac)
    node.run("ip", "link", "set", "svc0", "up")
    node.run("ip", "address", "add", "fe80::1/64", "dev", "svc0")
    node.run("ip", "route", "add", "10.65.0.7/32", "dev", "svc0")
    node.run("ip", "route", "del", "10.65.0.7/32", "dev", "svc0")
    assert not part.changed(0)
    node.run("ip", "route", "add", "10.65.9.9/32", "dev", "svc0", "metric", "5")
    assert part.changed(TIMEOUT_SECONDS)
    node.run("ip", "link", "del", "svc0")
    assert not part.changed(0)


def settle(part: KernelPart) -> None:
    """Wait until the links of the fixture change no more: their carrier comes a moment later."""
    while part.changed(1.0):
        pass


def test_attachment_of_a_pod_does_not_wake(part: KernelPart, node: Netns) -> None:
    """The kernel drops the notifications: an ADD is not slower beside svc-routes. Changes of other links are reported."""
    apply(part, {OWN: Blackhole(), OWN6: Blackhole()})
    settle(part)
    both = VethSpec("svc0", "eth0", bytes.fromhex("0200000000aa"), (Address("10.65.0.130"), Address("fd00::47")))
    with Netns("pod") as pod, opened(pod) as sandbox, closing(Kernel()) as kernel, closing(kernel.host()):
        wire(kernel, both, sandbox.fd, Pair())
        assert len(node.ip("route", "show", "dev", "svc0")) == 1
        assert select([part.fileno()], [], [], 0.2)[0] == []
        node.run("ip", "link", "set", "svc0", "mtu", "1400")
        node.run("ip", "link", "del", "svc0")
        assert select([part.fileno()], [], [], 0.2)[0] == []
    node.run("ip", "link", "set", "up0", "mtu", "1400")
    assert part.changed(TIMEOUT_SECONDS)


def test_borrowed_address_of_an_own_block_is_watched(part: KernelPart, node: Netns) -> None:
    """The route to another node is inside the block whose other routes are not watched."""
    address = Cidr("10.65.0.129/32")
    apply(part, {OWN: Blackhole()})
    apply(part, {OWN: Blackhole(), address: FIRST})
    node.run("ip", "route", "del", str(address))
    assert part.changed(TIMEOUT_SECONDS)


def test_deleted_attachment_is_not_reported(part: KernelPart, node: Netns) -> None:
    """Also a route that is deleted alone, whose link is not known."""
    apply(part, {BLOCK: FIRST})
    settle(part)
    mac = ["address", HOST_MAC.hex(":")]
    node.run("ip", "link", "add", "svc0", *mac, "type", "veth", "peer", "name", "eth7", *mac)
    node.run("ip", "link", "set", "svc0", "up")
    node.run("ip", "route", "add", "10.65.0.7/32", "dev", "svc0")
    node.run("ip", "route", "add", "fd00::7/128", "dev", "svc0", "protocol", "boot")
    node.run("ip", "route", "del", "10.65.0.7/32", "dev", "svc0")
    node.run("ip", "link", "del", "svc0")
    assert not part.changed(0.2)


def test_lost_notifications_cause_a_comparison(part: KernelPart, node: Netns) -> None:
    """What they told is not known."""
    apply(part, {BLOCK: FIRST})
    with socket.socket(fileno=os.dup(part.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the minimum of the kernel
    node.run("sh", "-c", "; ".join(f"ip link add d{number} type bridge" for number in range(30)))
    node.run("ip", "route", "flush", "proto", str(PROTOCOL))
    assert part.changed(TIMEOUT_SECONDS)
    apply(part, {BLOCK: FIRST})
    assert own_routes() == {via(BLOCK, "192.168.0.2")}


def test_wake_ends_a_wait(part: KernelPart) -> None:
    """Another thread may call it, also before the wait."""
    part.wake()
    started = monotonic()
    assert not part.changed(TIMEOUT_SECONDS)
    assert monotonic() - started < TIMEOUT_SECONDS / 2


@pytest.mark.parametrize(("path", "version"), [("ipv4/ip_forward", 4), ("ipv6/conf/all/forwarding", 6)])
def test_node_that_forwards_nothing_is_a_problem(part: KernelPart, node: Netns, path: str, version: int) -> None:
    """Only in the families of the routes."""
    node.run("sh", "-c", f"echo 0 > /proc/sys/net/{path}")
    (problem,) = apply(part, {BLOCK: FIRST, BLOCK6: FIRST6}).problems
    assert f"IPv{version}" in problem
    assert apply(part, {BLOCK if version == 6 else BLOCK6: FIRST if version == 6 else FIRST6}).problems == ()

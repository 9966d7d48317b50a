"""Netlink sockets with the real kernel: requests, dumps, refusals and threads."""

import errno
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pytest

from harness.core_netns import Side, side
from svc._core import netns, rtnl
from svc._core.rtnl import Batch, NetlinkError

pytestmark = pytest.mark.root

HOST_MAC = bytes.fromhex("eeeeeeeeeeee")
GATEWAY4 = socket.inet_pton(socket.AF_INET, "169.254.1.1")
GATEWAY6 = socket.inet_pton(socket.AF_INET6, "fe80::ecee:eeff:feee:eeee")
DEVCONF = {rtnl.DEVCONF_FORWARDING: 1, rtnl.DEVCONF_PROXY_ARP: 1, rtnl.DEVCONF_ROUTE_LOCALNET: 1}
HOST_IPV6 = {"accept_ra": "0", "accept_dad": "0", "forwarding": "1", "proxy_ndp": "1"}
UPLINK = """
link set lo up
link add uplink type bridge
link set uplink up
address add 192.0.2.1/24 dev uplink
address add 2001:db8::1/64 dev uplink nodad
route add default via 192.0.2.254
"""


@dataclass(frozen=True)
class Pod:
    """Wired sandbox: the index of its host side, and its addresses."""

    index: int
    ipv4: bytes
    ipv6: bytes


def batch_of(*packers: Callable[[Batch], None]) -> Batch:
    batch = Batch()
    for pack in packers:
        pack(batch)
    return batch


def veth(host_name: str, index: int, sandbox: Side, *, peer_name: str = "eth0", peer_index: int = 0) -> Batch:
    batch = Batch()
    batch.create_veth(host_name, index, HOST_MAC, 1450, 1, peer_name, peer_index, b"", sandbox.fd)
    return batch


def veths(indexes: range, sandbox: Side) -> Batch:
    batch = Batch()
    for index in indexes:
        batch.create_veth(f"svc{index}", index, HOST_MAC, 1450, 1, f"eth{index}", 0, b"", sandbox.fd)
    return batch


def wire(host: Side, sandbox: Side, number: int) -> Pod:
    """Wire a dual-stack attachment: a batch for each side, and the sysctls that no message can set."""
    pod = Pod(1000 + number, bytes([10, 65, 0, number]), socket.inet_pton(socket.AF_INET6, f"fd00:65::{number:x}"))
    name = f"svc{number}"
    with netns.Socket(host.fd) as outside, netns.Socket(sandbox.fd) as inside:
        outside.execute(host_batch(name, pod, sandbox.fd))
        netns.write_sysctls(host.fd, [(f"net/ipv6/conf/{name}/{key}", value) for key, value in HOST_IPV6.items()])
        inside.execute(sandbox_batch(pod))
    return pod


def host_batch(name: str, pod: Pod, ns_fd: int) -> Batch:
    batch = Batch()
    batch.create_veth(name, pod.index, HOST_MAC, 1450, 2, "eth0", 2, b"", ns_fd)
    batch.set_link(pod.index, up=True, devconf=DEVCONF, no_link_local=True)
    batch.set_proxy_delay(pod.index, 0)
    batch.add_address(pod.index, GATEWAY6, 64, scope=rtnl.SCOPE_LINK, nodad=True)
    batch.add_route(pod.index, pod.ipv4, 32, scope=rtnl.SCOPE_LINK)
    batch.add_route(pod.index, pod.ipv6, 128)
    return batch


def sandbox_batch(pod: Pod) -> Batch:
    batch = Batch()
    batch.set_link(2, up=True)
    batch.add_address(2, pod.ipv4, 32)
    batch.add_address(2, pod.ipv6, 128, nodad=True)
    batch.add_route(2, GATEWAY4, 32, scope=rtnl.SCOPE_LINK)
    batch.add_route(2, bytes(4), 0, gateway=GATEWAY4)
    batch.add_route(2, bytes(16), 0, gateway=GATEWAY6)
    return batch


def ping(side: Side, *targets: str) -> None:
    for target in targets:
        side.netns.run("ping", "-c1", "-W2", target)


# --- complete attachments


def test_carrier_follows_the_other_side(host: Side, sandbox: Side) -> None:
    """A link has a carrier while both sides are up."""
    with netns.Socket(host.fd) as outside, netns.Socket(sandbox.fd) as inside:
        outside.execute(veth("svc1", 1001, sandbox, peer_index=7))
        outside.execute(batch_of(partial(Batch.set_link, index=1001, up=True)))
        for up in (True, False):
            inside.execute(batch_of(partial(Batch.set_link, index=7, up=up)))
            assert outside.has_carrier("svc1") == up
        with pytest.raises(OSError, match="No such device"):
            outside.has_carrier("gone")


def test_wired_pods_can_be_reached_in_both_families(host: Side, sandbox: Side) -> None:
    """Host and pods reach each other from the first packet on."""
    for line in UPLINK.strip().splitlines():
        host.netns.run("ip", *line.split())
    netns.write_sysctls(host.fd, [("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")])
    with side() as other:
        wire(host, sandbox, 1)
        wire(host, other, 2)
        ping(host, "10.65.0.1", "fd00:65::1", "10.65.0.2", "fd00:65::2")
        ping(sandbox, "192.0.2.1", "2001:db8::1", "10.65.0.2", "fd00:65::2")
        ping(other, "10.65.0.1", "fd00:65::1")


def test_wired_link_has_the_requested_settings(host: Side, sandbox: Side) -> None:
    """iproute2 and /proc show the settings."""
    pod = wire(host, sandbox, 1)
    (link,) = host.netns.ip("-d", "link", "show", "svc1")
    (peer,) = sandbox.netns.ip("-d", "link", "show", "eth0")
    assert (link["ifindex"], link["address"], link["mtu"]) == (pod.index, HOST_MAC.hex(":"), 1450)
    assert (link["num_tx_queues"], link["num_rx_queues"], link["inet6_addr_gen_mode"]) == (2, 2, "none")
    assert (peer["ifindex"], peer["link_index"], peer["mtu"], peer["num_tx_queues"]) == (2, pod.index, 1450, 2)
    assert host.netns.addresses("svc1", "link") == ["fe80::ecee:eeff:feee:eeee/64"]
    assert sandbox.netns.addresses("eth0") == ["10.65.0.1/32", "fd00:65::1/128"]
    paths = [f"net/ipv4/conf/svc1/{name}" for name in ("forwarding", "proxy_arp", "route_localnet")]
    assert netns.read_sysctls(host.fd, [*paths, "net/ipv4/neigh/svc1/proxy_delay"]) == ["1", "1", "1", "0"]


def test_link_can_be_queried(host: Side, sandbox: Side, host_socket: netns.Socket) -> None:
    """It is found by index and by name. The peer is in another namespace."""
    pod = wire(host, sandbox, 1)
    by_index = host_socket.query(batch_of(lambda batch: batch.get_link(pod.index)))
    by_name = host_socket.query(batch_of(lambda batch: batch.get_link(name="svc1")))
    assert [rtnl.unpack_link(message) for message in by_index] == [rtnl.unpack_link(message) for message in by_name]
    link = rtnl.unpack_link(by_name[0])
    assert (link["index"], link["name"], link["up"], link["mac"], link["mtu"]) == (pod.index, "svc1", True, HOST_MAC, 1450)
    assert (link["kind"], link["tx_queues"], link["rx_queues"], link["group"]) == ("veth", 2, 2, 0)
    assert (link["peer_index"], link["peer_nsid"], link["master"]) == (2, 0, 0)


# --- dumps


def test_address_dump_is_of_one_link(host: Side, sandbox: Side, host_socket: netns.Socket) -> None:
    """It equals that of `ip address show dev`."""
    host.netns.run("ip", "link", "set", "lo", "up")
    pod = wire(host, sandbox, 1)
    wanted = host.netns.addresses("svc1", "link")
    found = [rtnl.unpack_address(message) for message in host_socket.query(batch_of(lambda b: b.dump_addresses(pod.index)))]
    assert [f"{socket.inet_ntop(item['family'], item['address'])}/{item['length']}" for item in found] == wanted
    everything = host_socket.query(batch_of(lambda batch: batch.dump_addresses()))
    assert {rtnl.unpack_address(message)["index"] for message in everything} == {1, pod.index}


def test_route_dump_is_of_one_link(sandbox: Side, host: Side) -> None:
    """It equals that of `ip route show dev`, and has only the main table."""
    wire(host, sandbox, 1)
    with netns.Socket(sandbox.fd) as inside:
        for family, option in ((rtnl.AF_INET, "-4"), (rtnl.AF_INET6, "-6")):
            request = Batch()
            request.dump_routes(family, 2)
            found = [rtnl.unpack_route(message) for message in inside.query(request)]
            wanted = sandbox.netns.ip(option, "route", "show", "dev", "eth0")
            assert [route_text(route) for route in found] == [(item["dst"], item.get("gateway", "")) for item in wanted]
            assert {(route["table"], route["index"]) for route in found} == {(254, 2)}


def route_text(route: dict[str, Any]) -> tuple[str, str]:
    """Return destination and gateway as `ip` writes them."""
    family, destination, gateway, length = (route[key] for key in ("family", "destination", "gateway", "length"))
    whole = length == 8 * len(destination)
    text = "default" if length == 0 else socket.inet_ntop(family, destination) + ("" if whole else f"/{length}")
    return text, socket.inet_ntop(family, gateway) if gateway else ""


def test_dump_longer_than_a_datagram_is_complete(host: Side, sandbox: Side, host_socket: netns.Socket) -> None:
    """The kernel sends about 20 links in one datagram."""
    indexes = range(1000, 1060)
    host_socket.execute(veths(indexes, sandbox))
    found = [rtnl.unpack_link(message)["index"] for message in host_socket.query(batch_of(lambda batch: batch.dump_links()))]
    assert found == [1, *indexes]


def test_missing_table_has_no_routes(host_socket: netns.Socket) -> None:
    """In a namespace that never had a route, IPv4's main table does not exist."""
    assert host_socket.query(batch_of(lambda batch: batch.dump_routes(rtnl.AF_INET))) == []
    assert host_socket.query(batch_of(lambda batch: batch.dump_routes(rtnl.AF_INET6))) == []


def test_request_for_a_missing_link_is_refused(host_socket: netns.Socket) -> None:
    """The error has the label of the request."""
    with pytest.raises(NetlinkError, match=r"^get link svc1: No such device$") as refusal:
        host_socket.query(batch_of(lambda batch: batch.get_link(name="svc1")))
    assert (refusal.value.errno, refusal.value.index) == (errno.ENODEV, 0)
    with pytest.raises(NetlinkError, match=r"^dump routes \(index 99\): No such device$"):
        host_socket.query(batch_of(lambda batch: batch.dump_routes(rtnl.AF_INET, 99)))


def test_query_takes_one_message(host_socket: netns.Socket) -> None:
    """Otherwise the replies to several messages would mix."""
    with pytest.raises(ValueError, match="one message, not 2"):
        host_socket.query(batch_of(lambda batch: batch.get_link(1), lambda batch: batch.get_link(1)))


# --- refusals


def test_first_refusal_is_reported(host: Side, sandbox: Side, host_socket: netns.Socket) -> None:
    """The error has its index in the batch, the text of the kernel, and the label of the message."""
    host_socket.execute(veth("svc1", 1000, sandbox))
    batch = batch_of(
        lambda batch: batch.set_link(1000, up=True),
        lambda batch: batch.add_route(1000, bytes([10, 0, 0, 1]), 8),
        lambda batch: batch.delete_link(4711),
    )
    with pytest.raises(NetlinkError) as refusal:
        host_socket.execute(batch)
    assert (refusal.value.errno, refusal.value.index) == (errno.EINVAL, 1)
    assert refusal.value.message == "Invalid prefix for given prefix length"
    assert str(refusal.value) == (
        "add route 10.0.0.1/8 (index 1000): Invalid argument (Invalid prefix for given prefix length)"
    )


def test_existing_name_is_reported_as_file_exists(sandbox: Side, host_socket: netns.Socket) -> None:
    """This holds for both ends of the pair."""
    host_socket.execute(veth("svc1", 1000, sandbox))
    for again in (veth("svc1", 1001, sandbox, peer_name="eth1"), veth("svc2", 1001, sandbox)):
        with pytest.raises(NetlinkError, match=r"create veth svc\d \(index 1001\): File exists") as refusal:
            host_socket.execute(again)
        assert (refusal.value.errno, refusal.value.index) == (errno.EEXIST, 0)


def test_refused_creation_stops_the_batch(sandbox: Side, host: Side, host_socket: netns.Socket) -> None:
    """The index may belong to the link of another program, which must not change."""
    host.netns.run("ip", "link", "add", "stranger", "index", "1001", "type", "bridge")
    before = host.netns.ip("-d", "address", "show", "stranger"), host.netns.ip("route")
    pod = Pod(1001, bytes([10, 65, 0, 1]), bytes(15) + b"\1")
    with pytest.raises(NetlinkError) as refusal:
        host_socket.execute(host_batch("svc1", pod, sandbox.fd))
    assert (refusal.value.errno, refusal.value.index) == (errno.EEXIST, 0)
    assert (host.netns.ip("-d", "address", "show", "stranger"), host.netns.ip("route")) == before


def test_other_refusals_do_not_stop_the_batch(sandbox: Side, host: Side, host_socket: netns.Socket) -> None:
    """A batch of deletions continues after a missing link."""
    batch = batch_of(lambda batch: batch.delete_link(4711))
    batch.create_veth("svc1", 1000, HOST_MAC, 0, 1, "eth0", 0, b"", sandbox.fd)
    batch.set_link(1000, up=True)
    with pytest.raises(NetlinkError, match="delete link") as refusal:
        host_socket.execute(batch)
    assert refusal.value.index == 0
    assert "UP" in host.netns.ip("link", "show", "svc1")[0]["flags"]


def test_unanswered_exchange_leaves_nothing_behind(host_socket: netns.Socket, host: Side) -> None:
    """A dump has no ack, so the wait for it times out. Its replies do not count for the next request."""
    with netns.Socket(host.fd, timeout=0.05) as short_timeout:
        with pytest.raises(TimeoutError):
            short_timeout.execute(batch_of(lambda batch: batch.dump_links()))
        short_timeout.execute(batch_of(lambda batch: batch.set_link(1, up=True)))
        assert len(short_timeout.query(batch_of(lambda batch: batch.get_link(1)))) == 1


def test_large_batch_is_answered_in_full(host_socket: netns.Socket) -> None:
    """The replies stay in the receive buffer until the kernel has processed the whole batch."""
    batch = batch_of(*[lambda batch: batch.set_link(1, up=True)] * 3000)
    host_socket.execute(batch)
    batch.delete_link(4711)
    with pytest.raises(NetlinkError) as refusal:
        host_socket.execute(batch)
    assert refusal.value.index == 3000


def test_too_large_batch_is_refused_as_a_whole(host_socket: netns.Socket) -> None:
    """The kernel refuses it before it reads a message."""
    with pytest.raises(NetlinkError, match="Message too long") as refusal:
        host_socket.execute(batch_of(*[lambda batch: batch.set_link(1)] * 20000))
    assert (refusal.value.errno, refusal.value.index) == (errno.EMSGSIZE, -1)


def test_empty_batch_does_nothing(host_socket: netns.Socket) -> None:
    """A caller need not check whether the batch is empty."""
    host_socket.execute(Batch())


def test_closed_socket_is_refused(host: Side) -> None:
    """It can be closed twice."""
    opened = netns.Socket(host.fd)
    assert opened.fileno() > 2
    opened.close()
    opened.close()
    assert opened.fileno() == -1
    with pytest.raises(ValueError, match="closed"):
        opened.execute(batch_of(lambda batch: batch.set_link(1)))


# --- many threads


def test_threads_can_use_separate_sockets(host: Side, sandbox: Side) -> None:
    """They enter and leave namespaces at the same time. Each returns to its own namespace."""
    home, numbers = netns.own_netns_identity(), count(1000)

    def work(_: int) -> tuple[int, int]:
        for _ in range(10):
            attach(next(numbers))
        return netns.own_netns_identity()

    def attach(index: int) -> None:
        with netns.Socket(host.fd) as outside, netns.Socket(sandbox.fd) as inside:
            outside.execute(veth(f"svc{index}", index, sandbox, peer_name=f"eth{index}"))
            (peer,) = inside.query(batch_of(lambda batch: batch.get_link(name=f"eth{index}")))
            inside.execute(batch_of(lambda batch: batch.set_link(rtnl.unpack_link(peer)["index"], up=True)))
        netns.write_sysctls(host.fd, [(f"net/ipv4/conf/svc{index}/forwarding", "1")])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [home] * 8
    assert len(host.netns.links()) == len(sandbox.netns.links()) == 80


def test_threads_may_share_a_socket(host_socket: netns.Socket) -> None:
    """The socket does one exchange at a time, so no thread gets the reply of another."""

    def work(number: int) -> bool:
        for _ in range(50):
            if number % 2:
                host_socket.execute(batch_of(lambda batch: batch.set_link(1, up=True)))
            else:
                with pytest.raises(NetlinkError, match=f"index {4000 + number}"):
                    host_socket.execute(batch_of(lambda batch: batch.set_link(4000 + number)))
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


# --- all refusals of a batch


def test_every_refusal_of_a_batch_is_returned(host: Side, host_socket: netns.Socket) -> None:
    """The other messages take effect. A batch of thousands is sent in parts, each of which ends with a refusal here."""
    host.netns.run("ip", "link", "add", "up0", "type", "bridge")
    host.netns.run("ip", "link", "set", "up0", "up")
    request = Batch()
    request.get_link(name="up0")
    (link,) = host_socket.query(request)
    index = rtnl.unpack_link(link)["index"]
    batch = Batch()
    for number in range(4000):
        known = number % 1000 != 999
        batch.add_route(index if known else 2**30, socket.inet_aton(f"10.{number >> 8}.{number & 255}.0"), 24, protocol=83)
    refusals = host_socket.execute_each(batch)
    assert [(refusal.index, refusal.errno) for refusal in refusals] == [(part * 1000 + 999, errno.ENODEV) for part in range(4)]
    assert refusals[0].label == "add route 10.3.231.0/24 (index 1073741824)"
    dump = Batch()
    dump.dump_routes(rtnl.AF_INET)
    routes = [rtnl.unpack_route(message) for message in host_socket.query(dump)]
    assert {(route["protocol"], route["index"], route["metric"]) for route in routes} == {(83, index, 0)}
    assert len(routes) == 3996
    repeated = host_socket.execute_each(batch)
    assert len(repeated) == 4000
    assert {refusal.errno for refusal in repeated} == {errno.EEXIST, errno.ENODEV}
    assert host_socket.execute_each(Batch()) == []


def test_refused_creation_does_not_end_such_a_batch(host: Side, host_socket: netns.Socket, sandbox: Side) -> None:
    """Each message counts for itself: none may name a link that another one creates."""
    batch = veth("svc1", 1000, sandbox)
    batch.create_veth("svc1", 1001, HOST_MAC, 1450, 1, "eth9", 0, b"", sandbox.fd)
    batch.set_link(1000, up=True)
    (refusal,) = host_socket.execute_each(batch)
    assert (refusal.index, refusal.errno) == (1, errno.EEXIST)
    assert host.netns.ip("link", "show", "dev", "svc1")[0]["flags"][-1:] != ["DOWN"]


def test_messages_need_an_open_socket(host: Side) -> None:
    """This holds for `execute_each` as for the others."""
    opened = netns.Socket(host.fd)
    opened.close()
    with pytest.raises(ValueError, match="closed"):
        opened.execute_each(Batch())

"""Wiring with the real kernel: interfaces and routes, obstacles, failures, and CHECK."""

import errno
import os
import platform
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count

import pytest

from harness.enter_netns import entered
from harness.netns import Netns, run
from harness.skips import OLD_KERNEL
from svc._core import rtnl
from svc._core.cidr import Address
from svc._core.netns import Procfs, Socket, write_sysctls
from svc.attach.request import Sandbox
from svc.dataplane import plan
from svc.dataplane import wire as wiring_module
from svc.dataplane.check import differences
from svc.dataplane.kernel import Kernel, delete_link
from svc.dataplane.plan import VethSpec
from svc.dataplane.wire import ForwardingSysctls, HostInterfaceExists
from svc.model.errors import CallerError, Code, PeerError

pytestmark = pytest.mark.root

KERNEL = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
MAC = bytes.fromhex("0200000000aa")
ADDRESS4, ADDRESS6 = "10.65.0.7", "fd65::7"
BOTH = VethSpec("svc0123456789a", "eth0", MAC, (Address(ADDRESS4), Address(ADDRESS6)))
ONLY4 = VethSpec("svc0123456789a", "eth0", MAC, (Address(ADDRESS4),))
ONLY6 = VethSpec("svc0123456789a", "eth0", MAC, (Address(ADDRESS6),))
FAMILIES = pytest.mark.parametrize("wiring", [ONLY4, ONLY6, BOTH], ids=["ipv4", "ipv6", "both"])


@pytest.fixture
def kernel(netns: Netns) -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.host().close()
    kernel.close()


@dataclass
class Pair:
    host_index: int = 0
    peer_index: int = 0


def wire(kernel: Kernel, wiring: VethSpec, ns_fd: int) -> Pair:
    pair = Pair()
    wiring_module.wire(kernel, wiring, ns_fd, pair)
    return pair


def assert_nothing_is_left(netns: Netns, pod: Netns) -> None:
    """Check that neither side has an interface or a route."""
    assert (netns.links(), pod.links()) == ([], [])
    assert (netns.ip("route"), pod.ip("route"), pod.ip("-6", "route")) == ([], [], [])


def enable_forwarding(wiring: VethSpec) -> list[str]:
    with closing(ForwardingSysctls()) as forwarding:
        return forwarding.ensure(wiring)


@FAMILIES
def test_wired_attachment_is_as_planned(kernel: Kernel, sandbox: Sandbox, wiring: VethSpec) -> None:
    enable_forwarding(wiring)
    wired = wire(kernel, wiring, sandbox.fd)
    assert differences(kernel, wiring, wired, sandbox.fd) == []
    assert wired.peer_index == 2


@FAMILIES
def test_wired_pod_reaches_the_host(netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox, wiring: VethSpec) -> None:
    """Neither duplicate detection nor a proxy delay makes it wait. Proxy ARP needs the default route of the host."""
    run("ip", "link", "add", "uplink", "type", "bridge")
    run("ip", "link", "set", "uplink", "up")
    run("ip", "address", "add", "192.0.2.1/24", "dev", "uplink")
    run("ip", "address", "add", "2001:db8::1/64", "dev", "uplink", "nodad")
    run("ip", "route", "add", "default", "via", "192.0.2.254")
    enable_forwarding(wiring)
    wire(kernel, wiring, sandbox.fd)
    assert "inet6" not in pod.run("ip", "address", "show", "scope", "global", "tentative").stdout
    for version, target in ((4, "192.0.2.1"), (6, "2001:db8::1")):
        if wiring.has(version):
            pod.run("ping", "-c", "1", "-w", "5", target)


@pytest.mark.skipif(KERNEL < (6, 9), reason=OLD_KERNEL)
def test_first_packet_to_a_pod_arrives(netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox) -> None:
    """The kernel activates the host side's queue in a work item, which other requests delay. The ADD does not wait for that."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    enable_forwarding(ONLY4)
    with entered(pod):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, requests_all_the_time(sandbox):
        receiver.bind(("", 9))
        receiver.settimeout(5)  # nothing sends a lost packet again
        for number in range(30):
            wired = wire(kernel, ONLY4, sandbox.fd)
            sender.sendto(bytes([number]), (ADDRESS4, 9))
            assert receiver.recv(9) == bytes([number])
            delete_link(kernel.host(), wired.host_index)


@contextmanager
def requests_all_the_time(sandbox: Sandbox) -> Iterator[None]:
    """Occupy the kernel's lock for links with requests that change nothing."""
    batch, ended = rtnl.Batch(), threading.Event()
    for _ in range(50):
        batch.set_link(1, up=True)

    def send() -> None:
        with Socket(sandbox.fd) as other:
            while not ended.is_set():
                other.execute(batch)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_wired_interfaces_have_mtu_and_queues(netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox) -> None:
    wiring = VethSpec("svc0123456789a", "net1", MAC, (Address(ADDRESS4),), mtu=1400, queues=3)
    wire(kernel, wiring, sandbox.fd)
    (outer,) = netns.ip("-d", "link", "show", "dev", "svc0123456789a")
    (inner,) = pod.ip("-d", "link", "show", "dev", "net1")
    for link in (outer, inner):
        assert (link["mtu"], link["num_tx_queues"], link["num_rx_queues"]) == (1400, 3, 3)


# obstacles


def test_used_index_is_skipped(netns: Netns, kernel: Kernel, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface with this index does not change."""
    run("ip", "link", "add", "stranger", "index", "5000", "type", "bridge")
    before = netns.ip("-d", "address", "show", "dev", "stranger")
    monkeypatch.setattr(wiring_module, "_indexes", count(5000))
    wired = wire(kernel, BOTH, sandbox.fd)
    assert wired.host_index > 5000
    assert netns.ip("-d", "address", "show", "dev", "stranger") == before
    assert netns.ip("route", "show", "dev", "stranger") == []


def test_used_peer_index_is_skipped(pod: Netns, kernel: Kernel, sandbox: Sandbox) -> None:
    """Another plugin has created an interface in the sandbox."""
    pod.ip("link", "add", "first", "index", "2", "type", "bridge")
    before = pod.ip("-d", "address", "show", "dev", "first")
    enable_forwarding(BOTH)
    wired = wire(kernel, BOTH, sandbox.fd)
    assert wired.peer_index > 2
    assert differences(kernel, BOTH, wired, sandbox.fd) == []
    assert pod.ip("-d", "address", "show", "dev", "first") == before


def test_lack_of_a_free_index_is_an_error(
    netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("ip", "link", "add", "stranger", "index", "5000", "type", "bridge")
    monkeypatch.setattr(wiring_module, "_indexes", iter([5000] * 100))
    with pytest.raises(PeerError, match="no free interface index"):
        wire(kernel, BOTH, sandbox.fd)
    assert (netns.links(), pod.links()) == (["stranger"], [])


def test_existing_host_name_has_its_own_exception(netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox) -> None:
    """The caller handles it: `wire` changes nothing."""
    run("ip", "link", "add", BOTH.host_name, "type", "bridge")
    with pytest.raises(HostInterfaceExists):
        wire(kernel, BOTH, sandbox.fd)
    assert (netns.links(), pod.links()) == ([BOTH.host_name], [])


@pytest.mark.parametrize("host_name_too", [False, True])
def test_existing_interface_name_is_an_error_of_the_caller(
    netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox, host_name_too: bool
) -> None:
    """This holds also if the host name exists too, because its removal would not help."""
    pod.ip("link", "add", "eth0", "type", "bridge")
    if host_name_too:
        run("ip", "link", "add", BOTH.host_name, "type", "bridge")
    with pytest.raises(CallerError, match="interface 'eth0' already exists in the sandbox") as caught:
        wire(kernel, BOTH, sandbox.fd)
    assert caught.value.code == Code.INTERFACE_EXISTS
    assert (netns.links(), pod.links()) == ([BOTH.host_name] * host_name_too, ["eth0"])


@pytest.mark.parametrize("address", [f"{ADDRESS4}/32", f"{ADDRESS6}/128"])
def test_error_names_an_existing_route(netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox, address: str) -> None:
    """The route of the other interface is kept."""
    run("ip", "link", "add", "stranger", "type", "bridge")
    run("ip", "link", "set", "stranger", "up")
    run("ip", "route", "add", address, "dev", "stranger", "metric", "1024" if ":" in address else "0")
    with pytest.raises(PeerError, match="the host already has a route to") as caught:
        wire(kernel, BOTH, sandbox.fd)
    assert address.split("/")[0] in str(caught.value)
    assert (netns.links(), pod.links()) == (["stranger"], [])
    assert netns.ip("route", "get", address.split("/")[0])[0]["dev"] == "stranger"


def test_existing_default_route_in_the_sandbox_is_kept(pod: Netns, kernel: Kernel, sandbox: Sandbox) -> None:
    """An earlier interface has it, and traffic continues to leave by that interface."""
    pod.ip("link", "add", "first", "type", "bridge")
    pod.ip("link", "set", "first", "up")
    pod.ip("address", "add", "192.0.2.9/24", "dev", "first")
    pod.ip("route", "add", "default", "via", "192.0.2.254", "dev", "first")
    enable_forwarding(BOTH)
    wired = wire(kernel, BOTH, sandbox.fd)
    assert differences(kernel, BOTH, wired, sandbox.fd) == []
    assert pod.ip("route", "get", "198.51.100.1")[0]["dev"] == "first"


# failures


def with_refused_message(make: object) -> object:
    """Return a function that adds a message to the batch that the kernel refuses: its link does not exist."""

    def refused(*arguments: object) -> rtnl.Batch:
        batch: rtnl.Batch = make(*arguments)  # type: ignore[operator]
        batch.set_link(0x7FFFFFF0, up=True)
        return batch

    return refused


@pytest.mark.parametrize("batch", ["host_batch", "sandbox_batch"])
def test_refused_batch_leaves_nothing(
    netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, batch: str
) -> None:
    monkeypatch.setattr(plan, batch, with_refused_message(getattr(plan, batch)))
    with pytest.raises(PeerError, match="the kernel refused") as caught:
        wire(kernel, BOTH, sandbox.fd)
    assert caught.value.code == Code.KERNEL
    assert_nothing_is_left(netns, pod)
    monkeypatch.undo()
    wire(kernel, BOTH, sandbox.fd)


@pytest.mark.parametrize("side", ["host", "sandbox"])
def test_unwritable_sysctl_leaves_nothing(
    netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """A container may have a read-only /proc/sys."""

    def refuse(items: list[tuple[str, str]]) -> None:
        raise OSError(errno.EROFS, "Read-only file system", items[0][0])

    def socket_in(fd: int = -1, *, sysctls: list[tuple[str, str]] | None = None, procfs: Procfs | None = None) -> Socket:
        if sysctls:
            refuse(sysctls)
        return Socket(fd)

    if side == "host":
        monkeypatch.setattr("svc.dataplane.wire.netns.write_sysctls", lambda _, items, folder: refuse(items))
    else:
        monkeypatch.setattr("svc.dataplane.wire.netns.Socket", socket_in)
    with pytest.raises(PeerError, match=r"cannot write /proc/sys/net/ipv[46]/.*Read-only file system"):
        wire(kernel, BOTH, sandbox.fd)
    assert_nothing_is_left(netns, pod)


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/ns/mnt"])
def test_descriptor_of_something_else_leaves_nothing(netns: Netns, kernel: Kernel, path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(PeerError, match="the kernel refused: create veth"):
        wire(kernel, BOTH, fd)
    os.close(fd)
    assert netns.links() == []


def test_deleted_namespace_can_still_be_wired(netns: Netns, kernel: Kernel, sandbox: Sandbox, pod: Netns) -> None:
    """The descriptor keeps the namespace, so the wiring works. Its interface can be deleted twice."""
    pod.delete()
    wired = wire(kernel, BOTH, sandbox.fd)
    assert netns.links() == [BOTH.host_name]
    delete_link(kernel.host(), wired.host_index)
    delete_link(kernel.host(), wired.host_index)
    assert netns.links() == []


# CHECK

CHANGES = {
    "host link down": ("host", "link set svc0123456789a down", "host interface svc0123456789a is down"),
    "host link gone": ("host", "link delete svc0123456789a", "interface eth0 is missing in the sandbox"),
    "host link renamed": ("host", "link set svc0123456789a down name other", "interface svc0123456789a is missing in the host"),
    "host MTU": ("host", "link set svc0123456789a mtu 1400", "host interface svc0123456789a has MTU 1400, not 1500"),
    "host route": ("host", f"route delete {ADDRESS4}/32", f"the host has no route to {ADDRESS4} by svc0123456789a"),
    "host IPv6 route": ("host", f"-6 route delete {ADDRESS6}/128", f"the host has no route to {ADDRESS6} by svc0123456789a"),
    "pod link down": ("pod", "link set eth0 down", "sandbox interface eth0 is down"),
    "pod link renamed": ("pod", "link set eth0 down name other", "interface eth0 is missing in the sandbox"),
    "pod MTU": ("pod", "link set eth0 mtu 1400", "sandbox interface eth0 has MTU 1400, not 1500"),
    "pod MAC": ("pod", "link set eth0 address 02:00:00:00:00:bb", "has MAC 02:00:00:00:00:bb, not 02:00:00:00:00:aa"),
    "pod address": ("pod", f"address delete {ADDRESS4}/32 dev eth0", f"sandbox interface eth0 lacks address {ADDRESS4}/32"),
    "pod IPv6 address": ("pod", f"address delete {ADDRESS6}/128 dev eth0", f"eth0 lacks address {ADDRESS6}/128"),
    "pod route": ("pod", "route delete default", "the sandbox has no route to 0.0.0.0/0 by eth0"),
    "pod IPv6 route": ("pod", "-6 route delete default", "the sandbox has no route to ::/0 by eth0"),
    "pod link route": ("pod", "route delete 169.254.1.1", "the sandbox has no route to 169.254.1.1/32 by eth0"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_check_reports_a_changed_interface_or_route(
    netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox, change: str
) -> None:
    enable_forwarding(BOTH)
    wired = wire(kernel, BOTH, sandbox.fd)
    where, command, words = CHANGES[change]
    (netns if where == "host" else pod).ip(*command.split())
    assert words in "; ".join(differences(kernel, BOTH, wired, sandbox.fd))


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("host", "net/ipv4/conf/svc0123456789a/proxy_arp"),
        ("host", "net/ipv4/conf/svc0123456789a/forwarding"),
        ("host", "net/ipv4/conf/svc0123456789a/route_localnet"),
        ("host", "net/ipv6/conf/svc0123456789a/proxy_ndp"),
        ("host", "net/ipv6/conf/svc0123456789a/forwarding"),
        ("sandbox", "net/ipv4/ip_forward"),
        ("sandbox", "net/ipv6/conf/all/forwarding"),
    ],
)
def test_check_reports_a_changed_sysctl(kernel: Kernel, sandbox: Sandbox, where: str, path: str) -> None:
    enable_forwarding(BOTH)
    wired = wire(kernel, BOTH, sandbox.fd)
    changed = "0" if where == "host" else "1"
    write_sysctls(-1 if where == "host" else sandbox.fd, [(path, changed)])
    (difference,) = differences(kernel, BOTH, wired, sandbox.fd)
    assert difference == f"{where} sysctl {path} is {changed}, not {1 - int(changed)}"


def test_check_reports_a_replaced_pair(netns: Netns, kernel: Kernel, sandbox: Sandbox) -> None:
    """Names and addresses are correct, but these are not the interfaces of this attachment."""
    wired = wire(kernel, BOTH, sandbox.fd)
    delete_link(kernel.host(), wired.host_index)
    wire(kernel, BOTH, sandbox.fd)
    found = "; ".join(differences(kernel, BOTH, Pair(wired.host_index, wired.peer_index), sandbox.fd))
    assert "sandbox interface eth0 is not the peer of svc0123456789a" in found


def test_check_ignores_additions_of_other_programs(netns: Netns, pod: Netns, kernel: Kernel, sandbox: Sandbox) -> None:
    enable_forwarding(BOTH)
    wired = wire(kernel, BOTH, sandbox.fd)
    pod.ip("address", "add", "198.51.100.7/24", "dev", "eth0")
    pod.ip("route", "add", "203.0.113.0/24", "via", "169.254.1.1", "dev", "eth0", "onlink")
    pod.ip("link", "add", "more", "type", "bridge")
    run("ip", "route", "add", "203.0.113.7/32", "dev", BOTH.host_name)
    assert differences(kernel, BOTH, wired, sandbox.fd) == []


# forwarding in the host


def test_forwarding_is_enabled_once(netns: Netns) -> None:
    """It is enabled for the families of the attachment, and reported only if it was off."""
    run("sysctl", "-q", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
    assert enable_forwarding(ONLY4) == ["net/ipv4/ip_forward"]
    assert netns.sysctl("net/ipv6/conf/all/forwarding") == "0"
    assert enable_forwarding(BOTH) == ["net/ipv6/conf/all/forwarding"]
    assert enable_forwarding(BOTH) == []
    assert (netns.sysctl("net/ipv4/ip_forward"), netns.sysctl("net/ipv6/conf/all/forwarding")) == ("1", "1")


def test_disabled_forwarding_is_enabled_again(netns: Netns) -> None:
    """Another program disables it between two attachments."""
    with closing(ForwardingSysctls()) as forwarding:
        forwarding.ensure(ONLY4)
        netns.run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
        assert forwarding.ensure(ONLY4) == ["net/ipv4/ip_forward"]
        assert forwarding.ensure(ONLY4) == []
        assert netns.sysctl("net/ipv4/ip_forward") == "1"

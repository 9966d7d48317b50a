"""Compare the kernel's state with the attachment, for CHECK."""

from collections.abc import Iterator

from svc._core import netns, rtnl
from svc.dataplane import plan
from svc.dataplane.kernel import Kernel, link_of, query, routes_of
from svc.dataplane.wire import VethPair


def differences(kernel: Kernel, wiring: plan.VethSpec, wired: VethPair, ns_fd: int) -> list[str]:
    """Return all differences as text; empty if the attachment is as wired. Additions by other programs are ignored."""
    with netns.Socket(ns_fd) as sandbox:
        found = [*_sandbox_links(sandbox, wiring, wired)]
        if not found:
            found += _sandbox_addresses(sandbox, wiring, wired)
            found += _sandbox_routes(sandbox, wiring, wired)
    found += _host_link(kernel, wiring, wired)
    found += _sysctls(-1, _host_expected(wiring), "host")
    found += _sysctls(ns_fd, dict(plan.sandbox_sysctls(wiring)), "sandbox", kernel.procfs)
    return found


def stands(kernel: Kernel, wiring: plan.VethSpec, wired: VethPair, ns_fd: int) -> bool:
    """Return True if the pair, its addresses and its host routes exist. Other plugins may have changed everything else."""
    with netns.Socket(ns_fd) as sandbox:
        inside = link_of(sandbox, name=wiring.ifname)
        if inside is None or (inside["index"], inside["peer_index"]) != (wired.peer_index, wired.host_index):
            return False
        if any(_sandbox_addresses(sandbox, wiring, wired)):
            return False
    outside = kernel.find_link(index=wired.host_index)
    return outside is not None and outside["name"] == wiring.host_name and not any(_host_routes(kernel, wiring, wired))


def _sandbox_links(sandbox: netns.Socket, wiring: plan.VethSpec, wired: VethPair) -> Iterator[str]:
    link = link_of(sandbox, name=wiring.ifname)
    if link is None:
        yield f"interface {wiring.ifname} is missing in the sandbox"
        return
    yield from _link_state(link, wiring, f"sandbox interface {wiring.ifname}")
    if link["peer_index"] != wired.host_index:
        yield f"sandbox interface {wiring.ifname} is not the peer of {wiring.host_name}"
    if wiring.mac and link["mac"] != wiring.mac:  # a restored row may lack the MAC
        yield f"sandbox interface {wiring.ifname} has MAC {_mac(link['mac'])}, not {_mac(wiring.mac)}"


def _host_link(kernel: Kernel, wiring: plan.VethSpec, wired: VethPair) -> Iterator[str]:
    link = kernel.find_link(index=wired.host_index)
    if link is None or link["name"] != wiring.host_name:
        yield f"interface {wiring.host_name} is missing in the host"
        return
    yield from _link_state(link, wiring, f"host interface {wiring.host_name}")
    if link["mac"] != plan.HOST_MAC:
        yield f"host interface {wiring.host_name} has MAC {_mac(link['mac'])}, not {_mac(plan.HOST_MAC)}"
    if wiring.has(6) and (plan.GATEWAY6.packed, 64) not in _addresses(kernel.host(), wired.host_index):
        yield f"host interface {wiring.host_name} lacks address {plan.GATEWAY6}/64"
    yield from _host_routes(kernel, wiring, wired)


def _host_routes(kernel: Kernel, wiring: plan.VethSpec, wired: VethPair) -> Iterator[str]:
    present = routes_of(kernel.host(), wiring, wired.host_index)
    for address in wiring.addresses:
        if (address.packed, address.bits, b"") not in present:
            yield f"the host has no route to {address} by {wiring.host_name}"


def _link_state(link: dict[str, object], wiring: plan.VethSpec, what: str) -> Iterator[str]:
    if not link["up"]:
        yield f"{what} is down"
    if link["mtu"] != plan.effective_mtu(wiring.mtu):
        yield f"{what} has MTU {link['mtu']}, not {plan.effective_mtu(wiring.mtu)}"


def _sandbox_addresses(sandbox: netns.Socket, wiring: plan.VethSpec, wired: VethPair) -> Iterator[str]:
    present = _addresses(sandbox, wired.peer_index)
    for address in wiring.addresses:
        if (address.packed, address.bits) not in present:
            yield f"sandbox interface {wiring.ifname} lacks address {address.host()}"


def _addresses(socket: netns.Socket, index: int) -> set[tuple[bytes, int]]:
    request = rtnl.Batch()
    request.dump_addresses(index)
    return {(item["address"], item["length"]) for item in map(rtnl.unpack_address, query(socket, request))}


def _sandbox_routes(sandbox: netns.Socket, wiring: plan.VethSpec, wired: VethPair) -> Iterator[str]:
    present = routes_of(sandbox, wiring, wired.peer_index)
    for route in plan.sandbox_routes(wiring):
        if (route.destination, route.length, route.gateway) not in present:
            yield f"the sandbox has no route to {route} by {wiring.ifname}"


def _host_expected(wiring: plan.VethSpec) -> dict[str, str]:
    expected: dict[str, str] = {}
    if wiring.has(4):
        expected |= {f"net/ipv4/conf/{wiring.host_name}/{name}": value for name, value in plan.HOST_IPV4.items()}
        expected[f"net/ipv4/neigh/{wiring.host_name}/proxy_delay"] = "0"  # otherwise the first packets wait for an ARP reply
    if wiring.has(6):
        expected |= dict(plan.host_sysctls(wiring))
    return expected


def _sysctls(ns_fd: int, expected: dict[str, str], where: str, procfs: netns.Procfs | None = None) -> Iterator[str]:
    values = netns.read_sysctls(ns_fd, list(expected), procfs)
    for (path, wanted), value in zip(expected.items(), values, strict=True):
        if value != wanted:
            yield f"{where} sysctl {path} is {value}, not {wanted}"


def _mac(packed: object) -> str:
    return packed.hex(":") if isinstance(packed, bytes) else "none"

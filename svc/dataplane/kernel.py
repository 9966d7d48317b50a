"""Netlink access to the kernel: one host socket per thread, sockets inside sandboxes, and errors with fixes."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from svc._core import netns, rtnl
from svc._core.cidr import Address
from svc.dataplane.plan import HOST_MAC, VethSpec
from svc.dataplane.sysctls import SYSCTLS, VARIABLE
from svc.model.errors import Code, PeerError
from svc.model.shortage import REMEDIES

FAILURES: Counter[str] = Counter()
"""Number of failed requests of this process, by the name of the error. Any thread may read a copy."""

DUMP_ATTEMPTS = 50  # many calls in parallel change the links every millisecond; a dump of 1,000 links takes some

_SCOPE_UNIVERSE = 0  # RT_SCOPE_UNIVERSE of rtnetlink(7)


class Kernel:
    """Netlink requests, from any thread. `sysctls` is the folder in which the host's sysctls can be written."""

    def __init__(self, sysctls: str = SYSCTLS) -> None:
        self._local = threading.local()
        self.sysctls = sysctls
        self.procfs = netns.Procfs(sysctls)  # for sandboxes
        self.has_ipv6 = os.path.exists("/proc/sys/net/ipv6")

    def host(self) -> netns.Socket:
        socket = getattr(self._local, "socket", None)
        if socket is None:
            socket = self._local.socket = netns.Socket()
        return socket

    def close(self) -> None:
        self.procfs.close()

    def find_link(self, *, index: int = 0, name: str = "") -> dict[str, Any] | None:
        """Return the host's link, or None if it does not exist."""
        return link_of(self.host(), index=index, name=name)

    def host_sides(self) -> list[dict[str, Any]]:
        """Return the host's links that are the host side of a pair of svc. Raise PeerError."""
        request = rtnl.Batch()
        request.dump_links()
        links = map(rtnl.unpack_link, query(self.host(), request))
        return [link for link in links if link["kind"] == "veth" and link["mac"] == HOST_MAC]


def query(socket: netns.Socket, request: rtnl.Batch) -> list[bytes]:
    """Return the kernel's answer to a GET or a dump. Raise PeerError if it refuses or does not answer.

    Repeat a dump that a change of the tables has interrupted (EINTR): it may lack entries.
    """
    for attempt in range(1, DUMP_ATTEMPTS + 1):
        try:
            return socket.query(request)
        except OSError as failure:
            if failure.errno != errno.EINTR or attempt == DUMP_ATTEMPTS:
                raise kernel_error(failure) from failure
    raise AssertionError


def link_of(socket: netns.Socket, *, index: int = 0, name: str = "") -> dict[str, Any] | None:
    """Return the link with this index or name in the socket's namespace, or None if it does not exist. Raise PeerError."""
    request = rtnl.Batch()
    request.get_link(index, name)
    try:
        (message,) = socket.query(request)
    except OSError as failure:
        if failure.errno == errno.ENODEV:
            return None
        raise kernel_error(failure) from failure
    return rtnl.unpack_link(message)


def is_host_side(link: Mapping[str, Any], peer_index: int) -> bool:
    """Return True if the link is the host side of a pair of svc, under any name, and its peer has this index."""
    return bool(link["kind"] == "veth" and link["mac"] == HOST_MAC and link["peer_index"] == peer_index)


def addresses_of(socket: netns.Socket) -> dict[int, list[Address]]:
    """Return the global addresses of each link in the socket's namespace, by link index. Raise PeerError."""
    request = rtnl.Batch()
    request.dump_addresses()
    found: dict[int, list[Address]] = {}
    for item in map(rtnl.unpack_address, query(socket, request)):
        if item["scope"] == _SCOPE_UNIVERSE:
            found.setdefault(item["index"], []).append(Address.from_packed(item["address"]))
    return found


def routes_of(socket: netns.Socket, wiring: VethSpec, index: int) -> set[tuple[bytes, int, bytes]]:
    """Return (destination, length, gateway or empty) of the routes through this link, in the families of the attachment.

    Raise PeerError."""
    found = set()
    for version, family in ((4, rtnl.AF_INET), (6, rtnl.AF_INET6)):
        if wiring.has(version):
            request = rtnl.Batch()
            request.dump_routes(family, index)
            routes = map(rtnl.unpack_route, query(socket, request))
            found |= {(route["destination"], route["length"], route["gateway"]) for route in routes if route["index"] == index}
    return found


def delete_link(socket: netns.Socket, index: int) -> None:
    """Delete a link in the socket's namespace, if it exists, and wait for the slow acknowledgement. Raise PeerError."""
    batch = rtnl.Batch()
    batch.delete_link(index)
    try:
        socket.execute(batch)
    except OSError as failure:
        if failure.errno != errno.ENODEV:
            raise kernel_error(failure) from failure


def kernel_error(failure: OSError) -> PeerError:
    """Return the error for the runtime after a refusal, a timeout or a lack of resources. Count it."""
    FAILURES[errno.errorcode.get(failure.errno or 0, "other")] += 1
    is_refusal = isinstance(failure, rtnl.NetlinkError)
    msg = f"the kernel refused: {failure}" if is_refusal else f"the kernel could not be asked: {failure.strerror or failure}"
    return PeerError(msg, details=_remedy(failure.errno or 0), code=Code.KERNEL)


def sysctl_failed(failure: OSError, attempt: str = "write") -> PeerError:
    """Return the error for a sysctl that cannot be read or written. The failure's file name may be relative to /proc/sys."""
    setting = str(Path(SYSCTLS, failure.filename or ""))
    return PeerError(f"cannot {attempt} {setting}: {failure.strerror}", details=_remedy(failure.errno or 0), code=Code.KERNEL)


def _remedy(number: int) -> str:
    remedies = {
        errno.EPERM: "the agent needs CAP_NET_ADMIN and CAP_SYS_ADMIN",
        errno.EROFS: f"the agent needs writable sysctls: in a container, mount the host's /proc/sys and name it in {VARIABLE}",
        errno.EOPNOTSUPP: "the kernel lacks a feature that this needs (veth, IPv4, IPv6)",
        errno.EAFNOSUPPORT: "the kernel, or the interface, lacks the address family",
        errno.ENOMEM: "the kernel is short of memory",
        errno.ENOBUFS: "the kernel is short of memory",
        **REMEDIES,
        errno.ETIMEDOUT: "the kernel is busy: see its log, and whether network namespaces are being torn down",
        errno.ENOENT: "the kernel lacks IPv6, or the interface has disappeared",
    }
    return remedies.get(number, f"{os.strerror(number)}: the kernel's own log (dmesg) may tell more")

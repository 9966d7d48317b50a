"""Create an attachment in the kernel: a netlink batch in the host, sysctls, and a batch in the sandbox."""

import errno
import itertools
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from svc._core import netns, rtnl
from svc._core.cidr import Address
from svc.dataplane import plan
from svc.dataplane.kernel import Kernel, delete_link, is_host_side, kernel_error, link_of, routes_of, sysctl_failed
from svc.dataplane.sysctls import SYSCTLS
from svc.model.errors import CallerError, Code, PeerError
from svc.right_of_way import RIGHT_OF_WAY

_FIRST_PEER_INDEX = 2  # a new sandbox has only the loopback interface, index 1
_INDEX_TRIES = 8

# svc chooses interface indexes. The random start makes collisions between successive agents unlikely.
_indexes = itertools.count(random.randrange(1 << 17, 1 << 29))  # noqa: S311


class VethPair(Protocol):
    """Interface indexes of both sides of a pair, as the record of an attachment has them; 0 if no pair was made."""

    host_index: int
    peer_index: int


class HostInterfaceExists(Exception):
    """The host already has an interface of that name."""


class AddressInUse(PeerError):
    """The host already has a route to an address of the attachment."""

    code = Code.KERNEL

    def __init__(self, addresses: Sequence[Address], refusal: object) -> None:
        super().__init__(
            f"the host already has a route to {', '.join(map(str, addresses))}",
            details=f"another interface uses the address ({refusal}): `ip route get` names it; if it is a pod's, DEL that pod, "
            "and if it is another program's, remove the route, or keep the address from pods with an IPReservation",
        )
        self.addresses = tuple(addresses)


class PairTaken(HostInterfaceExists):
    """One existing pair has the names of both sides."""


def wire(kernel: Kernel, wiring: plan.VethSpec, ns_fd: int, pair: VethPair) -> None:
    """Create the attachment in the kernel. On failure the pair is deleted.

    Set the indexes of `pair` before each attempt to make it, because the kernel's answer may get lost.
    Raise HostInterfaceExists or PairTaken if a name is taken, AddressInUse if an address already has a host route. Raise
    CallerError if the sandbox has an interface of that name, PeerError if the kernel refuses.
    """
    _wire_host(kernel, wiring, ns_fd, pair)
    with _undone_on_failure(kernel, pair.host_index):
        RIGHT_OF_WAY.give_way()
        _write_host_sysctls(kernel.sysctls, plan.host_sysctls(wiring), optional=not wiring.has(6))
        with _open_sandbox(kernel, wiring, ns_fd) as sandbox:
            RIGHT_OF_WAY.give_way()
            _set_up_sandbox(sandbox, wiring, pair.peer_index)
        RIGHT_OF_WAY.give_way()
        _activate(kernel, wiring.host_name)


@contextmanager
def _undone_on_failure(kernel: Kernel, host_index: int) -> Iterator[None]:
    """Delete the pair on failure, and raise the first failure. The rollback of the ADD deletes a remaining pair."""
    try:
        yield
    except BaseException as failure:
        with suppress(PeerError, OSError):
            delete_link(kernel.host(), host_index)
        if isinstance(failure, OSError):
            raise kernel_error(failure) from failure
        raise


def _wire_host(kernel: Kernel, wiring: plan.VethSpec, ns_fd: int, pair: VethPair) -> None:
    peer_index = _FIRST_PEER_INDEX
    for _ in range(_INDEX_TRIES):
        host_index = next(_indexes)
        pair.host_index, pair.peer_index = host_index, peer_index
        try:
            kernel.host().execute(plan.host_batch(wiring, host_index, peer_index, ns_fd, kernel.has_ipv6))
            return
        except rtnl.NetlinkError as refusal:
            if refusal.index > 0:
                with _undone_on_failure(kernel, host_index):
                    if refusal.errno == errno.EEXIST:
                        raise AddressInUse(wiring.addresses, refusal) from refusal
                    raise refusal
            if refusal.errno == errno.EEXIST:  # a name on either side exists, or the host's index is taken
                pair.host_index = pair.peer_index = 0
                _refuse_taken_name(kernel, wiring, ns_fd, refusal)
            elif refusal.errno == errno.EBUSY:  # the sandbox's index is taken
                peer_index = next(_indexes)
            else:
                raise kernel_error(refusal) from refusal
        except OSError as failure:
            raise kernel_error(failure) from failure
    raise PeerError("no free interface index was found", details=f"{_INDEX_TRIES} were tried", code=Code.KERNEL)


def _refuse_taken_name(kernel: Kernel, wiring: plan.VethSpec, ns_fd: int, refusal: rtnl.NetlinkError) -> None:
    """Raise PairTaken if one pair has both names, CallerError if the sandbox has that interface, else HostInterfaceExists."""
    with netns.Socket(ns_fd) as sandbox:
        inside = link_of(sandbox, name=wiring.ifname)
    outside = kernel.find_link(name=wiring.host_name)
    if inside is not None:
        if outside is not None and inside["peer_index"] == outside["index"] and is_host_side(outside, inside["index"]):
            raise PairTaken(wiring.host_name) from refusal
        raise interface_exists(wiring.ifname) from refusal
    if outside is not None:
        raise HostInterfaceExists(wiring.host_name) from refusal


def interface_exists(ifname: str) -> CallerError:
    """Return the error of an ADD whose sandbox already has that interface."""
    return CallerError(
        f"interface {ifname!r} already exists in the sandbox",
        details="delete it, or ask for another CNI_IFNAME",
        code=Code.INTERFACE_EXISTS,
    )


def _activate(kernel: Kernel, host_name: str) -> None:
    """Ask for the carrier of the host side, so that the kernel (since Linux 6.9) activates its queue before the answer.

    The queue drops all packets until the kernel has processed that the sandbox side came up. It defers this to a work item.
    """
    kernel.host().has_carrier(host_name)


def _open_sandbox(kernel: Kernel, wiring: plan.VethSpec, ns_fd: int) -> netns.Socket:
    """Write the sysctls of the sandbox and open a socket in it, in one visit."""
    try:
        return netns.Socket(ns_fd, sysctls=plan.sandbox_sysctls(wiring), procfs=kernel.procfs)
    except OSError as failure:
        if failure.filename is None:
            raise
        raise sysctl_failed(failure) from failure


def _set_up_sandbox(sandbox: netns.Socket, wiring: plan.VethSpec, index: int) -> None:
    """Configure the sandbox side. If an earlier interface has the routes, add these with a higher metric: it stays in use."""
    try:
        sandbox.execute(plan.sandbox_batch(wiring, index))
        return
    except rtnl.NetlinkError as refusal:
        if refusal.errno != errno.EEXIST:
            raise
    present = routes_of(sandbox, wiring, index)
    batch = rtnl.Batch()
    for route in plan.sandbox_routes(wiring):
        if (route.destination, route.length, route.gateway) not in present:
            route.pack(batch, index, plan.SECOND_METRIC + index)
    sandbox.execute(batch)


def _write_host_sysctls(folder: str, items: list[tuple[str, str]], *, optional: bool = False) -> None:
    try:
        netns.write_sysctls(-1, items, folder=folder)
    except OSError as failure:
        if optional and failure.errno == errno.ENOENT:
            return  # a kernel without IPv6 has no such setting
        raise sysctl_failed(failure) from failure


class ForwardingSysctls:
    """The host's forwarding sysctls, which other programs, such as `sysctl --system`, may disable at any time.

    The files stay open, because a path lookup in /proc/sys is far more expensive than a read.
    """

    def __init__(self, folder: str = SYSCTLS) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}

    def ensure(self, wiring: plan.VethSpec) -> list[str]:
        """Enable forwarding for the families of the attachment. Return the paths that were changed. Raise PeerError."""
        with self._lock:
            off = [path for version, path in _FORWARDING.items() if wiring.has(version) and self._read(path) == b"0"]
        _write_host_sysctls(self._folder, [(path, "1") for path in off])
        return off

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                os.close(file)
            self._files.clear()

    def _read(self, path: str) -> bytes:
        """Return the value; empty if the kernel lacks the family. Raise PeerError."""
        try:
            if path not in self._files:
                self._files[path] = os.open(f"{self._folder}/{path}", os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._files[path], 8, 0).strip()
        except FileNotFoundError:
            return b""
        except OSError as failure:
            raise sysctl_failed(failure, "read") from failure


_FORWARDING = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}

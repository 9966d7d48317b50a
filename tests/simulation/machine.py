"""A model of the kernel of one node: interface pairs with their addresses."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulation.blocking import Current
from svc._core.cidr import Address
from svc.dataplane.plan import HOST_MAC, VethSpec
from svc.dataplane.wire import AddressInUse, HostInterfaceExists, PairTaken, VethPair
from svc.model.errors import CallerError, Code, PeerError


@dataclass(slots=True)
class Link:
    """The host interface of a pair. `sandbox` is the namespace of its peer."""

    index: int
    name: str
    sandbox: int
    ifname: str
    mac: str
    addresses: tuple[Address, ...]


class Machine:
    """The links and routes of a node. They outlive its processes."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.links: dict[int, Link] = {}
        self.changes = 0
        self._indexes = itertools.count(100)

    def find(self, index: int, name: str) -> Link | None:
        if index:
            return self.links.get(index)
        return next((link for link in self.links.values() if link.name == name), None)

    def make(self, wiring: VethSpec, sandbox: int) -> Link:
        """Apply the first batch of an attachment.

        Raise PairTaken, HostInterfaceExists, CallerError or PeerError as the real one.
        """
        present = self.find(0, wiring.host_name)
        if present is not None and (present.sandbox, present.ifname) == (sandbox, wiring.ifname):
            raise PairTaken(wiring.host_name)
        if any(link.sandbox == sandbox and link.ifname == wiring.ifname for link in self.links.values()):
            raise CallerError(f"interface {wiring.ifname!r} already exists in the sandbox", code=Code.INTERFACE_EXISTS)
        if self.find(0, wiring.host_name):
            raise HostInterfaceExists(wiring.host_name)
        if any(address in link.addresses for link in self.links.values() for address in wiring.addresses):
            raise AddressInUse(wiring.addresses, "another pair has it")
        link = Link(next(self._indexes), wiring.host_name, sandbox, wiring.ifname, wiring.mac.hex(":"), wiring.addresses)
        self.links[link.index] = link
        self.changes += 1
        return link

    def delete(self, index: int) -> None:
        if self.links.pop(index, None) is not None:
            self.changes += 1


class ModelKernel:
    """A model of `svc.dataplane.kernel.Kernel`."""

    has_ipv6 = True
    machine: Machine

    def __init__(self, sysctls: str) -> None:
        self.machine = machine_of_task()

    def find_link(self, *, index: int = 0, name: str = "") -> dict[str, Any] | None:
        _kernel_step(f"find link {index or name}", fails=False)
        link = self.machine.find(index, name)
        return None if link is None else shown(link)

    def host_sides(self) -> list[dict[str, Any]]:
        _kernel_step("list links", fails=False)
        return [shown(link) for link in self.machine.links.values()]

    def close(self) -> None:
        return


class ModelReaper:
    """A model of `svc.dataplane.reaper.Reaper`."""

    def __init__(self, kernel: ModelKernel) -> None:
        self._kernel = kernel

    def remove(
        self,
        index: int,
        name: str,
        *,
        peer_index: int = 0,
        timeout: float = 20.0,
        meantime: Callable[[], object] = lambda: None,
    ) -> bool:
        link = self._kernel.find_link(index=index)
        if link is None or link["name"] != name:
            return False
        meantime()
        _kernel_step(f"delete link {index} {name}")
        self._kernel.machine.delete(index)
        return True

    def close(self) -> None:
        return


class ModelForwarding:
    """A model of `svc.dataplane.wire.ForwardingSysctls`."""

    def __init__(self, sysctls: str) -> None:
        """Ignore the folder: no file is written."""

    def ensure(self, wiring: VethSpec) -> list[str]:
        return []

    def close(self) -> None:
        return


def model_wire(kernel: ModelKernel, wiring: VethSpec, ns_fd: int, pair: VethPair) -> None:
    """Do the work of `svc.dataplane.wire.wire`. `ns_fd` is the number of the sandbox."""
    _kernel_step(f"make link {wiring.host_name} with {', '.join(map(str, wiring.addresses))}")
    link = kernel.machine.make(wiring, ns_fd)
    pair.host_index, pair.peer_index = link.index, 2
    try:
        _kernel_step(f"set up {wiring.ifname} in the sandbox")
    except PeerError:
        kernel.machine.delete(link.index)
        raise


def model_stands(kernel: ModelKernel, wiring: VethSpec, wired: VethPair, ns_fd: int) -> bool:
    """Do the work of `svc.dataplane.check.stands`."""
    link = kernel.find_link(index=wired.host_index)
    return link is not None and link["name"] == wiring.host_name and kernel.machine.links[wired.host_index].sandbox == ns_fd


def shown(link: Link) -> dict[str, Any]:
    """Return a link as the netlink reader does."""
    return {"index": link.index, "name": link.name, "kind": "veth", "mac": HOST_MAC, "mtu": 1500, "peer_index": 2}


def machine_of_task() -> Machine:
    """Return the machine of the running process."""
    return MACHINES[Current.scheduler.current.process.node]


MACHINES: dict[str, Machine] = {}


def _kernel_step(text: str, *, fails: bool = True) -> None:
    if Current.scheduler.step(f"kernel: {text}", "kill", *(("refused",) if fails else ())):
        raise PeerError("the kernel refused", details="by order of the schedule", code=Code.KERNEL)

"""The addresses that this node itself uses: its interfaces, the host routes to its containers, and its attachments."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from svc._core import netns, rtnl
from svc._core.cidr import Address
from svc.admin.ipam_check.node_agent import require_same_netns
from svc.attach.journal_reader import read_every_row
from svc.attach.record import DELETING
from svc.dataplane.kernel import addresses_of, query
from svc.model.errors import CallerError, reason_of
from svc.values import dataclass, field

_JOURNAL = "journal.db"
_LOOK = "`ip address` and `ip route` name the interface; end its container, or delete it if no container uses it"
_END = "end the container, or repeat its DEL if the runtime does not know it"


@dataclass(frozen=True, slots=True)
class LocalUses:
    """The addresses that this node uses, with a text that says so, and its name, empty if that is not known.

    `is_shared` is whether the datastore may have other nodes.
    """

    addresses: Mapping[Address, str] = field(default_factory=dict)
    node: str = ""
    is_shared: bool = False

    def can_tell(self, node: str) -> bool:
        """Return whether the interfaces of that node are those of this one."""
        return not self.is_shared or node == self.node


def used_here(state_dir: Path) -> dict[Address, str]:
    """Return the addresses that this node uses, as `LocalUses` has them. Raise SvcError if kernel or journal cannot be read.

    Raise CallerError also if the node's agent runs in another network namespace.
    """
    require_same_netns(state_dir)
    kernel = {address: f"{what} of this node has it: {_LOOK}" for address, what in kernel_uses().items()}
    return kernel | dict(_attachments(state_dir))


def kernel_uses() -> dict[Address, str]:
    """Return the addresses of interfaces and of host routes. Raise SvcError if the kernel cannot be asked."""
    with netns.Socket() as socket:
        found = dict(_routes(socket))
        return found | {address: "an interface" for addresses in addresses_of(socket).values() for address in addresses}


def _attachments(state_dir: Path) -> Iterator[tuple[Address, str]]:
    """Yield the addresses of attachments without a pending release, as `LocalUses` has them.

    A node that runs no agent has no journal.
    """
    if not _has_journal(state_dir):
        return
    for record in read_every_row(state_dir / _JOURNAL):
        if record.state != DELETING:
            pod = f" for pod {record.namespace}/{record.pod}" if record.pod else ""
            reason = f"attachment {record.handle} of this node has it{pod}: {_END}"
            yield from ((address, reason) for address in record.address_list())


def _has_journal(state_dir: Path) -> bool:
    try:
        return (state_dir / _JOURNAL).exists()
    except OSError as error:
        msg = f"it is not known which addresses this node uses: {str(state_dir)!r} cannot be read: {reason_of(error)}"
        raise CallerError(msg, details="run this as root") from None


def _routes(socket: netns.Socket) -> Iterator[tuple[Address, str]]:
    for family in (rtnl.AF_INET, rtnl.AF_INET6):
        request = rtnl.Batch()
        request.dump_routes(family)
        for route in map(rtnl.unpack_route, query(socket, request)):
            address = Address.from_packed(route["destination"])
            if route["length"] == address.bits and not route["gateway"]:  # with a gateway, another node has it
                yield address, "a route"

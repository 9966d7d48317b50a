"""The kernel side of svc-routes: brings routes, tunnels and NAT of this node to what is wanted, and reports what it finds."""

from collections.abc import Iterable

from svc._core.cidr import Address, Cidr
from svc.names import Names
from svc.routes.applied import Applied
from svc.routes.wanted import Wanted


class KernelPart:
    """The kernel of the network namespace in which it is made. For one thread.

    Only routes of the profile's protocol number, devices with the alias of svc-routes, and the table of the profile are changed."""

    def __init__(self, names: Names) -> None: ...

    def apply(self, wanted: Wanted, *, may_delete: bool) -> Applied:
        """Bring the kernel to the wanted state by a full comparison, additions first; delete own routes, peers and devices that
        are not wanted only with `may_delete`. A changed way is one replacement in both cases.

        Failures of single routes and problems of devices or NAT are in the result. Raise PeerError if the kernel cannot be read."""
        raise NotImplementedError

    def own_routes(self) -> int:
        """Return the number of own routes in the kernel, so that the caller can tell how many an `apply` would delete."""
        raise NotImplementedError

    def traces(self, pools: Iterable[Cidr]) -> list[str]:
        """Return a sentence for each trace of another program that routes the pools of this node."""
        raise NotImplementedError

    def clean(self) -> None:
        """Remove all routes, devices and tables that svc-routes made. Raise PeerError."""
        raise NotImplementedError

    def connected_device(self, address: Address) -> str | None:
        """Return the name of the device on whose subnet the address is: the kernel's route to it has no gateway. Otherwise None.

        Cached until the next `apply`, `forget` or change that `changed` has reported."""
        raise NotImplementedError

    def forget(self) -> None:
        """Ask the kernel again for connected devices: the start of a comparison."""
        raise NotImplementedError

    def changed(self, timeout: float) -> bool:
        """Wait for a change of routes, links, addresses or neighbours, at most this long. Return True after one that did not come
        from `apply`, and if the kernel lost notifications (ENOBUFS): a full comparison is due. Return False at the timeout and after `wake`."""
        raise NotImplementedError

    def fileno(self) -> int:
        """Return the descriptor that is readable when `changed` would not wait."""
        raise NotImplementedError

    def wake(self) -> None:
        """End a `changed` of another thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the sockets. Routes, devices and tables stay."""
        raise NotImplementedError

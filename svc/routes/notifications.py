"""Notifications of the kernel about links, addresses, routes and neighbours that svc-routes uses."""

import errno
import os
import select
import socket as sockets
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

from svc._core import rtnl
from svc._core.cidr import Cidr
from svc.routes import notification_filter

_GROUPS: Final = (1, 3, 5, 7, 9, 11)  # RTNLGRP_LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE
_BUFFER: Final = 8 << 20  # bytes; a notification takes some 1,000 in the kernel
_SO_RCVBUFFORCE: Final = 33
_ROOM: Final = 65536
_PORT: Final = struct.Struct("=I")  # of the socket whose request made the change; it ends the header of a message
_PORT_AT: Final = 12

Concerns = Callable[[int, dict[str, Any]], bool]
"""Tells whether a notification, by its type and its values, concerns svc-routes."""

_UNPACK: Final = {
    rtnl.RTM_NEWLINK: rtnl.unpack_link,
    rtnl.RTM_DELLINK: rtnl.unpack_link,
    rtnl.RTM_NEWADDR: rtnl.unpack_address,
    rtnl.RTM_DELADDR: rtnl.unpack_address,
    rtnl.RTM_NEWROUTE: rtnl.unpack_route,
    rtnl.RTM_DELROUTE: rtnl.unpack_route,
    rtnl.RTM_NEWNEIGH: rtnl.unpack_neighbour,
    rtnl.RTM_DELNEIGH: rtnl.unpack_neighbour,
}


class Notifications:
    """A subscription in the network namespace in which it is made. Those of own sockets and most about pods are ignored."""

    def __init__(self, concerns: Concerns) -> None:
        self._concerns = concerns
        self._own: set[int] = set()
        self._socket = sockets.socket(sockets.AF_NETLINK, sockets.SOCK_RAW | sockets.SOCK_CLOEXEC, sockets.NETLINK_ROUTE)
        with suppress(PermissionError):  # the default remains
            self._socket.setsockopt(sockets.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        self.follow((), ())
        self._socket.bind((0, sum(1 << (group - 1) for group in _GROUPS)))
        self._socket.setblocking(False)
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def follow(self, tunnels: Collection[int], own: Collection[Cidr]) -> None:
        """Leave out what concerns pods alone: see `notification_filter.attach`."""
        notification_filter.attach(self._socket, tunnels, own)

    def ignore(self, descriptor: int) -> None:
        """Ignore changes that were made by this netlink socket, which has sent something already."""
        with sockets.socket(fileno=os.dup(descriptor)) as same:
            self._own.add(same.getsockname()[0])

    def wait(self, timeout: float) -> bool:
        """Return True after a change that concerns svc-routes, and if notifications were lost; False at the timeout.

        Return after the first notifications, also if none of them does, and after `wake`."""
        self._poll.poll(max(0, timeout) * 1000)
        self._drain_waker()
        found = False
        while True:
            try:
                data = self._socket.recv(_ROOM)
            except BlockingIOError:
                return found
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise
                found = True
                continue
            concerns = [self._is_concern(*message) for message in rtnl.split(data)]  # all: each may be about a pod's link
            found = any(concerns) or found

    def fileno(self) -> int:
        """Return the descriptor that is readable if there are notifications."""
        return self._socket.fileno()

    def wake(self) -> None:
        """End a `wait` of another thread."""
        with suppress(BlockingIOError):
            os.write(self._waker, b"\0")

    def close(self) -> None:
        """Close all descriptors."""
        self._socket.close()
        os.close(self._woken)
        os.close(self._waker)

    def _is_concern(self, kind: int, _: int, message: bytes) -> bool:
        if _PORT.unpack_from(message, _PORT_AT)[0] in self._own:
            return False
        unpack = _UNPACK.get(kind)
        return unpack is not None and self._concerns(kind, unpack(message))

    def _drain_waker(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, _ROOM)

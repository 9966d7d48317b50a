"""The kernel side of svc-routes: brings routes, tunnels and NAT of this node to what is wanted, and reports what it finds."""

import errno
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from svc._core import netns, rtnl
from svc._core.cidr import Address, Cidr
from svc.dataplane.kernel import addresses_of, kernel_error
from svc.model.errors import Code, PeerError
from svc.names import Names
from svc.routes import handover, peers, traces
from svc.routes.applied import Applied, Failure
from svc.routes.forwarding import forwarding_problems
from svc.routes.kernel_routes import BLACKHOLE, Entry, KernelRoutes, Outcome, foreign_route, key_of, unicast
from svc.routes.local import device_name
from svc.routes.masquerading import Masquerading
from svc.routes.notifications import Notifications
from svc.routes.tunnel_values import ALIAS, OVERHEAD, Link, read_links
from svc.routes.tunnels import Tunnels
from svc.routes.wanted import Blackhole, Direct, TunnelPeer, Wanted, Way

_IPV6: Final = Path("/proc/sys/net/ipv6")
_NO_TUNNEL: Final = Failure(errno.ENODEV, "the tunnel is not ready")
_NO_IPV6: Final = Failure(errno.EAFNOSUPPORT, "this kernel has no IPv6")
_ATTEMPTS: Final = 3
_BITS: Final = {4: 32, 6: 128}


class KernelPart:
    """The kernel of the network namespace in which it is made. For one thread, except `wake`.

    It changes only routes with the protocol number of the names profile, devices with the alias of svc-routes, and the
    NAT table of the profile. What it has read and written stays in memory until `forget`, or until others change something."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._has_ipv6 = _IPV6.exists()
        self._socket = netns.Socket()
        self._routes = KernelRoutes(self._socket, names.route_protocol, has_ipv6=self._has_ipv6)
        self._tunnels = Tunnels(self._socket, names, has_ipv6=self._has_ipv6)
        self._nat = Masquerading(names)
        self._links: dict[str, Link] | None = None
        self._reached: dict[Address, int] = {}
        self._networks: set[tuple[bytes, int]] = set()  # with a wanted route
        self._devices: set[int] = set()  # own tunnels
        self._pod_links: set[int] = set()
        self._followed: tuple[frozenset[int], frozenset[Cidr]] | None = None  # tunnels with notifications, and blocks without
        self._peers: tuple[frozenset[TunnelPeer], dict[str, int], bool] | None = None  # as they were brought last
        self._is_full = True
        self.generation = 0  # another number after each change by others, also if `apply` has noticed it
        self._notifications = Notifications(self._concerns)
        self._read_links()  # so that the socket has a number
        self._notifications.ignore(self._socket.fileno())

    def apply(self, wanted: Wanted, *, may_delete: bool, kept: Collection[Cidr] = ()) -> Applied:
        """Bring the kernel to what is wanted, additions first; delete other own routes, peers and devices with `may_delete`.

        A changed way is one replacement, in both cases. Own routes to networks in `kept` stay as they are, and so does the
        old route to a network whose new way is not possible. After a change by others, this is a full comparison of devices and
        routes, after `forget` also of the NAT table. Otherwise only the differences to the last state are written. A tunnel
        with MTU 0 gets that of its parent less the bytes that the tunnel adds. Failures of single routes and problems of
        devices or NAT are in the result. Raise PeerError if the kernel cannot be read."""
        self._follow(self._devices, wanted)
        self.changed(0)
        problems: list[str] = []
        keeps_peers = any(self.uses_tunnel(network) for network in kept)  # which ones, is not known
        devices = self._bring_tunnels(wanted, problems, may_delete=may_delete and not keeps_peers)
        entries, failures = self._entries(wanted.routes, devices)
        outcome = self._routes.bring(entries, may_delete=may_delete, kept={*kept, *failures})
        if may_delete:
            problems += self._delete_tunnels(wanted)
        problems += self._nat.bring(wanted.nat, may_delete=may_delete)
        self._networks = {key_of(network) for network in wanted.routes}
        self._is_full = False
        problems += forwarding_problems(wanted)
        return self._applied(wanted, outcome, failures, problems)

    def stand_aside(self, wanted: Wanted, pools: Iterable[Cidr], *, keeps_tunnels: bool, may_delete: bool) -> Applied:
        """Make way for another program that routes: see `handover`. Raise PeerError if the kernel cannot be read.

        Tunnels go when no own route leads through them, or without `keeps_tunnels`. The NAT table goes when another program has
        NAT chains. Without `may_delete`, routes that are not wanted stay, and are counted as `unwanted`."""
        self.changed(0)
        links = self._read_links()
        table, tunnels = self._routes.table(), self.own_tunnels()
        others = handover.networks_in(table.foreign, {*self._pod_links, *tunnels.values()}, pools)
        entries, _ = self._entries(wanted.routes, tunnels)
        every, left = (handover.remaining(table, others, given) for given in (None, entries))
        kept = left if may_delete else every
        if not keeps_tunnels:
            kept = {network: entry for network, entry in kept.items() if entry.link not in tunnels.values()}
        outcome = self._routes.bring(kept, may_delete=True)
        used = {entry.link for entry in kept.values()}
        problems = self._tunnels.delete(links, except_for=[name for name, link in links.items() if link["index"] in used])
        self._links, self._networks = None, {key_of(network) for network in kept}
        problems += self._nat.stand_aside(wanted.nat, may_delete=may_delete)
        routes = {network: wanted.routes[network] for network in outcome.present if network in wanted.routes}
        return Applied(routes, problems=(*problems, *_undeleted(outcome)), unwanted=len(every) - len(left))

    def own_routes(self) -> int:
        """Return the number of own routes in the kernel. Raise PeerError."""
        return sum(map(len, self._routes.table().own.values()))

    def surplus(self, wanted: Collection[Cidr], kept: Collection[Cidr]) -> int:
        """Return the number of own routes to networks that are neither wanted nor kept. Raise PeerError."""
        keys = {key_of(network) for network in (*wanted, *kept)}
        return sum(len(entries) for key, entries in self._routes.table().own.items() if key not in keys)

    def uses_tunnel(self, network: Cidr) -> bool | None:
        """Return whether the own route to a network goes through a tunnel; None without an own route. Raise PeerError."""
        entries = self._routes.table().own.get(key_of(network))
        return None if entries is None else any(entry.onlink for entry in entries)

    def own_tunnels(self) -> dict[str, int]:
        """Return the indexes of the own tunnel devices, by kind. Raise PeerError."""
        kinds = {device_name(self._names, kind): kind for kind in OVERHEAD}
        own = {name: link for name, link in self._read_links().items() if link["alias"] == ALIAS}
        return {kinds[name]: link["index"] for name, link in own.items() if name in kinds}

    def tunnel_addresses(self) -> dict[str, Address]:
        """Return the addresses of the own tunnel devices, which an earlier process has given them, by kind. Raise PeerError."""
        addresses = addresses_of(self._socket)
        return {kind: addresses[index][0] for kind, index in self.own_tunnels().items() if addresses.get(index)}

    def traces(self, pools: Iterable[Cidr]) -> list[str]:
        """Return a sentence for each trace of another program that routes between nodes. Raise PeerError."""
        self.forget()
        links = self._read_links()
        found = [*traces.of_devices(self._names, links, addresses_of(self._socket))]
        found += traces.of_routes(self._routes.table().foreign, links, pools)
        return [*found, *self._nat.foreign_chains()]

    def clean(self) -> None:
        """Remove all routes, devices and tables that svc-routes made. Raise PeerError."""
        self.forget()
        self._networks.clear()
        undeleted = _undeleted(self._routes.bring({}, may_delete=True))
        problems = [*undeleted, *self._tunnels.delete(self._read_links()), *self._nat.delete()]
        if problems:
            raise PeerError("; ".join(problems), details="remove them by hand", code=Code.KERNEL)

    def connected_device(self, address: Address) -> str | None:
        """Return the name of the device on whose subnet the address is, "lo" for an own address.

        None if the kernel's route to it has a gateway, or does not exist. Raise PeerError."""
        index = self._reach(address)
        return self._link_names().get(index) if index else None

    def forget(self) -> None:
        """Read the kernel again at the next use: what follows is a full comparison, with the NAT table."""
        self._forget_kernel()
        self._nat.forget()

    def changed(self, timeout: float) -> bool:
        """Wait at most this long for a change that others made to what svc-routes uses, or for lost notifications.

        Return True after one: the next `apply` is a full comparison. Return False at the timeout, after `wake`, and after other
        notifications."""
        if not self._notifications.wait(timeout):
            return False
        self._forget_kernel()
        return True

    def fileno(self) -> int:
        """Return the descriptor that is readable when `changed` does not wait."""
        return self._notifications.fileno()

    def wake(self) -> None:
        """End a `changed` of another thread."""
        self._notifications.wake()

    def close(self) -> None:
        """Close the sockets. Routes, devices and tables stay."""
        self._notifications.close()
        self._socket.close()

    def _forget_kernel(self) -> None:
        self.generation += 1
        self._routes.forget()
        self._links = None
        self._reached.clear()
        self._is_full = True

    def _read_links(self) -> dict[str, Link]:
        if self._links is None:
            self._links = read_links(self._socket)
            self._pod_links = {link["index"] for link in self._links.values() if traces.is_pod_interface(link)}
        return self._links

    def _link_names(self) -> dict[int, str]:
        return {link["index"]: name for name, link in self._read_links().items()}

    def _reach(self, address: Address) -> int:
        """Return the index of the link on which the address is, or 0."""
        index = self._reached.get(address)
        if index is None:
            index = self._reached[address] = self._ask_route(address)
        return index

    def _ask_route(self, address: Address) -> int:
        if address.version == 6 and not self._has_ipv6:
            return 0
        request = rtnl.Batch()
        request.get_route(address.packed)
        try:
            (message,) = self._socket.query(request)
        except OSError as failure:
            if failure.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES):
                return 0
            raise kernel_error(failure) from failure
        route = rtnl.unpack_route(message)
        is_usable = route["type"] in (rtnl.RTN_UNICAST, rtnl.RTN_LOCAL) and not route["gateway"]
        return int(route["index"]) if is_usable else 0

    def _bring_tunnels(self, wanted: Wanted, problems: list[str], *, may_delete: bool) -> dict[str, int]:
        """Return the indexes of the devices that are ready, by kind."""
        if not wanted.tunnels:
            self._devices, self._peers = set(), None
            return {}
        self._links = None
        devices, found = self._tunnels.bring(wanted.tunnels, self._read_links())
        problems += found
        self._follow(devices.values(), wanted)
        state = (wanted.peers, devices, may_delete)
        if self._is_full or self._peers not in (state, (wanted.peers, devices, True)):
            problems += self._bring_peers(wanted, devices, may_delete=may_delete)
            self._peers = state
        self._devices = set(devices.values())
        return devices

    def _follow(self, tunnels: Iterable[int], wanted: Wanted) -> None:
        """Receive notifications about what is wanted, before the kernel is read, and not about pods in own blocks."""
        single = [network.first for network in wanted.routes if network.length == _BITS[network.version]]
        blocks = [network for network, way in wanted.routes.items() if isinstance(way, Blackhole)]
        own = frozenset(block for block in blocks if not any(address in block for address in single))
        if (followed := (frozenset(tunnels), own)) != self._followed:
            self._notifications.follow(*followed)
            self._followed = followed

    def _bring_peers(self, wanted: Wanted, devices: Mapping[str, int], *, may_delete: bool) -> list[str]:
        for _ in range(_ATTEMPTS):
            try:
                return peers.bring(self._socket, wanted.peers, devices, may_delete=may_delete)
            except OSError:  # answers were lost: what is there is read again
                continue
        return ["the kernel did not say whether it has the nodes behind tunnels"]

    def _delete_tunnels(self, wanted: Wanted) -> list[str]:
        links = self._read_links()
        used = {entry.link for entries in self._routes.table().own.values() for entry in entries if entry.onlink}
        names = {tunnel.name for tunnel in wanted.tunnels} | {name for name, link in links.items() if link["index"] in used}
        if all(name in names or link["alias"] != ALIAS for name, link in links.items()):
            return []
        self._links = None
        return self._tunnels.delete(links, except_for=names)

    def _entries(self, routes: Mapping[Cidr, Way], devices: Mapping[str, int]) -> tuple[dict[Cidr, Entry], dict[Cidr, Failure]]:
        """Return the routes as the kernel has them, and those that it cannot have."""
        entries: dict[Cidr, Entry] = {}
        failures: dict[Cidr, Failure] = {}
        direct: dict[Address, Entry] = {}  # one for all networks of a node, because there are many
        for network, way in routes.items():
            if network.version == 6 and not self._has_ipv6:
                failures[network] = _NO_IPV6
            elif isinstance(way, Direct):
                entry = direct.get(way.gateway)
                if entry is None:
                    entry = direct[way.gateway] = unicast(network, way.gateway, self._reach(way.gateway))
                entries[network] = entry
            elif isinstance(way, Blackhole):
                entries[network] = BLACKHOLE
            elif way.kind in devices:
                entries[network] = unicast(network, way.gateway, devices[way.kind], onlink=True)
            else:
                failures[network] = _NO_TUNNEL
        return entries, failures

    def _applied(self, wanted: Wanted, outcome: Outcome, failures: dict[Cidr, Failure], problems: list[str]) -> Applied:
        links = self._link_names() if outcome.foreign else {}
        foreign = {network: foreign_route(route, links) for network, route in outcome.foreign.items()}
        routes = {network: wanted.routes[network] for network in outcome.present}
        sentences = (*problems, *_undeleted(outcome))
        return Applied(routes, {**failures, **outcome.failures}, foreign, sentences, outcome.unwanted)

    def _concerns(self, kind: int, values: dict[str, Any]) -> bool:
        """Return True if a change by others is one of what svc-routes uses. Those of pod interfaces are not."""
        index = values["index"]
        if kind in (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK):
            return not self._is_pod_link(kind, values)
        if kind in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE):
            return self._concerns_route(values)
        if kind in (rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR):
            return not self._is_pod_index(index)
        is_entry = values["family"] == rtnl.AF_BRIDGE  # the kernel does not say who has written one
        return index in self._devices and (kind == rtnl.RTM_DELNEIGH or not is_entry)

    def _concerns_route(self, route: dict[str, Any]) -> bool:
        if route["table"] != rtnl.RT_TABLE_MAIN:
            return False
        if (route["destination"], route["length"]) in self._networks or route["protocol"] == self._names.route_protocol:
            return True
        return not self._is_pod_index(route["index"])

    def _is_pod_index(self, index: int) -> bool:
        """Return whether a link is that of a pod, or gone. The kernel drops the notifications about these links."""
        if index in self._pod_links or index == 0:
            return index != 0
        request = rtnl.Batch()
        request.get_link(index)
        try:
            (message,) = self._socket.query(request)
        except OSError as failure:
            return failure.errno == errno.ENODEV
        if is_of_pod := traces.is_pod_interface(rtnl.unpack_link(message)):
            self._pod_links.add(index)
        return is_of_pod

    def _is_pod_link(self, kind: int, link: dict[str, Any]) -> bool:
        if not traces.is_pod_interface(link):
            return False
        if kind == rtnl.RTM_NEWLINK:
            self._pod_links.add(link["index"])
        else:
            self._pod_links.discard(link["index"])
        return True


def _undeleted(outcome: Outcome) -> list[str]:
    if not outcome.undeleted:
        return []
    network, failure = next(iter(outcome.undeleted.items()))
    return [f"{len(outcome.undeleted)} own routes cannot be deleted, such as {network}: {failure.text}"]

"""Own routes of the kernel's main table: what is there, and the messages that bring it to what is wanted.

Routes with the protocol number of the names profile are own, all others foreign. The kernel refuses a second route with the
same network and metric, so an own route never replaces a foreign one. No own route is added beside a foreign one.
"""

import errno
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from svc._core import netns, rtnl
from svc._core.cidr import Address, Cidr
from svc.dataplane.kernel import query
from svc.routes.applied import Failure, Foreign
from svc.values import dataclass, field

Key = tuple[bytes, int]
"""A network: its packed address and its length."""

HIGHEST_METRIC: Final = 2**32 - 1
_LOWEST_METRIC: Final = 1  # 0 is the default
_METRICS: Final = {4: 0, 6: 1024}  # those that the kernel gives to routes without one
_MULTICAST: Final = (224, 255)  # first bytes of multicast addresses, of IPv4 and IPv6
_ATTEMPTS: Final = 3
_LOST: Final = Failure(errno.ENOBUFS, "the kernel's answer was lost")

_Refused = dict[Cidr, Failure]


class Entry(NamedTuple):
    """An own route to a network, without the network. Two routes to a network differ in their metric."""

    metric: int
    kind: int  # RTN_*
    gateway: bytes = b""
    link: int = 0  # its index; 0 for a blackhole
    onlink: bool = False


@dataclass(slots=True)
class Table:
    """The routes of the main table in both families: own ones, and foreign ones as the kernel describes them."""

    own: dict[Key, list[Entry]] = field(default_factory=dict)
    foreign: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Networks with their wanted route, a refused message, or a foreign route; own routes that cannot be deleted.

    `unwanted` is the number of own routes that a deletion would remove, or has not removed."""

    present: frozenset[Cidr]
    failures: Mapping[Cidr, Failure]
    foreign: Mapping[Cidr, dict[str, Any]]  # as the kernel describes it
    undeleted: Mapping[Cidr, Failure]
    unwanted: int = 0


def key_of(network: Cidr) -> Key:
    """Return the form in which the kernel names a network."""
    return network.first.packed, network.length


def network_of(key: Key) -> Cidr:
    """Return the network of a key."""
    return Cidr.of(Address.from_packed(key[0]), key[1])


def unicast(network: Cidr, gateway: Address, index: int, *, onlink: bool = False) -> Entry:
    """Return the route via a gateway on a link; with index 0 the kernel finds the link, or refuses."""
    return Entry(_METRICS[network.version], rtnl.RTN_UNICAST, gateway.packed, index, onlink)


def _end(entry: Entry) -> Entry:
    """Return the route to the gateway of an entry itself, which goes before all others."""
    return Entry(_LOWEST_METRIC, rtnl.RTN_UNICAST, b"", entry.link)


BLACKHOLE: Final = Entry(HIGHEST_METRIC, rtnl.RTN_BLACKHOLE)


class KernelRoutes:
    """The own routes of a namespace, as they were read last and changed since. For one thread."""

    def __init__(self, socket: netns.Socket, protocol: int, *, has_ipv6: bool) -> None:
        self._socket = socket
        self._protocol = protocol
        self._families = (rtnl.AF_INET, rtnl.AF_INET6) if has_ipv6 else (rtnl.AF_INET,)
        self._table: Table | None = None

    def forget(self) -> None:
        """Read the kernel again at the next use."""
        self._table = None

    def table(self) -> Table:
        """Return the routes of the main table. Raise PeerError."""
        if self._table is None:
            self._table = self._read()
        return self._table

    def bring(self, wanted: Mapping[Cidr, Entry], *, may_delete: bool, kept: Collection[Cidr] = ()) -> Outcome:
        """Add and replace what differs, then delete own routes that are not wanted, with `may_delete`. Raise PeerError.

        Own routes to the networks in `kept` stay as they are. If the kernel lost an answer, or a foreign route came in between,
        the kernel is read and compared again."""
        for _ in range(_ATTEMPTS):
            refused = self._write(wanted, kept, may_delete=may_delete)
            if refused is not None:
                return self._outcome(wanted, *refused, kept)
            self._table = None
        return self._outcome(wanted, {}, {}, kept)

    def _read(self) -> Table:
        table = Table()
        shared: dict[Entry, Entry] = {}  # the networks of a node have equal routes
        for family in self._families:
            request = rtnl.Batch()
            request.dump_routes(family)
            for message in query(self._socket, request):
                self._add(table, rtnl.unpack_route(message), shared)
        return table

    def _add(self, table: Table, route: dict[str, Any], shared: dict[Entry, Entry]) -> None:
        if route["table"] != rtnl.RT_TABLE_MAIN:
            return
        key = (route["destination"], route["length"])
        if route["protocol"] == self._protocol:
            entry = _entry(route)
            table.own.setdefault(key, []).append(shared.setdefault(entry, entry))
        elif route["length"] and route["destination"][0] not in _MULTICAST:
            table.foreign.setdefault(key, []).append(route)

    def _write(
        self, wanted: Mapping[Cidr, Entry], kept: Collection[Cidr], *, may_delete: bool
    ) -> tuple[_Refused, _Refused] | None:
        """Return the refused additions and deletions, or None if the kernel must be read again."""
        table = self.table()
        failures = self._send(self._additions(table, wanted))
        if failures:
            failures = self._retried(wanted, failures)
        if failures is None or self._is_outdated(failures):
            return None
        undeleted = self._send(self._deletions(wanted, {*failures, *kept})) if may_delete else {}
        return None if undeleted is None else (failures, undeleted)

    def _retried(self, wanted: Mapping[Cidr, Entry], failures: _Refused) -> _Refused | None:
        """Write refused IPv6 routes through tunnels again, while their gateways have routes of their own.

        The kernel refuses (EINVAL) an on-link gateway in a network with a route on another link, such as the network that is
        to be routed through the tunnel from now on. Return the refused networks, as `_send` does."""
        refused = [network for network, failure in failures.items() if failure.errno == errno.EINVAL and network.version == 6]
        again = {network: wanted[network] for network in refused if wanted[network].onlink}
        ends = [((entry.gateway, 8 * len(entry.gateway)), _end(entry)) for entry in again.values()]
        changes, own = _Changes(self._protocol), self.table().own
        for key, entry in dict(ends).items():
            changes.add(key, entry, replace=False)
        for network, entry in again.items():
            key = key_of(network)
            changes.add(key, entry, replace=any(old.metric == entry.metric for old in own.get(key, ())))
        for key, entry in dict(ends).items():
            changes.delete(key, entry)
        found = self._send(changes)
        if found is None:
            return None
        rest = {network: failure for network, failure in failures.items() if network not in again}
        return rest | {network: failure for network, failure in found.items() if network in again}

    def _is_outdated(self, failures: _Refused) -> bool:
        """Return True if a foreign route that the table lacks explains a refusal. The table is read again in this case."""
        existing = [network for network, failure in failures.items() if failure.errno == errno.EEXIST]
        if not existing:
            return False
        self._table = None
        return any(key_of(network) in self.table().foreign for network in existing)

    def _additions(self, table: Table, wanted: Mapping[Cidr, Entry]) -> "_Changes":
        changes = _Changes(self._protocol)
        for network, entry in wanted.items():
            key = (network.first.packed, network.length)
            own = table.own.get(key)
            if own is not None and entry in own:
                continue
            is_free = all(route["metric"] != entry.metric for route in table.foreign.get(key, ()))
            if own is not None and is_free and any(old.metric == entry.metric for old in own):
                changes.add(key, entry, replace=True)
            elif key not in table.foreign:
                changes.add(key, entry, replace=False)
        return changes

    def _deletions(self, wanted: Mapping[Cidr, Entry], kept: Collection[Cidr]) -> "_Changes":
        """Return the deletions of own routes. The old route to a network stays if the new one was refused."""
        changes = _Changes(self._protocol)
        for key, entry in self._surplus(wanted, kept):
            changes.delete(key, entry)
        return changes

    def _surplus(self, wanted: Mapping[Cidr, Entry], kept: Collection[Cidr]) -> Iterator[tuple[Key, Entry]]:
        """Yield the own routes that are not wanted, except those to kept networks."""
        expected = {key_of(network): entry for network, entry in wanted.items()}
        keys = {key_of(network) for network in kept}
        for key, entries in self.table().own.items():
            for entry in entries:
                if entry != expected.get(key) and key not in keys:
                    yield key, entry

    def _send(self, changes: "_Changes") -> _Refused | None:
        """Send the messages; note in the table what they did. Return the refused networks, or None if answers were lost."""
        if not len(changes.batch):
            return {}
        try:
            refusals = self._socket.execute_each(changes.batch)
        except OSError:  # ENOBUFS, ETIMEDOUT: which messages were refused is not known
            return None
        failures: _Refused = {}
        for refusal in refusals:
            number = refusal.errno or errno.EINVAL
            if changes.is_deletion(refusal.index) and number in (errno.ESRCH, errno.ENOENT):
                continue
            failures[changes.network(refusal.index)] = Failure(number, refusal.message or os.strerror(number))
            changes.refuse(refusal.index)
        changes.note(self.table().own)
        return failures

    def _outcome(
        self, wanted: Mapping[Cidr, Entry], failures: _Refused, undeleted: _Refused, kept: Collection[Cidr]
    ) -> Outcome:
        table = self.table()
        present, failing, foreign = set(), {}, {}
        for network, entry in wanted.items():
            key = (network.first.packed, network.length)
            own = table.own.get(key)
            if own is not None and entry in own:
                present.add(network)
            if key in table.foreign:
                foreign[network] = table.foreign[key][0]
            elif network not in present:
                failing[network] = failures.get(network, _LOST)
        unwanted = sum(1 for _ in self._surplus(wanted, {*failing, *kept}))
        return Outcome(frozenset(present), failing, foreign, undeleted, unwanted)


class _Changes:
    """Messages, and what each of them changes."""

    def __init__(self, protocol: int) -> None:
        self.batch = rtnl.Batch()
        self._protocol = protocol
        self._rows: list[tuple[Key, Entry, bool] | None] = []  # network, route, is it a deletion; None if it was refused

    def add(self, key: Key, entry: Entry, *, replace: bool) -> None:
        if entry.kind == rtnl.RTN_BLACKHOLE:
            self.batch.add_blackhole(*key, metric=entry.metric, protocol=self._protocol)
        else:
            self.batch.add_route(
                entry.link,
                *key,
                gateway=entry.gateway,
                metric=entry.metric,
                replace=replace,
                protocol=self._protocol,
                onlink=entry.onlink,
            )
        self._rows.append((key, entry, False))

    def delete(self, key: Key, entry: Entry) -> None:
        options: dict[str, Any] = {"gateway": entry.gateway, "metric": entry.metric, "kind": entry.kind}
        self.batch.delete_route(entry.link, *key, protocol=self._protocol, **options)
        self._rows.append((key, entry, True))

    def network(self, index: int) -> Cidr:
        row = self._rows[index]
        assert row is not None
        return network_of(row[0])

    def is_deletion(self, index: int) -> bool:
        row = self._rows[index]
        return row is not None and row[2]

    def refuse(self, index: int) -> None:
        self._rows[index] = None

    def note(self, own: dict[Key, list[Entry]]) -> None:
        for key, entry, is_deletion in filter(None, self._rows):
            before = own.get(key, [])
            if is_deletion:
                entries = [old for old in before if old != entry]
            else:
                entries = [*(old for old in before if old.metric != entry.metric), entry]
            if entries:
                own[key] = entries
            else:
                own.pop(key, None)


def _entry(route: dict[str, Any]) -> Entry:
    is_unicast = route["type"] == rtnl.RTN_UNICAST
    onlink = bool(route["flags"] & rtnl.RTNH_F_ONLINK)
    return Entry(route["metric"], route["type"], route["gateway"], route["index"] if is_unicast else 0, onlink)


def foreign_route(route: dict[str, Any], links: Mapping[int, str]) -> Foreign:
    """Return the description of a route of another program. The links are names by index."""
    return Foreign(route["protocol"], " ".join(_words(route, links)))


def _words(route: dict[str, Any], links: Mapping[int, str]) -> Iterator[str]:
    if route["type"] != rtnl.RTN_UNICAST:
        yield "blackhole" if route["type"] == rtnl.RTN_BLACKHOLE else f"of type {route['type']}"
    elif not route["index"]:
        yield "through several next hops"
    if route["gateway"]:
        yield f"via {Address.from_packed(route['gateway'])}"
    if route["index"] and route["type"] == rtnl.RTN_UNICAST:
        yield f"on {links.get(route['index'], route['index'])}"
    if route["metric"]:
        yield f"with metric {route['metric']}"

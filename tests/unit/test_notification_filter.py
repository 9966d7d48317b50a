"""The filter in the kernel, on a pair of sockets, beside a twin that reads the same messages in Python."""

import socket
import struct
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc._core import rtnl
from svc._core.cidr import Address, Cidr
from svc.dataplane.plan import HOST_MAC
from svc.routes import notification_filter

CREATE = 0x600
TUNNELS = (7, 0x01020304)
OWN = (Cidr("10.65.0.0/26"), Cidr("10.66.0.0/16"), Cidr("fd00::40/122"), Cidr("fd02::/32"))
OTHER_MAC = bytes(range(6))

Attributes = list[tuple[int, bytes]]


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, body: bytes, attributes: Attributes, flags: int = CREATE) -> bytes:
    whole = body + b"".join(attribute(*each) for each in attributes)
    return struct.pack("=IHHII", 16 + len(whole), kind, flags, 1, 2) + whole


def link(kind: int, attributes: Attributes) -> bytes:
    return message(kind, struct.pack("=BxHiII", 0, 1, 5, 1, 0), attributes)


def info(kind: bytes) -> bytes:
    return attribute(1, kind + b"\0") + attribute(2, attribute(1, b"\5\0\0\0"))


def route(kind: int, attributes: Attributes, *, flags: int = CREATE, **given: int) -> bytes:
    fields = {"family": 2, "length": 32, "table": 254, "protocol": 3, "scope": 253, "type": 1, **given}
    body = struct.pack("=BBBBBBBBI", *(fields[name] for name in ("family", "length")), 0, 0, *list(fields.values())[2:6], 0)
    return message(kind, body, attributes, flags)


def neighbour(kind: int, index: int) -> bytes:
    return message(kind, struct.pack("=BxxxiHBB", 2, index, 2, 0, 1), [(1, b"\n\0\0\1")])


class Filtered:
    """A pair of sockets, of which one drops what the filter drops."""

    def __init__(self, tunnels: Collection[int] = TUNNELS, own: Collection[Cidr] = OWN) -> None:
        self._ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        notification_filter.attach(self._ends[1], tunnels, own)
        self._ends[1].setblocking(False)

    def accepts(self, data: bytes) -> bool:
        self._ends[0].send(data)
        try:
            assert self._ends[1].recv(65536) == data
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        for end in self._ends:
            end.close()


@pytest.fixture(scope="module")
def filtered() -> Iterator[Filtered]:
    found = Filtered()
    yield found
    found.close()


POD_LINK: Attributes = [(3, b"svc0\0"), (1, HOST_MAC), (18, info(b"veth"))]


@pytest.mark.parametrize("kind", [rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK])
@pytest.mark.parametrize(
    ("attributes", "accepted"),
    [
        (POD_LINK, False),
        ([(1, OTHER_MAC), *POD_LINK[2:]], True),
        ([(1, HOST_MAC[:5] + b"\0"), *POD_LINK[2:]], True),
        ([(1, HOST_MAC), (18, info(b"vlan"))], True),
        ([(1, HOST_MAC), (18, b"")], True),
        ([(1, HOST_MAC)], True),
        ([(1, b"")], True),
        ([], True),
    ],
    ids=["of a pod", "other MAC", "almost the MAC", "other kind", "without a kind", "no information", "short MAC", "nothing"],
)
def test_links_of_pods_are_dropped(filtered: Filtered, kind: int, attributes: Attributes, *, accepted: bool) -> None:
    assert filtered.accepts(link(kind, attributes)) == accepted


def to(text: str, kind: int = rtnl.RTM_NEWROUTE, others: Attributes | None = None, **given: int) -> bytes:
    """Return a route to a network."""
    network = Cidr(text)
    family = socket.AF_INET if network.version == 4 else socket.AF_INET6
    fields = {"family": family, "length": network.length, **given}
    return route(kind, [(15, bytes(4)), (1, network.first.packed), *(others or [])], **fields)


@pytest.mark.parametrize("kind", [rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE])
@pytest.mark.parametrize(
    ("network", "accepted"),
    [
        ("10.65.0.0/32", False),
        ("10.65.0.63/32", False),
        ("10.65.0.0/27", False),
        ("10.65.0.0/26", True),
        ("10.65.0.0/25", True),
        ("10.65.0.64/32", True),
        ("10.64.255.255/32", True),
        ("10.66.7.9/32", False),
        ("10.67.0.0/32", True),
        ("fd00::40/128", False),
        ("fd00::7f/128", False),
        ("fd00::40/122", True),
        ("fd00::80/128", True),
        ("fd00:0:0:1::40/128", True),
        ("fd01::40/128", True),
        ("fd02::1/128", False),
        ("fe80::/64", False),
        ("febf::1/128", False),
        ("fec0::1/128", True),
    ],
)
def test_routes_inside_own_blocks_are_dropped(filtered: Filtered, kind: int, network: str, *, accepted: bool) -> None:
    assert filtered.accepts(to(network, kind)) == accepted
    assert not filtered.accepts(to(network, kind, table=255))
    assert not filtered.accepts(to(network, kind, table=100))


def test_default_route_is_accepted(filtered: Filtered) -> None:
    """It has no attribute for its destination."""
    assert filtered.accepts(route(rtnl.RTM_NEWROUTE, [(5, b"\n\0\0\1")], length=0))
    assert filtered.accepts(route(rtnl.RTM_NEWROUTE, [(5, bytes(16))], family=10, length=0))


def test_more_blocks_than_an_instruction_can_reach() -> None:
    many = [Cidr("10.64.0.0/10").block(number, 26) for number in range(60)] + [
        Cidr("fd00::/64").block(number, 122) for number in range(60)
    ]
    own = Filtered((), many)
    assert not any(own.accepts(to(f"{block.first}/32")) for block in many[:60])
    assert own.accepts(to("10.64.15.0/32"))
    assert not own.accepts(neighbour(rtnl.RTM_NEWNEIGH, 7))
    assert not own.accepts(link(rtnl.RTM_NEWLINK, POD_LINK))
    own.close()


@pytest.mark.parametrize("kind", [rtnl.RTM_NEWNEIGH, rtnl.RTM_DELNEIGH])
def test_neighbours_of_tunnels_alone_are_accepted(filtered: Filtered, kind: int) -> None:
    assert [index for index in (0, 1, 7, 8, 0x01020304, 0x04030201) if filtered.accepts(neighbour(kind, index))] == [*TUNNELS]


def test_without_tunnels_no_neighbour_is_accepted() -> None:
    none = Filtered(())
    assert not none.accepts(neighbour(rtnl.RTM_NEWNEIGH, 7))
    none.close()


@pytest.mark.parametrize("kind", [rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR])
def test_addresses_of_a_link_alone_are_dropped(filtered: Filtered, kind: int) -> None:
    """Each IPv6 interface has one; no node has such an address for its peers."""
    given = {
        scope: message(kind, struct.pack("=BBBBi", 10, 64, 128, scope, 5), [(1, bytes(16))]) for scope in (0, 200, 253, 254)
    }
    assert [scope for scope, data in given.items() if filtered.accepts(data)] == [0, 200, 254]


@pytest.mark.parametrize("data", [b"", b"\0", bytes(15), struct.pack("=IHHII", 16, rtnl.RTM_NEWLINK, 0, 0, 0), bytes(3000)])
def test_what_it_does_not_know_does_no_harm(filtered: Filtered, data: bytes) -> None:
    filtered.accepts(data)
    assert filtered.accepts(message(rtnl.RTM_NEWADDR, bytes(8), []))


def is_needed(kind: int, values: dict[str, Any], table: int = 254) -> bool:
    """Decide as the filter, by the values that the core finds in a message."""
    if kind in (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK):
        return not (values["mac"] == HOST_MAC and values["kind"] == "veth")
    if table != rtnl.RT_TABLE_MAIN:
        return False
    destination = Address.from_packed(values["destination"])
    return not any(destination in block and values["length"] > block.length for block in (*OWN, Cidr("fe80::/10")))


few = st.sampled_from
attributes = st.lists(
    st.tuples(few([1, 3, 18]), few([HOST_MAC, OTHER_MAC, info(b"veth"), info(b"vlan"), b"\n\0\0\1"])),
    max_size=3,
    unique_by=lambda each: each[0],
)
addresses = few([address.packed for block in OWN for address in (block.first, block.last)]) | st.binary(min_size=4, max_size=4)


def network(packed: bytes, length: int) -> Cidr:
    bits = 8 * len(packed)
    host = max(0, bits - length)
    first = int.from_bytes(packed, "big") >> host << host
    return Cidr(f"{Address.from_packed(first.to_bytes(len(packed), 'big'))}/{min(length, bits)}")


@given(few([rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK]), attributes)
def test_links_equal_the_twin(filtered: Filtered, kind: int, listed: Attributes) -> None:
    data = link(kind, [(number, value) for number, value in listed if number != 18 or value.startswith(b"\t")])
    assert filtered.accepts(data) == is_needed(kind, rtnl.unpack_link(data))


@given(few([rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE]), st.builds(network, addresses, st.integers(0, 128)), few([0, 253, 254, 255]))
def test_routes_equal_the_twin(filtered: Filtered, kind: int, given: Cidr, table: int) -> None:
    data = to(str(given), kind, table=table)
    assert filtered.accepts(data) == is_needed(kind, rtnl.unpack_route(data), table)

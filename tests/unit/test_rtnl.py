"""Packing of rtnetlink messages to the kernel: same bytes as pyroute2, and refusal of invalid values."""

import ipaddress
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import nla, nlmsg  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.ndmsg import ndmsg  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.ndtmsg import ndtmsg  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.rtmsg import rtmsg  # type: ignore[import-untyped]  # noqa: TID251

from svc._core.rtnl import (
    AF_INET,
    AF_INET6,
    DEVCONF_FORWARDING,
    DEVCONF_PROXY_ARP,
    DEVCONF_ROUTE_LOCALNET,
    RTM_DELLINK,
    RTM_NEWLINK,
    SCOPE_GLOBAL,
    SCOPE_LINK,
    Batch,
    split,
    unpack_neighbour,
    unpack_route,
)

ACKED, NEW, REPLACE, DUMP = 5, 0x605, 0x505, 0x305  # REQUEST|ACK, and with CREATE|EXCL, CREATE|REPLACE, ROOT|MATCH
HOST_MAC = bytes.fromhex("eeeeeeeeeeee")
GATEWAY4 = bytes([169, 254, 1, 1])
GATEWAY6 = socket.inet_pton(socket.AF_INET6, "fe80::ecee:eeff:feee:eeee")
U32 = st.integers(0, 2**32 - 1)

Attributes = list[tuple[str, Any]]
names = (
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=15)
    .filter(lambda name: len(name.encode()) <= 15)
    .map(str)
)
macs = st.binary(min_size=6, max_size=6)
indexes = st.integers(1, 2**31 - 1)
addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)


# --- packing, against pyroute2


class DevconfMessage(ifinfmsg):  # type: ignore[misc]
    """pyroute2 reads devconf as a struct, but setting it takes an attribute for each number.

    A class inherits the table of its attributes if that of its base was made before, by another test."""

    _nlmsg_base__compiled_nla = False

    class af_spec_inet(ifinfmsg.af_spec_inet):  # type: ignore[misc]  # noqa: N801
        _nlmsg_base__compiled_nla = False

        class inet(nla):  # type: ignore[misc]  # noqa: N801
            nla_map = ((1, "IFLA_INET_CONF", "conf"),)

            class conf(nla):  # type: ignore[misc]  # noqa: N801
                nla_map = tuple((number, str(number), "uint32") for number in range(1, 34))


def reference(message: nlmsg, kind: int, flags: int, fields: dict[str, Any], attributes: Attributes) -> bytes:
    """Return the message as pyroute2 packs it, with sequence number 1."""
    message["header"].update(type=kind, flags=flags, sequence_number=1)
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = attributes
    message.encode()
    return bytes(message.data)


def packed(pack: Callable[[Batch], None]) -> bytes:
    batch = Batch()
    pack(batch)
    return bytes(batch)


def text_of(address: bytes) -> str:
    return str(ipaddress.ip_address(address))


def veth_end(name: str, mac: bytes, mtu: int, queues: int) -> Attributes:
    attributes: Attributes = [("IFLA_IFNAME", name)]
    if mac:
        attributes.append(("IFLA_ADDRESS", mac.hex(":")))
    if mtu:
        attributes.append(("IFLA_MTU", mtu))
    if queues:
        attributes += [("IFLA_NUM_TX_QUEUES", queues), ("IFLA_NUM_RX_QUEUES", queues)]
    return attributes


@given(names, indexes, macs | st.just(b""), U32, U32, names, indexes, macs | st.just(b""), U32)
def test_veth_is_packed_as_by_pyroute2(
    name: str, index: int, mac: bytes, mtu: int, queues: int, peer_name: str, peer_index: int, peer_mac: bytes, ns_fd: int
) -> None:
    """The peer is nested three levels deep. Values that the kernel chooses are omitted."""
    actual = packed(lambda batch: batch.create_veth(name, index, mac, mtu, queues, peer_name, peer_index, peer_mac, ns_fd))
    peer = {"index": peer_index, "attrs": [*veth_end(peer_name, peer_mac, mtu, queues), ("IFLA_NET_NS_FD", ns_fd)]}
    data = ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]})
    info = ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "veth"), data]})
    assert actual == reference(ifinfmsg(), RTM_NEWLINK, NEW, {"index": index}, [*veth_end(name, mac, mtu, queues), info])


@given(
    indexes,
    st.none() | st.booleans(),
    st.dictionaries(st.integers(1, 33), U32, max_size=5),
    st.booleans(),
    st.none() | U32,
    macs | st.just(b""),
)
def test_link_settings_are_packed_as_by_pyroute2(
    index: int, up: bool | None, devconf: dict[int, int], no_link_local: bool, group: int | None, mac: bytes
) -> None:
    """The settings are packed alone and together."""
    actual = packed(
        lambda batch: batch.set_link(index, up=up, devconf=devconf, no_link_local=no_link_local, group=group, mac=mac)
    )
    attributes: Attributes = [("IFLA_ADDRESS", mac.hex(":"))] if mac else []
    attributes += [("IFLA_GROUP", group)] if group is not None else []
    spec: Attributes = []
    if devconf:
        conf = {"attrs": [(str(number), value) for number, value in devconf.items()]}
        spec.append(("AF_INET", {"attrs": [("IFLA_INET_CONF", conf)]}))
    if no_link_local:
        spec.append(("AF_INET6", {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", 1)]}))
    attributes += [("IFLA_AF_SPEC", {"attrs": spec})] if spec else []
    fields = {"index": index, "flags": int(up or False), "change": int(up is not None)}
    assert actual == reference(DevconfMessage(), 19, ACKED, fields, attributes)


@given(indexes, addresses, st.data(), st.integers(0, 255), st.booleans())
def test_address_is_packed_as_by_pyroute2(index: int, address: bytes, data: st.DataObject, scope: int, nodad: bool) -> None:
    """This holds for both families. The short and the long flags contain nodad."""
    length = data.draw(st.integers(0, 8 * len(address)))
    text = text_of(address)
    fields = {"family": family_of(address), "prefixlen": length, "index": index}
    both: Attributes = [("IFA_LOCAL", text), ("IFA_ADDRESS", text)]
    flags: Attributes = [("IFA_FLAGS", 2)] if nodad else []
    added = packed(lambda batch: batch.add_address(index, address, length, scope=scope, nodad=nodad))
    assert added == reference(ifaddrmsg(), 20, NEW, {**fields, "flags": 2 if nodad else 0, "scope": scope}, both + flags)
    deleted = packed(lambda batch: batch.delete_address(index, address, length))
    assert deleted == reference(ifaddrmsg(), 21, ACKED, fields, both)


bytes_ = st.integers(0, 255)


@given(indexes | st.just(0), addresses, st.data(), bytes_, U32, st.booleans(), bytes_, st.booleans())
def test_route_is_packed_as_by_pyroute2(
    index: int, address: bytes, data: st.DataObject, scope: int, metric: int, replace: bool, protocol: int, onlink: bool
) -> None:
    """Gateway, metric and link are optional. A default route has no destination attribute."""
    length = data.draw(st.integers(0, 8 * len(address)))
    gateway = data.draw(st.just(b"") | st.binary(min_size=len(address), max_size=len(address)))
    kind = data.draw(bytes_)
    destination: Attributes = [("RTA_DST", text_of(address))] if length else []
    via: Attributes = [("RTA_GATEWAY", text_of(gateway))] if gateway else []
    priority: Attributes = [("RTA_PRIORITY", metric)] if metric else []
    out: Attributes = [("RTA_OIF", index)] if index else []
    fields = {"family": family_of(address), "dst_len": length, "table": 254, "proto": protocol}
    options: dict[str, Any] = {"gateway": gateway, "metric": metric, "protocol": protocol}
    more: dict[str, Any] = {"scope": scope, "replace": replace, "onlink": onlink}
    added = packed(lambda batch: batch.add_route(index, address, length, **options, **more))
    new = {**fields, "scope": scope, "type": 1, "flags": 4 if onlink else 0}
    assert added == reference(rtmsg(), 24, REPLACE if replace else NEW, new, destination + via + priority + out)
    deleted = packed(lambda batch: batch.delete_route(index, address, length, kind=kind, **options))
    old = {**fields, "scope": 255, "type": kind}
    assert deleted == reference(rtmsg(), 25, ACKED, old, destination + via + priority + out)
    hole = packed(lambda batch: batch.add_blackhole(address, length, metric=metric, protocol=protocol))
    assert hole == reference(rtmsg(), 24, NEW, {**fields, "scope": 0, "type": 6}, destination + priority)


@given(indexes, addresses)
def test_default_protocols_are_packed_as_by_pyroute2(index: int, address: bytes) -> None:
    """A route of the agent is that of an administrator; a deletion is of any protocol."""
    length = 8 * len(address)
    fields = {"family": family_of(address), "dst_len": length, "table": 254}
    attributes: Attributes = [("RTA_DST", text_of(address)), ("RTA_OIF", index)]
    added = packed(lambda batch: batch.add_route(index, address, length))
    assert added == reference(rtmsg(), 24, NEW, {**fields, "proto": 3, "type": 1}, attributes)
    deleted = packed(lambda batch: batch.delete_route(index, address, length))
    assert deleted == reference(rtmsg(), 25, ACKED, {**fields, "proto": 0, "scope": 255, "type": 0}, attributes)
    asked = packed(lambda batch: batch.get_route(address))
    whole = {"family": family_of(address), "dst_len": length, "table": 0, "proto": 0, "type": 0}
    assert asked == reference(rtmsg(), 26, ACKED, whole, [("RTA_DST", text_of(address))])


@given(indexes, addresses, macs)
def test_neighbour_is_packed_as_by_pyroute2(index: int, address: bytes, mac: bytes) -> None:
    """An entry of a VXLAN device is a neighbour of the family of bridges, with the remote end as its address."""
    permanent, itself = 0x80, 0x02
    address_only: Attributes = [("NDA_DST", text_of(address))]
    both: Attributes = [*address_only, ("NDA_LLADDR", mac.hex(":"))]
    neighbour = {"family": family_of(address), "ifindex": index}
    entry = {"family": 7, "ifindex": index, "flags": itself}
    added, new_entry = {**neighbour, "state": permanent}, {**entry, "state": permanent}
    rows: list[tuple[bytes, bytes]] = [
        (packed(lambda b: b.add_neighbour(index, address, mac)), packed_neighbour(28, REPLACE, added, both)),
        (packed(lambda b: b.delete_neighbour(index, address)), packed_neighbour(29, ACKED, neighbour, address_only)),
        (packed(lambda b: b.add_fdb(index, mac, address)), packed_neighbour(28, REPLACE, new_entry, both)),
        (packed(lambda b: b.delete_fdb(index, mac, address)), packed_neighbour(29, ACKED, entry, both)),
        (packed(lambda b: b.dump_fdb(index)), packed_neighbour(30, DUMP, {"family": 7, "ifindex": index}, [])),
        (
            packed(lambda b: b.dump_neighbours(family_of(address), index)),
            packed_neighbour(30, DUMP, {"family": family_of(address)}, [("NDA_IFINDEX", index)]),
        ),
    ]
    for actual, expected in rows:
        assert actual == expected


def packed_neighbour(kind: int, flags: int, fields: dict[str, int], attributes: Attributes) -> bytes:
    return reference(ndmsg(), kind, flags, fields, attributes)


@given(indexes, addresses, macs, st.booleans())
def test_neighbour_of_pyroute2_is_read(index: int, address: bytes, mac: bytes, is_entry: bool) -> None:
    """Both families of neighbours, and entries of VXLAN devices."""
    fields = {"family": 7 if is_entry else family_of(address), "ifindex": index, "state": 0x80, "flags": 2 if is_entry else 0}
    message = packed_neighbour(28, NEW, fields, [("NDA_DST", text_of(address)), ("NDA_LLADDR", mac.hex(":"))])
    expected = {"index": index, "address": address, "mac": mac, "state": 0x80}
    assert unpack_neighbour(message) == {**expected, "family": fields["family"], "flags": fields["flags"]}


@given(indexes, addresses, st.data(), bytes_, U32, bytes_, U32)
def test_route_of_pyroute2_is_read(
    index: int, address: bytes, data: st.DataObject, protocol: int, metric: int, kind: int, flags: int
) -> None:
    """A number of a table above 255 is in an attribute."""
    length = data.draw(st.integers(1, 8 * len(address)))
    fields = {"family": family_of(address), "dst_len": length, "table": 0, "proto": protocol, "type": kind, "flags": flags}
    attributes: Attributes = [("RTA_DST", text_of(address)), ("RTA_GATEWAY", text_of(address)), ("RTA_PRIORITY", metric)]
    message = reference(rtmsg(), 24, NEW, fields, [*attributes, ("RTA_OIF", index), ("RTA_TABLE", 1000)])
    assert unpack_route(message) == {
        "family": family_of(address), "destination": address, "length": length, "gateway": address, "index": index,
        "scope": 0, "table": 1000, "protocol": protocol, "type": kind, "metric": metric, "flags": flags,
    }  # fmt: skip
    other = reference(rtmsg(), 24, NEW, {"family": AF_INET}, [("RTA_VIA", {"family": AF_INET6, "addr": "fd99::9"})])
    assert unpack_route(other)["gateway"] == socket.inet_pton(AF_INET6, "fd99::9")


@given(indexes, names, U32, st.integers(1, 2**32 - 1))
def test_other_messages_are_packed_as_by_pyroute2(index: int, name: str, milliseconds: int, group: int) -> None:
    """These are settings of the neighbour table, deletions, requests and dumps."""
    parameters = {"attrs": [("NDTPA_IFINDEX", index), ("NDTPA_PROXY_DELAY", milliseconds)]}
    table: Attributes = [("NDTA_NAME", "arp_cache"), ("NDTA_PARMS", parameters)]
    no_statistics = ("IFLA_EXT_MASK", 8)
    rows: list[tuple[bytes, bytes]] = [
        (packed(lambda b: b.set_proxy_delay(index, milliseconds)), reference(ndtmsg(), 67, ACKED, {"family": 2}, table)),
        (packed(lambda b: b.delete_link(index)), reference(ifinfmsg(), RTM_DELLINK, ACKED, {"index": index}, [])),
        (packed(lambda b: b.delete_link(name=name)), reference(ifinfmsg(), RTM_DELLINK, ACKED, {}, [("IFLA_IFNAME", name)])),
        (packed(lambda b: b.delete_group(group)), reference(ifinfmsg(), RTM_DELLINK, ACKED, {}, [("IFLA_GROUP", group)])),
        (packed(lambda b: b.get_link(index)), reference(ifinfmsg(), 18, ACKED, {"index": index}, [no_statistics])),
        (packed(lambda b: b.get_link(name=name)), reference(ifinfmsg(), 18, ACKED, {}, [("IFLA_IFNAME", name), no_statistics])),
        (packed(lambda b: b.dump_links()), reference(ifinfmsg(), 18, DUMP, {}, [no_statistics])),
        (packed(lambda b: b.dump_addresses(index)), reference(ifaddrmsg(), 22, DUMP, {"index": index}, [])),
    ]
    for actual, expected in rows:
        assert actual == expected


@pytest.mark.parametrize("family", [AF_INET, AF_INET6])
def test_route_dump_is_packed_as_by_pyroute2(family: int) -> None:
    """The dump is of the main table, for one link or for all."""
    fields = {"family": family, "table": 254, "proto": 0, "type": 0}
    assert packed(lambda batch: batch.dump_routes(family)) == reference(rtmsg(), 26, DUMP, fields, [])
    assert packed(lambda batch: batch.dump_routes(family, 7)) == reference(rtmsg(), 26, DUMP, fields, [("RTA_OIF", 7)])


def family_of(address: bytes) -> int:
    return AF_INET if len(address) == 4 else AF_INET6


# --- packing, literal rows


@pytest.mark.parametrize(
    ("pack", "rows"),
    [
        pytest.param(
            lambda batch: batch.delete_link(7),
            ["20000000 1100 0500 01000000 00000000", "00 00 0000 07000000 00000000 00000000"],
            id="a header and a fixed part, no attribute",
        ),
        pytest.param(
            lambda batch: batch.delete_link(name="svc01"),
            [
                "2c000000 1100 0500 01000000 00000000",
                "00 00 0000 00000000 00000000 00000000",
                "0a00 0300 737663303100 0000",
            ],
            id="a name with its NUL, padded to four bytes, the padding not counted",
        ),
        pytest.param(
            lambda batch: batch.set_link(7, devconf={DEVCONF_PROXY_ARP: 1}, no_link_local=True),
            [
                "40000000 1300 0500 01000000 00000000",
                "00 00 0000 07000000 00000000 00000000",
                "2000 1a00",
                "1000 0200 0c00 0100 0800 0300 01000000",
                "0c00 0a00 0500 0800 01 000000",
            ],
            id="attributes in attributes, each length over all it holds",
        ),
        pytest.param(
            lambda batch: batch.add_route(7, bytes([10, 65, 0, 7]), 32, scope=SCOPE_LINK),
            [
                "2c000000 1800 0506 01000000 00000000",
                "02 20 00 00 fe 03 fd 01 00000000",
                "0800 0100 0a410007",
                "0800 0400 07000000",
            ],
            id="an IPv4 route of link scope",
        ),
    ],
)
@pytest.mark.skipif(sys.byteorder == "big", reason="the rows are of a little-endian kernel")
def test_message_has_these_bytes(pack: Callable[[Batch], None], rows: list[str]) -> None:
    """Header, fixed part and attributes are literal, so this test does not depend on pyroute2."""
    assert packed(pack) == bytes.fromhex(" ".join(rows))


def test_messages_are_contiguous() -> None:
    """Sequence numbers count from 1. The next header follows each message."""
    batch = Batch()
    for index in range(1, 200):  # more than the buffer inside the object can hold
        batch.set_link(index, up=True)
    messages = split(bytes(batch))
    assert len(batch) == len(messages) == 199
    assert [(kind, sequence) for kind, sequence, _ in messages] == [(19, index) for index in range(1, 200)]
    assert [struct.unpack_from("=i", message, 20)[0] for _, _, message in messages] == list(range(1, 200))


def test_cleared_batch_is_empty() -> None:
    """This holds for bytes, labels and sequence numbers."""
    batch = Batch()
    batch.delete_link(7)
    batch.clear()
    assert (len(batch), bytes(batch)) == (0, b"")
    batch.delete_link(8)
    assert bytes(batch) == packed(lambda fresh: fresh.delete_link(8))
    assert batch.label(0) == "delete link (index 8)"


def test_labels_describe_the_messages() -> None:
    """They are part of error messages."""
    batch = Batch()
    batch.create_veth("svc0123", 7, HOST_MAC, 1450, 1, "eth0", 2, b"", 5)
    batch.set_link(7, up=True)
    batch.set_proxy_delay(7, 0)
    batch.add_address(7, GATEWAY6, 64)
    batch.delete_address(7, GATEWAY4, 32)
    batch.add_route(7, bytes(4), 0)
    batch.add_route(7, bytes(16), 0, replace=True)
    batch.delete_route(7, bytes([10, 65, 0, 7]), 32)
    batch.delete_link(7)
    batch.delete_link(name="svc0123")
    batch.delete_group(9)
    batch.dump_links()
    batch.add_blackhole(bytes([10, 65, 0, 64]), 26)
    batch.get_route(GATEWAY4)
    batch.add_neighbour(7, GATEWAY4, HOST_MAC)
    batch.delete_neighbour(7, GATEWAY4)
    batch.add_fdb(7, HOST_MAC, GATEWAY4)
    batch.delete_fdb(7, HOST_MAC, GATEWAY6)
    batch.dump_neighbours(AF_INET, 7)
    batch.dump_fdb(7)
    assert [batch.label(index) for index in range(len(batch))] == [
        "create veth svc0123 (index 7)",
        "set link (index 7)",
        "set proxy delay (index 7)",
        "add address fe80::ecee:eeff:feee:eeee/64 (index 7)",
        "delete address 169.254.1.1/32 (index 7)",
        "add route 0.0.0.0/0 (index 7)",
        "replace route ::/0 (index 7)",
        "delete route 10.65.0.7/32 (index 7)",
        "delete link (index 7)",
        "delete link svc0123",
        "delete link group 9",
        "dump links",
        "add blackhole 10.65.0.64/26",
        "get route 169.254.1.1/32",
        "replace neighbour 169.254.1.1/32 (index 7)",
        "delete neighbour 169.254.1.1/32 (index 7)",
        "replace fdb entry to 169.254.1.1/32 (index 7)",
        "delete fdb entry to fe80::ecee:eeff:feee:eeee/128 (index 7)",
        "dump neighbours (index 7)",
        "dump fdb (index 7)",
    ]
    with pytest.raises(IndexError):
        batch.label(len(batch))


@pytest.mark.parametrize(
    "pack",
    [
        lambda batch: batch.create_veth("", 7, HOST_MAC, 0, 0, "eth0", 2, b"", 5),
        lambda batch: batch.create_veth("x" * 16, 7, HOST_MAC, 0, 0, "eth0", 2, b"", 5),
        lambda batch: batch.create_veth("ä" * 8, 7, HOST_MAC, 0, 0, "eth0", 2, b"", 5),
        lambda batch: batch.create_veth("svc\0", 7, HOST_MAC, 0, 0, "eth0", 2, b"", 5),
        lambda batch: batch.create_veth("svc\udc80", 7, HOST_MAC, 0, 0, "eth0", 2, b"", 5),
        lambda batch: batch.create_veth("svc01", 7, HOST_MAC, 0, 0, "x" * 16, 2, b"", 5),
        lambda batch: batch.create_veth("svc01", 7, HOST_MAC[:5], 0, 0, "eth0", 2, b"", 5),
        lambda batch: batch.create_veth("svc01", 7, HOST_MAC, 0, 0, "eth0", 2, bytes(7), 5),
        lambda batch: batch.create_veth("svc01", -1, HOST_MAC, 0, 0, "eth0", 2, b"", 5),
        lambda batch: batch.create_veth("svc01", 7, HOST_MAC, 2**32, 0, "eth0", 2, b"", 5),
        lambda batch: batch.create_veth("svc01", 7, HOST_MAC, 0, 0, "eth0", 2, b"", -1),
        lambda batch: batch.set_link(2**32),
        lambda batch: batch.set_link(7, group=-1),
        lambda batch: batch.set_link(7, mac=bytes(8)),
        lambda batch: batch.set_link(7, devconf={0: 1}),
        lambda batch: batch.set_link(7, devconf={2**14: 1}),
        lambda batch: batch.set_link(7, devconf={DEVCONF_FORWARDING: -1}),
        lambda batch: batch.set_link(7, devconf=dict.fromkeys(range(1, 9000), 1)),
        lambda batch: batch.delete_link(),
        lambda batch: batch.delete_link(7, "svc01"),
        lambda batch: batch.get_link(),
        lambda batch: batch.delete_group(0),
        lambda batch: batch.set_proxy_delay(7, -1),
        lambda batch: batch.add_address(7, b"", 0),
        lambda batch: batch.add_address(7, bytes(5), 32),
        lambda batch: batch.add_address(7, bytes(4), 33),
        lambda batch: batch.add_address(7, bytes(16), 129),
        lambda batch: batch.add_address(7, bytes(4), -1),
        lambda batch: batch.add_address(7, bytes(4), 32, scope=256),
        lambda batch: batch.add_route(7, bytes(4), 32, gateway=bytes(16)),
        lambda batch: batch.add_route(7, bytes(3), 8),
        lambda batch: batch.delete_route(7, bytes(4), 64),
        lambda batch: batch.delete_route(7, bytes(4), 32, gateway=bytes(16)),
        lambda batch: batch.add_blackhole(bytes(4), 33),
        lambda batch: batch.add_route(7, bytes(4), 32, protocol=256),
        lambda batch: batch.get_route(bytes(5)),
        lambda batch: batch.add_neighbour(7, bytes(4), bytes(5)),
        lambda batch: batch.add_neighbour(7, bytes(5), bytes(6)),
        lambda batch: batch.delete_neighbour(7, b""),
        lambda batch: batch.add_fdb(7, bytes(7), bytes(4)),
        lambda batch: batch.add_fdb(7, bytes(6), bytes(5)),
        lambda batch: batch.delete_fdb(7, bytes(6), b""),
        lambda batch: batch.dump_neighbours(7, 7),
        lambda batch: batch.dump_routes(0),
    ],
)
def test_refused_values_do_not_change_the_batch(pack: Callable[[Batch], None]) -> None:
    """The exception is ValueError or OverflowError. The next message follows the last valid one."""
    batch = Batch()
    batch.delete_link(7)
    with pytest.raises((ValueError, OverflowError)):
        pack(batch)
    assert (len(batch), bytes(batch)) == (1, packed(lambda fresh: fresh.delete_link(7)))
    batch.delete_link(8)
    assert [sequence for _, sequence, _ in split(bytes(batch))] == [1, 2]


@pytest.mark.parametrize(
    "pack",
    [
        lambda batch: batch.create_veth(None, 7, HOST_MAC, 0, 0, "eth0", 2, b"", 5),
        lambda batch: batch.add_route(7, "10.0.0.1", 32),
        lambda batch: batch.add_address(7, bytearray(4), 32),
        lambda batch: batch.set_link("7"),
    ],
)
def test_wrong_types_are_refused(pack: Callable[[Batch], None]) -> None:
    """Addresses are bytes, and names are str."""
    with pytest.raises(TypeError):
        pack(Batch())


def test_constants_equal_those_of_the_kernel() -> None:
    """They are in linux/ip.h and linux/rtnetlink.h."""
    assert (DEVCONF_FORWARDING, DEVCONF_PROXY_ARP, DEVCONF_ROUTE_LOCALNET) == (1, 3, 26)
    assert (RTM_NEWLINK, RTM_DELLINK, SCOPE_GLOBAL, SCOPE_LINK) == (16, 17, 0, 253)
    assert (AF_INET, AF_INET6) == (socket.AF_INET, socket.AF_INET6)

"""Parsing of rtnetlink messages from the kernel: captured messages are read, and invalid ones refused."""

import errno
import pickle
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg  # type: ignore[import-untyped]  # noqa: TID251

from svc._core.rtnl import (
    AF_INET,
    AF_INET6,
    RTM_NEWLINK,
    SCOPE_GLOBAL,
    SCOPE_LINK,
    NetlinkError,
    split,
    unpack_ack,
    unpack_address,
    unpack_link,
    unpack_neighbour,
    unpack_route,
)

pytestmark = pytest.mark.skipif(sys.byteorder == "big", reason="captured on a little-endian machine")

FIXTURES = Path(__file__).parent / "fixtures" / "netlink"
LINKDOWN = 16  # RTNH_F_LINKDOWN
HOST_MAC = bytes.fromhex("eeeeeeeeeeee")
GATEWAY4 = bytes([169, 254, 1, 1])
GATEWAY6 = socket.inet_pton(socket.AF_INET6, "fe80::ecee:eeff:feee:eeee")


def captured(name: str) -> bytes:
    return bytes.fromhex((FIXTURES / f"{name}.hex").read_text())


LINK = {"index": 7, "name": "svc01", "up": True, "mtu": 1450, "mac": HOST_MAC, "group": 77, "tx_queues": 2, "rx_queues": 3}
LINK["alias"] = ""
ROUTE4 = {"family": AF_INET, "index": 7, "table": 254, "protocol": 3, "type": 1, "metric": 0, "flags": 0}


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("link_veth", {**LINK, "kind": "veth", "peer_index": 2, "peer_nsid": 0, "master": 8}),
        ("link_deleted", {**LINK, "up": False, "kind": "veth", "peer_index": 0, "peer_nsid": -1, "master": 0}),
        (
            "link_loopback",
            {**LINK, "index": 1, "name": "lo", "mtu": 65536, "mac": bytes(6), "group": 0, "tx_queues": 1, "rx_queues": 1}
            | {"kind": "", "peer_index": 0, "peer_nsid": -1, "master": 0},
        ),
    ],
)
def test_captured_link_is_read(name: str, link: dict[str, object]) -> None:
    """One of the messages is the notification of a deletion."""
    assert unpack_link(captured(name)) == link


def test_captured_addresses_are_read() -> None:
    """The long flags count. The family determines the length."""
    permanent, nodad = 0x80, 0x02
    address4 = {"index": 7, "family": AF_INET, "address": bytes([10, 65, 0, 7]), "length": 32, "scope": SCOPE_GLOBAL}
    address6 = {**address4, "family": AF_INET6, "address": socket.inet_pton(socket.AF_INET6, "fd00:65::7"), "length": 128}
    assert unpack_address(captured("address_ipv4")) == {**address4, "flags": permanent}
    assert unpack_address(captured("address_ipv6")) == {**address6, "flags": permanent | nodad}


def test_captured_routes_are_read() -> None:
    """The destination of a default route has only zeros."""
    link = {**ROUTE4, "destination": GATEWAY4, "length": 32, "gateway": b"", "scope": SCOPE_LINK, "flags": LINKDOWN}
    default = {**ROUTE4, "destination": bytes(4), "length": 0, "gateway": GATEWAY4, "scope": SCOPE_GLOBAL, "flags": LINKDOWN}
    assert unpack_route(captured("route_ipv4_link")) == link
    assert unpack_route(captured("route_ipv4_gateway")) == default
    default6 = {**default, "family": AF_INET6, "destination": bytes(16), "gateway": GATEWAY6, "metric": 1024}
    assert unpack_route(captured("route_ipv6_gateway")) == default6


@pytest.mark.parametrize(
    ("name", "ack"),
    [
        ("ack_success", (0, "", -1)),
        ("ack_no_text", (errno.ENODEV, "", -1)),
        ("ack_text", (errno.EINVAL, "Invalid prefix for given prefix length", -1)),
        ("ack_text_and_offset", (errno.ERANGE, "Attribute failed policy validation", 32)),
        ("ack_uncapped", (errno.EINVAL, "Invalid prefix for given prefix length", -1)),
        ("done", (0, "", -1)),
    ],
)
def test_captured_acknowledgement_is_read(name: str, ack: tuple[int, str, int]) -> None:
    """It may contain the refused message. The end of a dump is an acknowledgement too."""
    assert unpack_ack(captured(name)) == ack


def test_every_error_number_is_read() -> None:
    """The smallest number has no opposite of its own size."""
    message = bytearray(captured("ack_uncapped"))
    message[16:20] = struct.pack("=i", -(2**31))
    assert unpack_ack(bytes(message))[0] == 2**31


def test_captured_datagram_is_split() -> None:
    """A dump has several messages in one datagram."""
    data = captured("dump_of_links")
    messages = split(data)
    assert [(kind, sequence) for kind, sequence, _ in messages] == [(RTM_NEWLINK, 1)] * 3
    assert [unpack_link(message)["name"] for _, _, message in messages] == ["lo", "svc01", "br0"]
    assert b"".join(message for _, _, message in messages) == data
    assert split(b"") == []


def test_links_are_read_as_by_pyroute2() -> None:
    """Both parse the same bytes."""
    for name in ("link_veth", "link_bridge", "link_loopback", "link_deleted"):
        expected = ifinfmsg(captured(name))
        expected.decode()
        actual = unpack_link(captured(name))
        assert actual["index"] == expected["index"]
        for key, attribute in {"name": "IFNAME", "mtu": "MTU", "group": "GROUP", "rx_queues": "NUM_RX_QUEUES"}.items():
            assert actual[key] == expected.get(f"IFLA_{attribute}")
        assert actual["mac"].hex(":") == expected.get("IFLA_ADDRESS")


# --- reading messages that a kernel never sends

READERS = {
    "link_veth": unpack_link,
    "link_deleted": unpack_link,
    "address_ipv4": unpack_address,
    "address_ipv6": unpack_address,
    "route_ipv4_gateway": unpack_route,
    "route_ipv6_gateway": unpack_route,
    "ack_text_and_offset": unpack_ack,
    "ack_uncapped": unpack_ack,
    "done": unpack_ack,
}


@pytest.mark.parametrize("name", READERS)
def test_truncated_message_is_refused(name: str) -> None:
    """This holds for every length."""
    message = captured(name)
    for length in range(len(message)):
        with pytest.raises(NetlinkError) as refusal:
            READERS[name](message[:length])
        assert refusal.value.errno == errno.EBADMSG


@pytest.mark.parametrize("name", READERS)
def test_message_of_another_type_is_refused(name: str) -> None:
    """Each parser accepts only its own types."""
    message = bytearray(captured(name))
    message[4:6] = struct.pack("=H", 99)
    with pytest.raises(NetlinkError, match="type 99"):
        READERS[name](bytes(message))


@settings(max_examples=1000)
@given(st.sampled_from(sorted(READERS)), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=6), st.integers(0))
def test_changed_message_is_read_or_refused(name: str, changes: list[tuple[int, int]], cut: int) -> None:
    """Invalid bytes or lengths raise only NetlinkError."""
    message = bytearray(captured(name))
    for place, value in changes:
        message[place % len(message)] = value
    read_or_refuse(bytes(message[: len(message) - cut % 64]))


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    """The bytes need not have a header."""
    read_or_refuse(data)


@settings(max_examples=1000)
@given(st.sampled_from([2, 3, 16, 17, 20, 24, 28]), st.integers(0, 0xFFFF), st.binary(max_size=120))
def test_random_bodies_are_read_or_refused(kind: int, flags: int, body: bytes) -> None:
    """With a valid header, the parsers also read the body."""
    read_or_refuse(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)


def read_or_refuse(data: bytes) -> None:
    for read in (split, unpack_ack, unpack_link, unpack_address, unpack_route, unpack_neighbour):
        with suppress(NetlinkError):
            read(data)


# --- the exception


def test_error_text_names_the_message() -> None:
    """It has the label of the request, the name of the error, and the text of the kernel."""
    error = NetlinkError(errno.EEXIST, "File exists")
    assert str(error) == "File exists"
    error.label = "create veth svc01 (index 7)"
    assert str(error) == "create veth svc01 (index 7): File exists"
    error.message = "Name taken"
    assert str(error) == "create veth svc01 (index 7): File exists (Name taken)"
    assert (error.errno, error.strerror, error.index, error.offset) == (errno.EEXIST, "File exists", -1, -1)


def test_error_can_be_pickled() -> None:
    """Test runners and process pools pass it between processes."""
    error = NetlinkError(errno.EEXIST, "File exists")
    error.index, error.label, error.message = 3, "add route ::/0", "why"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is NetlinkError
    assert (str(copy), copy.index) == (str(error), 3)

"""A socket filter (classic BPF) that has the kernel drop notifications about pods.

An ADD causes seven of them, and the traffic of pods changes neighbours all the time. Without the filter each would wake
svc-routes. Sources: Linux Documentation/networking/filter.rst, uapi/linux/{filter,netlink,rtnetlink,if_link}.h.
"""

import socket as sockets
import struct
from array import array
from collections.abc import Collection
from typing import Final

from svc._core import rtnl
from svc._core.cidr import Cidr
from svc.dataplane.plan import HOST_MAC

_SO_ATTACH_FILTER: Final = 26
_INSTRUCTION: Final = struct.Struct("=HBBI")
_PROGRAM: Final = struct.Struct("@HP")  # struct sock_fprog

_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD = 0x30, 0x28, 0x20  # BPF_LD | BPF_ABS
_LOAD_HALF_AT, _LOAD_WORD_AT = 0x48, 0x40  # BPF_LD | BPF_IND: at X and an offset
_SET_A, _SET_X, _MOVE_A_TO_X = 0x00, 0x01, 0x07
_IS_EQUAL, _IS_AT_LEAST, _AND = 0x15, 0x35, 0x54
_RETURN, _WHOLE = 0x06, 0xFFFFFFFF
# SKF_AD_NLATTR, SKF_AD_NLATTR_NEST: load the offset of attribute X from offset A on, or inside the attribute at A, else 0
_ATTRIBUTE, _NESTED = 0xFFFFF00C, 0xFFFFF010

_KIND_AT, _BODY_AT = 4, 16  # of struct nlmsghdr
_LINK_ATTRIBUTES_AT, _ROUTE_ATTRIBUTES_AT = _BODY_AT + 16, _BODY_AT + 12  # behind struct ifinfomsg and struct rtmsg
_FAMILY_AT, _LENGTH_AT, _TABLE_AT = (_BODY_AT + field for field in (0, 1, 4))  # of struct rtmsg
_NEIGHBOUR_LINK_AT = _BODY_AT + 4  # of struct ndmsg
_ADDRESS_SCOPE_AT = _BODY_AT + 3  # of struct ifaddrmsg
_PAYLOAD_AT = 4  # of an attribute
_IFLA_ADDRESS, _IFLA_LINKINFO, _IFLA_INFO_KIND = 1, 18, 1
_RTA_DST, _RT_SCOPE_LINK = 1, 253
_LINK_LOCAL: Final = Cidr("fe80::/10")
_MOST_BLOCKS: Final = 100  # a program has at most 4,096 instructions; notifications about the others are not dropped

_Step = tuple[str, int, int, str, str]  # label, instruction, constant, next label if true, and if false; "" is the next step


def attach(socket: sockets.socket, tunnels: Collection[int], own: Collection[Cidr]) -> None:
    """Have the kernel drop what concerns pods alone. Raise OSError.

    `tunnels` are the indexes of the own tunnel devices. `own` are the blocks of this node, with the addresses of its pods."""
    program = array("B", assembled(_steps(tunnels, own)))
    address, length = program.buffer_info()
    socket.setsockopt(sockets.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAM.pack(length // _INSTRUCTION.size, address))


def assembled(steps: list[_Step]) -> bytes:
    """Return the instructions, whose jumps lead to labels further down."""
    places = {label: number for number, (label, *_) in enumerate(steps) if label}

    def distance(number: int, label: str) -> int:
        return places[label] - number - 1 if label else 0

    return b"".join(
        _INSTRUCTION.pack(code, distance(number, then), distance(number, other), constant)
        for number, (_, code, constant, then, other) in enumerate(steps)
    )


def _steps(tunnels: Collection[int], own: Collection[Cidr]) -> list[_Step]:
    kinds = [
        *((kind, "link") for kind in (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK)),
        *((kind, "route") for kind in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE)),
        *((kind, "neighbour") for kind in (rtnl.RTM_NEWNEIGH, rtnl.RTM_DELNEIGH)),
        *((kind, "address") for kind in (rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR)),
    ]
    return [
        ("", _LOAD_HALF, _KIND_AT, "", ""),
        *(("", _IS_EQUAL, _half(kind), label, "") for kind, label in kinds),
        ("", _RETURN, _WHOLE, "", ""),
        *_link_steps(),
        ("neighbour", _LOAD_WORD, _NEIGHBOUR_LINK_AT, "", ""),
        *(("", _IS_EQUAL, _word(index), "accept", "") for index in sorted(tunnels)),
        ("", _RETURN, 0, "", ""),
        ("address", _LOAD_BYTE, _ADDRESS_SCOPE_AT, "", ""),
        ("", _IS_EQUAL, _RT_SCOPE_LINK, "", "accept"),
        ("drop", _RETURN, 0, "", ""),
        ("accept", _RETURN, _WHOLE, "", ""),
        *_route_steps(own),
    ]


def _link_steps() -> list[_Step]:
    """Drop pairs with the MAC address of the agent, see `traces.is_pod_interface`."""
    return [
        *_attribute("link", _LINK_ATTRIBUTES_AT, _IFLA_ADDRESS),
        ("", _IS_EQUAL, 0, "accept", ""),
        *_of_length(len(HOST_MAC)),
        ("", _LOAD_WORD_AT, _PAYLOAD_AT, "", ""),
        ("", _IS_EQUAL, int.from_bytes(HOST_MAC[:4], "big"), "", "accept"),
        ("", _LOAD_HALF_AT, _PAYLOAD_AT + 4, "", ""),
        ("", _IS_EQUAL, int.from_bytes(HOST_MAC[4:], "big"), "", "accept"),
        *_attribute("", _LINK_ATTRIBUTES_AT, _IFLA_LINKINFO),
        ("", _IS_EQUAL, 0, "accept", ""),
        ("", _SET_X, _IFLA_INFO_KIND, "", ""),
        ("", _LOAD_WORD, _NESTED, "", ""),
        ("", _IS_EQUAL, 0, "accept", ""),
        *_of_length(len(b"veth\0")),
        ("", _LOAD_WORD_AT, _PAYLOAD_AT, "", ""),
        ("", _IS_EQUAL, int.from_bytes(b"veth", "big"), "drop", "accept"),
    ]


def _route_steps(own: Collection[Cidr]) -> list[_Step]:
    """Drop routes of other tables, to link-local addresses, and inside own blocks, as the agent makes them for pods.

    A jump reaches 255 instructions, so that none leads over all blocks."""
    blocks = sorted(own, key=str)[:_MOST_BLOCKS]
    return [
        ("route", _LOAD_BYTE, _TABLE_AT, "", ""),
        ("", _IS_EQUAL, rtnl.RT_TABLE_MAIN, "with table", ""),
        ("", _RETURN, 0, "", ""),
        *_attribute("with table", _ROUTE_ATTRIBUTES_AT, _RTA_DST),
        ("", _IS_EQUAL, 0, "", "with destination"),
        ("", _RETURN, _WHOLE, "", ""),
        ("with destination", _MOVE_A_TO_X, 0, "", ""),
        *_inside(_LINK_LOCAL, "link-local"),
        *(step for number, block in enumerate(blocks) for step in _inside(block, str(number))),
        ("", _RETURN, _WHOLE, "", ""),
    ]


def _inside(block: Cidr, name: str) -> list[_Step]:
    """Drop a route inside a block. X is the offset of its destination."""
    after = f"after {name}"
    found: list[_Step] = [
        ("", _LOAD_BYTE, _FAMILY_AT, "", ""),
        ("", _IS_EQUAL, rtnl.AF_INET6 if block.version == 6 else rtnl.AF_INET, "", after),
        ("", _LOAD_BYTE, _LENGTH_AT, "", ""),
        ("", _IS_AT_LEAST, block.length + 1, "", after),
    ]
    first = block.first.packed
    for at in range(0, (block.length + 7) // 8, 4):
        bits = min(32, block.length - 8 * at)
        mask = (0xFFFFFFFF << (32 - bits)) & 0xFFFFFFFF
        found += [
            ("", _LOAD_WORD_AT, _PAYLOAD_AT + at, "", ""),
            ("", _AND, mask, "", ""),
            ("", _IS_EQUAL, int.from_bytes(first[at : at + 4], "big"), "", after),
        ]
    return [*found, ("", _RETURN, 0, "", ""), (after, _AND, 0, "", "")]


def _attribute(label: str, at: int, number: int) -> list[_Step]:
    """Have the offset of an attribute in A, else 0."""
    return [(label, _SET_A, at, "", ""), ("", _SET_X, number, "", ""), ("", _LOAD_WORD, _ATTRIBUTE, "", "")]


def _of_length(size: int) -> list[_Step]:
    """Have the offset of an attribute in X, and accept one of another size: the kernel drops what is too short to be read."""
    return [
        ("", _MOVE_A_TO_X, 0, "", ""),
        ("", _LOAD_HALF_AT, 0, "", ""),
        ("", _IS_EQUAL, _half(_PAYLOAD_AT + size), "", "accept"),
    ]


def _half(number: int) -> int:
    """Return a number of 16 bits of this machine as the filter loads it: in network order."""
    return int.from_bytes(struct.pack("=H", number), "big")


def _word(number: int) -> int:
    return int.from_bytes(struct.pack("=I", number), "big")

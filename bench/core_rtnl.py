"""Packing of Netlink messages compared with pyroute2: the twelve messages of one dual-stack ADD, with equal bytes."""

import socket
from typing import Any

from pyroute2.netlink import nla, nlmsg  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.ndtmsg import ndtmsg  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.rtmsg import rtmsg  # type: ignore[import-untyped]  # noqa: TID251

from bench._core_case import Case, run
from svc._core import rtnl

HOST, SANDBOX = 4711, 2  # interface indexes
NAME, MAC, MTU, NS_FD = "svc0123456789", "ee:ee:ee:ee:ee:ee", 1450, 9
POD4, POD6 = "10.65.130.71", "fd00:65::8247"
GATEWAY4, GATEWAY6 = "169.254.1.1", "fe80::ecee:eeff:feee:eeee"

NEWLINK, SETLINK, NEWADDR, NEWROUTE, SETNEIGHTBL = 16, 19, 20, 24, 67
ACKED, NEW = 0x5, 0x605  # REQUEST|ACK, and with CREATE|EXCL
LINK_SCOPE, MAIN_TABLE, BOOT, UNICAST, NODAD = 253, 254, 3, 1, 2
AF_INET, AF_INET6 = socket.AF_INET, socket.AF_INET6


def cases() -> list[Case]:
    """Return the cases. The sides must agree on every byte before the measurement."""
    assert pack() == pack_by_pyroute2()
    return [Case("pack the twelve messages of a dual-stack ADD", pack, pack_by_pyroute2, "pyroute2", goal=50)]


# --- svc

MAC_BYTES = bytes.fromhex(MAC.replace(":", ""))
POD4_BYTES, GATEWAY4_BYTES = (socket.inet_pton(AF_INET, text) for text in (POD4, GATEWAY4))
POD6_BYTES, GATEWAY6_BYTES = (socket.inet_pton(AF_INET6, text) for text in (POD6, GATEWAY6))


def pack() -> bytes:
    host, sandbox = rtnl.Batch(), rtnl.Batch()
    host.create_veth(NAME, HOST, MAC_BYTES, MTU, 1, "eth0", SANDBOX, b"", NS_FD)
    devconf = {rtnl.DEVCONF_FORWARDING: 1, rtnl.DEVCONF_PROXY_ARP: 1, rtnl.DEVCONF_ROUTE_LOCALNET: 1}
    host.set_link(HOST, up=True, devconf=devconf, no_link_local=True)
    host.set_proxy_delay(HOST, 0)
    host.add_address(HOST, GATEWAY6_BYTES, 64, scope=rtnl.SCOPE_LINK, nodad=True)
    host.add_route(HOST, POD4_BYTES, 32, scope=rtnl.SCOPE_LINK)
    host.add_route(HOST, POD6_BYTES, 128)
    sandbox.set_link(SANDBOX, up=True)
    sandbox.add_address(SANDBOX, POD4_BYTES, 32)
    sandbox.add_address(SANDBOX, POD6_BYTES, 128, nodad=True)
    sandbox.add_route(SANDBOX, GATEWAY4_BYTES, 32, scope=rtnl.SCOPE_LINK)
    sandbox.add_route(SANDBOX, bytes(4), 0, gateway=GATEWAY4_BYTES)
    sandbox.add_route(SANDBOX, bytes(16), 0, gateway=GATEWAY6_BYTES)
    return bytes(host) + bytes(sandbox)


# --- pyroute2

Row = tuple[nlmsg, int, int, dict[str, int], list[Any]]  # message, type, flags, fixed part, attributes


class DevconfMessage(ifinfmsg):  # type: ignore[misc]
    """A link message with devconf. pyroute2 reads devconf as a struct, but a request needs an attribute for each number."""

    class af_spec_inet(ifinfmsg.af_spec_inet):  # type: ignore[misc]  # noqa: N801
        class inet(nla):  # type: ignore[misc]  # noqa: N801
            nla_map = ((1, "IFLA_INET_CONF", "conf"),)

            class conf(nla):  # type: ignore[misc]  # noqa: N801
                nla_map = ((1, "FORWARDING", "uint32"), (3, "PROXY_ARP", "uint32"), (26, "ROUTE_LOCALNET", "uint32"))


def pack_by_pyroute2() -> bytes:
    host: list[Row] = [
        (ifinfmsg(), NEWLINK, NEW, {"index": HOST}, veth_attributes()),
        (DevconfMessage(), SETLINK, ACKED, {"index": HOST, "flags": 1, "change": 1}, [("IFLA_AF_SPEC", af_spec())]),
        (ndtmsg(), SETNEIGHTBL, ACKED, {"family": AF_INET}, neighbour_table()),
        (ifaddrmsg(), NEWADDR, NEW, *address(AF_INET6, HOST, GATEWAY6, 64, scope=LINK_SCOPE, flags=NODAD)),
        (rtmsg(), NEWROUTE, NEW, *route(AF_INET, HOST, POD4, 32, scope=LINK_SCOPE)),
        (rtmsg(), NEWROUTE, NEW, *route(AF_INET6, HOST, POD6, 128)),
    ]
    sandbox: list[Row] = [
        (ifinfmsg(), SETLINK, ACKED, {"index": SANDBOX, "flags": 1, "change": 1}, []),
        (ifaddrmsg(), NEWADDR, NEW, *address(AF_INET, SANDBOX, POD4, 32)),
        (ifaddrmsg(), NEWADDR, NEW, *address(AF_INET6, SANDBOX, POD6, 128, flags=NODAD)),
        (rtmsg(), NEWROUTE, NEW, *route(AF_INET, SANDBOX, GATEWAY4, 32, scope=LINK_SCOPE)),
        (rtmsg(), NEWROUTE, NEW, *route(AF_INET, SANDBOX, gateway=GATEWAY4)),
        (rtmsg(), NEWROUTE, NEW, *route(AF_INET6, SANDBOX, gateway=GATEWAY6)),
    ]
    return b"".join(encoded(number, *row) for rows in (host, sandbox) for number, row in enumerate(rows, 1))


def encoded(number: int, message: nlmsg, kind: int, flags: int, fields: dict[str, int], attributes: list[Any]) -> bytes:
    message["header"].update(type=kind, flags=flags, sequence_number=number)
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = attributes
    message.encode()
    return bytes(message.data)


def veth_attributes() -> list[Any]:
    common = [("IFLA_MTU", MTU), ("IFLA_NUM_TX_QUEUES", 1), ("IFLA_NUM_RX_QUEUES", 1)]
    peer = {"index": SANDBOX, "attrs": [("IFLA_IFNAME", "eth0"), *common, ("IFLA_NET_NS_FD", NS_FD)]}
    data = {"attrs": [("VETH_INFO_PEER", peer)]}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    return [("IFLA_IFNAME", NAME), ("IFLA_ADDRESS", MAC), *common, ("IFLA_LINKINFO", info)]


def af_spec() -> dict[str, Any]:
    conf = {"attrs": [("FORWARDING", 1), ("PROXY_ARP", 1), ("ROUTE_LOCALNET", 1)]}
    mode = {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", 1)]}
    return {"attrs": [("AF_INET", {"attrs": [("IFLA_INET_CONF", conf)]}), ("AF_INET6", mode)]}


def neighbour_table() -> list[Any]:
    parameters = {"attrs": [("NDTPA_IFINDEX", HOST), ("NDTPA_PROXY_DELAY", 0)]}
    return [("NDTA_NAME", "arp_cache"), ("NDTA_PARMS", parameters)]


def address(
    family: int, index: int, text: str, length: int, *, scope: int = 0, flags: int = 0
) -> tuple[dict[str, int], list[Any]]:
    fields = {"family": family, "prefixlen": length, "flags": flags, "scope": scope, "index": index}
    return fields, [("IFA_LOCAL", text), ("IFA_ADDRESS", text), *([("IFA_FLAGS", flags)] if flags else [])]


def route(
    family: int, index: int, destination: str = "", length: int = 0, *, gateway: str = "", scope: int = 0
) -> tuple[dict[str, int], list[Any]]:
    fields = {"family": family, "dst_len": length, "table": MAIN_TABLE, "proto": BOOT, "scope": scope, "type": UNICAST}
    to = [("RTA_DST", destination)] if destination else []
    via = [("RTA_GATEWAY", gateway)] if gateway else []
    return fields, [*to, *via, ("RTA_OIF", index)]


if __name__ == "__main__":
    run(cases())

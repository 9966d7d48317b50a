"""rtnetlink messages (RFC 3549, linux/rtnetlink.h): packed into one growable buffer, read by one bounds-checked cursor."""

from typing import Any, Final, final

AF_INET: Final[int]
AF_INET6: Final[int]
RTM_NEWLINK: Final[int]
RTM_DELLINK: Final[int]
RTM_NEWADDR: Final[int]
RTM_DELADDR: Final[int]
RTM_NEWROUTE: Final[int]
RTM_DELROUTE: Final[int]
RTM_NEWNEIGH: Final[int]
RTM_DELNEIGH: Final[int]
RTN_UNICAST: Final[int]
RTN_LOCAL: Final[int]
RTN_BLACKHOLE: Final[int]
RTNH_F_ONLINK: Final[int]
RT_TABLE_MAIN: Final[int]
RTPROT_KERNEL: Final[int]
NUD_PERMANENT: Final[int]
AF_BRIDGE: Final[int]
SCOPE_GLOBAL: Final[int]  # RT_SCOPE_UNIVERSE
SCOPE_LINK: Final[int]
DEVCONF_FORWARDING: Final[int]  # IPV4_DEVCONF_*, linux/ip.h
DEVCONF_PROXY_ARP: Final[int]
DEVCONF_ROUTE_LOCALNET: Final[int]

class NetlinkError(OSError):
    """The kernel refused a message, or its reply could not be read. `errno` and `strerror` as in OSError."""

    index: int  # of the failing message in its batch, from 0; -1 when no message is to blame
    label: str  # what that message does, Batch.label(index); "" when no message is to blame
    message: str  # extended-ack text of the kernel, "" when it gave none
    offset: int  # extended-ack offset in the message, -1 when it gave none

@final
class Batch:
    """Messages for one sendmsg, each with NLM_F_REQUEST | NLM_F_ACK and its index + 1 as sequence number.

    Names are str of 1..15 bytes without NUL (ValueError otherwise); addresses are packed, 4 or 16 bytes, and tell the family.
    """

    def __init__(self) -> None: ...
    def __len__(self) -> int:
        """Number of messages."""
    def __bytes__(self) -> bytes: ...
    def clear(self) -> None: ...
    def label(self, index: int) -> str:
        """What message `index` does, in words, for error texts: e.g. "create veth svc0123 (index 7)"."""
    def create_veth(
        self, name: str, index: int, mac: bytes, mtu: int, queues: int,
        peer_name: str, peer_index: int, peer_mac: bytes, peer_ns_fd: int,
    ) -> None:
        """ip link add NAME index I address MAC mtu M numtxqueues Q numrxqueues Q type veth peer name P ... netns FD

        RTM_NEWLINK, CREATE|EXCL. mtu 0, queues 0, index 0 and mac b"" leave the choice to the kernel. The peer is created
        inside the namespace of `peer_ns_fd`, down, with the same MTU and queues."""
    def set_link(
        self, index: int, *, up: bool | None = None, devconf: dict[int, int] | None = None,
        no_link_local: bool = False, group: int | None = None, mac: bytes = b"",
    ) -> None:
        """ip link set ...: RTM_SETLINK by index. `devconf` goes into IFLA_AF_SPEC{AF_INET{IFLA_INET_CONF}} (number -> value),
        `no_link_local` into IFLA_AF_SPEC{AF_INET6{IFLA_INET6_ADDR_GEN_MODE none}}."""
    def delete_link(self, index: int = 0, name: str = "") -> None:
        """ip link del: RTM_DELLINK by index or by name."""
    def delete_group(self, group: int) -> None:
        """ip link del group G: RTM_DELLINK with IFLA_GROUP, every link of the group at once."""
    def set_proxy_delay(self, index: int, milliseconds: int) -> None:
        """RTM_SETNEIGHTBL arp_cache, NDTA_PARMS{NDTPA_IFINDEX, NDTPA_PROXY_DELAY}."""
    def add_address(self, index: int, address: bytes, length: int, *, scope: int = ..., nodad: bool = False) -> None:
        """ip addr add: RTM_NEWADDR, CREATE|EXCL; `nodad` sets IFA_F_NODAD in both flag fields."""
    def delete_address(self, index: int, address: bytes, length: int) -> None: ...
    def add_route(
        self, index: int, destination: bytes, length: int, *, gateway: bytes = b"", scope: int = ...,
        metric: int = 0, replace: bool = False, protocol: int = ..., onlink: bool = False,
    ) -> None:
        """ip route add DST/LEN [via GW] dev INDEX scope S metric M proto P [onlink]: main table, unicast; CREATE|EXCL, or
        CREATE|REPLACE. The protocol is boot unless given. With index 0 the kernel finds the link of the gateway.

        A replacement replaces the route with this metric, also one of another protocol."""
    def add_blackhole(self, destination: bytes, length: int, *, metric: int = 0, protocol: int = ...) -> None:
        """ip route add blackhole DST/LEN metric M proto P: CREATE|EXCL."""
    def delete_route(
        self, index: int, destination: bytes, length: int, *, gateway: bytes = b"", metric: int = 0, protocol: int = 0, kind: int = 0,
    ) -> None:
        """ip route del: the first route of these properties; 0 and b"" match any. IPv6 does not compare the kind (RTN_*)."""
    def get_route(self, address: bytes) -> None:
        """ip route get ADDRESS: RTM_GETROUTE, answered by one RTM_NEWROUTE with the link and, if there is one, the gateway."""
    def add_neighbour(self, index: int, address: bytes, mac: bytes) -> None:
        """ip neigh replace ADDRESS lladdr MAC dev INDEX nud permanent: RTM_NEWNEIGH, CREATE|REPLACE."""
    def delete_neighbour(self, index: int, address: bytes) -> None: ...
    def add_fdb(self, index: int, mac: bytes, destination: bytes) -> None:
        """bridge fdb replace MAC dev INDEX dst DESTINATION self permanent: RTM_NEWNEIGH of AF_BRIDGE, CREATE|REPLACE."""
    def delete_fdb(self, index: int, mac: bytes, destination: bytes) -> None: ...
    def dump_neighbours(self, family: int, index: int) -> None:
        """RTM_GETNEIGH dump of one link (strict-checking socket)."""
    def dump_fdb(self, index: int) -> None:
        """RTM_GETNEIGH dump of AF_BRIDGE, of one VXLAN device or bridge port (strict-checking socket)."""
    def get_link(self, index: int = 0, name: str = "") -> None:
        """RTM_GETLINK of one link, without its statistics (IFLA_EXT_MASK RTEXT_FILTER_SKIP_STATS)."""
    def dump_addresses(self, index: int = 0) -> None:
        """RTM_GETADDR dump (NLM_F_DUMP), of one link when `index` is given (needs a strict-checking socket)."""
    def dump_routes(self, family: int, index: int = 0) -> None:
        """RTM_GETROUTE dump of the main table, of one output link when `index` is given (strict-checking socket)."""
    def dump_links(self) -> None: ...

def unpack_link(message: bytes) -> dict[str, Any]:
    """RTM_NEWLINK/RTM_DELLINK, header included: index, name, up, mtu, mac, group, tx_queues, rx_queues, kind ("" if none),
    peer_index (IFLA_LINK, 0 if none), peer_nsid (IFLA_LINK_NETNSID, -1 if none), master (0 if none), alias. NetlinkError when cut short or malformed."""

def unpack_address(message: bytes) -> dict[str, Any]:
    """RTM_NEWADDR: index, family, address (packed: IFA_LOCAL, else IFA_ADDRESS), length, scope, flags (32 bits)."""

def unpack_route(message: bytes) -> dict[str, Any]:
    """RTM_NEWROUTE: family, destination (packed, all zeros for a default route), length, gateway (packed or b"", perhaps of the other family), index (RTA_OIF or 0),
    scope, table, protocol, type, metric, flags (RTNH_F_*). A route through several next hops has no gateway and index here."""

def unpack_neighbour(message: bytes) -> dict[str, Any]:
    """RTM_NEWNEIGH/RTM_DELNEIGH: index, family (AF_BRIDGE: an fdb entry), address (packed or b"": of an fdb entry the remote end),
    mac (b"" if none), state (NUD_*), flags (NTF_*)."""

def split(data: bytes) -> list[tuple[int, int, bytes]]:
    """A received datagram as (message type, sequence number, message with header). NetlinkError when a length is impossible."""

def unpack_ack(message: bytes) -> tuple[int, str, int]:
    """NLMSG_ERROR: (errno, 0 for success; extended-ack text; extended-ack offset or -1)."""

"""rtnetlink messages (linux/rtnetlink.h): what `Batch` packs for the kernel, and the unpackers of what it tells.

Each packer quotes the `ip` command it is equal to. What is plain netlink comes from netlink.pyx.
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cimport svc._core.uapi as uapi
from svc._core.netlink cimport Cursor, Messages, as_bytes, as_text, as_u32, next_attribute, open_message, take
from svc._core.uapi cimport ifaddrmsg, ifinfomsg, ndmsg, ndtmsg, nlmsghdr, rtmsg

from svc._core import netlink

NetlinkError = netlink.NetlinkError  # users import all of this from here
split = netlink.split
unpack_ack = netlink.unpack_ack
AF_INET = uapi.AF_INET
AF_INET6 = uapi.AF_INET6
RTM_NEWLINK = uapi.RTM_NEWLINK
RTM_DELLINK = uapi.RTM_DELLINK
RTM_NEWADDR = uapi.RTM_NEWADDR
RTM_DELADDR = uapi.RTM_DELADDR
RTM_NEWROUTE = uapi.RTM_NEWROUTE
RTM_DELROUTE = uapi.RTM_DELROUTE
RTM_NEWNEIGH = uapi.RTM_NEWNEIGH
RTM_DELNEIGH = uapi.RTM_DELNEIGH
RTN_UNICAST = uapi.RTN_UNICAST
RTN_LOCAL = uapi.RTN_LOCAL
RTN_BLACKHOLE = uapi.RTN_BLACKHOLE
RTNH_F_ONLINK = uapi.RTNH_F_ONLINK
RT_TABLE_MAIN = uapi.RT_TABLE_MAIN
RTPROT_KERNEL = uapi.RTPROT_KERNEL
NUD_PERMANENT = uapi.NUD_PERMANENT
AF_BRIDGE = uapi.AF_BRIDGE
SCOPE_GLOBAL = uapi.RT_SCOPE_UNIVERSE
SCOPE_LINK = uapi.RT_SCOPE_LINK
DEVCONF_FORWARDING = uapi.IPV4_DEVCONF_FORWARDING
DEVCONF_PROXY_ARP = uapi.IPV4_DEVCONF_PROXY_ARP
DEVCONF_ROUTE_LOCALNET = uapi.IPV4_DEVCONF_ROUTE_LOCALNET

cdef enum:
    NEW = uapi.NLM_F_CREATE | uapi.NLM_F_EXCL
    REPLACE = uapi.NLM_F_CREATE | uapi.NLM_F_REPLACE


@cython.final
cdef class Batch(Messages):
    """Messages for one sendmsg, each with NLM_F_REQUEST | NLM_F_ACK and its index + 1 as sequence number."""

    # --- links

    def create_veth(
        self, str name not None, uint32_t index, bytes mac not None, uint32_t mtu, uint32_t queues,
        str peer_name not None, uint32_t peer_index, bytes peer_mac not None, uint32_t peer_ns_fd,
    ):
        """ip link add NAME index I address MAC mtu M numtxqueues Q numrxqueues Q type veth peer name P ... netns FD

        The peer must not be up: the kernel refuses that (ENOTCONN) while its other end is down."""
        cdef Py_ssize_t info, data, peer
        self.begin_link(uapi.RTM_NEWLINK, NEW, index)
        self.put_veth_end(name, mac, mtu, queues)
        info = self.begin_nest(uapi.IFLA_LINKINFO)
        self.put_text(uapi.IFLA_INFO_KIND, b"veth")
        data = self.begin_nest(uapi.IFLA_INFO_DATA)
        peer = self.begin_nest(uapi.VETH_INFO_PEER)
        self.put_ifinfo(peer_index, 0, 0)
        self.put_veth_end(peer_name, peer_mac, mtu, queues)
        self.put_u32(uapi.IFLA_NET_NS_FD, peer_ns_fd)
        self.end_nest(peer)
        self.end_nest(data)
        self.end_nest(info)
        self.end("create veth", name, 0, index)

    def set_link(
        self, uint32_t index, *, up=None, dict devconf=None, bint no_link_local=False, group=None,
        bytes mac not None=b"",
    ):
        """ip link set dev INDEX [up|down] [group G] [address MAC] [addrgenmode none]; sysctl net.ipv4.conf.NAME.X=V

        The kernel ignores IFLA_AF_SPEC in the message that creates a link: it needs this second one."""
        cdef uint32_t change = 0 if up is None else uapi.IFF_UP
        self.begin(uapi.RTM_SETLINK, 0)
        self.put_ifinfo(index, uapi.IFF_UP if up else 0, change)
        if mac:
            self.put_mac(mac)
        if group is not None:
            self.put_u32(uapi.IFLA_GROUP, group)
        if devconf or no_link_local:
            self.put_af_spec(devconf, no_link_local)
        self.end("set link", None, 0, index)

    def delete_link(self, uint32_t index=0, str name not None=""):
        """ip link del dev NAME"""
        self.name_link(uapi.RTM_DELLINK, index, name)
        self.end("delete link", name or None, 0, index)

    def get_link(self, uint32_t index=0, str name not None=""):
        """ip link show dev NAME"""
        self.name_link(uapi.RTM_GETLINK, index, name)
        self.put_u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS)
        self.end("get link", name or None, 0, index)

    def dump_links(self):
        """ip link show"""
        self.begin_link(uapi.RTM_GETLINK, uapi.NLM_F_DUMP, 0)
        self.put_u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS)
        self.end("dump links", None, 0, 0)

    def delete_group(self, uint32_t group):
        """ip link del group G"""
        if not group:
            raise ValueError("group 0 is every link nobody put into a group")
        self.begin_link(uapi.RTM_DELLINK, 0, 0)
        self.put_u32(uapi.IFLA_GROUP, group)
        self.end("delete link group", group, 0, 0)

    def set_proxy_delay(self, uint32_t index, uint64_t milliseconds):
        """ip ntable change name arp_cache dev INDEX proxy_delay MS"""
        cdef ndtmsg header
        cdef Py_ssize_t parameters
        memset(&header, 0, sizeof(header))
        header.ndtm_family = uapi.AF_INET
        self.begin(uapi.RTM_SETNEIGHTBL, 0)
        self.put(&header, sizeof(header))
        self.put_text(uapi.NDTA_NAME, b"arp_cache")
        parameters = self.begin_nest(uapi.NDTA_PARMS)
        self.put_u32(uapi.NDTPA_IFINDEX, index)
        self.put_attribute(uapi.NDTPA_PROXY_DELAY, &milliseconds, sizeof(milliseconds))
        self.end_nest(parameters)
        self.end("set proxy delay", None, 0, index)

    # --- parts of link messages

    cdef int begin_link(self, uint16_t kind, uint16_t message_flags, uint32_t index) except -1:
        self.begin(kind, message_flags)
        return self.put_ifinfo(index, 0, 0)

    cdef int name_link(self, uint16_t kind, uint32_t index, str name) except -1:
        """A link message for one link, by index or by name. Neither would mean any link to the kernel."""
        if bool(index) == bool(name):
            raise ValueError("a link is named by its index or by its name, one of them")
        self.begin_link(kind, 0, index)
        if name:
            self.put_name(uapi.IFLA_IFNAME, name)
        return 0

    cdef int put_ifinfo(self, uint32_t index, uint32_t flags, uint32_t change) except -1:
        cdef ifinfomsg header
        memset(&header, 0, sizeof(header))
        header.ifi_index = <int32_t>index
        header.ifi_flags = flags
        header.ifi_change = change
        return self.put(&header, sizeof(header))

    cdef int put_name(self, uint16_t kind, str name) except -1:
        cdef bytes text = name.encode()
        if not 0 < len(text) < uapi.IFNAMSIZ or b"\0" in text:
            raise ValueError(f"interface name {name!r}: 1 to {uapi.IFNAMSIZ - 1} bytes without NUL")
        return self.put_text(kind, text)

    cdef int put_mac(self, bytes mac) except -1:
        if len(mac) != 6:
            raise ValueError(f"a MAC address is 6 bytes, not {len(mac)}")
        return self.put_bytes(uapi.IFLA_ADDRESS, mac)

    cdef int put_veth_end(self, str name, bytes mac, uint32_t mtu, uint32_t queues) except -1:
        self.put_name(uapi.IFLA_IFNAME, name)
        if mac:
            self.put_mac(mac)
        if mtu:
            self.put_u32(uapi.IFLA_MTU, mtu)
        if queues:
            self.put_u32(uapi.IFLA_NUM_TX_QUEUES, queues)
            self.put_u32(uapi.IFLA_NUM_RX_QUEUES, queues)
        return 0

    cdef int put_af_spec(self, dict devconf, bint no_link_local) except -1:
        cdef Py_ssize_t spec = self.begin_nest(uapi.IFLA_AF_SPEC), family
        cdef uint8_t mode = uapi.IN6_ADDR_GEN_MODE_NONE
        if devconf:
            family = self.begin_nest(uapi.AF_INET)
            self.put_devconf(devconf)
            self.end_nest(family)
        if no_link_local:
            family = self.begin_nest(uapi.AF_INET6)
            self.put_attribute(uapi.IFLA_INET6_ADDR_GEN_MODE, &mode, sizeof(mode))
            self.end_nest(family)
        return self.end_nest(spec)

    cdef int put_devconf(self, dict values) except -1:
        cdef Py_ssize_t conf = self.begin_nest(uapi.IFLA_INET_CONF)
        for number, value in values.items():
            if not 0 < number <= <uint16_t>uapi.NLA_TYPE_MASK:
                raise ValueError(f"no devconf number: {number!r}")
            self.put_u32(number, value)
        return self.end_nest(conf)

    # --- addresses

    def add_address(
        self, uint32_t index, bytes address not None, int length, *, uint8_t scope=uapi.RT_SCOPE_UNIVERSE,
        bint nodad=False,
    ):
        """ip addr add ADDRESS/LENGTH dev INDEX [scope S] [nodad]"""
        self.pack_address(uapi.RTM_NEWADDR, NEW, index, address, length, scope, uapi.IFA_F_NODAD if nodad else 0)
        self.end("add address", address, length, index)

    def delete_address(self, uint32_t index, bytes address not None, int length):
        """ip addr del ADDRESS/LENGTH dev INDEX"""
        self.pack_address(uapi.RTM_DELADDR, 0, index, address, length, uapi.RT_SCOPE_UNIVERSE, 0)
        self.end("delete address", address, length, index)

    cdef int pack_address(self, uint16_t kind, uint16_t flags, uint32_t index, bytes address, int length,
                          uint8_t scope, uint32_t ifa_flags) except -1:
        cdef ifaddrmsg header
        memset(&header, 0, sizeof(header))
        header.ifa_family = family_of(address)
        header.ifa_prefixlen = prefix_length(address, length)
        header.ifa_flags = <uint8_t>ifa_flags
        header.ifa_scope = scope
        header.ifa_index = index
        self.begin(kind, flags)
        self.put(&header, sizeof(header))
        self.put_bytes(uapi.IFA_LOCAL, address)
        self.put_bytes(uapi.IFA_ADDRESS, address)
        if ifa_flags:
            self.put_u32(uapi.IFA_FLAGS, ifa_flags)
        return 0

    def dump_addresses(self, uint32_t index=0):
        """ip addr show [dev INDEX]"""
        cdef ifaddrmsg header
        memset(&header, 0, sizeof(header))
        header.ifa_index = index
        self.begin(uapi.RTM_GETADDR, uapi.NLM_F_DUMP)
        self.put(&header, sizeof(header))
        self.end("dump addresses", None, 0, index)

    # --- routes

    def add_route(
        self, uint32_t index, bytes destination not None, int length, *, bytes gateway not None=b"",
        uint8_t scope=uapi.RT_SCOPE_UNIVERSE, uint32_t metric=0, bint replace=False,
        uint8_t protocol=uapi.RTPROT_BOOT, bint onlink=False,
    ):
        """ip route add|replace DESTINATION/LENGTH [via GATEWAY] [dev INDEX] [scope S] [metric M] [proto P] [onlink]"""
        self.begin_route(uapi.RTM_NEWROUTE, <uint16_t>(REPLACE if replace else NEW), destination, length, scope,
                         uapi.RTN_UNICAST, protocol, uapi.RTNH_F_ONLINK if onlink else 0)
        self.put_route(index, destination, length, gateway, metric)
        self.end("replace route" if replace else "add route", destination, length, index)

    def add_blackhole(
        self, bytes destination not None, int length, *, uint32_t metric=0, uint8_t protocol=uapi.RTPROT_BOOT,
    ):
        """ip route add blackhole DESTINATION/LENGTH [metric M] [proto P]"""
        self.begin_route(uapi.RTM_NEWROUTE, NEW, destination, length, uapi.RT_SCOPE_UNIVERSE, uapi.RTN_BLACKHOLE,
                         protocol, 0)
        self.put_route(0, destination, length, b"", metric)
        self.end("add blackhole", destination, length, 0)

    def delete_route(
        self, uint32_t index, bytes destination not None, int length, *, bytes gateway not None=b"",
        uint32_t metric=0, uint8_t protocol=0, uint8_t kind=0,
    ):
        """ip route del [TYPE] DESTINATION/LENGTH [via GATEWAY] [dev INDEX] [metric M] [proto P]; 0 or empty: any"""
        self.begin_route(uapi.RTM_DELROUTE, 0, destination, length, uapi.RT_SCOPE_NOWHERE, kind, protocol, 0)
        self.put_route(index, destination, length, gateway, metric)
        self.end("delete route", destination, length, index)

    def dump_routes(self, uint8_t family, uint32_t index=0):
        """ip [-4|-6] route show table main [dev INDEX]"""
        cdef rtmsg header
        memset(&header, 0, sizeof(header))
        header.rtm_family = of_ip(family)
        header.rtm_table = uapi.RT_TABLE_MAIN
        self.begin(uapi.RTM_GETROUTE, uapi.NLM_F_DUMP)
        self.put(&header, sizeof(header))
        if index:
            self.put_u32(uapi.RTA_OIF, index)
        self.end("dump routes", None, 0, index)

    def get_route(self, bytes address not None):
        """ip route get ADDRESS"""
        cdef rtmsg header
        memset(&header, 0, sizeof(header))
        header.rtm_family = family_of(address)
        header.rtm_dst_len = <uint8_t>(8 * len(address))
        self.begin(uapi.RTM_GETROUTE, 0)
        self.put(&header, sizeof(header))
        self.put_bytes(uapi.RTA_DST, address)
        self.end("get route", address, <int>(8 * len(address)), 0)

    cdef int begin_route(self, uint16_t message, uint16_t message_flags, bytes destination, int length, uint8_t scope,
                         uint8_t kind, uint8_t protocol, uint32_t flags) except -1:
        cdef rtmsg header
        memset(&header, 0, sizeof(header))
        header.rtm_family = family_of(destination)
        header.rtm_dst_len = prefix_length(destination, length)
        header.rtm_table = uapi.RT_TABLE_MAIN
        header.rtm_protocol = protocol
        header.rtm_scope = scope
        header.rtm_type = kind
        header.rtm_flags = flags
        self.begin(message, message_flags)
        return self.put(&header, sizeof(header))

    cdef int put_route(self, uint32_t index, bytes destination, int length, bytes gateway, uint32_t metric) except -1:
        if gateway and len(gateway) != len(destination):
            raise ValueError(f"a gateway of {len(gateway)} bytes for a destination of {len(destination)}")
        if length:
            self.put_bytes(uapi.RTA_DST, destination)
        if gateway:
            self.put_bytes(uapi.RTA_GATEWAY, gateway)
        if metric:
            self.put_u32(uapi.RTA_PRIORITY, metric)
        if index:
            self.put_u32(uapi.RTA_OIF, index)
        return 0

    # --- neighbours, and forwarding entries of VXLAN devices

    def add_neighbour(self, uint32_t index, bytes address not None, bytes mac not None):
        """ip neigh replace ADDRESS lladdr MAC dev INDEX nud permanent"""
        self.begin_neighbour(uapi.RTM_NEWNEIGH, REPLACE, family_of(address), index, uapi.NUD_PERMANENT, 0)
        self.put_bytes(uapi.NDA_DST, address)
        self.put_neighbour_mac(mac)
        self.end("replace neighbour", address, <int>(8 * len(address)), index)

    def delete_neighbour(self, uint32_t index, bytes address not None):
        """ip neigh del ADDRESS dev INDEX"""
        self.begin_neighbour(uapi.RTM_DELNEIGH, 0, family_of(address), index, 0, 0)
        self.put_bytes(uapi.NDA_DST, address)
        self.end("delete neighbour", address, <int>(8 * len(address)), index)

    def add_fdb(self, uint32_t index, bytes mac not None, bytes destination not None):
        """bridge fdb replace MAC dev INDEX dst DESTINATION self permanent"""
        family_of(destination)
        self.begin_neighbour(uapi.RTM_NEWNEIGH, REPLACE, uapi.AF_BRIDGE, index, uapi.NUD_PERMANENT, uapi.NTF_SELF)
        self.put_bytes(uapi.NDA_DST, destination)
        self.put_neighbour_mac(mac)
        self.end("replace fdb entry to", destination, <int>(8 * len(destination)), index)

    def delete_fdb(self, uint32_t index, bytes mac not None, bytes destination not None):
        """bridge fdb del MAC dev INDEX dst DESTINATION self"""
        family_of(destination)
        self.begin_neighbour(uapi.RTM_DELNEIGH, 0, uapi.AF_BRIDGE, index, 0, uapi.NTF_SELF)
        self.put_bytes(uapi.NDA_DST, destination)
        self.put_neighbour_mac(mac)
        self.end("delete fdb entry to", destination, <int>(8 * len(destination)), index)

    def dump_neighbours(self, uint8_t family, uint32_t index):
        """ip [-4|-6] neigh show dev INDEX"""
        self.begin_neighbour(uapi.RTM_GETNEIGH, uapi.NLM_F_DUMP, of_ip(family), 0, 0, 0)
        self.put_u32(uapi.NDA_IFINDEX, index)
        self.end("dump neighbours", None, 0, index)

    def dump_fdb(self, uint32_t index):
        """bridge fdb show dev INDEX"""
        self.begin_neighbour(uapi.RTM_GETNEIGH, uapi.NLM_F_DUMP, uapi.AF_BRIDGE, index, 0, 0)
        self.end("dump fdb", None, 0, index)

    cdef int begin_neighbour(self, uint16_t message, uint16_t message_flags, uint8_t family, uint32_t index,
                             uint16_t state, uint8_t flags) except -1:
        cdef ndmsg header
        memset(&header, 0, sizeof(header))
        header.ndm_family = family
        header.ndm_ifindex = <int32_t>index
        header.ndm_state = state
        header.ndm_flags = flags
        self.begin(message, message_flags)
        return self.put(&header, sizeof(header))

    cdef int put_neighbour_mac(self, bytes mac) except -1:
        if len(mac) != 6:
            raise ValueError(f"a MAC address is 6 bytes, not {len(mac)}")
        return self.put_bytes(uapi.NDA_LLADDR, mac)


cdef uint8_t of_ip(uint8_t family) except 0:
    if family != uapi.AF_INET and family != uapi.AF_INET6:
        raise ValueError(f"no address family of IP: {family}")
    return family


cdef uint8_t family_of(bytes address) except 0:
    if len(address) == 4:
        return uapi.AF_INET
    if len(address) == 16:
        return uapi.AF_INET6
    raise ValueError(f"an address is 4 or 16 bytes, not {len(address)}")


cdef uint8_t prefix_length(bytes address, int length) except 255:
    if not 0 <= length <= 8 * len(address):
        raise ValueError(f"no prefix length of {len(address)} bytes: {length}")
    return <uint8_t>length


def unpack_link(bytes message not None):
    """RTM_NEWLINK, RTM_DELLINK"""
    cdef nlmsghdr header
    cdef ifinfomsg fixed
    cdef Cursor rest, value
    cdef uint16_t kind = 0
    open_message(message, uapi.RTM_NEWLINK, uapi.RTM_DELLINK, &header, &rest)
    memcpy(&fixed, take(&rest, sizeof(fixed)), sizeof(fixed))
    link = {
        "index": fixed.ifi_index, "name": "", "up": bool(fixed.ifi_flags & uapi.IFF_UP), "mtu": 0, "mac": b"",
        "group": 0, "tx_queues": 0, "rx_queues": 0, "kind": "", "peer_index": 0, "peer_nsid": -1, "master": 0,
        "alias": "",
    }
    while next_attribute(&rest, &kind, &value):
        read_link_attribute(link, kind, value)
    return link


cdef int read_link_attribute(dict link, uint16_t kind, Cursor value) except -1:
    cdef Cursor inner
    if kind == uapi.IFLA_IFNAME:
        link["name"] = as_text(value)
    elif kind == uapi.IFLA_ADDRESS:
        link["mac"] = as_bytes(value)
    elif kind == uapi.IFLA_IFALIAS:
        link["alias"] = as_text(value)
    elif kind == uapi.IFLA_LINK_NETNSID:
        link["peer_nsid"] = <int32_t>as_u32(value)
    elif kind == uapi.IFLA_LINKINFO:
        while next_attribute(&value, &kind, &inner):
            if kind == uapi.IFLA_INFO_KIND:
                link["kind"] = as_text(inner)
    elif kind in LINK_NUMBERS:
        link[LINK_NUMBERS[kind]] = as_u32(value)
    return 0


cdef dict LINK_NUMBERS = {
    uapi.IFLA_MTU: "mtu",
    uapi.IFLA_GROUP: "group",
    uapi.IFLA_NUM_TX_QUEUES: "tx_queues",
    uapi.IFLA_NUM_RX_QUEUES: "rx_queues",
    uapi.IFLA_LINK: "peer_index",
    uapi.IFLA_MASTER: "master",
}


def unpack_address(bytes message not None):
    """RTM_NEWADDR, RTM_DELADDR"""
    cdef nlmsghdr header
    cdef ifaddrmsg fixed
    cdef Cursor rest, value
    cdef uint16_t kind = 0
    open_message(message, uapi.RTM_NEWADDR, uapi.RTM_DELADDR, &header, &rest)
    memcpy(&fixed, take(&rest, sizeof(fixed)), sizeof(fixed))
    local, address, flags = b"", b"", fixed.ifa_flags
    while next_attribute(&rest, &kind, &value):
        if kind == uapi.IFA_LOCAL:
            local = as_bytes(value)
        elif kind == uapi.IFA_ADDRESS:  # on a point-to-point link: of the other end
            address = as_bytes(value)
        elif kind == uapi.IFA_FLAGS:
            flags = as_u32(value)
    return {
        "index": fixed.ifa_index, "family": fixed.ifa_family, "address": local or address,
        "length": fixed.ifa_prefixlen, "scope": fixed.ifa_scope, "flags": flags,
    }


def unpack_route(bytes message not None):
    """RTM_NEWROUTE, RTM_DELROUTE"""
    cdef nlmsghdr header
    cdef rtmsg fixed
    cdef Cursor rest, value
    cdef uint16_t kind = 0
    open_message(message, uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE, &header, &rest)
    memcpy(&fixed, take(&rest, sizeof(fixed)), sizeof(fixed))
    route = {
        "family": fixed.rtm_family, "destination": bytes(4 if fixed.rtm_family == uapi.AF_INET else 16),
        "length": fixed.rtm_dst_len, "gateway": b"", "index": 0, "scope": fixed.rtm_scope, "table": fixed.rtm_table,
        "protocol": fixed.rtm_protocol, "type": fixed.rtm_type, "metric": 0, "flags": fixed.rtm_flags,
    }
    while next_attribute(&rest, &kind, &value):
        if kind == uapi.RTA_DST:
            route["destination"] = as_bytes(value)
        elif kind == uapi.RTA_GATEWAY:
            route["gateway"] = as_bytes(value)
        elif kind == uapi.RTA_VIA:  # a gateway of the other family, which stands before its address
            route["gateway"] = as_bytes(value)[2:]
        elif kind == uapi.RTA_OIF:
            route["index"] = as_u32(value)
        elif kind == uapi.RTA_PRIORITY:
            route["metric"] = as_u32(value)
        elif kind == uapi.RTA_TABLE:
            route["table"] = as_u32(value)
    return route


def unpack_neighbour(bytes message not None):
    """RTM_NEWNEIGH, RTM_DELNEIGH"""
    cdef nlmsghdr header
    cdef ndmsg fixed
    cdef Cursor rest, value
    cdef uint16_t kind = 0
    open_message(message, uapi.RTM_NEWNEIGH, uapi.RTM_DELNEIGH, &header, &rest)
    memcpy(&fixed, take(&rest, sizeof(fixed)), sizeof(fixed))
    address, mac = b"", b""
    while next_attribute(&rest, &kind, &value):
        if kind == uapi.NDA_DST:
            address = as_bytes(value)
        elif kind == uapi.NDA_LLADDR:
            mac = as_bytes(value)
    return {
        "index": fixed.ndm_ifindex, "family": fixed.ndm_family, "address": address, "mac": mac,
        "state": fixed.ndm_state, "flags": fixed.ndm_flags,
    }

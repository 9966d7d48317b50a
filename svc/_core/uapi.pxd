"""What the core takes from the kernel's own headers: names and layouts only, so that no number is typed by hand.

Declarations; nothing here runs. Use as `from svc._core cimport uapi`, then `uapi.RTM_NEWLINK`.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t


cdef extern from "<sys/socket.h>" nogil:
    enum: AF_INET
    enum: AF_INET6
    enum: AF_BRIDGE
    enum: AF_NETLINK


cdef extern from "<linux/netlink.h>" nogil:
    struct nlmsghdr:
        uint32_t nlmsg_len      # of the message, this header included, padding not
        uint16_t nlmsg_type
        uint16_t nlmsg_flags
        uint32_t nlmsg_seq
        uint32_t nlmsg_pid

    struct nlattr:
        uint16_t nla_len        # of the attribute, this header included, padding not
        uint16_t nla_type

    enum: NETLINK_ROUTE
    enum: NETLINK_EXT_ACK       # answers carry a text and an offset
    enum: NETLINK_CAP_ACK       # a refusal does not repeat the message refused
    enum: NLMSG_ERROR
    enum: NLMSG_DONE
    enum: NLM_F_REQUEST
    enum: NLM_F_ACK
    enum: NLM_F_CREATE
    enum: NLM_F_EXCL
    enum: NLM_F_REPLACE
    enum: NLM_F_DUMP
    enum: NLM_F_DUMP_INTR
    enum: NLM_F_CAPPED
    enum: NLM_F_ACK_TLVS
    enum: NLMSGERR_ATTR_MSG
    enum: NLMSGERR_ATTR_OFFS
    enum: NLA_TYPE_MASK         # the type without NLA_F_NESTED and NLA_F_NET_BYTEORDER


cdef extern from *:
    """
    #ifndef NETLINK_GET_STRICT_CHK   /* since Linux 4.20; the headers of an older build machine lack it */
    #define NETLINK_GET_STRICT_CHK 12
    #endif
    """
    enum: NETLINK_GET_STRICT_CHK     # a dump filters by what its header says, and refuses what it cannot


cdef extern from "<linux/rtnetlink.h>" nogil:
    struct rtmsg:
        uint8_t rtm_family
        uint8_t rtm_dst_len
        uint8_t rtm_table
        uint8_t rtm_protocol
        uint8_t rtm_scope
        uint8_t rtm_type
        uint32_t rtm_flags

    struct ifinfomsg:
        uint8_t ifi_family
        uint16_t ifi_type
        int32_t ifi_index
        uint32_t ifi_flags
        uint32_t ifi_change     # the bits of ifi_flags that count

    enum: RTMGRP_LINK
    enum: RTM_NEWLINK
    enum: RTM_DELLINK
    enum: RTM_GETLINK
    enum: RTM_SETLINK
    enum: RTM_NEWADDR
    enum: RTM_DELADDR
    enum: RTM_GETADDR
    enum: RTM_NEWROUTE
    enum: RTM_DELROUTE
    enum: RTM_GETROUTE
    enum: RTM_NEWNEIGH
    enum: RTM_DELNEIGH
    enum: RTM_GETNEIGH
    enum: RTM_SETNEIGHTBL
    enum: RT_SCOPE_UNIVERSE
    enum: RT_SCOPE_LINK
    enum: RT_SCOPE_NOWHERE
    enum: RT_TABLE_MAIN
    enum: RTPROT_BOOT
    enum: RTPROT_KERNEL
    enum: RTN_UNICAST
    enum: RTN_LOCAL
    enum: RTN_BLACKHOLE
    enum: RTNH_F_ONLINK         # the gateway is on the link, also without a route to it
    enum: RTA_DST
    enum: RTA_OIF
    enum: RTA_GATEWAY
    enum: RTA_PRIORITY
    enum: RTA_VIA
    enum: RTA_TABLE
    enum: RTEXT_FILTER_SKIP_STATS


cdef extern from "<linux/if_link.h>" nogil:
    enum: IFLA_ADDRESS
    enum: IFLA_IFNAME
    enum: IFLA_MTU
    enum: IFLA_LINK
    enum: IFLA_MASTER
    enum: IFLA_IFALIAS
    enum: IFLA_LINKINFO
    enum: IFLA_AF_SPEC
    enum: IFLA_GROUP
    enum: IFLA_NET_NS_FD
    enum: IFLA_EXT_MASK
    enum: IFLA_NUM_TX_QUEUES
    enum: IFLA_NUM_RX_QUEUES
    enum: IFLA_LINK_NETNSID
    enum: IFLA_INFO_KIND
    enum: IFLA_INFO_DATA
    enum: IFLA_INET_CONF
    enum: IFLA_INET6_ADDR_GEN_MODE
    enum: IN6_ADDR_GEN_MODE_NONE


cdef extern from "<linux/veth.h>" nogil:
    enum: VETH_INFO_PEER


cdef extern from "<linux/if.h>" nogil:
    enum: IFF_UP
    enum: IFNAMSIZ              # bytes of an interface name, its closing NUL included


cdef extern from "<linux/if_addr.h>" nogil:
    struct ifaddrmsg:
        uint8_t ifa_family
        uint8_t ifa_prefixlen
        uint8_t ifa_flags       # the lower eight of the 32 in IFA_FLAGS
        uint8_t ifa_scope
        uint32_t ifa_index

    enum: IFA_ADDRESS
    enum: IFA_LOCAL
    enum: IFA_FLAGS
    enum: IFA_F_NODAD


cdef extern from "<linux/neighbour.h>" nogil:
    struct ndtmsg:
        uint8_t ndtm_family

    struct ndmsg:
        uint8_t ndm_family
        int32_t ndm_ifindex
        uint16_t ndm_state
        uint8_t ndm_flags
        uint8_t ndm_type

    enum: NDA_DST
    enum: NDA_LLADDR
    enum: NDA_IFINDEX
    enum: NUD_PERMANENT
    enum: NTF_SELF
    enum: NDTA_NAME
    enum: NDTA_PARMS
    enum: NDTPA_IFINDEX
    enum: NDTPA_PROXY_DELAY


cdef extern from "<linux/ip.h>" nogil:
    enum: IPV4_DEVCONF_FORWARDING
    enum: IPV4_DEVCONF_PROXY_ARP
    enum: IPV4_DEVCONF_ROUTE_LOCALNET
    enum: IPV4_DEVCONF_MAX

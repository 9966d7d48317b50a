"""rtnetlink messages to the kernel: `Batch` and the parts its messages share. The buffer is in netlink.pxd."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t

from svc._core.netlink cimport Messages


cdef class Batch(Messages):
    # The header of a link message; `name_link` by index or by name, `flags` and `change` are of ifinfomsg.
    cdef int begin_link(self, uint16_t kind, uint16_t message_flags, uint32_t index) except -1
    cdef int name_link(self, uint16_t kind, uint32_t index, str name) except -1
    cdef int put_ifinfo(self, uint32_t index, uint32_t flags, uint32_t change) except -1

    # Attributes of links.
    cdef int put_name(self, uint16_t kind, str name) except -1
    cdef int put_mac(self, bytes mac) except -1
    cdef int put_veth_end(self, str name, bytes mac, uint32_t mtu, uint32_t queues) except -1
    cdef int put_af_spec(self, dict devconf, bint no_link_local) except -1
    cdef int put_devconf(self, dict values) except -1

    # Whole messages up to their `end`.
    cdef int pack_address(self, uint16_t kind, uint16_t flags, uint32_t index, bytes address, int length,
                          uint8_t scope, uint32_t ifa_flags) except -1
    # The header of a route or neighbour message; `put_route` is the attributes, without those that are zero or empty.
    cdef int begin_route(self, uint16_t message, uint16_t message_flags, bytes destination, int length, uint8_t scope,
                         uint8_t kind, uint8_t protocol, uint32_t flags) except -1
    cdef int put_route(self, uint32_t index, bytes destination, int length, bytes gateway, uint32_t metric) except -1
    cdef int begin_neighbour(self, uint16_t message, uint16_t message_flags, uint8_t family, uint32_t index,
                             uint16_t state, uint8_t flags) except -1
    cdef int put_neighbour_mac(self, bytes mac) except -1

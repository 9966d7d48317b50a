"""A hash table of networks, without Python objects. A longest-prefix match is one probe for each length in use."""

from libc.stdint cimport int32_t, uint8_t

from svc._core.cidr_bits cimport Prefix

cdef enum:
    EMPTY = -1
    MAX_LENGTH = 128

cdef struct Lengths:
    int32_t networks[MAX_LENGTH + 1]  # of each length
    uint8_t used[MAX_LENGTH + 1]      # the lengths that have any, longest first
    int count                         # of them

cdef struct Table:
    Prefix *entries  # allocated and freed by the owner of the table, as the slots are
    int32_t *slots
    int32_t count    # of entries
    int32_t mask     # number of slots, a power of two, less one
    Lengths ipv4
    Lengths ipv6

# The number of the entry, EMPTY if there is none.
cdef int32_t find(Table *table, Prefix network) noexcept nogil
cdef int32_t longest_match(Table *table, Prefix address) noexcept nogil

# Add a network that is not in the table; the owner has made room for it.
cdef void insert(Table *table, Prefix network) noexcept nogil

# Remove a network. The result is as of `find`; the last entry has moved to that number.
cdef int32_t remove(Table *table, Prefix network) noexcept nogil

# Replace the slots, at least twice as many as there will be entries.
cdef void use_slots(Table *table, int32_t *slots, int32_t size) noexcept nogil

"""A hash table of networks, without Python objects. A longest-prefix match is one probe for each length in use.

The networks of a cluster are many but come in few lengths, those of its pools and of their blocks. Trying these lengths
from the longest on needs no chain of loads that wait for each other, which is what makes tries slow.

Rules:
1. Entries are dense: entry n belongs to the n-th value of the owner, and the last one moves into a hole.
2. A slot holds the number of an entry. An entry stands in the first slot from its hash on that was not occupied, so
   whoever empties a slot moves those back that had to pass it.
3. At most half of the slots are occupied, so every search comes to its end; `insert` wants the owner to see to that.
"""

from libc.stdint cimport int32_t, uint8_t

from cidr_bits cimport Prefix, mask_of, mixed, same

cdef enum:
    EMPTY = -1
    LONGEST = 128

cdef struct Lengths:
    int32_t networks[LONGEST + 1]  # of each length
    uint8_t used[LONGEST + 1]      # the lengths that have any, longest first
    int count                      # of them

cdef struct Table:
    Prefix *entries  # owned by the owner of the table, as the slots are
    int32_t *slots
    int32_t count    # of entries
    int32_t mask     # number of slots, a power of two, less one
    Lengths ipv4
    Lengths ipv6


cdef inline int32_t slot_of(Table *table, Prefix network) noexcept nogil:
    """Where the network stands, or the empty slot where it would."""
    cdef int32_t slot = <int32_t> (mixed(network) & table.mask)
    while table.slots[slot] != EMPTY and not same(table.entries[table.slots[slot]], network):
        slot = slot + 1 & table.mask
    return slot


cdef inline int32_t find(Table *table, Prefix network) noexcept nogil:
    """The number of the entry, EMPTY when there is none."""
    return table.slots[slot_of(table, network)]


cdef inline int32_t longest_match(Table *table, Prefix address) noexcept nogil:
    """The entry of the longest network that holds the address, EMPTY when none does."""
    cdef Lengths *lengths = &table.ipv4 if address.bits == 32 else &table.ipv6
    cdef int32_t number = EMPTY
    cdef int place, length
    for place in range(lengths.count):
        length = lengths.used[place]
        number = find(table, Prefix(address.value & mask_of(length), address.bits, length))
        if number != EMPTY:
            break
    return number


cdef inline void count_length(Table *table, Prefix network, int change) noexcept nogil:
    cdef Lengths *lengths = &table.ipv4 if network.bits == 32 else &table.ipv6
    cdef int length
    lengths.networks[network.length] += change
    lengths.count = 0
    for length in range(LONGEST, -1, -1):
        if lengths.networks[length]:
            lengths.used[lengths.count] = <uint8_t> length
            lengths.count += 1


cdef inline void insert(Table *table, Prefix network) noexcept nogil:
    """Adds a network that is not there."""
    table.entries[table.count] = network
    table.slots[slot_of(table, network)] = table.count
    table.count += 1
    count_length(table, network, 1)


cdef inline void use_slots(Table *table, int32_t *slots, int32_t size) noexcept nogil:
    """Lets every entry stand in these slots instead."""
    cdef int32_t slot, number
    table.slots, table.mask = slots, size - 1
    for slot in range(size):
        slots[slot] = EMPTY
    for number in range(table.count):
        slots[slot_of(table, table.entries[number])] = number


cdef inline void vacate(Table *table, int32_t hole) noexcept nogil:
    cdef int32_t slot = hole + 1 & table.mask, home
    while table.slots[slot] != EMPTY:
        home = <int32_t> (mixed(table.entries[table.slots[slot]]) & table.mask)
        if (slot - home & table.mask) >= (slot - hole & table.mask):  # it passed the hole on its way
            table.slots[hole] = table.slots[slot]
            hole = slot
        slot = slot + 1 & table.mask
    table.slots[hole] = EMPTY


cdef inline int32_t remove(Table *table, Prefix network) noexcept nogil:
    """The number of the entry, where the last one stands now; EMPTY when there was none."""
    cdef int32_t slot = slot_of(table, network), number = table.slots[slot]
    if number == EMPTY:
        return EMPTY
    count_length(table, network, -1)
    table.count -= 1
    table.slots[slot_of(table, table.entries[table.count])] = number
    table.entries[number] = table.entries[table.count]
    vacate(table, slot)
    return number

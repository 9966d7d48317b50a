"""The hash table of networks.

The networks of a cluster are many, but have few lengths: those of its pools and of their blocks. Trying these lengths
from the longest on needs no chain of dependent loads, which is what makes tries slow.

Rules:
1. Entries are dense: entry n belongs to the n-th value of the owner, and the last one moves into a hole.
2. A slot holds the number of an entry. An entry is in the first slot from its hash on that was not occupied. So a
   removal shifts back the entries that had to pass its slot.
3. At most half of the slots are occupied, so every search ends; the owner of the table ensures this before `insert`.
"""

from libc.stdint cimport int32_t, uint8_t

from svc._core.cidr_bits cimport Prefix, mask_of, mixed, same


cdef int32_t slot_of(Table *table, Prefix network) noexcept nogil:
    """Return the slot of the network, or the empty slot where it would be."""
    cdef int32_t slot = <int32_t> (mixed(network) & table.mask)
    while table.slots[slot] != EMPTY and not same(table.entries[table.slots[slot]], network):
        slot = slot + 1 & table.mask
    return slot


cdef int32_t find(Table *table, Prefix network) noexcept nogil:
    """Return the number of the entry, or EMPTY."""
    return table.slots[slot_of(table, network)]


cdef int32_t longest_match(Table *table, Prefix address) noexcept nogil:
    """Return the entry of the longest network that holds the address, EMPTY if none does."""
    cdef Lengths *lengths = &table.ipv4 if address.bits == 32 else &table.ipv6
    cdef int32_t number = EMPTY
    cdef int place, length
    for place in range(lengths.count):
        length = lengths.used[place]
        number = find(table, Prefix(address.value & mask_of(length), address.bits, length))
        if number != EMPTY:
            break
    return number


cdef void count_length(Table *table, Prefix network, int change) noexcept nogil:
    cdef Lengths *lengths = &table.ipv4 if network.bits == 32 else &table.ipv6
    cdef int length
    lengths.networks[network.length] += change
    lengths.count = 0
    for length in range(MAX_LENGTH, -1, -1):
        if lengths.networks[length]:
            lengths.used[lengths.count] = <uint8_t> length
            lengths.count += 1


cdef void insert(Table *table, Prefix network) noexcept nogil:
    """Add a network that is not in the table."""
    table.entries[table.count] = network
    table.slots[slot_of(table, network)] = table.count
    table.count += 1
    count_length(table, network, 1)


cdef void use_slots(Table *table, int32_t *slots, int32_t size) noexcept nogil:
    """Move every entry to these slots."""
    cdef int32_t slot, number
    table.slots, table.mask = slots, <int32_t> (size - 1)
    for slot in range(size):
        slots[slot] = EMPTY
    for number in range(table.count):
        slots[slot_of(table, table.entries[number])] = number


cdef void backshift(Table *table, int32_t hole) noexcept nogil:
    """Empty a slot: shift back the entries behind it that would not be found any more."""
    cdef int32_t slot = hole + 1 & table.mask, home
    while table.slots[slot] != EMPTY:
        home = <int32_t> (mixed(table.entries[table.slots[slot]]) & table.mask)
        if (slot - home & table.mask) >= (slot - hole & table.mask):  # its search passes the hole
            table.slots[hole] = table.slots[slot]
            hole = slot
        slot = slot + 1 & table.mask
    table.slots[hole] = EMPTY


cdef int32_t remove(Table *table, Prefix network) noexcept nogil:
    """Remove a network. Return the number of its entry, which the last entry has now, or EMPTY."""
    cdef int32_t slot = slot_of(table, network), number = table.slots[slot]
    if number == EMPTY:
        return EMPTY
    count_length(table, network, -1)
    table.count -= 1
    table.slots[slot_of(table, table.entries[table.count])] = number
    table.entries[number] = table.entries[table.count]
    backshift(table, slot)
    return number

"""Ordinals of one address block: a block of 2**bits addresses, 0 <= bits <= 12.

A block is one array with a slot for every ordinal and one more, the sentinel. A slot holds the tag of its ordinal and
two links. The free slots and the sentinel form a ring: the sentinel is between the tail and the head of the queue.
An ordinal is taken or released with a few stores, whatever the size of the block and its place in the ring.

Rules:
1. A slot is in the ring exactly if its tag is FREE; the links of a taken slot mean nothing.
2. Only `append` adds a slot to the ring and only `unlink` removes one; both also update `free`.
3. Arguments are converted and checked before the first change: a method that raises has changed nothing.
4. The caller passes the reserved ordinals. They are skipped in the queue and keep their place, so each one at the head
   of the queue costs every allocation one step.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, uint64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    # Without an exception, a number that is too large is clipped, and the range check raises the error.
    Py_ssize_t clipped "PyNumber_AsSsize_t"(object number, PyObject *overflow) except? -1

cdef enum:
    LAST_BIT = 12
    MAX_SIZE = 4096  # 2 ** LAST_BIT
    WORDS = 64       # of 64 ordinals each
    MAX_TAG = 32767
    FREE = -1        # as a tag
    UNLINKED = -1    # as a link, while a queue is loaded

cdef struct Slot:
    int16_t tag
    int16_t next
    int16_t prev

MAX_BITS = LAST_BIT


cdef int tag_of(object number) except -1:
    cdef Py_ssize_t tag = clipped(number, NULL)
    if not 0 <= tag <= MAX_TAG:
        raise ValueError(f"tag {number!r} is outside 0..{MAX_TAG}")
    return <int> tag


cdef int place_of(object number, int size) except -1:
    cdef Py_ssize_t ordinal = clipped(number, NULL)
    if not 0 <= ordinal < size:
        raise IndexError(f"ordinal {number!r} is outside 0..{size - 1}")
    return <int> ordinal


cdef Py_ssize_t stored_number(object item) except? -1:
    """Return -1, which is never valid, if the item is not an integer: then the data is wrong, not the caller's type."""
    return clipped(item, NULL) if isinstance(item, int) else -1


@cython.final
cdef class OrdinalSet:
    """A set of ordinals below `size`: one bit each."""

    cdef readonly int size
    cdef uint64_t words[WORDS]  # bits from `size` on are never set

    def __cinit__(self, size, ordinals=()):
        cdef Py_ssize_t count = clipped(size, NULL)
        if not 1 <= count <= MAX_SIZE:
            raise ValueError(f"size {size!r} is outside 1..{MAX_SIZE}")
        self.size = <int> count
        for ordinal in ordinals:
            self.add(place_of(ordinal, self.size))

    cdef void add(self, int ordinal) noexcept:
        self.words[ordinal >> 6] |= <uint64_t> 1 << (ordinal & 63)

    cdef bint has(self, Py_ssize_t ordinal) noexcept:
        return 0 <= ordinal < self.size and self.words[ordinal >> 6] >> (ordinal & 63) & 1

    def add_range(self, first, last):
        """Add first..last, both included."""
        cdef int low = place_of(first, self.size), high = place_of(last, self.size), ordinal
        if low > high:
            raise IndexError(f"range {low}..{high} ends before it starts")
        for ordinal in range(low, high + 1):
            self.add(ordinal)

    def __contains__(self, ordinal):
        return self.has(clipped(ordinal, NULL))

    def __len__(self):
        cdef int count = 0, ordinal
        for ordinal in range(self.size):
            count += self.has(ordinal)
        return count

    def __repr__(self):
        return f"<OrdinalSet size={self.size} set={len(self)}>"


@cython.final
cdef class Ordinals:
    """Which ordinals of a block are taken, by which tag, and in what order the free ones are handed out."""

    cdef readonly int size
    cdef readonly int free
    cdef Slot *slots  # owned; size + 1 of them, the sentinel last

    def __cinit__(self, bits):
        cdef Py_ssize_t power = clipped(bits, NULL)
        if not 0 <= power <= LAST_BIT:
            raise ValueError(f"bits {bits!r} is outside 0..{LAST_BIT}")
        self.size = 1 << <int> power
        self.slots = <Slot *> PyMem_Malloc(<size_t> (self.size + 1) * sizeof(Slot))
        if self.slots is NULL:
            raise MemoryError
        self.empty_queue()
        for ordinal in range(self.size):
            self.append(ordinal)

    def __dealloc__(self):
        PyMem_Free(self.slots)

    @staticmethod
    def load(allocations, unallocated):
        """From the datastore's two lists."""
        cdef list tags = list(allocations), queue = list(unallocated)
        cdef Ordinals block = Ordinals.__new__(Ordinals, bits_of(len(tags)))
        block.empty_queue()
        block.load_tags(tags)
        block.load_queue(queue)
        return block

    cdef void empty_queue(self) noexcept:
        self.slots[self.size] = Slot(FREE, <int16_t> self.size, <int16_t> self.size)
        self.free = 0

    cdef int load_tags(self, list tags) except -1:
        cdef int ordinal
        cdef Py_ssize_t tag
        for ordinal in range(self.size):
            tag = FREE
            if tags[ordinal] is not None:
                tag = stored_number(tags[ordinal])
                if not 0 <= tag <= MAX_TAG:
                    raise ValueError(f"allocations[{ordinal}] is {tags[ordinal]!r}, not a tag of 0..{MAX_TAG}")
            self.slots[ordinal] = Slot(<int16_t> tag, UNLINKED, UNLINKED)
        return 0

    cdef int load_queue(self, list queue) except -1:
        cdef int ordinal
        cdef Py_ssize_t place
        for place in range(len(queue)):
            self.load_free(place, queue[place])
        for ordinal in range(self.size):
            if self.slots[ordinal].tag == FREE and self.slots[ordinal].next == UNLINKED:
                raise ValueError(f"ordinal {ordinal} is neither allocated nor in unallocated")
        return 0

    cdef int load_free(self, Py_ssize_t place, object item) except -1:
        cdef Py_ssize_t ordinal = stored_number(item)
        if not 0 <= ordinal < self.size:
            raise ValueError(f"unallocated[{place}] is {item!r}, not an ordinal of 0..{self.size - 1}")
        if self.slots[ordinal].tag != FREE:
            raise ValueError(f"unallocated[{place}] is {item}, which is allocated")
        if self.slots[ordinal].next != UNLINKED:
            raise ValueError(f"unallocated[{place}] is {item}, which occurs twice")
        self.append(<int> ordinal)
        return 0

    cdef void append(self, int ordinal) noexcept:
        """Add a slot at the tail."""
        cdef int sentinel = self.size, tail = self.slots[sentinel].prev
        self.slots[ordinal] = Slot(FREE, <int16_t> sentinel, <int16_t> tail)
        self.slots[tail].next = <int16_t> ordinal
        self.slots[sentinel].prev = <int16_t> ordinal
        self.free += 1

    cdef void unlink(self, int ordinal, int tag) noexcept:
        """Remove a slot, wherever in the ring it is."""
        cdef Slot *slot = &self.slots[ordinal]
        self.slots[slot.prev].next = slot.next
        self.slots[slot.next].prev = slot.prev
        slot.tag = <int16_t> tag
        self.free -= 1

    cdef int candidate(self, OrdinalSet reserved) noexcept:
        """Return the first free ordinal that is not reserved, or the sentinel."""
        cdef int ordinal = self.slots[self.size].next
        if reserved is not None:
            while ordinal != self.size and reserved.has(ordinal):
                ordinal = self.slots[ordinal].next
        return ordinal

    @property
    def used(self):
        return self.size - self.free

    def available(self, OrdinalSet reserved=None):
        """Free ordinals that are not reserved."""
        cdef int ordinal, count = self.free
        if reserved is not None:
            for ordinal in range(min(self.size, reserved.size)):
                count -= self.slots[ordinal].tag == FREE and reserved.has(ordinal)
        return count

    def allocate(self, tag, OrdinalSet reserved=None):
        """Take the first free ordinal that is not reserved, and return it, or -1."""
        cdef int number = tag_of(tag), ordinal = self.candidate(reserved)
        if ordinal == self.size:
            return -1
        self.unlink(ordinal, number)
        return ordinal

    def allocate_many(self, count, tag, OrdinalSet reserved=None):
        """Take up to `count` ordinals, in queue order."""
        cdef Py_ssize_t wanted = clipped(count, NULL)
        cdef int number = tag_of(tag), ordinal
        cdef list taken = []
        while len(taken) < wanted:
            ordinal = self.candidate(reserved)
            if ordinal == self.size:
                break
            taken.append(ordinal)
            self.unlink(ordinal, number)
        return taken

    def allocate_at(self, ordinal, tag):
        """Take this ordinal; False if it is already taken."""
        cdef int place = place_of(ordinal, self.size), number = tag_of(tag)
        if self.slots[place].tag != FREE:
            return False
        self.unlink(place, number)
        return True

    def release(self, ordinal):
        """Release it to the tail of the queue; False if it was free."""
        return self.give_back(place_of(ordinal, self.size))

    def release_many(self, ordinals):
        """Release in the given order; return how many were taken."""
        cdef list places = [place_of(ordinal, self.size) for ordinal in ordinals]
        cdef int count = 0
        for place in places:
            count += self.give_back(place)
        return count

    cdef bint give_back(self, int place) noexcept:
        if self.slots[place].tag == FREE:
            return False
        self.append(place)
        return True

    def tag(self, ordinal):
        """The tag, or -1 if free."""
        return self.slots[place_of(ordinal, self.size)].tag

    def retag(self, ordinal, tag):
        """Change the tag of a taken ordinal."""
        cdef int place = place_of(ordinal, self.size), number = tag_of(tag)
        if self.slots[place].tag == FREE:
            raise KeyError(f"ordinal {place} is free")
        self.slots[place].tag = <int16_t> number

    def tagged(self, tag):
        """Ordinals with this tag, ascending."""
        cdef int number = tag_of(tag)
        return [ordinal for ordinal in range(self.size) if self.slots[ordinal].tag == number]

    def renumber(self, new_tags):
        """Replace every tag t by new_tags[t]."""
        cdef list table = list(new_tags)
        cdef int16_t fresh[MAX_SIZE]
        cdef int ordinal, tag
        for ordinal in range(self.size):
            tag = self.slots[ordinal].tag
            if tag >= len(table):
                raise IndexError(f"tag {tag} of ordinal {ordinal} has no new number: only {len(table)} are given")
            fresh[ordinal] = FREE if tag == FREE else <int16_t> tag_of(table[tag])
        for ordinal in range(self.size):
            self.slots[ordinal].tag = fresh[ordinal]

    def allocations(self):
        """The datastore's shape: tag or None by ordinal."""
        return [None if self.slots[ordinal].tag == FREE else self.slots[ordinal].tag for ordinal in range(self.size)]

    def unallocated(self):
        """The datastore's shape: the queue, head first."""
        cdef list queue = []
        cdef int ordinal = self.slots[self.size].next
        while ordinal != self.size:
            queue.append(ordinal)
            ordinal = self.slots[ordinal].next
        return queue

    def copy(self):
        cdef Ordinals twin = Ordinals.__new__(Ordinals, bits_of(self.size))
        memcpy(twin.slots, self.slots, <size_t> (self.size + 1) * sizeof(Slot))
        twin.free = self.free
        return twin

    def __contains__(self, ordinal):
        cdef Py_ssize_t place = clipped(ordinal, NULL)
        return 0 <= place < self.size and self.slots[place].tag != FREE

    def __eq__(self, other):
        if not isinstance(other, Ordinals):
            return NotImplemented
        return self.allocations() == other.allocations() and self.unallocated() == other.unallocated()

    def __repr__(self):
        return f"<Ordinals size={self.size} used={self.size - self.free}>"


cdef int bits_of(Py_ssize_t size) except -1:
    if size < 1 or size > MAX_SIZE or size & (size - 1):
        raise ValueError(f"{size} allocations: not a power of two up to {MAX_SIZE}")
    return size.bit_length() - 1

"""Addresses, networks and the pool index. cidr_bits, cidr_text and cidr_table are their numbers, texts and hash table.

Rules:
1. `Address` and `Cidr` are immutable, and two of them are equal exactly if their texts are.
2. Bits right of a network's length, and right of the 32 of IPv4, are zero everywhere.
3. A wrong value is a ValueError, or an IndexError if it is an ordinal; only a wrong type is a TypeError.
4. `CidrIndex` keeps its table in C and its values in a Python list, which the garbage collector sees. It drops a value
   last, when its state is consistent: that may run any code, and the code may use the index.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from svc._core.cidr_bits cimport Prefix, comes_before, holds, mask_of, mixed, raised, same, u128
from svc._core.cidr_table cimport EMPTY, Table, find, insert, longest_match, remove, use_slots
from svc._core.cidr_text cimport TEXT_SIZE, parse_address, parse_network, put_address, put_network

from types import GenericAlias

cdef extern from "Python.h":
    # Without an exception, a number that is too large is clipped, and the range check raises the error.
    Py_ssize_t clipped "PyNumber_AsSsize_t"(object number, PyObject *overflow) except? -1


cdef int length_between(object number, int least, int most) except -1:
    cdef Py_ssize_t length = clipped(number, NULL)
    if not least <= length <= most:
        raise ValueError(f"length {number!r} is outside {least}..{most}")
    return <int> length


cdef u128 place_below(object number, int width, Cidr network) except? 0:
    """The number as one of 2**width places."""
    cdef u128 place = 0
    cdef bint inside
    try:
        place = PyNumber_Index(number)
        inside = place & ~mask_of(128 - width) == place
    except OverflowError:  # negative, or wider than 128 bits
        inside = False
    if not inside:
        raise IndexError(f"{number!r} is outside 0..2**{width}-1, the places of {network}")
    return place


cdef object power_of_two(int exponent):
    cdef object one = 1
    return one << exponent


cdef Address new_address(u128 value, int bits):
    cdef Address made = Address.__new__(Address)
    made.prefix = Prefix(value, bits, bits)
    return made


cdef Cidr new_cidr(u128 value, int bits, int length):
    cdef Cidr made = Cidr.__new__(Cidr)
    made.prefix = Prefix(value & mask_of(length), bits, length)
    return made


@cython.final
@cython.freelist(64)
cdef class Address:
    """One IPv4 or IPv6 address; immutable, hashable, ordered (IPv4 before IPv6)."""

    cdef Prefix prefix

    def __init__(self, text):
        if self.prefix.bits:
            raise TypeError("an address never changes")
        self.prefix = parse_address(text)

    @staticmethod
    def from_packed(bytes packed not None):
        """4 or 16 bytes, network order."""
        if len(packed) != 4 and len(packed) != 16:
            raise ValueError(f"a packed address has 4 or 16 bytes, not {len(packed)}")
        cdef int bits = 8 * <int> len(packed)
        cdef u128 value = 0
        cdef char byte
        for byte in packed:
            value = value << 8 | <unsigned char> byte
        return new_address(value << (128 - bits), bits)

    @property
    def version(self):
        return 4 if self.prefix.bits == 32 else 6

    @property
    def bits(self):
        return self.prefix.bits

    @property
    def packed(self):
        cdef char octets[16]
        cdef int place
        for place in range(16):
            octets[place] = <char> (self.prefix.value >> (120 - 8 * place))
        return octets[:self.prefix.bits // 8]

    def host(self):
        """This address alone: /32 or /128."""
        return new_cidr(self.prefix.value, self.prefix.bits, self.prefix.bits)

    def __int__(self):
        return self.prefix.value >> (128 - self.prefix.bits)

    def __str__(self):
        cdef char text[TEXT_SIZE]
        cdef char *end = put_address(text, self.prefix)
        return text[:end - text].decode("ascii")

    def __repr__(self):
        return f"Address({str(self)!r})"

    def __reduce__(self):
        return Address, (str(self),)

    def __hash__(self):
        return mixed(self.prefix)

    def __eq__(self, other):
        return same(self.prefix, (<Address> other).prefix) if isinstance(other, Address) else NotImplemented

    def __lt__(self, other):
        return comes_before(self.prefix, (<Address> other).prefix) if isinstance(other, Address) else NotImplemented


@cython.final
@cython.freelist(64)
cdef class Cidr:
    """A network with its length; immutable, hashable, ordered by version, network, length."""

    cdef Prefix prefix

    def __init__(self, text):
        cdef Prefix parsed = parse_network(text, False)
        if self.prefix.bits:
            raise TypeError("a network never changes")
        if parsed.value & ~mask_of(parsed.length):
            network = new_cidr(parsed.value, parsed.bits, parsed.length)
            raise ValueError(f"{text!r} has bits right of its length: the network is '{network}'")
        self.prefix = parsed

    @staticmethod
    def masked(text):
        """As the constructor, but bits right of the length are cleared and a bare address means its full length."""
        cdef Prefix parsed = parse_network(text, True)
        return new_cidr(parsed.value, parsed.bits, parsed.length)

    @staticmethod
    def of(Address address not None, length):
        """The network of that length around an address."""
        cdef int bits = address.prefix.bits
        return new_cidr(address.prefix.value, bits, length_between(length, 0, bits))

    @property
    def version(self):
        return 4 if self.prefix.bits == 32 else 6

    @property
    def bits(self):
        return self.prefix.bits

    @property
    def length(self):
        return self.prefix.length

    @property
    def size(self):
        return power_of_two(self.prefix.bits - self.prefix.length)

    @property
    def first(self):
        return new_address(self.prefix.value, self.prefix.bits)

    @property
    def last(self):
        cdef u128 ours = mask_of(self.prefix.bits) & ~mask_of(self.prefix.length)
        return new_address(self.prefix.value | ours, self.prefix.bits)

    def address(self, ordinal):
        """The address at this place."""
        cdef int bits = self.prefix.bits
        cdef u128 place = place_below(ordinal, bits - self.prefix.length, self)
        return new_address(self.prefix.value + (place << (128 - bits)), bits)

    def ordinal(self, Address address not None):
        """The place of an address."""
        self.require(address)
        return (address.prefix.value - self.prefix.value) >> (128 - self.prefix.bits)

    def block(self, number, length):
        """The number-th network of that length inside."""
        cdef int inner = self.inner_length(length)
        cdef u128 place = place_below(number, inner - self.prefix.length, self)
        return new_cidr(self.prefix.value + raised(place, 128 - inner), self.prefix.bits, inner)

    def block_of(self, Address address not None, length):
        """The network of that length that holds an address of ours."""
        cdef int inner = self.inner_length(length)
        self.require(address)
        return new_cidr(address.prefix.value, self.prefix.bits, inner)

    def block_count(self, length):
        return power_of_two(self.inner_length(length) - self.prefix.length)

    cdef int inner_length(self, object length) except -1:
        return length_between(length, self.prefix.length, self.prefix.bits)

    cdef int require(self, Address address) except -1:
        if not holds(self.prefix, address.prefix):
            raise ValueError(f"{address} is not inside {self}")
        return 0

    def overlaps(self, Cidr other not None):
        return holds(self.prefix, other.prefix) or holds(other.prefix, self.prefix)

    def __contains__(self, other):
        if isinstance(other, Address):
            return holds(self.prefix, (<Address> other).prefix)
        return holds(self.prefix, (<Cidr?> other).prefix)

    def __str__(self):
        cdef char text[TEXT_SIZE]
        cdef char *end = put_network(text, self.prefix)
        return text[:end - text].decode("ascii")

    def __repr__(self):
        return f"Cidr({str(self)!r})"

    def __reduce__(self):
        return Cidr, (str(self),)

    def __hash__(self):
        return mixed(self.prefix)

    def __eq__(self, other):
        return same(self.prefix, (<Cidr> other).prefix) if isinstance(other, Cidr) else NotImplemented

    def __lt__(self, other):
        return comes_before(self.prefix, (<Cidr> other).prefix) if isinstance(other, Cidr) else NotImplemented


@cython.final
cdef class CidrIndex:
    """Networks of both versions with a value each: exact lookup, longest-prefix match, overlaps."""

    cdef Table table
    cdef list values  # by number of the entry

    __class_getitem__ = classmethod(GenericAlias)

    def __cinit__(self):
        self.values = []
        self.resize(8)

    def __dealloc__(self):
        PyMem_Free(self.table.entries)
        PyMem_Free(self.table.slots)

    cdef int resize(self, int32_t entries) except -1:
        """Make room for that many entries, a power of two, and for twice as many slots."""
        cdef void *moved = PyMem_Realloc(self.table.entries, <size_t> entries * sizeof(Prefix))
        if moved is NULL:
            raise MemoryError
        self.table.entries = <Prefix *> moved
        cdef int32_t *slots = <int32_t *> PyMem_Malloc(<size_t> entries * 2 * sizeof(int32_t))
        if slots is NULL:
            raise MemoryError
        PyMem_Free(self.table.slots)
        use_slots(&self.table, slots, 2 * entries)
        return 0

    def __len__(self):
        return self.table.count

    def insert(self, Cidr network not None, value):
        """Add or replaces."""
        cdef int32_t number = find(&self.table, network.prefix)
        if number != EMPTY:
            self.values[number] = value
            return
        if 2 * self.table.count > self.table.mask:
            self.resize(2 * self.table.count)
        self.values.append(value)
        insert(&self.table, network.prefix)

    def remove(self, Cidr network not None):
        """False when it was not there."""
        cdef int32_t number = remove(&self.table, network.prefix), last = self.table.count
        if number == EMPTY:
            return False
        self.values[number], self.values[last] = self.values[last], self.values[number]
        self.values.pop()
        return True

    cdef object value_of(self, int32_t number):
        return None if number == EMPTY else self.values[number]

    def exact(self, Cidr network not None):
        return self.value_of(find(&self.table, network.prefix))

    def match(self, Address address not None):
        """The value of the longest network that holds the address."""
        return self.value_of(longest_match(&self.table, address.prefix))

    def match_text(self, address):
        """As `match`, straight from text."""
        return self.value_of(longest_match(&self.table, parse_address(address)))

    def overlapping(self, Cidr network not None):
        """Every network that shares an address with this one, sorted."""
        cdef list found = []
        cdef Prefix entry
        cdef int32_t number
        for number in range(self.table.count):
            entry = self.table.entries[number]
            if holds(entry, network.prefix) or holds(network.prefix, entry):
                found.append(new_cidr(entry.value, entry.bits, entry.length))
        found.sort()
        return found

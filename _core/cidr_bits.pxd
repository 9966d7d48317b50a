"""Addresses as 128-bit numbers, the two versions alike.

An IPv4 address fills the first 32 of the 128 bits and leaves the others zero. So bit k of a prefix is the same bit for
both versions, and masks and comparisons need not know the version.

`nogil` releases nothing here: it makes Cython refuse Python objects, which a number too many can bring in unseen.
"""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    /* Python promises its objects an alignment of 8; a plain __int128 would want 16. */
    typedef unsigned __int128 svc_u128 __attribute__((aligned(8)));
    """
    # Cython asks the C compiler for the real width, so any unsigned type stands for it here.
    ctypedef unsigned long long u128 "svc_u128"
    int leading_zeros "__builtin_clzll"(uint64_t word) noexcept nogil

cdef struct Prefix:  # a network, or an address: then all bits count
    u128 value       # zero right of the length
    int bits         # 32 or 128: the version
    int length


cdef inline u128 raised(u128 value, int places) noexcept nogil:
    """value << places, also for 128 places, which C leaves undefined."""
    return value << places if places < 128 else 0


cdef inline u128 mask_of(int length) noexcept nogil:
    return raised(~(<u128> 0), 128 - length)


cdef inline int bit_at(u128 value, int place) noexcept nogil:
    """Bit `place`, counted from the left, 0..127."""
    return <int> (value >> (127 - place)) & 1


cdef inline int shared_bits(u128 one, u128 other) noexcept nogil:
    """How many leading bits are the same."""
    cdef u128 difference = one ^ other
    cdef uint64_t high = <uint64_t> (difference >> 64), low = <uint64_t> difference
    if high:
        return leading_zeros(high)
    return 64 + leading_zeros(low) if low else 128


cdef inline bint holds(Prefix outer, Prefix inner) noexcept nogil:
    return outer.bits == inner.bits and outer.length <= inner.length and not (
        (outer.value ^ inner.value) & mask_of(outer.length))


cdef inline bint same(Prefix one, Prefix other) noexcept nogil:
    return one.value == other.value and one.bits == other.bits and one.length == other.length


cdef inline bint comes_before(Prefix one, Prefix other) noexcept nogil:
    """The order of version, network, length."""
    if one.bits != other.bits:
        return one.bits < other.bits
    if one.value != other.value:
        return one.value < other.value
    return one.length < other.length


cdef inline Py_hash_t mixed(Prefix prefix) noexcept nogil:
    """Neighbours, which networks mostly are, shall spread like random numbers: a full product is folded, then stirred
    once more. Any odd numbers of well mixed bits do."""
    cdef uint64_t high = <uint64_t> (prefix.value >> 64) ^ 0x9E3779B97F4A7C15ULL
    cdef uint64_t low = <uint64_t> prefix.value ^ 0xD1B54A32D192ED03ULL ^ <uint64_t> (prefix.bits << 8 | prefix.length)
    cdef u128 product = <u128> high * low
    cdef uint64_t word = (<uint64_t> (product >> 64) ^ <uint64_t> product) * 0xBF58476D1CE4E5B9ULL
    return <Py_hash_t> (word ^ word >> 32)

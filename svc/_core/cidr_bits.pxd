"""Addresses as 128-bit numbers, the same for both versions.

An IPv4 address fills the first 32 of the 128 bits and leaves the others zero. So bit k of a prefix is the same bit for
both versions, and masks and comparisons do not depend on the version.

These functions are inline because a match runs four of them for each length in use, each a few instructions.

`nogil` releases nothing here: it makes Cython refuse Python objects, which an integer that is too large can introduce.
"""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    /* Python aligns its objects to 8 bytes; a plain __int128 would need 16. */
    typedef unsigned __int128 svc_u128 __attribute__((aligned(8)));
    """
    # Cython asks the C compiler for the real width, so any unsigned type can be declared here.
    ctypedef unsigned long long u128 "svc_u128"

cdef struct Prefix:  # a network, or an address of full length
    u128 value       # zero right of the length
    int bits         # 32 or 128: the version
    int length


cdef inline u128 raised(u128 value, int places) noexcept nogil:
    """Return value << places, also for 128 places, which C leaves undefined."""
    return value << places if places < 128 else 0


cdef inline u128 mask_of(int length) noexcept nogil:
    return raised(~(<u128> 0), 128 - length)


cdef inline bint holds(Prefix outer, Prefix inner) noexcept nogil:
    return outer.bits == inner.bits and outer.length <= inner.length and not (
        (outer.value ^ inner.value) & mask_of(outer.length))


cdef inline bint same(Prefix one, Prefix other) noexcept nogil:
    return one.value == other.value and one.bits == other.bits and one.length == other.length


cdef inline bint comes_before(Prefix one, Prefix other) noexcept nogil:
    """Order by version, network, length."""
    if one.bits != other.bits:
        return one.bits < other.bits
    if one.value != other.value:
        return one.value < other.value
    return one.length < other.length


cdef inline Py_hash_t mixed(Prefix prefix) noexcept nogil:
    """Spread neighbouring networks like random numbers: fold a full product, then multiply and shift once more.

    The constants are arbitrary odd numbers with well mixed bits."""
    cdef uint64_t high = <uint64_t> (prefix.value >> 64) ^ 0x9E3779B97F4A7C15ULL
    cdef uint64_t low = <uint64_t> prefix.value ^ 0xD1B54A32D192ED03ULL
    low ^= <uint64_t> (prefix.bits << 8 | prefix.length)
    cdef u128 product = <u128> high * low
    cdef uint64_t word = (<uint64_t> (product >> 64) ^ <uint64_t> product) * 0xBF58476D1CE4E5B9ULL
    return <Py_hash_t> (word ^ word >> 32)

"""The text of addresses: a strict parser and the canonical printer.

The parser is a cursor that moves over UTF-8. A `read_` function moves it past what it read and returns NULL, or it
returns an error message. A `parse_` function takes a whole text and raises ValueError. Accepted are all forms of
RFC 4291 section 2.2, and dotted quads without leading zeros: some programs read those as octal, and an address that two
programs understand differently is a security hole.

The printer follows RFC 5952: lower case, no leading zeros, the longest run of two or more zero groups as `::`, first
of equals; an IPv4-mapped address ends dotted (section 5).
"""

from libc.stdint cimport uint16_t, uint32_t
from libc.string cimport memchr

from svc._core.cidr_bits cimport Prefix, u128

cdef extern from "Python.h":
    const char *utf8_of "PyUnicode_AsUTF8AndSize"(object text, Py_ssize_t *size) except NULL

cdef extern from *:
    """
    /* Value of a digit, plus one. A table, because branch prediction fails between digits and letters. */
    static const signed char svc_hex[256] = {
        ['0'] = 1, ['1'] = 2, ['2'] = 3, ['3'] = 4, ['4'] = 5, ['5'] = 6, ['6'] = 7, ['7'] = 8, ['8'] = 9, ['9'] = 10,
        ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
        ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16};
    """
    const signed char *HEX "svc_hex"

ctypedef const char *Fault

cdef struct Cursor:
    const unsigned char *at
    const unsigned char *end


cdef unsigned char peek(Cursor *cursor) noexcept nogil:
    """Return the next byte; at the end 0, which no address contains. Only this function reads the text."""
    return cursor.at[0] if cursor.at < cursor.end else 0


cdef bint skip(Cursor *cursor, unsigned char wanted) noexcept nogil:
    if peek(cursor) != wanted:
        return False
    cursor.at += 1
    return True


cdef int hex_digit(unsigned char byte) noexcept nogil:
    """Return -1 for any other byte."""
    return HEX[byte] - 1


cdef Fault read_decimal(Cursor *cursor, uint32_t limit, uint32_t *value) noexcept nogil:
    cdef Cursor digits = cursor[0]  # a copy: the compiler keeps it in registers
    cdef uint32_t number = 0, digit = <uint32_t> peek(&digits) - c'0'
    while digit <= 9:
        if number <= limit:  # above the limit the exact number does not matter, and could overflow
            number = number * 10 + digit
        digits.at += 1
        digit = <uint32_t> peek(&digits) - c'0'
    if digits.at == cursor.at:
        return "a number is missing"
    if peek(cursor) == c'0' and digits.at - cursor.at > 1:
        return "a number has leading zeros"
    if number > limit:
        return "a number is too large"
    value[0], cursor.at = number, digits.at
    return NULL


cdef Fault read_group(Cursor *cursor, uint16_t *group) noexcept nogil:
    cdef Cursor digits = cursor[0]
    cdef unsigned int number = 0
    cdef int digit = hex_digit(peek(&digits))
    while digit >= 0:
        if digits.at - cursor.at == 4:
            return "a group has more than four digits"
        number = number << 4 | <unsigned int> digit
        digits.at += 1
        digit = hex_digit(peek(&digits))
    if digits.at == cursor.at:
        return "a group is missing"
    group[0], cursor.at = <uint16_t> number, digits.at
    return NULL


cdef Fault read_ipv4(Cursor *cursor, uint32_t *value) noexcept nogil:
    cdef uint32_t octet = 0
    cdef int place
    cdef Fault fault
    value[0] = 0
    for place in range(4):
        if place > 0 and not skip(cursor, c'.'):
            return "an IPv4 address has four numbers"
        fault = read_decimal(cursor, 255, &octet)
        if fault is not NULL:
            return fault
        value[0] = value[0] << 8 | octet
    return NULL


cdef Fault read_dotted_tail(Cursor *cursor, uint16_t *groups, int *count) noexcept nogil:
    cdef uint32_t tail = 0
    cdef Fault fault
    if count[0] > 6:
        return "there are too many groups"
    fault = read_ipv4(cursor, &tail)
    if fault is NULL:
        groups[count[0]] = <uint16_t> (tail >> 16)
        groups[count[0] + 1] = <uint16_t> tail
        count[0] += 2
    return fault


cdef Fault read_groups(Cursor *cursor, uint16_t *groups, int *count, int *gap) noexcept nogil:
    """Read up to 8 groups; `gap` is the number of them before the `::`, -1 without one."""
    cdef const unsigned char *start
    cdef Fault fault
    if peek(cursor) == c':':
        cursor.at += 1
        if not skip(cursor, c':'):
            return "a single colon stands first"
        gap[0] = 0
    while hex_digit(peek(cursor)) >= 0 or count[0] != gap[0]:  # only `::` may stand last
        start = cursor.at
        fault = read_group(cursor, &groups[count[0]])
        if fault is not NULL:
            return fault
        if peek(cursor) == c'.':
            cursor.at = start
            return read_dotted_tail(cursor, groups, count)
        count[0] += 1
        if count[0] == 8 or not skip(cursor, c':'):
            return NULL
        if skip(cursor, c':'):
            if gap[0] >= 0:
                return "there are two '::'"
            gap[0] = count[0]
    return NULL


cdef Fault read_ipv6(Cursor *cursor, u128 *value) noexcept nogil:
    cdef uint16_t groups[8]
    cdef int count = 0, gap = -1, place
    cdef Fault fault = read_groups(cursor, groups, &count, &gap)
    if fault is not NULL:
        return fault
    if gap < 0 and count < 8:
        return "there are too few groups"
    if gap >= 0 and count == 8:
        return "the '::' stands for no group"
    value[0] = 0
    for place in range(count):
        if place == gap:
            value[0] <<= 16 * (8 - count)
        value[0] = value[0] << 16 | groups[place]
    if gap == count > 0:
        value[0] <<= 16 * (8 - count)
    return NULL


cdef Fault read_address(Cursor *cursor, Prefix *address) noexcept nogil:
    cdef uint32_t ipv4 = 0
    cdef Fault fault
    address.bits = address.length = 128
    if memchr(cursor.at, c':', <size_t> (cursor.end - cursor.at)) is not NULL:
        return read_ipv6(cursor, &address.value)
    address.bits = address.length = 32
    fault = read_ipv4(cursor, &ipv4)
    address.value = <u128> ipv4 << 96
    return fault


cdef Fault read_length(Cursor *cursor, Prefix *network) noexcept nogil:
    cdef uint32_t length = 0
    cdef Fault fault = read_decimal(cursor, <uint32_t> network.bits, &length)
    network.length = <int> length
    return fault


cdef Fault read_end(Cursor *cursor) noexcept nogil:
    if cursor.at == cursor.end:
        return NULL
    if peek(cursor) == c'%':
        return "a zone is not accepted"
    return "a length is not accepted" if peek(cursor) == c'/' else "more text follows"


cdef Cursor cursor_over(object text) except *:
    """Return a cursor that is valid as long as the text exists."""
    cdef Cursor cursor
    cdef Py_ssize_t size = 0
    if not isinstance(text, str):
        raise TypeError(f"an address is a str, not {type(text).__name__}")
    cursor.at = <const unsigned char *> utf8_of(text, &size)
    cursor.end = cursor.at + size
    return cursor


cdef Prefix parse_address(object text) except *:
    cdef Prefix address
    cdef Cursor cursor = cursor_over(text)
    cdef Fault fault = read_address(&cursor, &address)
    if fault is NULL:
        fault = read_end(&cursor)
    if fault is not NULL:
        raise ValueError(f"{text!r} is not an IP address: {fault.decode()}")
    return address


cdef Prefix parse_network(object text, bint bare_allowed) except *:
    """Parse a network; bits right of the length stay as they are."""
    cdef Prefix network
    cdef Cursor cursor = cursor_over(text)
    cdef Fault fault = read_address(&cursor, &network)
    if fault is NULL and skip(&cursor, c'/'):
        fault = read_length(&cursor, &network)
    elif fault is NULL and not bare_allowed and cursor.at == cursor.end:
        fault = "the length is missing"
    if fault is NULL:
        fault = read_end(&cursor)
    if fault is not NULL:
        raise ValueError(f"{text!r} is not a network: {fault.decode()}")
    return network


cdef char *put(char *at, char character) noexcept nogil:
    at[0] = character
    return at + 1


cdef char *put_digit(char *at, unsigned int digit) noexcept nogil:
    return put(at, <char> (c'0' + digit if digit < 10 else c'a' + digit - 10))


cdef char *put_decimal(char *at, unsigned int number) noexcept nogil:
    if number >= 100:
        at = put_digit(at, number // 100U)
    if number >= 10:
        at = put_digit(at, number // 10U % 10U)
    return put_digit(at, number % 10U)


cdef char *put_group(char *at, unsigned int group) noexcept nogil:
    cdef int shift = 12
    while shift and not group >> shift:
        shift -= 4
    while shift >= 0:
        at = put_digit(at, group >> shift & 15)
        shift -= 4
    return at


cdef char *put_ipv4(char *at, uint32_t value) noexcept nogil:
    cdef int shift
    for shift in range(24, -1, -8):
        at = put_decimal(at, value >> shift & 255)
        if shift:
            at = put(at, c'.')
    return at


cdef int longest_zeros(u128 value, int *start) noexcept nogil:
    """Return the length of the run of zero groups to leave out, or 0."""
    cdef int place, run = 0, longest = 1
    for place in range(8):
        run += 1
        if (value >> (112 - 16 * place)) & 0xFFFF:
            run = 0
        if run > longest:
            longest = run
            start[0] = place + 1 - run
    return longest if longest > 1 else 0


cdef char *put_ipv6(char *at, u128 value) noexcept nogil:
    cdef int place = 0, start = -1
    cdef int run = longest_zeros(value, &start)
    cdef bint mapped = value >> 32 == 0xFFFF
    while place < (6 if mapped else 8):
        if place == start:
            at = put(put(at, c':'), c':')
            place += run
            continue
        at = put_group(at, <unsigned int> (value >> (112 - 16 * place)) & 0xFFFF)
        place += 1
        if place < 8 and place != start:
            at = put(at, c':')
    return put_ipv4(at, <uint32_t> value) if mapped else at


cdef char *put_address(char *at, Prefix address) noexcept nogil:
    return put_ipv4(at, <uint32_t> (address.value >> 96)) if address.bits == 32 else put_ipv6(at, address.value)


cdef char *put_network(char *at, Prefix network) noexcept nogil:
    return put_decimal(put(put_address(at, network), c'/'), <unsigned int> network.length)

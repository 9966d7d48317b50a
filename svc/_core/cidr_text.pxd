"""The text of addresses and networks: a strict parser and the canonical printer."""

from svc._core.cidr_bits cimport Prefix

cdef enum:
    TEXT_SIZE = 50  # bytes of the longest text: 45 characters of address, a slash, 3 digits

# Parse a whole text. ValueError says what is wrong; TypeError if it is not a str.
cdef Prefix parse_address(object text) except *
cdef Prefix parse_network(object text, bint bare_allowed) except *  # bits right of the length stay as they are

# Write the text to `at`, which has TEXT_SIZE bytes, and return its end.
cdef char *put_address(char *at, Prefix address) noexcept nogil
cdef char *put_network(char *at, Prefix network) noexcept nogil

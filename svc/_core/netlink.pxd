"""Netlink bytes (RFC 3549): one growable buffer to write messages with, one bounds-checked cursor to read them with.

`Messages` is what goes into one send:

    messages.begin(RTM_NEWLINK, flags)      # message header, its length still 0
    messages.put(&header, sizeof(header))   # the fixed part of this kind of message
    messages.put_u32(IFLA_MTU, 1500)        # an attribute
    start = messages.begin_nest(IFLA_...)   # an attribute that holds attributes
    messages.end_nest(start)                # ... its length is written back
    messages.end("set link", ...)           # ... as is that of the message, which is now part of the batch

and a `Cursor` is what came from one receive:

    while next_message(&rest, &header, &body):
        ...take(&body, sizeof(fixed))...
        while next_attribute(&body, &kind, &value):
            ...

Rules:
1. A message that fails before its `end` leaves a draft behind `sealed`; the next `begin` overwrites it.
2. Only `reserve`, `patch` and `take` move a pointer, and they check first. All other functions call them.
3. Messages and attributes are padded to four bytes as they are written; read, the last padding may be missing.
"""

from libc.stdint cimport uint16_t, uint32_t

from svc._core.uapi cimport nlmsghdr

cdef enum:
    INLINE_ROOM = 2048  # bytes; the twelve messages of a dual-stack ADD are about 900


cdef class Messages:
    cdef unsigned char *data    # `small`, or a block of PyMem owned by this object, after that became too small
    cdef size_t room            # bytes that fit at `data`
    cdef size_t used            # bytes written, the unfinished message included
    cdef size_t sealed          # bytes of finished messages: what is sent
    cdef list labels            # (verb, target, prefix length, link index) of each finished message
    cdef unsigned char small[INLINE_ROOM]

    # The only growing place. The result is valid until the next call: `length` zeroed bytes and padding.
    cdef unsigned char *reserve(self, size_t length) except NULL
    cdef int put(self, const void *data, size_t length) except -1
    cdef int patch(self, size_t place, const void *data, size_t length) except -1

    # A message. What `end` is given makes the label.
    cdef int begin(self, uint16_t kind, uint16_t flags) except -1
    cdef int end(self, str verb, object target, int length, uint32_t index) except -1

    # Attributes. `begin_nest` returns the place to give to `end_nest`.
    cdef Py_ssize_t begin_nest(self, uint16_t kind) except -1
    cdef int end_nest(self, Py_ssize_t start) except -1
    cdef int put_attribute(self, uint16_t kind, const void *data, size_t length) except -1
    cdef int put_u32(self, uint16_t kind, uint32_t value) except -1
    cdef int put_bytes(self, uint16_t kind, bytes value) except -1
    cdef int put_text(self, uint16_t kind, bytes value) except -1   # NUL-terminated


cdef struct Cursor:
    const unsigned char *at     # the next byte; borrowed from the bytes object or buffer that was received
    size_t left                 # bytes that may be read from there


# The next `length` bytes. NetlinkError if fewer are left: all functions below read by it.
cdef const unsigned char *take(Cursor *cursor, size_t length) except NULL nogil

# The cursor over a bytes object, which must outlive it.
cdef Cursor over(bytes data)

# One message or attribute further: 1, or 0 at the end. `body` gets what follows the header.
cdef int next_message(Cursor *cursor, nlmsghdr *header, Cursor *body) except -1 nogil
cdef int next_attribute(Cursor *cursor, uint16_t *kind, Cursor *body) except -1 nogil

# The cursor behind the header of a bytes object that holds one message of one of two types.
cdef int open_message(bytes message, uint16_t kind, uint16_t or_kind, nlmsghdr *header, Cursor *body) except -1

# The value of an attribute.
cdef uint32_t as_u32(Cursor value) except? 0xffffffff
cdef bytes as_bytes(Cursor value)
cdef str as_text(Cursor value)      # up to its NUL

"""Netlink bytes: the buffer behind `Batch`, the cursor, the kernel's answers. See svc/_core/netlink.pxd."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EBADMSG
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

cimport svc._core.uapi as uapi
from svc._core.uapi cimport nlattr, nlmsghdr

cdef extern from "<arpa/inet.h>" nogil:
    const char *inet_ntop(int family, const void *address, char *text, uint32_t size)
    enum: INET6_ADDRSTRLEN

cdef enum:
    LONGEST_ATTRIBUTE = 0xffff  # bytes, header included: nla_len has 16 bits


class NetlinkError(OSError):
    """The kernel refused a message, or its reply could not be read."""

    __module__ = "svc._core.rtnl"  # where it is imported from

    index = -1
    label = ""
    message = ""
    offset = -1

    def __str__(self):
        text = f"{self.label}: {self.strerror}" if self.label else f"{self.strerror}"
        return f"{text} ({self.message})" if self.message else text


cdef inline size_t align(size_t length) noexcept nogil:
    """NLMSG_ALIGN, NLA_ALIGN"""
    return (length + 3) & ~<size_t>3


cdef class Messages:
    """Messages for one sendmsg, each with NLM_F_REQUEST | NLM_F_ACK and its index + 1 as sequence number."""

    def __cinit__(self):
        self.data = self.small
        self.room = INLINE_ROOM
        self.labels = []

    def __dealloc__(self):
        if self.data is not self.small:
            PyMem_Free(self.data)

    def __len__(self):
        return len(self.labels)

    def __bytes__(self):
        return (<char *>self.data)[:<Py_ssize_t>self.sealed]

    def clear(self):
        self.used = self.sealed = 0
        self.labels.clear()

    def label(self, Py_ssize_t index):
        """What message `index` does, in words: "create veth svc0123 (index 7)"."""
        verb, target, length, link = self.labels[index]
        if type(target) is bytes:
            target = f"{address_text(target)}/{length}"
        words = verb if target is None else f"{verb} {target}"
        return f"{words} (index {link})" if link else words

    cdef unsigned char *reserve(self, size_t length) except NULL:
        cdef size_t size = align(length), room = self.room
        cdef unsigned char *place
        if size > room - self.used:
            while size > room - self.used:
                room *= 2
            place = <unsigned char *>PyMem_Malloc(room)
            if place is NULL:
                raise MemoryError()
            memcpy(place, self.data, self.used)
            if self.data is not self.small:
                PyMem_Free(self.data)
            self.data, self.room = place, room
        place = self.data + self.used
        memset(place, 0, size)
        self.used += size
        return place

    cdef int put(self, const void *data, size_t length) except -1:
        memcpy(self.reserve(length), data, length)
        return 0

    cdef int patch(self, size_t place, const void *data, size_t length) except -1:
        if place + length > self.used:
            raise SystemError("patch outside the message")
        memcpy(self.data + place, data, length)
        return 0

    cdef int begin(self, uint16_t kind, uint16_t flags) except -1:
        cdef nlmsghdr header
        memset(&header, 0, sizeof(header))
        header.nlmsg_type = kind
        header.nlmsg_flags = flags | uapi.NLM_F_REQUEST | uapi.NLM_F_ACK
        header.nlmsg_seq = <uint32_t>len(self.labels) + 1
        self.used = self.sealed  # discards a draft that failed
        return self.put(&header, sizeof(header))

    cdef int end(self, str verb, object target, int length, uint32_t index) except -1:
        cdef uint32_t size = <uint32_t>(self.used - self.sealed)
        self.patch(self.sealed, &size, sizeof(size))
        self.labels.append((verb, target, length, index))
        self.sealed = self.used
        return 0

    cdef Py_ssize_t begin_nest(self, uint16_t kind) except -1:
        cdef Py_ssize_t start = <Py_ssize_t>self.used
        self.put_attribute(kind, NULL, 0)
        return start

    cdef int end_nest(self, Py_ssize_t start) except -1:
        cdef size_t size = self.used - <size_t>start
        cdef uint16_t short_size = <uint16_t>size
        if size > LONGEST_ATTRIBUTE:
            raise ValueError(f"an attribute of {size} bytes: netlink has room for {LONGEST_ATTRIBUTE}")
        return self.patch(<size_t>start, &short_size, sizeof(short_size))

    cdef int put_attribute(self, uint16_t kind, const void *data, size_t length) except -1:
        cdef nlattr header
        cdef size_t size = sizeof(header) + length
        if size > LONGEST_ATTRIBUTE:
            raise ValueError(f"an attribute of {size} bytes: netlink has room for {LONGEST_ATTRIBUTE}")
        header.nla_len = <uint16_t>size
        header.nla_type = kind
        self.put(&header, sizeof(header))
        if length:
            self.put(data, length)
        return 0

    cdef int put_u32(self, uint16_t kind, uint32_t value) except -1:
        return self.put_attribute(kind, &value, sizeof(value))

    cdef int put_bytes(self, uint16_t kind, bytes value) except -1:
        return self.put_attribute(kind, <const char *>value, <size_t>len(value))

    cdef int put_text(self, uint16_t kind, bytes value) except -1:
        return self.put_attribute(kind, <const char *>value, <size_t>len(value) + 1)  # a bytes object ends in a NUL


cdef str address_text(bytes address):
    cdef char text[INET6_ADDRSTRLEN]
    inet_ntop(uapi.AF_INET if len(address) == 4 else uapi.AF_INET6, <const char *>address, text, sizeof(text))
    return text.decode("ascii")


cdef int malformed(str text) except -1 with gil:
    raise NetlinkError(EBADMSG, text)


cdef const unsigned char *take(Cursor *cursor, size_t length) except NULL nogil:
    cdef const unsigned char *place = cursor.at
    if length > cursor.left:
        malformed("a message or attribute runs past the bytes received")
    cursor.at += length
    cursor.left -= length
    return place


cdef int next_message(Cursor *cursor, nlmsghdr *header, Cursor *body) except -1 nogil:
    if not cursor.left:
        return 0
    memcpy(header, take(cursor, sizeof(nlmsghdr)), sizeof(nlmsghdr))
    take_body(cursor, header.nlmsg_len, sizeof(nlmsghdr), body)
    return 1


cdef int next_attribute(Cursor *cursor, uint16_t *kind, Cursor *body) except -1 nogil:
    cdef nlattr header
    if not cursor.left:
        return 0
    memcpy(&header, take(cursor, sizeof(header)), sizeof(header))
    take_body(cursor, header.nla_len, sizeof(header), body)
    kind[0] = header.nla_type & <uint16_t>uapi.NLA_TYPE_MASK
    return 1


cdef int take_body(Cursor *cursor, size_t length, size_t header, Cursor *body) except -1 nogil:
    """Set `body` to the bytes that a length field counts after its header; skip the padding if it exists."""
    if length < header:
        malformed("a message or attribute is shorter than its header")
    body.left = length - header
    body.at = take(cursor, body.left)
    take(cursor, min(align(length) - length, cursor.left))
    return 0


cdef uint32_t as_u32(Cursor value) except? 0xffffffff:
    cdef uint32_t number = 0
    memcpy(&number, take(&value, sizeof(number)), sizeof(number))
    return number


cdef bytes as_bytes(Cursor value):
    return (<const char *>value.at)[:<Py_ssize_t>value.left]


cdef str as_text(Cursor value):
    return as_bytes(value).partition(b"\0")[0].decode("utf-8", "replace")


cdef int open_message(bytes message, uint16_t kind, uint16_t or_kind, nlmsghdr *header, Cursor *body) except -1:
    cdef Cursor rest = over(message)
    if not next_message(&rest, header, body):
        malformed("no message in the bytes received")
    if header.nlmsg_type != kind and header.nlmsg_type != or_kind:
        malformed(f"a message of type {header.nlmsg_type}, not {kind} or {or_kind}")
    return 0


cdef Cursor over(bytes data):
    cdef Cursor cursor
    cursor.at = <const unsigned char *><const char *>data
    cursor.left = <size_t>len(data)
    return cursor


def split(bytes data not None):
    """A received datagram as (message type, sequence number, message with header)."""
    cdef Cursor rest = over(data), body
    cdef nlmsghdr header
    messages = []
    start = 0
    while next_message(&rest, &header, &body):
        messages.append((header.nlmsg_type, header.nlmsg_seq, data[start:start + header.nlmsg_len]))
        start = len(data) - <Py_ssize_t>rest.left
    return messages


def unpack_ack(bytes message not None):
    """NLMSG_ERROR, or the NLMSG_DONE of a dump: (errno, extended-ack text, offset in the message refused or -1)."""
    cdef nlmsghdr header, refused
    cdef Cursor rest, value
    cdef uint16_t kind = 0
    cdef int32_t code = 0
    text, offset = "", -1
    open_message(message, uapi.NLMSG_ERROR, uapi.NLMSG_DONE, &header, &rest)
    memcpy(&code, take(&rest, sizeof(code)), sizeof(code))
    if header.nlmsg_type == uapi.NLMSG_ERROR:
        memcpy(&refused, take(&rest, sizeof(refused)), sizeof(refused))
        if not header.nlmsg_flags & uapi.NLM_F_CAPPED:
            take_body(&rest, refused.nlmsg_len, sizeof(refused), &value)
    if header.nlmsg_flags & uapi.NLM_F_ACK_TLVS:
        while next_attribute(&rest, &kind, &value):
            if kind == uapi.NLMSGERR_ATTR_MSG:
                text = as_text(value)
            elif kind == uapi.NLMSGERR_ATTR_OFFS:
                offset = as_u32(value)
    return -<int64_t>code, text, offset  # the smallest number has no opposite of its own type

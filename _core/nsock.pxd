"""The fields of what nsock.pyx keeps open. Its system calls are in syscalls.pxd."""

cdef enum:
    ACK_ROOM = 8192             # bytes of an answer: some 40, and the text of a refusal
    REPLY_ROOM = 32768          # bytes of a datagram of replies: the most the kernel fills at once
    VISITS_OF_INSTANCE = 64     # to make one costs 0.1 ms and more, to look up a file 0.01 and 0.4 behind 1000 others


cdef struct Exchange:
    size_t due                  # answers that are still to come
    int code                    # 0, or the negative errno it broke off with
    int last                    # what the last answer says: 0, or a negative errno
    size_t refused              # bytes of the first refusal at `refusal`, 0 when there is none
    unsigned char refusal[ACK_ROOM]


cdef class Procfs:
    cdef int fd                 # of the instance, owned; -1 before the first visit and when closed
    cdef unsigned int visits    # of this instance and those before it

    cdef int folder(self) except -1
    cpdef close(self)


cdef class Socket:
    cdef int fd                 # owned; -1 when closed
    cdef bint clean             # no answer of an earlier exchange can be waiting
    cdef double timeout         # seconds
    cdef object lock            # held for an exchange

    cdef int prepare(self) except -1
    cdef bytes receive_reply(self, bytearray buffer)
    cdef object trouble(self, ssize_t code)


cdef class LinkMonitor:
    cdef int fd                 # owned; -1 when closed
    cdef int waker              # an eventfd, owned; -1 when closed
    cdef bint closing
    cdef bint lost              # the kernel dropped notifications: the next `wait` says so
    cdef object lock            # held while waiting
    cdef unsigned char buffer[REPLY_ROOM]

    cdef void release(self) noexcept
    cdef list read_deleted(self)

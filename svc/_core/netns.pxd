"""The fields of the objects in netns.pyx. The system calls are in syscalls.pxd."""

from svc._core.netlink cimport Cursor

cdef enum:
    ACK_ROOM = 8192             # bytes of an answer: some 40, and the text of a refusal
    REPLY_ROOM = 32768          # bytes of a datagram of replies: the most the kernel fills at once
    MOST_AT_ONCE = 1000         # messages of one send: their acks, some 800 bytes each in the kernel, fit into a socket
    USES_OF_INSTANCE = 64       # creating one takes 0.1 ms or more; opening a file 0.01 ms, with 1000 namespaces 0.4 ms


cdef struct Exchange:
    size_t due                  # answers that are still to come
    int code                    # 0, or the negative errno that ended it early
    int last                    # code of the last answer: 0, or a negative errno
    size_t refused              # bytes of the first refusal in `refusal`, 0 if there is none
    unsigned char refusal[ACK_ROOM]


cdef class Procfs:
    cdef int fd                 # of the instance, owned; -1 before the first use and when closed
    cdef unsigned int uses      # of this instance and those before it
    cdef bytes folder           # with the same files, if there can be no instance

    cdef int open(self) except -1
    cpdef close(self)


cdef class Socket:
    cdef int fd                 # owned; -1 when closed
    cdef bint clean             # no answer of an earlier exchange can be waiting
    cdef double timeout         # seconds
    cdef object lock            # held for an exchange

    cdef int prepare(self) except -1
    cdef bytes ask(self, Cursor question, bytearray buffer)
    cdef object trouble(self, ssize_t code)


cdef class LinkMonitor:
    cdef int fd                 # owned; -1 when closed
    cdef int waker              # an eventfd, owned; -1 when closed
    cdef bint closing
    cdef bint lost              # the kernel dropped notifications: the next `wait` raises ENOBUFS
    cdef object lock            # held while waiting
    cdef unsigned char buffer[REPLY_ROOM]

    cdef void release(self) noexcept
    cdef list read_deleted(self)

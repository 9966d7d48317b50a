"""The system calls of the core, in the shapes that netns.pyx uses.

Nothing here needs the GIL or raises. A function returns 0, or the result that its comment names, or a negative errno.
"""

from libc.stdint cimport uint32_t

cdef enum:
    SYSCTL_ROOM = 256           # bytes of a value: those of network interfaces are shorter

cdef struct Sysctl:
    const char *path            # absolute, or relative to the directory that `access_sysctls` gets; borrowed
    int error                   # the outcome for this file: 0 or a negative errno
    size_t length               # of the value in `text`
    char text[SYSCTL_ROOM]

# Network namespaces. `is_netns` returns 0 or 1.
cdef int open_own_netns() noexcept nogil    # a descriptor
cdef int switch_netns(int ns_fd) noexcept nogil
cdef int is_netns(int fd) noexcept nogil

# Sysctls. `access_sysctls` enters the namespace (-1: stays). It stops at a failure, but not at a missing file to read.
# Without a failure it opens a netlink socket there too, if `netlink` is not NULL: a descriptor or a negative errno.
cdef int open_directory(const char *path) noexcept nogil    # a descriptor
cdef int open_sysctls() noexcept nogil                      # of `sys` in an own procfs that is not mounted (Linux 5.8)
cdef int access_sysctls(
    int ns_fd, int directory, Sysctl *files, size_t count, bint writing, int *netlink
) noexcept nogil

# Netlink sockets. A socket that was opened in a namespace (-1: that of the thread) stays in it.
cdef int open_netlink(int ns_fd) noexcept nogil             # a descriptor
cdef int set_netlink_option(int fd, int option) noexcept nogil
cdef int set_receive_timeout(int fd, double seconds) noexcept nogil
cdef int join_groups(int fd, uint32_t groups) noexcept nogil
cdef int filter_dellink(int fd) noexcept nogil
cdef int read_carrier(int fd, const char *name) noexcept nogil  # 1 or 0, of the link with this name
cdef int send_all(int fd, const void *data, size_t length) noexcept nogil
cdef ssize_t receive(int fd, void *buffer, size_t room, bint blocking) noexcept nogil   # the length of one datagram

# Waiting. `wait_readable` returns if `fd` or `waker` is readable, at the timeout, or after a signal.
cdef int open_waker() noexcept nogil                        # a descriptor of a non-blocking eventfd
cdef int wait_readable(int fd, int waker, int milliseconds) noexcept nogil

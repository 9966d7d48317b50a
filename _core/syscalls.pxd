"""Every system call of the core: as the C library declares them, and in the few shapes that nsock.pyx uses.

Inline C without the interpreter: nothing here needs the GIL or can raise. A function returns 0 (or what it promises) or
a negative errno.

A thread enters a namespace and comes back inside one of these functions, so no Python code, no garbage collection and
no exception can happen while it is away. If the way back fails the process ends: a thread left in a pod's namespace
would go on to do the host's work there.
"""

from libc.errno cimport EINTR, EMSGSIZE, ENOENT, ENOTTY, EOVERFLOW, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport abort
from libc.string cimport memset, strlen
from posix.types cimport dev_t, ino_t

cimport svc._core.uapi as uapi


cdef extern from "<sched.h>" nogil:
    int setns(int fd, int kind)
    enum: CLONE_NEWNET


cdef extern from "<linux/nsfs.h>" nogil:
    enum: NS_GET_NSTYPE


cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request)


cdef extern from "<sys/stat.h>" nogil:
    struct stat_record "stat":
        dev_t st_dev
        ino_t st_ino
    int fstat(int fd, stat_record *record)


cdef extern from "<unistd.h>" nogil:
    enum: STDERR_FILENO
    int close(int fd)
    ssize_t read(int fd, void *data, size_t length)
    ssize_t write(int fd, const void *data, size_t length)
    int dup(int fd)
    long syscall(long number, ...)


cdef extern from "<fcntl.h>" nogil:
    int openat(int folder, const char *path, int flags)
    enum: AT_FDCWD
    enum: O_RDONLY
    enum: O_WRONLY
    enum: O_DIRECTORY
    enum: O_CLOEXEC


cdef extern from "<sys/time.h>" nogil:
    struct timeval:
        long tv_sec
        long tv_usec


cdef extern from "<sys/socket.h>" nogil:
    struct sockaddr:
        pass
    int socket(int family, int kind, int protocol)
    int bind(int fd, const sockaddr *address, unsigned int length)
    int setsockopt(int fd, int level, int option, const void *value, unsigned int length)
    ssize_t send(int fd, const void *data, size_t length, int flags)
    ssize_t recv(int fd, void *data, size_t length, int flags)
    enum: SOCK_RAW
    enum: SOCK_CLOEXEC
    enum: SOL_SOCKET
    enum: SOL_NETLINK
    enum: SO_RCVBUFFORCE
    enum: SO_RCVTIMEO
    enum: SO_ATTACH_FILTER
    enum: MSG_DONTWAIT
    enum: MSG_TRUNC


cdef extern from "<linux/netlink.h>" nogil:
    struct sockaddr_nl:
        uint16_t nl_family
        uint32_t nl_groups


cdef extern from "<arpa/inet.h>" nogil:
    uint16_t htons(uint16_t number)


cdef extern from "<linux/filter.h>" nogil:
    struct sock_filter:
        uint16_t code
        uint8_t jt              # instructions to skip when the comparison holds
        uint8_t jf              # ... and when it does not
        uint32_t k
    struct sock_fprog:
        uint16_t len
        sock_filter *filter
    enum: BPF_LD
    enum: BPF_H
    enum: BPF_B
    enum: BPF_ABS
    enum: BPF_JMP
    enum: BPF_JEQ
    enum: BPF_K
    enum: BPF_RET


cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int value, int flags)
    enum: EFD_CLOEXEC
    enum: EFD_NONBLOCK


cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *descriptors, unsigned long count, int milliseconds)
    enum: POLLIN


cdef enum:
    SYSCTL_ROOM = 4096          # bytes of a value: /proc gives no more than a page
    RECEIVE_BUFFER = 2 << 20    # bytes; an answer takes some 800, and a batch as large as the kernel takes has 4,000


cdef struct Sysctl:
    const char *path            # absolute; borrowed
    int error                   # what became of this file: 0 or -errno
    size_t length               # of the value at `text`
    char text[SYSCTL_ROOM]


# --- namespaces

cdef inline int open_home() noexcept nogil:
    """A descriptor of the namespace this thread is in."""
    cdef int fd = openat(AT_FDCWD, "/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)
    return fd if fd >= 0 else -errno


cdef inline int move(int ns_fd) noexcept nogil:
    return 0 if setns(ns_fd, CLONE_NEWNET) == 0 else -errno


cdef inline int enter(int ns_fd, int *home) noexcept nogil:
    """Moves this thread into the namespace (-1: it stays). When this went well, `leave` must follow with `home`."""
    cdef int code
    home[0] = -1
    if ns_fd == -1:
        return 0
    home[0] = open_home()
    if home[0] < 0:
        return home[0]
    code = move(ns_fd)
    if code:
        close(home[0])
    return code


cdef inline void leave(int home) noexcept nogil:
    cdef const char *words = b"svc: a thread cannot leave the network namespace of a pod\n"
    if home == -1:
        return
    if move(home):
        write(STDERR_FILENO, words, strlen(words))
        abort()
    close(home)


cdef inline int namespace_kind(int fd) noexcept nogil:
    """CLONE_NEWNET and the like; 0 when the descriptor is of something else."""
    cdef int kind = ioctl(fd, NS_GET_NSTYPE)
    return kind if kind >= 0 else 0 if errno == ENOTTY else -errno


# --- sysctls

cdef enum:  # of <sys/syscall.h> and <linux/mount.h>, which older C libraries lack; the same on every machine
    SYS_FSOPEN = 430
    SYS_FSCONFIG = 431
    SYS_FSMOUNT = 432
    FSOPEN_CLOEXEC = 1
    FSMOUNT_CLOEXEC = 1
    FSCONFIG_CMD_CREATE = 6


cdef inline int open_folder(const char *path) noexcept nogil:
    cdef int fd = openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    return fd if fd >= 0 else -errno


cdef inline int open_procfs() noexcept nogil:
    """An instance of procfs that is mounted nowhere (Linux 5.8)."""
    cdef int code = 0, context = <int>syscall(SYS_FSOPEN, b"proc", FSOPEN_CLOEXEC)
    if context < 0:
        return -errno
    if syscall(SYS_FSCONFIG, context, FSCONFIG_CMD_CREATE, 0, 0, 0) == 0:
        code = <int>syscall(SYS_FSMOUNT, context, FSMOUNT_CLOEXEC, 0)
    else:
        code = -1
    if code < 0:
        code = -errno
    close(context)
    return code


cdef inline int visit(int ns_fd, int folder, Sysctl *files, size_t count, bint writing) noexcept nogil:
    """Writes or reads each file inside the namespace, up to the first failure other than a missing file to read."""
    cdef int home = -1, code = enter(ns_fd, &home)
    cdef size_t i
    if code:
        return code
    for i in range(count):
        files[i].error = write_file(folder, &files[i]) if writing else read_file(folder, &files[i])
        if files[i].error and (writing or files[i].error != -ENOENT):
            break
    leave(home)
    return 0


cdef inline int write_file(int folder, Sysctl *file) noexcept nogil:
    cdef int code = 0, fd = openat(folder, file.path, O_WRONLY | O_CLOEXEC)
    if fd < 0:
        return -errno
    while write(fd, file.text, file.length) < 0:
        if errno != EINTR:
            code = -errno
            break
    close(fd)
    return code


cdef inline int read_file(int folder, Sysctl *file) noexcept nogil:
    cdef int code, fd = openat(folder, file.path, O_RDONLY | O_CLOEXEC)
    cdef ssize_t got
    if fd < 0:
        return -errno
    got = read(fd, file.text, SYSCTL_ROOM)
    while got < 0 and errno == EINTR:
        got = read(fd, file.text, SYSCTL_ROOM)
    code = -errno if got < 0 else -EOVERFLOW if got == SYSCTL_ROOM else 0
    file.length = 0 if code else <size_t>got
    close(fd)
    return code


# --- netlink sockets

cdef inline int set_option(int fd, int level, int option, const void *value, unsigned int length) noexcept nogil:
    return 0 if setsockopt(fd, level, option, value, length) == 0 else -errno


cdef inline int open_netlink(int ns_fd) noexcept nogil:
    """A NETLINK_ROUTE socket of the namespace: it stays in there, the thread does not."""
    cdef int home = -1, size = RECEIVE_BUFFER, fd, code = enter(ns_fd, &home)
    if code:
        return code
    fd = socket(uapi.AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, uapi.NETLINK_ROUTE)
    code = fd if fd >= 0 else -errno
    leave(home)
    # Best effort: without CAP_NET_ADMIN the usual size remains, and it serves for questions.
    set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size))
    return code


cdef inline int join_groups(int fd, uint32_t groups) noexcept nogil:
    cdef sockaddr_nl address
    memset(&address, 0, sizeof(address))
    address.nl_family = uapi.AF_NETLINK
    address.nl_groups = groups
    return 0 if bind(fd, <sockaddr *>&address, sizeof(address)) == 0 else -errno


cdef inline int hear_deletions_only(int fd) noexcept nogil:
    """The kernel runs this filter before anything is queued."""
    cdef sock_filter program[6]
    cdef sock_fprog filter
    # A load reads big-endian, the header is in host order: so the constant is turned.
    program[0] = [BPF_LD | BPF_H | BPF_ABS, 0, 0, 4]                                # nlmsg_type
    program[1] = [BPF_JMP | BPF_JEQ | BPF_K, 0, 3, htons(uapi.RTM_DELLINK)]
    program[2] = [BPF_LD | BPF_B | BPF_ABS, 0, 0, sizeof(uapi.nlmsghdr)]            # ifi_family
    program[3] = [BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0]                               # AF_BRIDGE: a port left its bridge
    program[4] = [BPF_RET | BPF_K, 0, 0, 0xffffffff]
    program[5] = [BPF_RET | BPF_K, 0, 0, 0]
    filter.len, filter.filter = 6, program
    return set_option(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter))


cdef inline int send_all(int fd, const void *data, size_t length) noexcept nogil:
    while send(fd, data, length, 0) < 0:  # a datagram: all of it or nothing
        if errno != EINTR:
            return -errno
    return 0


cdef inline ssize_t receive(int fd, void *buffer, size_t room, int flags) noexcept nogil:
    """The length of one datagram."""
    cdef ssize_t got = recv(fd, buffer, room, flags | MSG_TRUNC)
    while got < 0 and errno == EINTR:
        got = recv(fd, buffer, room, flags | MSG_TRUNC)
    if got < 0:
        return -errno
    return got if <size_t>got <= room else -EMSGSIZE


# --- waiting

cdef inline int wait_readable(int fd, int waker, int milliseconds) noexcept nogil:
    """Returns when `fd` can be read, `waker` was written, the time is over or a signal came."""
    cdef pollfd ready[2]
    ready[0].fd, ready[0].events = fd, POLLIN
    ready[1].fd, ready[1].events = waker, POLLIN
    if poll(ready, 2, milliseconds) < 0 and errno != EINTR:
        return -errno
    return 0

"""Every system call of the core.

A thread enters a namespace and leaves it within one of these functions. So no Python code, no garbage collection and no
exception can happen in between. If it cannot leave, the process is aborted: a thread that stays in a pod's namespace
would do the host's work there.
"""

from libc.errno cimport EINTR, EMSGSIZE, ENOENT, ENOTTY, EOVERFLOW, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport abort
from libc.string cimport memset, strlen, strncpy
from posix.fcntl cimport AT_FDCWD, O_CLOEXEC, O_DIRECTORY, O_RDONLY, O_WRONLY, openat
from posix.ioctl cimport ioctl
from posix.time cimport suseconds_t, time_t, timeval
from posix.unistd cimport STDERR_FILENO, close, read, write

cimport svc._core.uapi as uapi


cdef extern from "<sched.h>" nogil:
    int setns(int fd, int kind)
    enum: CLONE_NEWNET


cdef extern from "<linux/nsfs.h>" nogil:
    enum: NS_GET_NSTYPE


cdef extern from "<unistd.h>" nogil:
    long syscall(long number, ...)


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


cdef extern from "<linux/if.h>" nogil:
    struct ifreq:
        char *ifr_name
        char *ifr_data
    enum: IFNAMSIZ


cdef extern from "<linux/ethtool.h>" nogil:
    struct ethtool_value:
        uint32_t cmd
        uint32_t data
    enum: ETHTOOL_GLINK


cdef extern from "<linux/sockios.h>" nogil:
    enum: SIOCETHTOOL


cdef extern from "<arpa/inet.h>" nogil:
    uint16_t htons(uint16_t number)


cdef extern from "<linux/filter.h>" nogil:
    struct sock_filter:
        uint16_t code
        uint8_t jt              # instructions to skip if the comparison is true
        uint8_t jf              # ... and if it is false
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


cdef enum:  # of <sys/syscall.h> and <linux/mount.h>, which older C libraries lack; the same on every machine
    SYS_FSOPEN = 430
    SYS_FSCONFIG = 431
    SYS_FSMOUNT = 432
    FSOPEN_CLOEXEC = 1
    FSMOUNT_CLOEXEC = 1
    FSCONFIG_CMD_CREATE = 6


cdef enum:
    RECEIVE_BUFFER = 2 << 20    # bytes; an answer takes some 800, and the largest batch of the kernel has 4,000


cdef int checked(int result) noexcept nogil:
    return result if result >= 0 else -errno


# --- namespaces

cdef int open_own_netns() noexcept nogil:
    return checked(openat(AT_FDCWD, "/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC))


cdef int switch_netns(int ns_fd) noexcept nogil:
    return checked(setns(ns_fd, CLONE_NEWNET))


cdef int enter(int ns_fd, int *home) noexcept nogil:
    """Move this thread into the namespace (-1: it stays). After success `leave` must follow with `home`."""
    cdef int code
    home[0] = -1
    if ns_fd == -1:
        return 0
    home[0] = open_own_netns()
    if home[0] < 0:
        return home[0]
    code = switch_netns(ns_fd)
    if code:
        close(home[0])
    return code


cdef void leave(int home) noexcept nogil:
    cdef const char *words = b"svc: a thread cannot leave the network namespace of a pod\n"
    if home == -1:
        return
    if switch_netns(home):
        write(STDERR_FILENO, words, strlen(words))
        abort()
    close(home)


cdef int is_netns(int fd) noexcept nogil:
    cdef int kind = ioctl(fd, NS_GET_NSTYPE)
    if kind < 0 and errno != ENOTTY:  # ENOTTY: a descriptor of something else
        return -errno
    return kind == CLONE_NEWNET


# --- sysctls

cdef int open_directory(const char *path) noexcept nogil:
    return checked(openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC))


cdef int open_sysctls() noexcept nogil:
    cdef int root = -1, code = 0, context = <int> syscall(SYS_FSOPEN, b"proc", FSOPEN_CLOEXEC)
    if context < 0:
        return -errno
    code = <int> syscall(SYS_FSCONFIG, context, FSCONFIG_CMD_CREATE, 0, 0, 0)
    if code == 0:
        code = root = <int> syscall(SYS_FSMOUNT, context, FSMOUNT_CLOEXEC, 0)
    if code >= 0:
        code = openat(root, "sys", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        code = checked(code)
        close(root)
    else:
        code = -errno
    close(context)
    return code


cdef int access_sysctls(
    int ns_fd, int directory, Sysctl *files, size_t count, bint writing, int *netlink
) noexcept nogil:
    cdef int home = -1, code = enter(ns_fd, &home)
    if code:
        return code
    if access_files(directory, files, count, writing) and netlink is not NULL:
        netlink[0] = netlink_socket()
    leave(home)
    return 0


cdef bint access_files(int directory, Sysctl *files, size_t count, bint writing) noexcept nogil:
    """Return False after a failure."""
    cdef size_t i
    for i in range(count):
        files[i].error = write_file(directory, &files[i]) if writing else read_file(directory, &files[i])
        if files[i].error and (writing or files[i].error != -ENOENT):
            return False
    return True


cdef int write_file(int directory, Sysctl *file) noexcept nogil:
    cdef int code = 0, fd = openat(directory, file.path, O_WRONLY | O_CLOEXEC)
    if fd < 0:
        return -errno
    while write(fd, file.text, file.length) < 0:
        if errno != EINTR:
            code = -errno
            break
    close(fd)
    return code


cdef int read_file(int directory, Sysctl *file) noexcept nogil:
    cdef int code, fd = openat(directory, file.path, O_RDONLY | O_CLOEXEC)
    cdef ssize_t got
    if fd < 0:
        return -errno
    got = read(fd, file.text, SYSCTL_ROOM)
    while got < 0 and errno == EINTR:
        got = read(fd, file.text, SYSCTL_ROOM)
    code = -errno if got < 0 else -EOVERFLOW if got == SYSCTL_ROOM else 0
    file.length = 0 if code else <size_t> got
    close(fd)
    return code


# --- netlink sockets

cdef int set_option(int fd, int level, int option, const void *value, unsigned int length) noexcept nogil:
    return checked(setsockopt(fd, level, option, value, length))


cdef int open_netlink(int ns_fd) noexcept nogil:
    cdef int home = -1, code = enter(ns_fd, &home)
    if code:
        return code
    code = netlink_socket()
    leave(home)
    return code


cdef int netlink_socket() noexcept nogil:
    cdef int size = RECEIVE_BUFFER, fd = checked(socket(uapi.AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, uapi.NETLINK_ROUTE))
    # Best effort: without CAP_NET_ADMIN the default size remains, which suffices for queries.
    set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size))
    return fd


cdef int set_netlink_option(int fd, int option) noexcept nogil:
    cdef int on = 1
    return set_option(fd, SOL_NETLINK, option, &on, sizeof(on))


cdef int set_receive_timeout(int fd, double seconds) noexcept nogil:
    cdef timeval limit
    limit.tv_sec = <time_t> seconds
    limit.tv_usec = <suseconds_t> ((seconds - <double> limit.tv_sec) * 1000000)
    return set_option(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit))


cdef int join_groups(int fd, uint32_t groups) noexcept nogil:
    cdef sockaddr_nl address
    memset(&address, 0, sizeof(address))
    address.nl_family = uapi.AF_NETLINK
    address.nl_groups = groups
    return checked(bind(fd, <sockaddr *> &address, sizeof(address)))


cdef int filter_dellink(int fd) noexcept nogil:
    """Attach a filter that the kernel runs before it queues a message."""
    cdef sock_filter program[6]
    cdef sock_fprog filter
    # A load reads big-endian, the header is in host order: so the constant is swapped.
    program[0] = [BPF_LD | BPF_H | BPF_ABS, 0, 0, 4]                                # nlmsg_type
    program[1] = [BPF_JMP | BPF_JEQ | BPF_K, 0, 3, htons(uapi.RTM_DELLINK)]
    program[2] = [BPF_LD | BPF_B | BPF_ABS, 0, 0, sizeof(uapi.nlmsghdr)]            # ifi_family
    program[3] = [BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0]                               # AF_BRIDGE: a port left its bridge
    program[4] = [BPF_RET | BPF_K, 0, 0, 0xffffffff]
    program[5] = [BPF_RET | BPF_K, 0, 0, 0]
    filter.len, filter.filter = 6, program
    return set_option(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter))


cdef int read_carrier(int fd, const char *name) noexcept nogil:
    cdef ethtool_value value
    cdef ifreq request
    memset(&request, 0, sizeof(request))
    strncpy(request.ifr_name, name, IFNAMSIZ - 1)
    value.cmd = ETHTOOL_GLINK
    request.ifr_data = <char *> &value
    return checked(ioctl(fd, SIOCETHTOOL, &request)) or <int>value.data


cdef int send_all(int fd, const void *data, size_t length) noexcept nogil:
    while send(fd, data, length, 0) < 0:  # a datagram: all of it or nothing
        if errno != EINTR:
            return -errno
    return 0


cdef ssize_t receive(int fd, void *buffer, size_t room, bint blocking) noexcept nogil:
    cdef int flags = MSG_TRUNC if blocking else MSG_TRUNC | MSG_DONTWAIT
    cdef ssize_t got = recv(fd, buffer, room, flags)
    while got < 0 and errno == EINTR:
        got = recv(fd, buffer, room, flags)
    if got < 0:
        return -errno
    return got if <size_t> got <= room else -EMSGSIZE


# --- waiting

cdef int open_waker() noexcept nogil:
    return checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))


cdef int wait_readable(int fd, int waker, int milliseconds) noexcept nogil:
    cdef pollfd ready[2]
    ready[0].fd, ready[0].events = fd, <short> POLLIN
    ready[1].fd, ready[1].events = waker, <short> POLLIN
    if poll(ready, 2, milliseconds) < 0 and errno != EINTR:
        return -errno
    return 0

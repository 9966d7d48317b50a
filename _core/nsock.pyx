"""What the core asks of the kernel: netlink sockets inside a namespace, sysctls, identities.

The only file that makes system calls, by way of syscalls.pxd.

A batch goes out in one sendmsg, except that a message which creates a link ends a part: what follows speaks of the new
link by an index that, had the creation been refused, might be somebody else's.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, EMSGSIZE, ENOBUFS, ENOENT, ETIMEDOUT, errno
from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcpy

cimport svc._core.syscalls as calls
cimport svc._core.uapi as uapi
from svc._core.netlink cimport Cursor, next_message, over, take
from svc._core.rtnl cimport Batch
from svc._core.syscalls cimport Sysctl
from svc._core.uapi cimport ifinfomsg, nlmsghdr

from os import strerror
from threading import Lock

from svc._core.netlink import NetlinkError, split, unpack_ack

cdef enum:
    LONGEST_WAIT = 0x7fffffff   # milliseconds, of poll


cdef int check(ssize_t result, str path=None) except -1:
    """The result of a system call; OSError when it is a negative errno."""
    cdef int code = <int>-result
    if result < 0:
        raise OSError(code, strerror(code), path) if path else OSError(code, strerror(code))
    return <int>result


# --- namespaces

def self_check():
    """Raises OSError when this process may not enter network namespaces."""
    cdef int home = check(calls.open_home())
    cdef int code = calls.move(home)  # to where it is: only the permission is asked for
    calls.close(home)
    check(code)


def netns_identity(int fd):
    """(device, inode) of a network namespace."""
    cdef calls.stat_record record
    if check(calls.namespace_kind(fd)) != calls.CLONE_NEWNET:
        raise ValueError(f"descriptor {fd} is no network namespace")
    if calls.fstat(fd, &record) != 0:
        check(-errno)
    return record.st_dev, record.st_ino


def own_netns_identity():
    cdef int home = check(calls.open_home())
    try:
        return netns_identity(home)
    finally:
        calls.close(home)


# --- sysctls

cdef bytes sysctl_path(str path):
    if not path or ".." in path.split("/") or path[0] == "/" or "\0" in path:
        raise ValueError(f"no path below /proc/sys: {path!r}")
    return b"/proc/sys/" + path.encode()


@cython.final
cdef class Procfs:
    """/proc, or where the kernel allows it an instance of our own, made anew every VISITS_OF_INSTANCE visits.

    The kernel keeps an entry of a file for every namespace in which somebody opened it, all in one chain of its table.
    """

    def __cinit__(self):
        self.fd = -1
        self.visits = 0

    def __dealloc__(self):
        self.close()

    cdef int folder(self) except -1:
        """A descriptor for one visit, the caller's to close: the instance may be replaced meanwhile."""
        cdef int fresh
        if self.visits % VISITS_OF_INSTANCE == 0:
            with nogil:
                fresh = calls.open_procfs()
            if fresh < 0:
                fresh = check(calls.open_folder(b"/proc"))
            self.close()
            self.fd = fresh
        self.visits += 1
        fresh = calls.dup(self.fd)
        return fresh if fresh >= 0 else check(-errno)

    cpdef close(self):
        if self.fd >= 0:
            calls.close(self.fd)
        self.fd = -1
        self.visits = 0


cdef Sysctl *make_files(list paths, size_t skipped) except NULL:
    """Paths without their first bytes; borrowed: the list must outlive the result, which PyMem_Free frees."""
    cdef Sysctl *files = <Sysctl *>PyMem_Malloc((len(paths) + 1) * sizeof(Sysctl))
    if files is NULL:
        raise MemoryError()
    for i, path in enumerate(paths):
        files[i].path, files[i].error, files[i].length = <const char *><bytes>path + skipped, 0, 0
    return files


def write_sysctls(int ns_fd, items, Procfs procfs=None):
    """Writes each (path below /proc/sys, value) inside the namespace, in order, up to the first failure."""
    visit(ns_fd, list(items), True, procfs)


def read_sysctls(int ns_fd, paths, Procfs procfs=None):
    """The values, white space stripped; None where the file does not exist."""
    return visit(ns_fd, [(path, "") for path in paths], False, procfs)


cdef list visit(int ns_fd, list items, bint writing, Procfs procfs):
    cdef list paths = [sysctl_path(path) for path, _ in items]
    cdef Sysctl *files = make_files(paths, 0 if procfs is None else len(b"/proc/"))
    cdef size_t count = <size_t>len(paths)
    cdef int code, folder = -1
    try:
        if procfs is not None:
            folder = procfs.folder()
        for i, (path, value) in enumerate(items):
            put_value(&files[i], path, value.encode())
        with nogil:
            code = calls.visit(ns_fd, folder, files, count, writing)
        check(code)
        return [get_value(&files[i], path, writing) for i, (path, _) in enumerate(items)]
    finally:
        PyMem_Free(files)
        if folder >= 0:
            calls.close(folder)


cdef int put_value(Sysctl *file, str path, bytes value) except -1:
    if len(value) > calls.SYSCTL_ROOM:
        raise ValueError(f"a value of {len(value)} bytes for {path!r}")
    file.length = <size_t>len(value)
    memcpy(file.text, <const char *>value, file.length)
    return 0


cdef object get_value(Sysctl *file, str path, bint written):
    if file.error == -ENOENT and not written:
        return None
    check(file.error, path)
    return file.text[:file.length].decode().strip()


# --- netlink sockets

cdef int exchange(int fd, Cursor batch, Exchange *state) except -1 nogil:
    """Sends, then reads answers until none is due, part by part; ends early when a link is not created."""
    cdef unsigned char buffer[ACK_ROOM]
    cdef Cursor part, answers
    cdef ssize_t got
    state.code = state.last = 0
    state.refused = 0
    while batch.left and not state.last and not state.code:
        state.due = next_part(&batch, &part)
        state.code = calls.send_all(fd, part.at, part.left)
        while state.due and not state.code:
            got = calls.receive(fd, buffer, ACK_ROOM, 0)
            if got < 0:
                state.code = <int>got
            else:
                answers.at, answers.left = buffer, <size_t>got
                read_answers(answers, state)
    return 0


cdef Py_ssize_t next_part(Cursor *batch, Cursor *part) except -1 nogil:
    """`part` is what goes out in one sendmsg; returns its number of messages."""
    cdef Cursor body
    cdef nlmsghdr header
    cdef Py_ssize_t count = 0
    part[0] = batch[0]
    while next_message(batch, &header, &body):
        count += 1
        if header.nlmsg_type == uapi.RTM_NEWLINK:
            break
    part.left -= batch.left
    return count


cdef int read_answers(Cursor rest, Exchange *state) except -1 nogil:
    cdef Cursor start = rest, body
    cdef nlmsghdr header
    cdef int32_t code = 0
    while next_message(&rest, &header, &body):
        if header.nlmsg_type == uapi.NLMSG_ERROR:
            memcpy(&code, take(&body, sizeof(code)), sizeof(code))
            state.due -= 1
            state.last = code
            if code and not state.refused:
                state.refused = header.nlmsg_len
                memcpy(state.refusal, take(&start, header.nlmsg_len), header.nlmsg_len)
        start = rest
    return 0


cdef object refusal(Batch batch, bytes answer):
    (_, sequence, _), = split(answer)
    code, text, offset = unpack_ack(answer)
    error = NetlinkError(code, strerror(code))
    error.index, error.message, error.offset = sequence - 1, text, offset
    error.label = batch.label(sequence - 1)
    return error


@cython.final
cdef class Socket:
    """A NETLINK_ROUTE socket with extended acks, capped acks and strict checking, opened inside a namespace."""

    def __cinit__(self, int ns_fd=-1, *, double timeout=10.0):
        cdef calls.timeval limit
        cdef int on = 1
        self.fd = -1
        if not 0.001 <= timeout <= 86400:
            raise ValueError(f"a time-out of {timeout} seconds")
        limit.tv_sec = <long>timeout
        limit.tv_usec = <long>((timeout - limit.tv_sec) * 1000000)
        self.timeout, self.clean, self.lock = timeout, True, Lock()
        with nogil:
            self.fd = calls.open_netlink(ns_fd)
        check(self.fd)
        check(calls.set_option(self.fd, calls.SOL_SOCKET, calls.SO_RCVTIMEO, &limit, sizeof(limit)))
        for option in (uapi.NETLINK_EXT_ACK, uapi.NETLINK_CAP_ACK, uapi.NETLINK_GET_STRICT_CHK):
            check(calls.set_option(self.fd, calls.SOL_NETLINK, option, &on, sizeof(on)))

    def __dealloc__(self):
        if self.fd >= 0:
            calls.close(self.fd)

    def execute(self, Batch batch not None):
        """Sends the messages and reads one ack for each, without the GIL."""
        cdef bytes data = bytes(batch)  # a copy: another thread may go on with the batch
        cdef Cursor messages = over(data)
        cdef Exchange state
        with self.lock:
            self.prepare()
            with nogil:
                exchange(self.fd, messages, &state)
            if state.code:
                raise self.trouble(state.code)
            self.clean = True
        if state.refused:
            raise refusal(batch, state.refusal[:state.refused])

    def query(self, Batch batch not None):
        """Sends one question and returns its reply messages, headers included."""
        cdef bytes data = bytes(batch)
        cdef Cursor question = over(data)
        cdef int code
        if len(batch) != 1:
            raise ValueError(f"a query is one message, not {len(batch)}")
        buffer, replies, answer = bytearray(REPLY_ROOM), [], None
        with self.lock:
            self.prepare()
            with nogil:
                code = calls.send_all(self.fd, question.at, question.left)
            if code:
                raise self.trouble(code)
            while answer is None:
                answer = sort_replies(self.receive_reply(buffer), replies)
            self.clean = True
        code = unpack_ack(answer)[0]
        if code == ENOENT and flags_of(data) & uapi.NLM_F_DUMP:
            return []  # an IPv4 table comes into being with its first route
        if code:
            raise refusal(batch, answer)
        if any([flags_of(message) & uapi.NLM_F_DUMP_INTR for message in replies]):
            raise NetlinkError(EINTR, "the tables changed during the dump")
        return replies

    cdef int prepare(self) except -1:
        """Nothing of an exchange that broke off may be taken for an answer to the next one."""
        cdef unsigned char buffer[ACK_ROOM]
        cdef ssize_t got = 0
        if self.fd < 0:
            raise ValueError("the socket is closed")
        while not self.clean:
            got = calls.receive(self.fd, buffer, ACK_ROOM, calls.MSG_DONTWAIT)
            self.clean = got == -EAGAIN
            if got < 0 and got not in (-EAGAIN, -ENOBUFS, -EMSGSIZE):
                raise self.trouble(got)
        self.clean = False
        return 0

    cdef bytes receive_reply(self, bytearray buffer):
        cdef char *place = buffer
        cdef ssize_t got = 0
        with nogil:
            got = calls.receive(self.fd, place, REPLY_ROOM, 0)
        if got < 0:
            raise self.trouble(got)
        return place[:got]

    cdef object trouble(self, ssize_t code):
        if code == -EAGAIN:
            return TimeoutError(ETIMEDOUT, f"no answer from the kernel in {self.timeout} s")
        return NetlinkError(-code, strerror(<int>-code))

    def fileno(self):
        return self.fd

    def close(self):
        with self.lock:
            if self.fd >= 0:
                calls.close(self.fd)
                self.fd = -1

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef bytes sort_replies(bytes datagram, list replies):
    """Adds the replies; the answer that ends them, or None when more are to come."""
    for kind, _, message in split(datagram):
        if kind == uapi.NLMSG_ERROR or kind == uapi.NLMSG_DONE:
            return message
        replies.append(message)
    return None


cdef int flags_of(bytes message) except -1:
    cdef Cursor rest = over(message), body
    cdef nlmsghdr header
    next_message(&rest, &header, &body)
    return header.nlmsg_flags


# --- deletions

@cython.final
cdef class LinkMonitor:
    """Tells of links that are gone: RTMGRP_LINK with a socket filter that lets only RTM_DELLINK through."""

    def __cinit__(self, int ns_fd=-1):
        self.fd = self.waker = -1
        self.lock = Lock()
        with nogil:
            self.fd = calls.open_netlink(ns_fd)
        check(self.fd)
        check(calls.hear_deletions_only(self.fd))  # first: no notification comes that the filter has not seen
        check(calls.join_groups(self.fd, uapi.RTMGRP_LINK))
        self.waker = calls.eventfd(0, calls.EFD_CLOEXEC | calls.EFD_NONBLOCK)
        if self.waker < 0:
            check(-errno)

    def __dealloc__(self):
        self.release()

    cdef void release(self) noexcept:
        if self.fd >= 0:
            calls.close(self.fd)
        if self.waker >= 0:
            calls.close(self.waker)
        self.fd = self.waker = -1

    def wait(self, double timeout):
        """Indexes of links deleted since the last call; [] at the time-out, after `wake` and after a signal."""
        cdef int milliseconds, code
        cdef uint64_t wakes = 0
        if not timeout >= 0:
            raise ValueError(f"a time-out of {timeout} seconds")
        milliseconds = 0 if self.lost else <int>min(timeout * 1000 + 0.999, <double>LONGEST_WAIT)
        with self.lock:
            if self.closing:
                raise ValueError("the monitor is closed")
            with nogil:
                code = calls.wait_readable(self.fd, self.waker, milliseconds)
                calls.read(self.waker, &wakes, sizeof(wakes))
            PyErr_CheckSignals()
            check(code)
            return self.read_deleted()

    cdef list read_deleted(self):
        cdef Cursor rest
        cdef ssize_t got = 0
        indexes = []
        while True:
            got = calls.receive(self.fd, self.buffer, REPLY_ROOM, calls.MSG_DONTWAIT)
            if got < 0:
                break
            rest.at, rest.left = self.buffer, <size_t>got
            add_deleted(rest, indexes)
        if got == -ENOBUFS:
            self.lost = True
        elif got != -EAGAIN:
            check(got)
        if self.lost and not indexes:  # what was read first is told first
            self.lost = False
            check(-ENOBUFS)
        return indexes

    def fileno(self):
        return self.fd

    def wake(self):
        """Ends a `wait` of another thread early."""
        cdef uint64_t one = 1
        if self.waker >= 0:
            calls.write(self.waker, &one, sizeof(one))

    def close(self):
        self.closing = True
        self.wake()
        with self.lock:
            self.release()


cdef int add_deleted(Cursor rest, list indexes) except -1:
    cdef Cursor body
    cdef nlmsghdr header
    cdef ifinfomsg link
    while next_message(&rest, &header, &body):
        memcpy(&link, take(&body, sizeof(link)), sizeof(link))
        indexes.append(link.ifi_index)
    return 0

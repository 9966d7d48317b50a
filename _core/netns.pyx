"""Netlink sockets inside a network namespace, sysctls, identities of namespaces. The system calls are in syscalls.pyx.

A batch is sent by one send, but a message that creates a link ends a part. Later messages name the new link by its
index: if the kernel refuses the creation, another link may have that index.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, EMSGSIZE, ENOBUFS, ENOENT, ETIMEDOUT, errno
from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcpy
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close as close_fd, dup, read, write

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
    MAX_WAIT = 0x7fffffff       # milliseconds, of poll
    ALL = 0x7fffffff            # messages


cdef int check(ssize_t result, str path=None) except -1:
    """Return the result of a system call; raise OSError if it is a negative errno."""
    cdef int code = <int>-result
    if result < 0:
        raise OSError(code, strerror(code), path) if path else OSError(code, strerror(code))
    return <int>result


# --- namespaces

def self_check():
    """Raise OSError if this process may not enter network namespaces."""
    cdef int home = check(calls.open_own_netns())
    cdef int code = calls.switch_netns(home)  # to its own: only the permission is tested
    close_fd(home)
    check(code)


def netns_identity(int fd):
    """Return (device, inode) of a network namespace."""
    cdef struct_stat record
    if not check(calls.is_netns(fd)):
        raise ValueError(f"descriptor {fd} is not a network namespace")
    if fstat(fd, &record) != 0:
        check(-errno)
    return record.st_dev, record.st_ino


def own_netns_identity():
    cdef int home = check(calls.open_own_netns())
    try:
        return netns_identity(home)
    finally:
        close_fd(home)


# --- sysctls

cdef bytes sysctl_path(str folder, str path):
    if not path or ".." in path.split("/") or path[0] == "/" or "\0" in path:
        raise ValueError(f"no path below {folder}: {path!r}")
    return f"{folder}/{path}".encode()


@cython.final
cdef class Procfs:
    """The sysctls of an instance of procfs that is replaced after USES_OF_INSTANCE uses, or those in a folder.

    The kernel keeps an entry of a file for every namespace in which it was opened, all in one chain of its table.
    """

    def __cinit__(self, str folder="/proc/sys"):
        self.fd = -1
        self.uses = 0
        self.folder = folder.encode()

    def __dealloc__(self):
        self.close()

    cdef int open(self) except -1:
        """Return a descriptor for one use, which the caller closes: another thread may replace the instance."""
        cdef int fresh
        cdef const char *folder = self.folder
        if self.uses % USES_OF_INSTANCE == 0:
            with nogil:
                fresh = calls.open_sysctls()
            if fresh < 0:  # the kernel, or a filter of system calls, allows no instance
                fresh = check(calls.open_directory(folder))
            self.close()
            self.fd = fresh
        self.uses += 1
        fresh = dup(self.fd)
        return fresh if fresh >= 0 else check(-errno)

    cpdef close(self):
        if self.fd >= 0:
            close_fd(self.fd)
        self.fd = -1
        self.uses = 0


cdef Sysctl *make_files(list paths, size_t skipped) except NULL:
    """Return files with these paths less their first bytes, to be freed by PyMem_Free. The list must outlive them."""
    cdef Sysctl *files = <Sysctl *>PyMem_Malloc(<size_t>(len(paths) + 1) * sizeof(Sysctl))
    if files is NULL:
        raise MemoryError()
    for i, path in enumerate(paths):
        files[i].path, files[i].error, files[i].length = <const char *><bytes>path + skipped, 0, 0
    return files


def write_sysctls(int ns_fd, items, Procfs procfs=None, *, str folder="/proc/sys"):
    """Write each (path below /proc/sys, value) inside the namespace, in order, up to the first failure."""
    access_sysctls(ns_fd, list(items), True, procfs, NULL, folder)


def read_sysctls(int ns_fd, paths, Procfs procfs=None):
    """Return the values, white space stripped; None if the file does not exist."""
    return access_sysctls(ns_fd, [(path, "") for path in paths], False, procfs, NULL)


cdef list access_sysctls(int ns_fd, list items, bint writing, Procfs procfs, int *netlink, str folder="/proc/sys"):
    cdef list paths = [sysctl_path(folder, path) for path, _ in items]
    cdef Sysctl *files = make_files(paths, 0 if procfs is None else <size_t>len(folder.encode()) + 1)
    cdef size_t count = <size_t>len(paths)
    cdef int code, directory = -1
    try:
        if procfs is not None:
            directory = procfs.open()
        for i, (path, value) in enumerate(items):
            put_value(&files[i], path, value.encode())
        with nogil:
            code = calls.access_sysctls(ns_fd, directory, files, count, writing, netlink)
        check(code)
        return [get_value(&files[i], path, writing) for i, (path, _) in enumerate(items)]
    finally:
        PyMem_Free(files)
        if directory >= 0:
            close_fd(directory)


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
    return file.text[:<Py_ssize_t>file.length].decode().strip()


# --- netlink sockets

cdef int exchange(int fd, Cursor batch, Exchange *state) except -1 nogil:
    """Send each part and read its answers; end early if a link is not created."""
    cdef unsigned char buffer[ACK_ROOM]
    cdef Cursor part, answers
    cdef ssize_t got
    state.code = state.last = 0
    state.refused = 0
    while batch.left and not state.last and not state.code:
        state.due = <size_t>next_part(&batch, &part, ALL)
        state.code = calls.send_all(fd, part.at, part.left)
        while state.due and not state.code:
            got = calls.receive(fd, buffer, ACK_ROOM, True)
            if got < 0:
                state.code = <int>got
            else:
                answers.at, answers.left = buffer, <size_t>got
                read_answers(answers, state)
    return 0


cdef Py_ssize_t next_part(Cursor *batch, Cursor *part, Py_ssize_t most) except -1 nogil:
    """Set `part` to what one send takes; return its number of messages."""
    cdef Cursor body
    cdef nlmsghdr header
    cdef Py_ssize_t count = 0
    part[0] = batch[0]
    while count < most and next_message(batch, &header, &body):
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


cdef ssize_t converse(int fd, Cursor question, unsigned char *buffer) except? -1 nogil:
    """Send the question, unless it is empty. Receive datagrams up to the answer, or while another one fits.

    Return their length, or a negative errno. It leaves the GIL once for all of that, because beside busy threads
    each return to the GIL is slow.
    """
    cdef ssize_t got = 0, length = 0
    cdef Cursor replies, body
    cdef nlmsghdr header
    cdef bint ends = False
    if question.left:
        got = calls.send_all(fd, question.at, question.left)
        if got:
            return got
    while not ends and length <= REPLY_ROOM:
        got = calls.receive(fd, buffer + length, REPLY_ROOM, True)
        if got < 0:
            return got
        replies.at, replies.left = buffer + length, <size_t>got
        while next_message(&replies, &header, &body):
            ends = ends or header.nlmsg_type == uapi.NLMSG_ERROR or header.nlmsg_type == uapi.NLMSG_DONE
        length += got
    return length


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

    def __cinit__(self, int ns_fd=-1, *, double timeout=10.0, sysctls=(), Procfs procfs=None):
        self.fd = -1
        if not 0.001 <= timeout <= 86400:
            raise ValueError(f"a timeout of {timeout} seconds")
        self.timeout, self.clean, self.lock = timeout, True, Lock()
        if sysctls:
            access_sysctls(ns_fd, list(sysctls), True, procfs, &self.fd)
        else:
            with nogil:
                self.fd = calls.open_netlink(ns_fd)
        check(self.fd)
        check(calls.set_receive_timeout(self.fd, timeout))
        for option in (uapi.NETLINK_EXT_ACK, uapi.NETLINK_CAP_ACK, uapi.NETLINK_GET_STRICT_CHK):
            check(calls.set_netlink_option(self.fd, option))

    def __dealloc__(self):
        if self.fd >= 0:
            close_fd(self.fd)

    def execute(self, Batch batch not None):
        """Send the messages and read one ack for each, without the GIL."""
        cdef bytes data = bytes(batch)  # a copy: another thread may change the batch
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
            raise refusal(batch, state.refusal[:<Py_ssize_t>state.refused])

    def execute_each(self, Batch batch not None):
        """Send the messages and read one ack for each; return the refusals."""
        cdef bytes data = bytes(batch)
        cdef Cursor messages = over(data), part
        cdef size_t due
        buffer, refusals = bytearray(2 * REPLY_ROOM), []
        with self.lock:
            self.prepare()
            while messages.left:
                due = <size_t>next_part(&messages, &part, MOST_AT_ONCE)
                while due:
                    answers = split(self.ask(part, buffer))
                    part.left = 0
                    due -= <size_t>len(answers)
                    refusals += [message for _, _, message in answers if unpack_ack(message)[0]]
            self.clean = True
        return [refusal(batch, message) for message in refusals]

    def query(self, Batch batch not None):
        """Send one question and return its reply messages, headers included."""
        cdef bytes data = bytes(batch)
        cdef Cursor question = over(data)
        cdef int code
        if len(batch) != 1:
            raise ValueError(f"a query is one message, not {len(batch)}")
        buffer, replies, answer = bytearray(2 * REPLY_ROOM), [], None
        with self.lock:
            self.prepare()
            while answer is None:
                answer = sort_replies(self.ask(question, buffer), replies)
                question.left = 0
            self.clean = True
        code = unpack_ack(answer)[0]
        if code == ENOENT and flags_of(data) & uapi.NLM_F_DUMP:
            return []  # the kernel creates an IPv4 table with its first route
        if code:
            raise refusal(batch, answer)
        if any([flags_of(message) & uapi.NLM_F_DUMP_INTR for message in replies]):
            raise NetlinkError(EINTR, "the tables changed during the dump")
        return replies

    def has_carrier(self, str name):
        """Return True if the link has a carrier."""
        cdef bytes link = name.encode()
        cdef const char *text = link
        cdef int code
        with nogil:
            code = calls.read_carrier(self.fd, text)
        return check(code) != 0

    cdef int prepare(self) except -1:
        """Discard late answers of an exchange that ended early: they must not answer the next one."""
        cdef unsigned char buffer[ACK_ROOM]
        cdef ssize_t got = 0
        if self.fd < 0:
            raise ValueError("the socket is closed")
        while not self.clean:
            got = calls.receive(self.fd, buffer, ACK_ROOM, False)
            self.clean = got == -EAGAIN
            if got < 0 and got not in (-EAGAIN, -ENOBUFS, -EMSGSIZE):
                raise self.trouble(got)
        self.clean = False
        return 0

    cdef bytes ask(self, Cursor question, bytearray buffer):
        """Send the question, unless it is empty, and return replies up to the answer, or as many as fit."""
        cdef unsigned char *place = <unsigned char *><char *>buffer
        cdef ssize_t got
        with nogil:
            got = converse(self.fd, question, place)
        if got < 0:
            raise self.trouble(got)
        return (<char *>place)[:got]

    cdef object trouble(self, ssize_t code):
        if code == -EAGAIN:
            return TimeoutError(ETIMEDOUT, f"no answer from the kernel in {self.timeout} s")
        return NetlinkError(-code, strerror(<int>-code))

    def fileno(self):
        return self.fd

    def close(self):
        with self.lock:
            if self.fd >= 0:
                close_fd(self.fd)
                self.fd = -1

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef bytes sort_replies(bytes datagram, list replies):
    """Add the replies; return the answer that ends them, or None if more follow."""
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
    """Report deleted links: RTMGRP_LINK with a socket filter that passes RTM_DELLINK only."""

    def __cinit__(self, int ns_fd=-1):
        self.fd = self.waker = -1
        self.lock = Lock()
        with nogil:
            self.fd = calls.open_netlink(ns_fd)
        check(self.fd)
        check(calls.filter_dellink(self.fd))  # first, so that every notification passes the filter
        check(calls.join_groups(self.fd, uapi.RTMGRP_LINK))
        self.waker = check(calls.open_waker())

    def __dealloc__(self):
        self.release()

    cdef void release(self) noexcept:
        if self.fd >= 0:
            close_fd(self.fd)
        if self.waker >= 0:
            close_fd(self.waker)
        self.fd = self.waker = -1

    def wait(self, double timeout):
        """Return the indexes of links deleted since the last call; [] at the timeout, after `wake` or a signal."""
        cdef int milliseconds, code
        cdef uint64_t wakes = 0
        if not timeout >= 0:
            raise ValueError(f"a timeout of {timeout} seconds")
        milliseconds = 0 if self.lost else <int>min(timeout * 1000 + 0.999, <double>MAX_WAIT)
        with self.lock:
            if self.closing:
                raise ValueError("the monitor is closed")
            with nogil:
                code = calls.wait_readable(self.fd, self.waker, milliseconds)
                read(self.waker, &wakes, sizeof(wakes))
            PyErr_CheckSignals()
            check(code)
            return self.read_deleted()

    cdef list read_deleted(self):
        cdef Cursor rest
        cdef ssize_t got = 0
        indexes = []
        while True:
            got = calls.receive(self.fd, self.buffer, REPLY_ROOM, False)
            if got < 0:
                break
            rest.at, rest.left = self.buffer, <size_t>got
            add_deleted(rest, indexes)
        if got == -ENOBUFS:
            self.lost = True
        elif got != -EAGAIN:
            check(got)
        if self.lost and not indexes:  # report first what was read first
            self.lost = False
            check(-ENOBUFS)
        return indexes

    def fileno(self):
        return self.fd

    def wake(self):
        """End a `wait` of another thread early."""
        cdef uint64_t one = 1
        if self.waker >= 0:
            write(self.waker, &one, sizeof(one))

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

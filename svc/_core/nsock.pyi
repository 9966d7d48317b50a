"""The system calls of the core: netlink sockets inside a namespace, batches exchanged without the GIL, sysctls, netns identity."""

from collections.abc import Sequence
from typing import final

from svc._core.rtnl import Batch

def self_check() -> None:
    """Raises OSError when this process may not enter network namespaces (no CAP_SYS_ADMIN)."""

def netns_identity(fd: int) -> tuple[int, int]:
    """(device, inode) of a network namespace; ValueError when the descriptor is no network namespace (NS_GET_NSTYPE), OSError from the kernel."""

def own_netns_identity() -> tuple[int, int]: ...

@final
class Procfs:
    """/proc, or where the kernel allows it (5.8, CAP_SYS_ADMIN) an instance of procfs of our own, replaced now and then.

    The kernel keeps an entry of a sysctl for every namespace in which it was opened, all in one chain: with a thousand sandboxes
    a look-up of `net/ipv4/ip_forward` in /proc takes 0.4 ms, in an instance that few of them were looked up in 0.01 ms."""

    def close(self) -> None:
        """It opens itself again when it is used."""

def write_sysctls(ns_fd: int, items: Sequence[tuple[str, str]], procfs: Procfs | None = None) -> None:
    """Writes each (path below /proc/sys, value) inside the namespace (ns_fd -1: where the thread is), in order.

    Stops at the first failure with OSError whose filename is the path. The thread is back in its own namespace when
    this returns or raises; should the way back fail, the process is aborted."""

def read_sysctls(ns_fd: int, paths: Sequence[str], procfs: Procfs | None = None) -> list[str | None]:
    """The values, white space stripped; None where the file does not exist."""

@final
class Socket:
    """A NETLINK_ROUTE socket with extended acks, capped acks and strict checking, opened inside a namespace (ns_fd -1: our own).

    One thread at a time; `execute` from two threads is serialised by a lock inside. Close-on-exec. Context manager."""

    def __init__(self, ns_fd: int = -1, *, timeout: float = 10.0) -> None: ...
    def execute(self, batch: Batch) -> None:
        """Sends the batch and reads one ack for each message, without the GIL.

        Raises NetlinkError for the first message refused (all acks are read first), TimeoutError when the kernel does not answer.
        Messages after a refused create_veth are not sent: their index may be that of somebody else's link. All others are
        tried, whatever became of those before them."""
    def query(self, batch: Batch) -> list[bytes]:
        """Sends one GET or dump (batch of one) and returns its reply messages, headers included; NetlinkError as `execute`
        (also for a dump that the kernel marks as interrupted: errno EINTR, so that the caller can repeat it). The dump of a
        table that does not exist is []."""
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Socket: ...
    def __exit__(self, *exc: object) -> None: ...

@final
class LinkMonitor:
    """Tells of links that are gone: RTMGRP_LINK with a socket filter that lets only RTM_DELLINK through."""

    def __init__(self, ns_fd: int = -1) -> None: ...
    def wait(self, timeout: float) -> list[int]:
        """Indexes of links deleted since the last call; [] at the time-out, after `wake` and after a signal. OSError
        ENOBUFS when notifications were lost. Bridge-port notifications (AF_BRIDGE) are no deletions and are left out.
        Waits without the GIL."""
    def fileno(self) -> int: ...
    def wake(self) -> None:
        """Ends a `wait` of another thread early."""
    def close(self) -> None: ...

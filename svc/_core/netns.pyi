"""Netlink sockets inside a network namespace, sysctls, identities of namespaces. System calls run without the GIL."""

from collections.abc import Sequence
from typing import final

from svc._core.rtnl import Batch, NetlinkError

def self_check() -> None:
    """Raise OSError if this process may not enter network namespaces (no CAP_SYS_ADMIN)."""

def netns_identity(fd: int) -> tuple[int, int]:
    """(device, inode) of a network namespace; ValueError if the descriptor is not a network namespace, OSError from the kernel."""

def own_netns_identity() -> tuple[int, int]: ...

@final
class Procfs:
    """The sysctls of an own instance of procfs, replaced after 64 uses; or those in `folder` if the kernel (5.8, CAP_SYS_ADMIN)
    or a filter of system calls allows no instance.

    The kernel keeps an entry of a sysctl for every namespace in which it was opened, all in one chain. With
    1000 sandboxes, opening `net/ipv4/ip_forward` takes 0.4 ms in /proc, and 0.01 ms in a new instance."""

    def __new__(cls, folder: str = "/proc/sys") -> Procfs: ...
    def close(self) -> None:
        """Close the instance; the next use opens another one."""

def write_sysctls(ns_fd: int, items: Sequence[tuple[str, str]], procfs: Procfs | None = None, *, folder: str = "/proc/sys") -> None:
    """Write each (path below /proc/sys, value) inside the namespace (ns_fd -1: that of the thread), in order.

    `folder` replaces /proc/sys where that one is read-only, as in a container; without `procfs` only.
    Raise OSError at the first failure; its filename is the path. The thread is in its own namespace again when this returns or
    raises. If it cannot return to it, the process is aborted."""

def read_sysctls(ns_fd: int, paths: Sequence[str], procfs: Procfs | None = None) -> list[str | None]:
    """Return the values, white space stripped; None if the file does not exist."""

@final
class Socket:
    """A NETLINK_ROUTE socket with extended acks, capped acks and strict checking, opened inside a namespace (ns_fd -1: that of the thread).

    The sysctls are written there first, as `write_sysctls` does; an OSError with a filename is a failure of them.
    Thread-safe: a lock serialises exchanges. Close-on-exec. Context manager."""

    def __new__(cls, ns_fd: int = -1, *, timeout: float = 10.0, sysctls: Sequence[tuple[str, str]] = (), procfs: Procfs | None = None) -> Socket: ...
    def execute(self, batch: Batch) -> None:
        """Send the batch and reads one ack for each message, without the GIL.

        Raise NetlinkError for the first refused message (all acks are read first), TimeoutError if the kernel does not answer.
        Messages after a refused create_veth are not sent: another link may have their index. After any other refusal the
        remaining messages are sent."""
    def execute_each(self, batch: Batch) -> list[NetlinkError]:
        """As `execute`, but return an error for each refused message, and send all others. Raise NetlinkError only if the
        exchange failed (ENOBUFS: acks were lost, so that the outcome is unknown), TimeoutError if the kernel does not answer."""
    def query(self, batch: Batch) -> list[bytes]:
        """Send one GET or dump (batch of one) and returns its reply messages, headers included; NetlinkError as `execute`
        (also for a dump that the kernel marks as interrupted: errno EINTR, so that the caller can repeat it). The dump of a
        table that does not exist is []."""
    def has_carrier(self, name: str) -> bool:
        """Return True if the link of this name has a carrier. Raise OSError.

        Since Linux 6.8 the kernel processes earlier changes of the carrier before it answers (linkwatch_sync_dev)."""
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Socket: ...
    def __exit__(self, *exc: object) -> None: ...

@final
class LinkMonitor:
    """Reports deleted links: RTMGRP_LINK with a socket filter that passes RTM_DELLINK only."""

    def __new__(cls, ns_fd: int = -1) -> LinkMonitor: ...
    def wait(self, timeout: float) -> list[int]:
        """Return the indexes of links deleted since the last call; [] at the timeout, after `wake` and after a signal. Raise
        OSError ENOBUFS if notifications were lost. Notifications of bridge ports (AF_BRIDGE) are not deletions and are ignored.
        Waits without the GIL."""
    def fileno(self) -> int: ...
    def wake(self) -> None:
        """End a `wait` of another thread early."""
    def close(self) -> None: ...

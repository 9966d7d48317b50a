"""Netlink sockets whose n-th exchange or message fails.

The request of an exchange is refused, or carried out and its answer lost. If one message of a batch is refused, the kernel has
carried out the messages before it, and goes on with those after it.
"""

import errno
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from svc._core import netns
from svc._core.rtnl import Batch, NetlinkError

Answer = TypeVar("Answer")
Socket: Final = netns.Socket

REFUSALS: Final = (errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EBUSY, errno.EINTR)


@dataclass
class NetlinkFaults:
    """The choice of the exchange that fails, or of the message. Any thread and several sockets can share it.

    It is refused with the error `number`; an exchange is carried out and not answered if that is ETIMEDOUT."""

    exchange: int = 0  # from 1; 0 means none
    number: int = 0
    by_message: bool = False  # whether the messages of all exchanges are counted
    struck: bool = False
    _count: Any = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def carry_out(self, do: Callable[[], Answer]) -> Answer:
        with self._lock:
            strikes = next(self._count) == self.exchange
        if not strikes:
            return do()
        self.struck = True
        if self.number == errno.ETIMEDOUT:
            do()
            raise TimeoutError(errno.ETIMEDOUT, "no answer from the kernel")
        raise self._refusal(0, "a message")

    def execute(self, inner: netns.Socket, batch: Batch) -> None:
        """Execute a batch; without the message that fails, if it is in it."""
        if not self.by_message:
            self.carry_out(lambda: inner.execute(batch))
            return
        with self._lock:
            numbers = [next(self._count) for _ in range(len(batch))]
        if self.exchange not in numbers:
            inner.execute(batch)
            return
        self.struck = True
        index = numbers.index(self.exchange)
        _execute_without(inner.fileno(), bytes(batch), index)
        raise self._refusal(index, batch.label(index))

    def _refusal(self, index: int, label: str) -> NetlinkError:
        refusal = NetlinkError(self.number, "ordered fault")
        refusal.index, refusal.label, refusal.message, refusal.offset = index, label, "", -1
        return refusal


def _execute_without(descriptor: int, data: bytes, index: int) -> None:
    """Let the kernel carry out all messages but one. It may refuse those that need this one."""
    messages = list(_messages(data))
    del messages[index]
    with socket.socket(fileno=os.dup(descriptor)) as raw:
        if messages:
            raw.send(b"".join(messages))
        for _ in messages:
            raw.recv(1 << 16)


def _messages(data: bytes) -> Iterator[bytes]:
    while data:
        (size,) = struct.unpack_from("=I", data)
        yield data[:size]
        data = data[(size + 3) & ~3 :]


class FaultySocket:
    """A netlink socket with faults, with the methods that svc uses."""

    def __init__(self, faults: NetlinkFaults, *arguments: Any, **options: Any) -> None:
        self._inner = Socket(*arguments, **options)
        self._faults = faults

    def execute(self, batch: Batch) -> None:
        self._faults.execute(self._inner, batch)

    def query(self, batch: Batch) -> Sequence[bytes]:
        return self._faults.carry_out(lambda: self._inner.query(batch))

    def has_carrier(self, name: str) -> bool:
        return self._faults.carry_out(lambda: self._inner.has_carrier(name))

    def fileno(self) -> int:
        return self._inner.fileno()

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> "FaultySocket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Netlink sockets whose n-th exchange fails: the request is refused, or is carried out and its answer lost."""

import errno
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from svc._core import netns
from svc._core.rtnl import Batch, NetlinkError

Answer = TypeVar("Answer")
Socket: Final = netns.Socket

REFUSALS: Final = (errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EBUSY)


@dataclass
class NetlinkFaults:
    """The choice of the exchange that fails. Any thread and several sockets can share it.

    An exchange is refused with the error `number`, or carried out and not answered if that is ETIMEDOUT."""

    exchange: int = 0  # from 1; 0 means none
    number: int = 0
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
        refusal = NetlinkError(self.number, "ordered fault")
        refusal.index, refusal.label, refusal.message, refusal.offset = 0, "a message", "", -1
        raise refusal


class FaultySocket:
    """A netlink socket with faults, with the methods that svc uses."""

    def __init__(self, faults: NetlinkFaults, *arguments: Any, **options: Any) -> None:
        self._inner = Socket(*arguments, **options)
        self._faults = faults

    def execute(self, batch: Batch) -> None:
        self._faults.carry_out(lambda: self._inner.execute(batch))

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

"""Stress process: assign and release in a loop, log each reply in a file:

    python stress.py OPENER WHERE NODE LEDGER OPERATIONS SEED

OPENER is `module:function` and opens a session with the datastore at WHERE. The process appends to the ledger, so that it
can be restarted after a kill. It then releases what the previous process may have held, and continues up to OPERATIONS.
"""

import importlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from harness.backend_wrappers import NonAtomic
from harness.ipam import free, take
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.ipam.service import IpamService
from svc.model.errors import Code, SvcError

THREADS = 4
HELD = 30  # maximum of handles per thread


def embedded(where: str) -> Backend:
    return EmbeddedStore(Path(where) / "store.db")


def piecemeal(where: str) -> Backend:
    return NonAtomic(embedded(where))


@dataclass
class Stay:
    """The addresses of a handle, and the time for which it certainly had them.

    The times are of a clock that all processes share.
    """

    addresses: tuple[str, ...] = ()
    since: int = 0
    until: int = sys.maxsize
    is_over: bool = False


@dataclass
class Ledger:
    """The log of operations: `?` requested, `+` assigned, `-` before the release, `=` released or never assigned."""

    path: Path
    stays: dict[str, Stay] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text = self.path.read_text() if self.path.exists() else ""
        for line in text.splitlines():
            sign, handle, clock, addresses = line.split(" ")
            stay = self.stays.setdefault(handle, Stay())
            if sign == "+":
                stay.addresses, stay.since = tuple(addresses.split(",")), int(clock)
            elif sign == "-":
                stay.until = min(stay.until, int(clock))
            elif sign == "=":
                stay.is_over = True

    def unfinished(self) -> list[str]:
        return [handle for handle, stay in self.stays.items() if not stay.is_over]


class StressProcess:
    """The process of one node."""

    def __init__(self, ipam: IpamService, node: str, ledger: Path, operations: int, seed: int) -> None:
        self._ipam = ipam
        self._node = node
        self._before = Ledger(ledger)
        self._file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._names = iter(range(len(self._before.stays), operations))
        self._lock = threading.Lock()
        self._seed = seed

    def run(self) -> None:
        for handle in self._before.unfinished():
            self._release(handle)
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.close(self._file)

    def _work(self, number: int) -> None:
        dice = random.Random(self._seed * THREADS + number)
        held: list[str] = []
        for handle in self._handles():
            if held and dice.random() < len(held) / HELD:
                self._release(held.pop(dice.randrange(len(held))))
            if self._assign(handle, (4, 4) if dice.random() < 0.2 else (4,)):
                held.append(handle)
        for handle in held[1:]:
            self._release(handle)

    def _handles(self) -> Iterator[str]:
        while True:
            with self._lock:  # in order, so that the next process continues the numbers
                number = next(self._names, None)
                if number is None:
                    return
                self._note("?", f"{self._node}.{number}")
            yield f"{self._node}.{number}"

    def _assign(self, handle: str, versions: tuple[int, ...]) -> bool:
        try:
            self._note("+", handle, take(self._ipam, handle, versions=versions))
        except SvcError as refusal:
            if refusal.code not in (Code.NO_ADDRESS, Code.CONCURRENCY):
                raise
            self._release(handle)
            return False
        return True

    def _release(self, handle: str) -> None:
        self._note("-", handle)
        free(self._ipam, handle)
        self._note("=", handle)

    def _note(self, sign: str, handle: str, addresses: Sequence[str] = ()) -> None:
        os.write(self._file, f"{sign} {handle} {time.monotonic_ns()} {','.join(addresses)}\n".encode())


def main() -> None:
    opener, where, node, ledger, operations, seed = sys.argv[1:]
    module, _, name = opener.partition(":")
    with closing(getattr(importlib.import_module(module), name)(where)) as backend:
        StressProcess(IpamService(backend, node), node, Path(ledger), int(operations), int(seed)).run()


if __name__ == "__main__":
    main()

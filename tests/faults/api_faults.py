"""A proxy before the API server that loses requests and answers at random. Its process outlives that of a killed node."""

import mmap
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from harness.api_proxy import ApiProxy, Fate, Order
from harness.kube import Kube

SHARE: Final = 0.04  # of the requests
MAX_LATE_SECONDS: Final = 0.2
_OVERLOADED: Final = (429, 503)  # the server has not executed the request
_MAX_URL: Final = 100


class Switch:
    """A flag in memory that processes share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    @property
    def is_on(self) -> bool:
        return self._memory[0] == 1

    def turn(self, *, on: bool) -> None:
        self._memory[0] = int(on)


class FaultyApi(ApiProxy):
    """A proxy that chooses requests at random, and a fault for each, while the switch is on."""

    def __init__(self, kube: Kube, switch: Switch, seed: int) -> None:
        super().__init__(kube)
        self._switch = switch
        self._dice = random.Random(seed)

    def note(self, method: str, path: str) -> Order | None:
        del method, path  # every request may have a fault
        if not self._switch.is_on or self._dice.random() > SHARE:
            return None
        fate = self._dice.choice(list(Fate))
        return Order(fate, "", status=self._dice.choice(_OVERLOADED), seconds=self._dice.uniform(0, MAX_LATE_SECONDS))


@contextmanager
def faulty_api(kube: Kube, seed: int) -> Iterator[tuple[str, Switch]]:
    """Run the proxy in a process of its own, because its threads would not survive a fork. Yield its URL and its switch."""
    switch = Switch()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with FaultyApi(kube, switch, seed) as proxy:
                os.write(writing, proxy.url.encode())
                threading.Event().wait()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        yield os.read(reading, _MAX_URL).decode(), switch
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

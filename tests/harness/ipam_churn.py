"""ADDs and DELs in threads, beside a check or a release of the IPAM documents."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from harness.datastores import Site
from harness.ipam import TIMEOUT_SECONDS
from harness.ipam_check import NETWORK, NODE, add, delete
from svc._core.cidr import Address
from svc.datastore.api import Backend
from svc.ipam.service import IpamService

CHECKS = int(os.environ.get("SVC_CHECKS", "3"))
THREADS = 4
_CALLS = 3  # of each thread between two observations, so that no call is in flight in both


class Churn:
    """Threads that carry out ADDs and DELs on a session of their own. Each has a pod, whose sandboxes follow each other.

    Each of the `others` is called by a thread, too, with the number of its calls until now.
    """

    def __init__(self, site: Site, store: Backend, others: Sequence[Callable[[int], object]] = ()) -> None:
        self._site, self._store = site, store
        self._over = threading.Event()
        self.failures: list[BaseException] = []
        self._services = [IpamService(store, NODE) for _ in range(2)]  # which compete for the blocks
        calls = [*(partial(self._call, number) for number in range(THREADS)), *others]
        self.calls = [0] * len(calls)
        self.threads = [threading.Thread(target=self._run, args=each) for each in enumerate(calls)]

    def _run(self, number: int, call: Callable[[int], object]) -> None:
        try:
            while not self._over.is_set():
                call(self.calls[number])
                self.calls[number] += 1
        except BaseException as failure:
            self.failures.append(failure)

    def _call(self, number: int, count: int) -> None:
        ipam, pod, container = self._services[number % 2], f"web{number}", f"c{number}x{count}"
        address = add(self._site, self._store, ipam, pod, container)
        time.sleep(0)  # lets the other threads run while the pod has its address
        _, handle = ipam.pool_and_handle(Address(address))
        assert handle == f"{NETWORK}.{container}", f"{address} of live pod {pod} is allocated to {handle!r}"
        delete(self._site, self._store, ipam, pod, container)

    def await_calls(self, _seconds: float = 0.0, _counts: Mapping[str, int] | None = None) -> bool:
        """Wait until no call of before is in flight."""
        wanted, until = [count + _CALLS for count in self.calls], time.monotonic() + TIMEOUT_SECONDS
        while any(count < least for count, least in zip(self.calls, wanted, strict=True)):
            assert time.monotonic() < until, "the calls did not go on"
            assert not self.failures, self.failures
            time.sleep(0.002)
        return True

    def end(self) -> None:
        self._over.set()
        for thread in self.threads:
            thread.join(TIMEOUT_SECONDS)


@contextmanager
def churning(site: Site, store: Backend, *others: Callable[[int], object]) -> Iterator[Churn]:
    churn = Churn(site, store, others)
    for thread in churn.threads:
        thread.start()
    try:
        churn.await_calls()
        yield churn
    finally:
        churn.end()
    assert churn.failures == []

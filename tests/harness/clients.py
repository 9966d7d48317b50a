"""Concurrent runtimes that add and delete pods, and check that no address is assigned twice."""

import threading
import time
from collections.abc import Callable
from itertools import count
from random import Random

from harness.node import Called
from harness.pod import Pod

TIMEOUT_SECONDS = 60.0  # for a DEL to succeed


class Register:
    """The address of each live pod, from the end of its ADD until the beginning of its DEL."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.holders: dict[str, str] = {}
        self.added = self.deleted = 0
        self.failures: set[str] = set()

    def enter(self, pod: Pod) -> None:
        with self._lock:
            self.added += 1
            for address in pod.addresses:
                assert address not in self.holders, f"{address} is assigned to {pod.container} and {self.holders[address]}"
                self.holders[address] = pod.container

    def leave(self, pod: Pod) -> None:
        with self._lock:
            self.deleted += 1
            for address in pod.addresses:
                del self.holders[address]

    def fail(self, called: Called) -> None:
        with self._lock:
            self.failures.add(called.output["msg"])


class Client:
    """A runtime that adds and deletes its own pods in turn. It repeats the DEL of a failed ADD until it succeeds."""

    def __init__(self, pods: list[Pod], register: Register, random: Random) -> None:
        self.pods = pods
        self._register = register
        self._random = random
        self._serials = count()

    def work(self, over: Callable[[], bool]) -> None:
        while not over():
            self.step()

    def step(self) -> None:
        pod = self._random.choice(self.pods)
        if pod.result is None:
            self._add(pod)
        else:
            self.delete(pod)

    def _add(self, pod: Pod) -> None:
        pod.container = f"{pod.netns.name}-{next(self._serials)}"
        called = pod.call("ADD")
        if called.status == 0:
            pod.result = called.output
            self._register.enter(pod)
        else:
            self._register.fail(called)
            self._delete_until_it_succeeds(pod)

    def delete(self, pod: Pod) -> None:
        self._register.leave(pod)
        self._delete_until_it_succeeds(pod)
        pod.result = None

    def delete_all(self) -> None:
        for pod in self.pods:
            if pod.result is not None:
                self.delete(pod)

    def _delete_until_it_succeeds(self, pod: Pod) -> None:
        until = time.monotonic() + TIMEOUT_SECONDS
        while (called := pod.call("DEL")).status:
            assert time.monotonic() < until, called

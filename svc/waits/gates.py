"""Readiness gates: one thread probes each URL, for all calls that wait for it.

A gate is ready for a call if it answers a probe that began after the call arrived. The first probe is sent at once, later ones
with back-off. A call that arrives during the back-off of another call gets a probe at once.
"""

import threading
import time
from typing import Final

from svc.model.field_errors import without_query
from svc.model.waits import Gate, GateSettings, TlsTrust, parse_gate
from svc.retry import Backoff
from svc.waits.probe import UNANSWERED, Probe, ProbeResult
from svc.waits.wait import Wait, WaitOutcome

SHORTEST: Final = 0.1  # seconds between probes: initially,
LONGEST: Final = 5.0  # and at most
_JOIN_SECONDS: Final = 5.0  # limit for a thread in a name lookup, which cannot be interrupted


class GatesWait(Wait):
    """The wait of one call for all its gates. `answers` has the last result of each URL."""

    def __init__(self, urls: tuple[str, ...], deadline: float) -> None:
        super().__init__(deadline)
        self.answers = dict.fromkeys(urls, UNANSWERED)

    def waits_for(self) -> str:
        """Return the gates that are not ready, each with its last answer."""
        states = [f"{without_query(url)}: {each.text}" for url, each in self.answers.items() if not each.ready]
        return f"readiness gates: {'; '.join(states)}"

    def on_result(self, url: str, answer: ProbeResult) -> None:
        self.answers[url] = answer
        if all(answer.ready for answer in self.answers.values()):
            self.end(WaitOutcome.READY)


class GateMonitor:
    """The probes of a process, for any thread. `close` ends the waits and the threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probers: dict[tuple[str, TlsTrust], Prober] = {}

    def wait(self, settings: GateSettings, deadline: float) -> GatesWait:
        """Start probes and return the wait. Raise ValueError if a gate is not a valid URL."""
        wait = GatesWait(settings.urls, deadline)
        for prober in [self._prober(url, settings.trust) for url in settings.urls]:
            prober.add(wait)
        return wait

    def close(self) -> None:
        for prober in tuple(self._probers.values()):
            prober.close()

    def _prober(self, url: str, trust: TlsTrust) -> "Prober":
        with self._lock:
            if (url, trust) not in self._probers:
                self._probers[url, trust] = Prober(parse_gate(url), trust)
            return self._probers[url, trust]


class Prober:
    """Probes of one gate, as long as a call waits for it."""

    def __init__(self, gate: Gate, trust: TlsTrust) -> None:
        self._gate = gate
        self._trust = trust
        self._lock = threading.Lock()
        self._waiting: dict[GatesWait, float] = {}  # each wait, and when it was added
        self._thread: threading.Thread | None = None
        self._probe: Probe | None = None
        self._changed = threading.Event()  # a wait was added, or the last one ended

    def add(self, wait: GatesWait) -> None:
        with self._lock:
            if self._thread is None:  # first, because the system may refuse a thread
                thread = threading.Thread(target=self._run, name="gate", daemon=True)
                thread.start()
                self._thread = thread
            self._waiting[wait] = time.monotonic()
            self._changed.set()
        wait.then(lambda: self._remove(wait))

    def close(self) -> None:
        with self._lock:
            waiting, thread = tuple(self._waiting), self._thread
        for wait in waiting:
            wait.end(WaitOutcome.SHUTDOWN)
        if thread is not None:
            thread.join(_JOIN_SECONDS)

    def _remove(self, wait: GatesWait) -> None:
        with self._lock:
            self._waiting.pop(wait, None)
            if not self._waiting:
                self._changed.set()
                if self._probe is not None:
                    self._probe.cancel()

    def _run(self) -> None:
        backoff = Backoff(SHORTEST, LONGEST)
        while (probe := self._next()) is not None:
            began = time.monotonic()
            answer = probe.run()
            self._report(began, answer)
            if self._changed.wait(0 if answer.ready else backoff.next()) and not answer.ready:
                backoff.reset()
                time.sleep(max(0.0, began + SHORTEST - time.monotonic()))

    def _next(self) -> Probe | None:
        """Return the next probe. Return None if no wait is left: then this thread ends."""
        with self._lock:
            self._changed.clear()
            self._probe = Probe(self._gate, self._trust) if self._waiting else None
            if self._probe is None:
                self._thread = None
            return self._probe

    def _report(self, began: float, answer: ProbeResult) -> None:
        with self._lock:
            self._probe = None
            answered = [wait for wait, since in self._waiting.items() if since <= began]
            if answer.ready:
                for wait in answered:
                    del self._waiting[wait]
        for wait in answered:
            wait.on_result(self._gate.url, answer)

"""Readiness gates: every URL that somebody waits for is asked by one thread, for all who wait for it.

A gate counts as open for a call when it answered a probe that began after the call had come. The first probe is made at
once, the next ones with back-off; a newcomer is not made to wait for the back-off of others.
"""

import random
import threading
import time
from collections.abc import Iterator
from typing import Final

from svc.model.gate import Gate, parse_gate
from svc.model.hold import GateSettings, Trust
from svc.waits.probe import UNANSWERED, Answer, Probe
from svc.waits.wait import End, Wait

SHORTEST: Final = 0.1  # seconds between probes: at first,
LONGEST: Final = 5.0  # and in the end
_JOIN_SECONDS: Final = 5.0  # for a thread that asks a name server, which cannot be interrupted


def backoff() -> Iterator[float]:
    """Seconds before the next probe, and the next: doubled each time, with jitter, lest nodes ask in step."""
    pause = SHORTEST
    while True:
        yield min(LONGEST, max(SHORTEST, pause * random.uniform(0.75, 1.25)))  # noqa: S311 - no secret
        pause = min(LONGEST, pause * 2)


class GatesWait(Wait):
    """One call's wait for all its gates; `answers` are the last ones by URL."""

    def __init__(self, urls: tuple[str, ...], deadline: float) -> None:
        super().__init__(deadline)
        self.answers = dict.fromkeys(urls, UNANSWERED)

    def told(self, url: str, answer: Answer) -> None:
        self.answers[url] = answer
        if all(answer.ready for answer in self.answers.values()):
            self.end(End.DONE)


class Gates:
    """The gates of a process, from any thread. `close` ends what is waited for, and its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probers: dict[tuple[str, Trust], Prober] = {}

    def wait(self, settings: GateSettings, deadline: float) -> GatesWait:
        """Begins to ask. ValueError for what is no URL."""
        wait = GatesWait(settings.urls, deadline)
        for prober in [self._prober(url, settings.trust) for url in settings.urls]:
            prober.ask_for(wait)
        return wait

    def close(self) -> None:
        for prober in tuple(self._probers.values()):
            prober.close()

    def _prober(self, url: str, trust: Trust) -> "Prober":
        with self._lock:
            if (url, trust) not in self._probers:
                self._probers[url, trust] = Prober(parse_gate(url), trust)
            return self._probers[url, trust]


class Prober:
    """Asks one gate as long as anybody waits for it."""

    def __init__(self, gate: Gate, trust: Trust) -> None:
        self._gate = gate
        self._trust = trust
        self._lock = threading.Lock()
        self._waiting: dict[GatesWait, float] = {}  # and since when
        self._thread: threading.Thread | None = None
        self._probe: Probe | None = None
        self._changed = threading.Event()  # somebody came, or the last one has gone

    def ask_for(self, wait: GatesWait) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="gate", daemon=True)
                thread.start()
                self._thread = thread
            self._waiting[wait] = time.monotonic()
            self._changed.set()
        wait.then(lambda: self._forget(wait))

    def close(self) -> None:
        with self._lock:
            waiting, thread = tuple(self._waiting), self._thread
        for wait in waiting:
            wait.end(End.STOPPING)
        if thread is not None:
            thread.join(_JOIN_SECONDS)

    def _forget(self, wait: GatesWait) -> None:
        with self._lock:
            self._waiting.pop(wait, None)
            if not self._waiting:
                self._changed.set()
                if self._probe is not None:
                    self._probe.cancel()

    def _run(self) -> None:
        pauses = backoff()
        while (probe := self._next()) is not None:
            began = time.monotonic()
            answer = probe.run()
            self._tell(began, answer)
            if self._changed.wait(0 if answer.ready else next(pauses)) and not answer.ready:
                pauses = backoff()
                time.sleep(max(0.0, began + SHORTEST - time.monotonic()))

    def _next(self) -> Probe | None:
        """None when nobody waits any more, and this thread ends."""
        with self._lock:
            self._changed.clear()
            self._probe = Probe(self._gate, self._trust) if self._waiting else None
            if self._probe is None:
                self._thread = None
            return self._probe

    def _tell(self, began: float, answer: Answer) -> None:
        with self._lock:
            self._probe = None
            told = [wait for wait, since in self._waiting.items() if since <= began]
            if answer.ready:
                for wait in told:
                    del self._waiting[wait]
        for wait in told:
            wait.told(self._gate.url, answer)

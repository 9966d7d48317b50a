"""What an ADD would meet on this node: by probes in the background, and by the last ADD of each network.

A probe answers within moments, or STATUS goes by what is known: the probe before, the last ADD. So it is never late, however
slow a server is.
"""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

from svc import deadline
from svc.datastore.api import NoSpace
from svc.model.errors import Code, PeerError, SvcError

ANSWER_SECONDS: Final = 0.7  # for a server to answer one question, and for STATUS to wait for a probe
PROBE_SECONDS: Final = 10.0  # for all of a probe
MEMORY_SECONDS: Final = 30.0  # that the failure of an ADD counts, where nothing else tells of its cause
_OF_ONE_POD: Final = (  # what another ADD would not meet
    Code.UNKNOWN_CONTAINER,
    Code.ADDRESS_UNAVAILABLE,
    Code.INTERFACE_EXISTS,
    Code.ORCHESTRATOR,
    Code.ANNOTATION,
    Code.GATES_CLOSED,
    Code.SHUTTING_DOWN,
)

Step = Callable[[], None]


class _Probe:
    """One look at everything that an ADD needs: `first` within ANSWER_SECONDS, then `rest`."""

    def __init__(self, first: Step, rest: Step) -> None:
        self.has_answered = False
        self.failure: SvcError | None = None
        self.done = threading.Event()
        self._first = first
        self._rest = rest

    def run(self) -> None:
        try:
            with deadline.limit(PROBE_SECONDS):
                with deadline.limit(ANSWER_SECONDS):
                    self._first()
                self.has_answered = True
                self._rest()
        except SvcError as failure:
            self.failure = failure
        except Exception as failure:  # of a session that is closed meanwhile, say
            self.failure = PeerError(f"it cannot be told: {type(failure).__name__}: {failure}", details="see the agent's log")
        finally:
            self.done.set()


class Health:
    """Of one node. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, _Probe] = {}
        self._ended: dict[Hashable, _Probe] = {}
        self._failures: dict[str, tuple[float, SvcError]] = {}

    def record(self, network: str, failure: SvcError | None) -> None:
        """Note how an ADD of the network has ended."""
        with self._lock:
            if failure is None:
                self._failures.pop(network, None)
            elif isinstance(failure, PeerError) and failure.code not in _OF_ONE_POD:
                self._failures[network] = time.monotonic(), failure

    def require(self, key: Hashable, network: str, first: Step, rest: Step, *, is_delegated: bool) -> None:
        """Raise, within a second, the cause why an ADD of the network would fail. Networks of one key share a probe. Whether
        another plugin (`is_delegated`) has addresses left, only an ADD tells."""
        until = time.monotonic() + ANSWER_SECONDS + 0.05
        probe = self._begin(key, first, rest)
        if probe is not None and not probe.done.wait(max(0.0, until - time.monotonic())):
            self._require_known(key, network, probe)
            return
        if probe is not None and probe.failure is not None:
            raise probe.failure
        if is_delegated or self._lacked_space(network):
            self._require_recent(network)

    def _require_known(self, key: Hashable, network: str, probe: _Probe) -> None:
        """The probe goes on: its result is for the next STATUS."""
        before = self._ended.get(key)
        if before is not None and before.failure is not None:
            raise before.failure
        self._require_recent(network)
        if not probe.has_answered:
            raise PeerError(
                f"the datastore has not answered within {ANSWER_SECONDS:g} s",
                details="look at its servers, and at the program that gives the credentials, if there is one",
            )

    def _lacked_space(self, network: str) -> bool:
        """What a probe writes is little, and may still fit."""
        return isinstance(self._failures.get(network, (0.0, None))[1], NoSpace)

    def _require_recent(self, network: str) -> None:
        since, failure = self._failures.get(network, (0.0, None))
        if failure is not None and time.monotonic() - since < MEMORY_SECONDS:
            raise failure

    def _begin(self, key: Hashable, first: Step, rest: Step) -> _Probe | None:
        """The one that runs, or a new one; None where the system gives no thread for it."""
        with self._lock:
            running = self._running.get(key)
            if running is not None:
                return running
            probe = _Probe(first, rest)
            try:
                threading.Thread(target=self._run, args=(key, probe), name="status probe", daemon=True).start()
            except RuntimeError:
                return None
            self._running[key] = probe
            return probe

    def _run(self, key: Hashable, probe: _Probe) -> None:
        try:
            probe.run()
        finally:
            with self._lock:
                self._ended[key] = probe
                self._running.pop(key, None)

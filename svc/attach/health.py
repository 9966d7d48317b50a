"""Health of the dependencies of an ADD, by background probes and by the last ADD of each network.

The probes of all dependencies run in parallel. STATUS waits up to 0.8 s for them. If a probe takes longer, STATUS uses the last
result of the same dependency, so a slow server does not delay it. During a burst of ADDs, the last success of one proves more
than probes, whose threads would wait for the interpreter beside the ADDs. A success is not repeated within a second, because a
probe writes to the disk, and programs may send STATUS very often.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from svc import deadline
from svc.call_trace import CallTrace
from svc.datastore.api import StoreError
from svc.model.errors import Code, PeerError, SvcError
from svc.model.shortage import shortage
from svc.values import dataclass

ANSWER_SECONDS: Final = 0.7  # timeout of the first request to a server
SLACK_SECONDS: Final = 0.1  # STATUS waits this much longer, because a probe fails at the end of its timeout
PROBE_SECONDS: Final = 10.0  # timeout of a whole probe
MEMORY_SECONDS: Final = 30.0  # validity of an ADD's failure if no probe shows its cause
FRESH_SECONDS: Final = 1.0  # validity of a successful probe, unless an ADD of the network has ended since
EVIDENCE_SECONDS: Final = 0.1  # validity of an ADD's success while other ADDs of the network are in flight
MAX_REMEMBERED: Final = 256  # dependencies with a probe result; also networks with a failed ADD, or with known dependencies
_OF_ONE_POD: Final = (  # errors of one pod, which another ADD may not have
    Code.UNKNOWN_CONTAINER,
    Code.ADDRESS_UNAVAILABLE,
    Code.INTERFACE_EXISTS,
    Code.ORCHESTRATOR,
    Code.ANNOTATION,
    Code.GATES_CLOSED,
    Code.SHUTTING_DOWN,
)

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class LastAdd:
    """The last ADD of a network, which has failed. `is_current` is true while STATUS may still report the failure."""

    network: Hashable
    since: float  # monotonic clock
    failure: SvcError
    is_current: bool


@dataclass(frozen=True, slots=True)
class Dependency:
    """A server, file or program that an ADD needs. Dependencies of one `key` share probes.

    `look` raises SvcError if an ADD would fail because of it. It sends its first request inside `Probe.answering`.
    """

    key: Hashable
    name: str
    remedy: str
    look: "Callable[[Probe], None]"


class Probe:
    """One check of a dependency, on its own thread."""

    def __init__(self, dependency: Dependency) -> None:
        self.dependency = dependency
        self.started = time.monotonic()
        self.has_answered = False
        self.failure: SvcError | None = None
        self.warnings: list[str] = []  # warnings that an ADD would log
        self.done = threading.Event()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Limit the block to ANSWER_SECONDS, and record that the dependency has answered if the block succeeds."""
        with deadline.limit(ANSWER_SECONDS):
            yield
        self.has_answered = True

    @property
    def is_stuck(self) -> bool:
        """Whether the probe has waited for its first answer for more than PROBE_SECONDS."""
        return not self.has_answered and time.monotonic() - self.started > PROBE_SECONDS

    def run(self) -> None:
        """Check the dependency, and store the failure."""
        try:
            with deadline.limit(PROBE_SECONDS):
                self.dependency.look(self)
        except SvcError as failure:
            self.failure = failure
        except Exception as failure:  # for example, a session was closed
            cause = f"{type(failure).__name__}: {failure}"
            self.failure = shortage(failure) or PeerError(f"the probe failed: {cause}", details="see the agent's log")


class Health:
    """The health of one node. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, Probe] = {}
        self._ended: dict[Hashable, Probe] = {}
        self._failures: dict[Hashable, tuple[float, SvcError]] = {}
        self._required: dict[Hashable, tuple[tuple[Hashable, ...], bool]] = {}  # by network: keys, and `may_lack_addresses`
        self._adding: Counter[Hashable] = Counter()  # ADDs in flight, by network
        self._succeeded: dict[Hashable, float] = {}  # when an ADD of a network last succeeded (monotonic clock)

    @contextmanager
    def adding(self, network: Hashable) -> Iterator[None]:
        """Count an ADD of the network as in flight during the block, which succeeds if it raises nothing."""
        with self._lock:
            self._adding[network] += 1
        succeeded = False
        try:
            yield
            succeeded = True
        finally:
            with self._lock:
                self._adding[network] -= 1
                if not self._adding[network]:
                    del self._adding[network]
                if succeeded:
                    _remember(self._succeeded, network, time.monotonic())
                else:
                    self._succeeded.pop(network, None)

    def record(self, network: Hashable, failure: SvcError | None) -> None:
        """Record the outcome of an ADD, except errors of one pod."""
        with self._lock:
            if failure is None:
                self._failures.pop(network, None)
            elif isinstance(failure, PeerError) and failure.code not in _OF_ONE_POD:
                _remember(self._failures, network, (time.monotonic(), failure))

    def probes(self) -> list[Probe]:
        """Return the last ended probe of each dependency, or the running one if it is the first or is stuck."""
        with self._lock:
            stuck = {key: probe for key, probe in self._running.items() if probe.is_stuck}
            return [*(self._running | self._ended | stuck).values()]

    def failures(self) -> list[LastAdd]:
        """Return the networks whose last ADD has failed."""
        with self._lock:
            return [
                LastAdd(network, since, failure, self._is_current(network, since, failure))
                for network, (since, failure) in self._failures.items()
            ]

    def require_later(self, dependencies: Sequence[Dependency], network: Hashable, *, may_lack_addresses: bool) -> None:
        """Begin a probe of each dependency, for a later `require` and for `failures`. Return at once."""
        self._note(dependencies, network, may_lack_addresses=may_lack_addresses)
        for dependency in dependencies:
            self.begin(dependency)

    def begin(self, dependency: Dependency) -> Probe | None:
        """Return the running probe of the dependency, or start one. Return None if no thread can be started."""
        with self._lock:
            running = self._running.get(dependency.key)
            if running is not None:
                return running
            probe = Probe(dependency)
            try:
                threading.Thread(target=self._run, args=(dependency.key, probe), name="status probe", daemon=True).start()
            except RuntimeError:
                return None
            self._running[dependency.key] = probe
            return probe

    def require(
        self, dependencies: Sequence[Dependency], network: Hashable, trace: CallTrace, *, may_lack_addresses: bool
    ) -> None:
        """Raise SvcError if an ADD of the network would fail, within 1 s. Log the warnings of an ADD.

        `may_lack_addresses` is true if an ADD may find no address although every dependency is ready.
        """
        self._note(dependencies, network, may_lack_addresses=may_lack_addresses)
        if self._is_proved(network):
            _warn([self._ended.get(each.key) for each in dependencies], trace)
            return
        until = time.monotonic() + ANSWER_SECONDS + SLACK_SECONDS
        probes = [(each, self._fresh(each, network) or self.begin(each)) for each in dependencies]
        in_time = [probe.done.wait(max(0.0, until - time.monotonic())) for _, probe in probes if probe is not None]
        known = [(each, probe, self._last_ended(each, probe)) for each, probe in probes]
        for _, _, last in known:
            if last is not None and last.failure is not None:
                raise last.failure
        self._require_recent(network, may_lack_addresses=may_lack_addresses, are_current=all(in_time))
        for dependency, probe, last in known:
            if probe is not None and (probe.is_stuck or not (last or probe.has_answered)):
                msg = f"{dependency.name} is not known to answer: it has not answered within {ANSWER_SECONDS:g} s"
                raise PeerError(msg, details=dependency.remedy)
        _warn([last for _, _, last in known], trace)

    def _is_proved(self, network: Hashable) -> bool:
        """Return whether ADDs of the network are in flight, and the last one that ended has just succeeded."""
        with self._lock:
            since = self._succeeded.get(network)
            return since is not None and network in self._adding and time.monotonic() - since < EVIDENCE_SECONDS

    def _fresh(self, dependency: Dependency, network: Hashable) -> Probe | None:
        """Return the last probe of the dependency if it has just succeeded, and no ADD of the network has ended since."""
        last = self._ended.get(dependency.key)
        if last is None or last.failure is not None or time.monotonic() - last.started >= FRESH_SECONDS:
            return None
        ended = max(self._succeeded.get(network, -math.inf), self._failures.get(network, (-math.inf, None))[0])
        return last if ended < last.started else None

    def _last_ended(self, dependency: Dependency, probe: Probe | None) -> Probe | None:
        if probe is not None and probe.done.is_set():
            return probe
        return self._ended.get(dependency.key)

    def _require_recent(self, network: Hashable, *, may_lack_addresses: bool, are_current: bool) -> None:
        """Raise the failure of the last ADD, unless newer probes, which `are_current`, supersede it."""
        since, failure = self._failures.get(network, (0.0, None))
        if failure is None or time.monotonic() - since >= MEMORY_SECONDS:
            return
        if not (are_current and _is_superseded_by_probes(failure, may_lack_addresses=may_lack_addresses)):
            raise failure

    def _note(self, dependencies: Sequence[Dependency], network: Hashable, *, may_lack_addresses: bool) -> None:
        with self._lock:
            _remember(self._required, network, (tuple(each.key for each in dependencies), may_lack_addresses))

    def _is_current(self, network: Hashable, since: float, failure: SvcError) -> bool:
        """Return whether STATUS may still report the failure of an ADD. It would probe the dependencies first."""
        if time.monotonic() - since >= MEMORY_SECONDS:
            return False
        keys, may_lack_addresses = self._required.get(network, ((), True))
        probes = [self._ended.get(key) for key in keys]
        are_newer = bool(probes) and all(probe is not None and probe.started >= since for probe in probes)
        return not (are_newer and _is_superseded_by_probes(failure, may_lack_addresses=may_lack_addresses))

    def _run(self, key: Hashable, probe: Probe) -> None:
        try:
            probe.run()
        finally:
            with self._lock:
                _remember(self._ended, key, probe)
                self._running.pop(key, None)
            probe.done.set()  # last: who has waited for it finds it among those that have ended


def _is_superseded_by_probes(failure: SvcError, *, may_lack_addresses: bool) -> bool:
    """Return whether later probes supersede the failure of an ADD.

    No probe writes, so none supersedes the refusal of a write for lack of a right. None looks for an address of another plugin.
    """
    lacks_right = isinstance(failure, PeerError) and failure.lacks_right
    return not lacks_right and (not may_lack_addresses or isinstance(failure, StoreError))


def _warn(probes: Sequence[Probe | None], trace: CallTrace) -> None:
    """Log the warnings of the last probes."""
    for probe in probes:
        for warning in probe.warnings if probe else ():
            trace.warning(warning)


def _remember(values: dict[Hashable, _Value], key: Hashable, value: _Value) -> None:
    """Store a value, and remove the oldest one if there are more than MAX_REMEMBERED."""
    values.pop(key, None)
    values[key] = value
    if len(values) > MAX_REMEMBERED:
        del values[next(iter(values))]

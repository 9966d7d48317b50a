"""What an ADD would meet on this node: by probes in the background, and by the last ADD of each network.

Each dependency has a probe of its own, beside those of the others. STATUS waits a moment for them. If a probe takes longer, the
last one of the same dependency counts, so STATUS is never late, however slow a server is.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from svc import deadline
from svc.call_trace import CallTrace
from svc.datastore.api import NoSpace, StoreError
from svc.model.errors import Code, PeerError, SvcError
from svc.model.shortage import shortage
from svc.values import dataclass

ANSWER_SECONDS: Final = 0.7  # for a server to answer one question
SLACK_SECONDS: Final = 0.1  # that STATUS waits longer for probes: a failure comes at the end of the time for the answer
PROBE_SECONDS: Final = 10.0  # for all of a probe
MEMORY_SECONDS: Final = 30.0  # that the failure of an ADD counts, where nothing else tells of its cause
MAX_REMEMBERED: Final = 256  # dependencies with the result of a probe, and networks with a failed ADD
_OF_ONE_POD: Final = (  # what another ADD would not meet
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
class Dependency:
    """A server, file or program that an ADD needs. Dependencies of one `key` share probes.

    `look` raises SvcError if an ADD would fail because of it. It asks its first question inside `Probe.answering`.
    """

    key: Hashable
    name: str
    remedy: str
    look: "Callable[[Probe], None]"


class Probe:
    """One look at a dependency, on a thread of its own."""

    def __init__(self, look: "Callable[[Probe], None]") -> None:
        self.started = time.monotonic()
        self.has_answered = False
        self.failure: SvcError | None = None
        self.warnings: list[str] = []  # that an ADD would log
        self.done = threading.Event()
        self._look = look

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, the dependency answers one question, within ANSWER_SECONDS."""
        with deadline.limit(ANSWER_SECONDS):
            yield
        self.has_answered = True

    @property
    def is_stuck(self) -> bool:
        """Whether it has waited for a first answer for longer than any deadline allows."""
        return not self.has_answered and time.monotonic() - self.started > PROBE_SECONDS

    def run(self) -> None:
        """Look, and keep the failure."""
        try:
            with deadline.limit(PROBE_SECONDS):
                self._look(self)
        except SvcError as failure:
            self.failure = failure
        except Exception as failure:  # for example of a session that was closed
            cause = f"{type(failure).__name__}: {failure}"
            self.failure = shortage(failure) or PeerError(f"the probe failed: {cause}", details="see the agent's log")
        finally:
            self.done.set()


class Health:
    """Of one node. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, Probe] = {}
        self._ended: dict[Hashable, Probe] = {}
        self._failures: dict[Hashable, tuple[float, SvcError]] = {}

    def record(self, network: Hashable, failure: SvcError | None) -> None:
        """Note how an ADD of the network has ended, but for a full disk, which each probe of a file sees."""
        with self._lock:
            if failure is None:
                self._failures.pop(network, None)
            elif isinstance(failure, PeerError) and failure.code not in _OF_ONE_POD and not isinstance(failure, NoSpace):
                _remember(self._failures, network, (time.monotonic(), failure))

    def begin(self, dependency: Dependency) -> Probe | None:
        """Return the dependency's probe in flight, or a new one; None if the system gives no thread for it."""
        with self._lock:
            running = self._running.get(dependency.key)
            if running is not None:
                return running
            probe = Probe(dependency.look)
            try:
                threading.Thread(target=self._run, args=(dependency.key, probe), name="status probe", daemon=True).start()
            except RuntimeError:
                return None
            self._running[dependency.key] = probe
            return probe

    def require(self, dependencies: Sequence[Dependency], network: Hashable, trace: CallTrace, *, only_add_tells: bool) -> None:
        """Raise, within a second, the cause why an ADD of the network would fail; log what it would warn of.

        `only_add_tells`: an ADD may find no address although every dependency is ready.
        """
        until = time.monotonic() + ANSWER_SECONDS + SLACK_SECONDS
        probes = [(each, self.begin(each)) for each in dependencies]
        in_time = [probe.done.wait(max(0.0, until - time.monotonic())) for _, probe in probes if probe is not None]
        known = [(each, probe, self._last_ended(each, probe)) for each, probe in probes]
        for _, _, last in known:
            if last is not None and last.failure is not None:
                raise last.failure
        self._require_recent(network, only_add_tells=only_add_tells, are_current=all(in_time))
        for dependency, probe, last in known:
            if probe is not None and (probe.is_stuck or not (last or probe.has_answered)):
                raise _not_known(dependency)
            for warning in last.warnings if last else ():
                trace.warning(warning)

    def _last_ended(self, dependency: Dependency, probe: Probe | None) -> Probe | None:
        if probe is not None and probe.done.is_set():
            return probe
        return self._ended.get(dependency.key)

    def _require_recent(self, network: Hashable, *, only_add_tells: bool, are_current: bool) -> None:
        """Raise how the last ADD failed, unless the probes tell more: `are_current` says that all of them have just ended."""
        since, failure = self._failures.get(network, (0.0, None))
        if failure is None or time.monotonic() - since >= MEMORY_SECONDS:
            return
        if not are_current or (only_add_tells and not isinstance(failure, StoreError)):
            raise failure

    def _run(self, key: Hashable, probe: Probe) -> None:
        try:
            probe.run()
        finally:
            with self._lock:
                _remember(self._ended, key, probe)
                self._running.pop(key, None)


def _remember(values: dict[Hashable, _Value], key: Hashable, value: _Value) -> None:
    """Store the newest value, and drop the oldest one of more than MAX_REMEMBERED."""
    values.pop(key, None)
    values[key] = value
    if len(values) > MAX_REMEMBERED:
        del values[next(iter(values))]


def _not_known(dependency: Dependency) -> PeerError:
    msg = f"{dependency.name} is not known to answer: it has not answered within {ANSWER_SECONDS:g} s"
    return PeerError(msg, details=dependency.remedy)

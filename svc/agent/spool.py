"""DELs that the executable has spooled while no agent ran: each becomes an ordinary DEL call of this agent.

A DEL holds the calls of its container, as every call does, and is queued before an ADD of that container. It applies only to
an attachment that is older than its file: the boots and their clocks are compared. Its file is removed after the DEL has
succeeded, or if the attachment does not exist any more. Until then an ADD of the container is refused, because a retry of the
DEL would undo it. A DEL whose input is invalid by itself cannot succeed: its file is set aside.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import orjson

from svc.agent.lanes import Lane, lane_of
from svc.agent.maintenance import MAX_RETRY_SECONDS, RETRY_SECONDS
from svc.agent.queue import Job
from svc.agent.rehoming import in_new_datastore
from svc.agent.spool_directory import SpoolDirectory, SpoolFile
from svc.attach.context import Context
from svc.attach.record import AttachmentId, Record
from svc.call_trace import CallTrace, new_request_id
from svc.cni.call_io import CallInput, Reply
from svc.cni.environment import parse_environment
from svc.cni.handler import failed_before_start, handle_call
from svc.cni.spool_file import Spooled
from svc.metrics import Sample
from svc.model import cni_versions
from svc.model.errors import CallerError, Code, PeerError, SvcError
from svc.netconf.decoding import decode
from svc.netconf.netconf import parse
from svc.retry import Backoff
from svc.values import dataclass, field, replace
from svc.waits.wait import Resumable

LOOK_SECONDS: Final = 1.0  # between reads of the directory
_TICK_NS: Final = 50_000_000  # longer than the resolution of a directory's time

_INPUT_CODES: Final = frozenset(
    {Code.INCOMPATIBLE_VERSION, Code.INVALID_ENVIRONMENT, Code.DECODING_FAILURE, Code.INVALID_NETCONF}
)

log = logging.getLogger("svc.agent")

Remember = Callable[[CallTrace, Reply], None]


@dataclass(slots=True)
class _Entry:
    """A file that was read: its container and lane, and whether its DEL is in the queue."""

    file: SpoolFile
    container: str
    lane: Lane
    is_queued: bool = False
    reason: str = ""  # of its last failure


@dataclass(slots=True)
class _Delay:
    """The delay of the next attempt in a datastore that fails."""

    backoff: Backoff = field(default_factory=lambda: Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS, jitter=0))
    until: float = 0.0


class Spool:
    """The spool of an agent. `put` queues a job; `remember` is called with each ended DEL. Thread-safe.

    After a DEL has failed, those of its datastore are retried one at a time until one succeeds, as pending releases are.
    """

    def __init__(self, context: Context, state_dir: Path, put: Callable[[Job], None], remember: Remember) -> None:
        self._context = context
        self._state_dir = state_dir
        self._directory = SpoolDirectory(state_dir)
        self._put = put
        self._remember = remember
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._delays: dict[Lane, _Delay] = {}
        self._unusable: dict[str, SpoolFile] = {}
        self._looked = 0  # time of the directory at the last look, if it cannot have changed since
        self._failure = ""
        self._stopping = False

    def look(self) -> None:
        """Read the directory, and queue the DELs of new files and those that are due again."""
        with self._lock:
            before = time.time_ns()
            version = self._directory.version()
            if not version and not self._entries:
                self._looked = 0
                return
            self._update()
            self._retry()
            self._looked = version if version < before - _TICK_NS else 0

    def look_if_changed(self) -> None:
        """As `look`, unless nothing can have been spooled since then. An ADD calls it: an earlier DEL must precede it."""
        version = self._directory.version()
        if version and version != self._looked:
            self.look()

    def stop(self) -> None:
        """Begin no further DEL: the next agent does it."""
        self._stopping = True

    def answer(self, inputs: CallInput, trace: CallTrace) -> Resumable[Reply]:
        """Carry out a call as `handle_call`, but refuse an ADD of a container whose DEL is in the spool."""
        refusal = self._refusal(inputs)
        if refusal is None:
            return (yield from handle_call(self._context, inputs, trace))
        inputs.close()
        return failed_before_start(inputs, refusal, trace)

    def _refusal(self, inputs: CallInput) -> SvcError | None:
        if not self._entries or inputs.environment.get("CNI_COMMAND") != "ADD":
            return None
        container = inputs.environment.get("CNI_CONTAINERID", "")
        with self._lock:
            found = next((entry for entry in self._entries.values() if entry.container == container), None)
        if found is None:
            return None
        return PeerError(
            f"the DEL of container {container!r} waits in the spool: {found.reason or 'it has not been carried out yet'}",
            details="it is retried: repeat the call later",
            code=Code.TRY_AGAIN,
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the gauges."""
        with self._lock:
            times = [entry.file.since for entry in self._entries.values()]
        yield "spooled_dels", (), len(times)
        yield "spooled_del_oldest_seconds", (), max(0, round(time.time() - min(times), 3)) if times else 0

    def _update(self) -> None:
        """Read new files, and forget those that are gone."""
        try:
            found = {file.name: file for file in self._directory.files()}
            self._failure = ""
        except OSError as failure:
            found = {}
            if not isinstance(failure, FileNotFoundError) and str(failure) != self._failure:
                log.error("the spool cannot be read: %s", failure)
                self._failure = str(failure)
        for name in [name for name, entry in self._entries.items() if name not in found and not entry.is_queued]:
            del self._entries[name]
        self._unusable = {name: file for name, file in self._unusable.items() if found.get(name) == file}
        for file in sorted((found[name] for name in found.keys() - self._unusable.keys()), key=lambda file: file.since):
            known = self._entries.get(file.name)
            if known is None:
                self._add(file)
            elif known.file.inode != file.inode:  # replaced by a repeated DEL
                known.file = file

    def _add(self, file: SpoolFile) -> None:
        try:
            spooled = self._directory.read(file)
        except OSError as failure:  # such as a lack of descriptors: the next look tries again
            self._directory.report_failure(file, failure)
            return
        if spooled is None:
            self._unusable[file.name] = file
            return
        call = spooled.call
        entry = _Entry(file, call.environment["CNI_CONTAINERID"], lane_of("DEL", call.stdin))
        self._entries[file.name] = entry
        self._queue(entry)

    def _queue(self, entry: _Entry) -> None:
        entry.is_queued = True
        self._put(Job(entry.lane, entry.container, lambda _: self._run(entry)))

    def _retry(self) -> None:
        """Queue one DEL of each datastore that is due, or all of one that has not failed."""
        idle = [entry for entry in self._entries.values() if not entry.is_queued]
        for lane in {entry.lane for entry in idle}:
            of_lane = [entry for entry in idle if entry.lane == lane]
            delay = self._delays.get(lane)
            if delay is None:
                for entry in of_lane:
                    self._queue(entry)
            elif delay.until <= time.monotonic():
                delay.until = time.monotonic() + delay.backoff.next()
                self._queue(random.choice(of_lane))  # noqa: S311 no secret

    def _run(self, entry: _Entry) -> None:
        if self._stopping:
            return
        reason = "it has not ended"
        try:
            file = entry.file
            reason = self._carry_out(file)
            if not reason:
                self._directory.remove(file)
        except (SvcError, OSError) as failure:
            reason = str(failure)
        finally:
            self._end(entry, reason)

    def _carry_out(self, file: SpoolFile) -> str:
        """Carry the DEL of a file out if it applies. Return why it failed, or an empty string."""
        spooled = self._directory.read(file)
        if spooled is None:  # another call of the executable has removed it after its DEL
            return ""
        environment = spooled.call.environment
        what = f"the spooled DEL of {environment['CNI_CONTAINERID']} {environment.get('CNI_IFNAME', '')}"
        if self._is_newer(spooled):
            log.info("%s is dropped: the attachment was made after it", what)
            return ""
        trace = CallTrace(new_request_id())
        call = in_new_datastore(self._context, self._state_dir, spooled.call)
        reply = _reply_of(self._context, _with_lasting_namespace(call), trace)
        self._remember(trace, reply)
        if reply.status == 0:
            log.info("%s is done", what)
            return ""
        reason = trace.messages[-1][1] if trace.messages else "the reason is not recorded"
        if _is_invalid(self._context, spooled.call, reply):
            self._directory.set_aside(file, f"{what} cannot succeed, because its input is invalid: {reason}")
            return ""
        log.warning("%s has failed and will be retried: %s", what, reason)
        return reason

    def _is_newer(self, spooled: Spooled) -> bool:
        """Return whether the attachment was added after the DEL, so that it is not the one to be deleted."""
        try:
            record = _record_of(self._context, spooled.call)
        except SvcError:  # the DEL reports it
            return False
        if record is None or record.boot_id != self._context.boot_id:
            return False
        return spooled.boot_id != record.boot_id or record.begun > spooled.nanoseconds

    def _end(self, entry: _Entry, reason: str) -> None:
        with self._lock:
            entry.is_queued, entry.reason = False, reason
            if reason:
                delay = self._delays.setdefault(entry.lane, _Delay())
                delay.until = max(delay.until, time.monotonic() + RETRY_SECONDS)
                return
            self._delays.pop(entry.lane, None)
            del self._entries[entry.file.name]


def _is_invalid(context: Context, call: CallInput, reply: Reply) -> bool:
    """Return whether the input of a failed DEL is invalid by itself. An error with such a code may have another cause."""
    if orjson.loads(reply.stdout)["code"] not in _INPUT_CODES:
        return False
    try:
        names = context.names_of(call.profile)
    except SvcError:  # the names profile may become readable
        return False
    try:
        parse_environment(call.environment, ipam=call.name == names.ipam_plugin)
        cni_versions.negotiate(decode(call.stdin).get("cniVersion"))
        has_place = not parse(call.stdin, names, lenient=True).location_errors.found
    except CallerError:
        return True
    return not has_place and _record_of(context, call) is None


def _record_of(context: Context, call: CallInput) -> Record | None:
    """Return the journal's record of the attachment of a call. Raise SvcError if the network cannot be read."""
    network, environment = decode(call.stdin).get("name"), call.environment
    return context.journal.get(AttachmentId(str(network), environment["CNI_CONTAINERID"], environment.get("CNI_IFNAME", "")))


def _with_lasting_namespace(call: CallInput) -> CallInput:
    """Return the call without the path of its namespace if another process may have that path by now."""
    environment = dict(call.environment)
    if environment.get("CNI_NETNS", "").startswith("/proc/"):
        del environment["CNI_NETNS"]
    return replace(call, environment=environment, has_descriptor=False)


def _reply_of(context: Context, call: CallInput, trace: CallTrace) -> Reply:
    steps = handle_call(context, call, trace)
    try:
        next(steps)
    except StopIteration as end:
        reply: Reply = end.value
        return reply
    raise AssertionError("a DEL does not wait")

"""Reconcile: compare journal, kernel and datastore, and tear down attachments whose interface and sandbox are gone.

Everything else that a comparison finds is counted and named, and never corrected.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from svc import deadline
from svc.agent.conflict_findings import conflict_findings, name_of
from svc.agent.lanes import RECOVERY, Lane
from svc.agent.queue import Job
from svc.attach.context import Context
from svc.attach.dead_sandboxes import is_dead
from svc.attach.record import AttachmentId, Record
from svc.attach.recovery import Teardowns, store_of
from svc.call_trace import CallTrace, new_request_id
from svc.metrics import Sample
from svc.model.errors import SvcError
from svc.timestamps import rfc3339
from svc.values import replace

if TYPE_CHECKING:
    from svc.admin.ipam_check.findings import Candidate, Finding
    from svc.agent.node_observation import Comparison

RECONCILE_SECONDS: Final = 300.0  # between two comparisons
CONFIRM_SECONDS: Final = 60.0  # between two observations of what a call in flight looks like
LOOK_SECONDS: Final = 2.0  # between two looks whether it is time for one
JOB_SECONDS: Final = 20.0  # for one comparison, or one teardown
LANE: Final = Lane("reconcile")

_OF_DATASTORES: Final = ("attachment-unallocated", "allocation-unattached")  # findings that need a datastore

log = logging.getLogger("svc.agent")

Json = dict[str, Any]

_NOT_COMPARED: Final[Json] = {
    "time": None, "seconds": 0.0, "attachments": 0, "findings": [], "unconfirmed": {}, "gone": 0, "torn_down": 0, "errors": [],
    "journal": "", "confirm_seconds": CONFIRM_SECONDS, "complete": None,
}  # fmt: skip


class _Moment(NamedTuple):
    """Seconds of the monotonic clock, and Unix time."""

    monotonic: float
    unix: float

    @staticmethod
    def now() -> "_Moment":
        return _Moment(time.monotonic(), time.time())


class Reconciliation:
    """Comparisons at intervals, and at request. `put` queues a job, which runs between the calls of its container.

    A call in flight may explain a contradiction. It becomes a finding if two comparisons, CONFIRM_SECONDS apart, show it.
    """

    def __init__(self, context: Context, put: Callable[[Job], None], state_dir: Path) -> None:
        self._context = context
        self._put = put
        self._state_dir = state_dir
        self._lock = threading.Lock()  # held during a comparison
        self._due = time.monotonic() + CONFIRM_SECONDS
        self._in_flight = False
        self._seen: dict[tuple[str, str, str], _Moment] = {}  # the first observation, by identity
        self._dead: dict[tuple[AttachmentId, int], _Moment] = {}  # the same, by attachment and generation of its row
        self._torn_down = 0
        self._conflicts: frozenset[AttachmentId] = frozenset()  # at the last comparison
        self._report: Json = {}
        self._logged: dict[tuple[str, str], str] = {}  # findings, by ID and object

    @property
    def report(self) -> Json:
        """The result of the last comparison, with the conflicts that are known now; empty before there is either."""
        conflicts = [each.to_json() for each in conflict_findings(self._context.conflicts)]
        if not conflicts:
            return self._report
        known = {(each["id"], each["object"]) for each in conflicts}
        report = self._report or _NOT_COMPARED
        return {**report, "findings": conflicts + [each for each in report["findings"] if _name(each) not in known]}

    def look(self) -> None:
        """Queue a comparison if it is time for one, or if the conflicts are not those that the last one met."""
        is_due = time.monotonic() >= self._due or self._context.conflicts.keys() != self._conflicts
        if is_due and not self._in_flight:
            self._in_flight = True
            self._put(Job(LANE, "", self._run))

    def reconcile(self) -> Json:
        """Compare now, and return the report. Raise SvcError if journal or kernel cannot be read."""
        from svc.agent.node_observation import compare  # imported by `preload`, after the first calls can be served

        with self._lock, deadline.limit(JOB_SECONDS):
            began, self._conflicts = time.monotonic(), frozenset(self._context.conflicts)
            found, now = compare(self._context, self._state_dir), _Moment.now()
            findings = self._confirmed(found, now)
            shown = [each.to_json() for each in findings] + self._unseen(found, findings)
            self._queue_teardowns(found, now)
            is_unfinished = bool(self._dead or found.errors) or len(self._seen) > len(findings)
            self._due = now.monotonic + (CONFIRM_SECONDS if is_unfinished else RECONCILE_SECONDS)
            unconfirmed = Counter(each.finding.id for each in found.candidates) - Counter(each.id for each in findings)
            self._report = {
                "time": now.unix,
                "seconds": round(now.monotonic - began, 4),
                "attachments": found.attachments,
                "findings": shown,
                "unconfirmed": dict(unconfirmed),
                "gone": len(found.dead),
                "torn_down": self._torn_down,
                "errors": list(found.errors),
                "journal": found.journal,
                "confirm_seconds": CONFIRM_SECONDS,
                "complete": self._report.get("complete") if found.errors else {"time": now.unix, "findings": len(shown)},
            }
            return self.report

    def samples(self) -> Iterator[Sample]:
        """Yield the number of findings by ID, after the first comparison or conflict."""
        if not (report := self.report):
            return
        from svc.admin.ipam_check.findings import AGENT, KINDS

        counts = Counter(each["id"] for each in report["findings"])
        yield from (("reconcile_findings", (("id", id_),), counts[id_]) for id_, kind in KINDS.items() if kind.source == AGENT)

    def _run(self, _job: Job) -> None:
        self._due = time.monotonic() + RECONCILE_SECONDS
        try:
            self.reconcile()
        except SvcError as failure:
            log.warning("this node's attachments cannot be compared now: %s", failure)
            self._report = self._report and {**self._report, "errors": [str(failure)]}
            return
        finally:
            self._in_flight = False
        before, present = self._logged, self._found()
        self._logged = present
        for (id_, name), text in present.items():
            if (id_, name) not in before:
                log.warning("%s: %s: %s", id_, name, text)
        for id_, name in before.keys() - present.keys():
            log.info("%s: %s: no longer found", id_, name)

    def _found(self) -> dict[tuple[str, str], str]:
        findings = self.report.get("findings", ())
        return {_name(each): f"{each['problem']}: {each['fix']}" for each in findings}

    def _unseen(self, found: "Comparison", findings: "list[Finding]") -> list[Json]:
        """Return the earlier findings that need a datastore, if one could not be compared: they are not known to be mended.

        Leave out those of attachments that were deleted.
        """
        earlier = self._report.get("findings", ()) if found.errors else ()
        if not earlier:
            return []
        seen = {(each.id, each.object) for each in findings}
        rows = {name_of(record.id) for record in self._context.journal.all()}
        left = [each for each in earlier if each["id"] in _OF_DATASTORES and _name(each) not in seen]
        return [each for each in left if each["id"] == "allocation-unattached" or each["object"] in rows]

    def _confirmed(self, found: "Comparison", now: _Moment) -> "list[Finding]":
        """Return the findings: what must be seen once, and what an earlier comparison showed as well."""
        self._seen = {each.identity: self._seen.get(each.identity, now) for each in found.candidates}
        return [self._dated(each) for each in found.candidates if not each.wait or self._is_confirmed(each, now)]

    def _is_confirmed(self, each: "Candidate", now: _Moment) -> bool:
        return now.monotonic >= self._seen[each.identity].monotonic + CONFIRM_SECONDS

    def _dated(self, each: "Candidate") -> "Finding":
        return replace(each.finding, since=each.finding.since or rfc3339(self._seen[each.identity].unix))

    def _queue_teardowns(self, found: "Comparison", now: _Moment) -> None:
        dead = {(record.id, record.generation): record for record in found.dead}
        self._dead = {key: self._dead.get(key, now) for key in dead}
        teardowns = Teardowns(self._context)
        for key, record in dead.items():
            if now.monotonic >= self._dead[key].monotonic + CONFIRM_SECONDS:
                lane = Lane(RECOVERY, str(store_of(record)))
                self._put(Job(lane, record.id.container_id, partial(self._tear_down, teardowns, record)))

    def _tear_down(self, teardowns: Teardowns, observed: Record, _job: Job) -> None:
        attachment, trace = observed.id, CallTrace(new_request_id())
        try:
            with trace.activated(), deadline.limit(JOB_SECONDS):
                record = self._context.journal.get(attachment)
                if record is None or not is_dead(self._context, attachment, observed.generation):
                    return
                trace.warning(
                    f"taking down {attachment.container_id} {attachment.ifname} of {attachment.network}: its interface and its "
                    "sandbox do not exist any more, and no DEL came"
                )
                teardowns.tear_down(record, trace)
                self._torn_down += 1
        except SvcError as failure:
            trace.warning(f"{attachment.container_id} {attachment.ifname} cannot be taken down now: {failure}")
        finally:
            for level, text in trace.messages:
                log.log(level, "%s", text)


def _name(finding: Json) -> tuple[str, str]:
    return finding["id"], finding["object"]

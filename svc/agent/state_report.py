"""Report on the state of the agent: its process, calls, datastores, attachments, errors and periodic tasks."""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import svc
from svc.agent.call_report import parse_call, running_calls
from svc.agent.ended_calls import EndedCall
from svc.agent.parked import ParkedCalls
from svc.agent.periodic import Periodic
from svc.agent.queue import AdmissionQueue
from svc.agent.reconciliation import Reconciliation
from svc.agent.workers import MAX_WORKERS, WorkerPool
from svc.attach.context import Context
from svc.attach.datastore_ready import DatastoreLocked
from svc.attach.health import Probe
from svc.attach.journal_reader import Rows, count_rows, describe, read_rows
from svc.attach.places import datastore_place
from svc.attach.record import ADDED, DELETING
from svc.attach.sessions import DatastoreSession
from svc.model.errors import PeerError, SvcError
from svc.model.field_errors import without_credentials, without_query
from svc.values import dataclass

MAX_FAILED_CALLS: Final = 10  # in the errors
_STUCK: Final = PeerError("the probe has not been answered", details="see whether the server answers")
_DATASTORE: Final = "datastore"
_PROBE_VALID_SECONDS: Final = 75.0  # longer than two intervals of probes and the timeout of one

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AgentView:
    """The parts of an agent that reports read. `ended` returns the ended calls, the latest last."""

    context: Context
    queue: AdmissionQueue
    parked: ParkedCalls
    workers: WorkerPool
    periodic: Callable[[], Periodic | None]
    reconciliation: Callable[[], Reconciliation | None]
    ended: Callable[[], Iterable[EndedCall]]
    paths: Mapping[str, str]  # socket and directories
    started: float  # Unix time

    @property
    def journal(self) -> Path:
        return Path(self.paths["state_dir"], "journal.db")


class _Sections:
    """The sections of a report. One that fails is null, and `failed` has its reason, so that the others are still reported."""

    def __init__(self) -> None:
        self.found: Json = {}
        self.failed: dict[str, str] = {}

    def add(self, name: str, section: Callable[[], Any]) -> None:
        try:
            self.found[name] = section()
        except Exception as failure:
            self.found[name] = None
            self.failed[name] = str(failure) if isinstance(failure, SvcError) else f"{type(failure).__name__}: {failure}"


def state(view: AgentView) -> Json:
    """Return the state. No section sends a request, and none waits for a lock that a call keeps while it waits."""
    sections = _Sections()
    sections.add("agent", lambda: _agent(view))
    sections.add("queue", lambda: _queue(view))
    sections.add("running", running_calls)
    sections.add("parked", lambda: _parked(view.parked))
    sections.add("datastores", lambda: _datastores(view.context))
    sections.add("tokens", lambda: _tokens(view.context))
    sections.add("attachments", lambda: _counts(view))
    sections.add("pending_releases", lambda: _pending(view))
    sections.add("reconciliation", lambda: _report(view.reconciliation()))
    sections.add("errors", lambda: _errors(view))
    sections.add("tasks", lambda: _tasks(view.periodic()))
    return {**sections.found, "failed": sections.failed}


def _report(reconciliation: Reconciliation | None) -> Json | None:
    """Return the report of the last comparison; None before the first one."""
    return None if reconciliation is None else reconciliation.report or None


def attachments(view: AgentView, container: str = "") -> Json:
    """Return the rows of the journal, or those of the containers whose ID begins so.

    `since` is the time of the ADD if it is among the remembered calls, and for a pending release the time of its DEL.
    """
    rows = _rows(view)
    calls = (parse_call(lines) for lines, _ in view.ended() if b" verb=ADD " in lines)
    added = {(call.get("network"), call.get("container"), call.get("ifname")): call["time"] for call in calls}
    found = []
    for record in rows.records:
        if record.id.container_id.startswith(container):
            is_live = record.state == ADDED and record.boot_id == view.context.boot_id
            since = added.get((record.id.network, record.id.container_id, record.id.ifname)) if is_live else None
            found.append({"since": since, **describe(record), "is_of_this_boot": record.boot_id == view.context.boot_id})
    return {"attachments": found, "unreadable": rows.unreadable}


def _rows(view: AgentView, *, unfinished: bool = False) -> Rows:
    """Read the journal by a connection of its own, unless the agent had to lock it because its disk is full."""
    if view.context.journal.is_exclusive:
        return Rows(view.context.journal.all(), [])
    return read_rows(view.journal, unfinished=unfinished)


def _agent(view: AgentView) -> Json:
    now = time.time()
    return {
        "version": svc.__version__,
        "pid": os.getpid(),
        "started": view.started,
        "uptime_seconds": max(0.0, now - view.started),
        "restart_reason": view.context.restart_reason,
        "python": platform.python_version(),
        "boot_id": view.context.boot_id,
        **view.paths,
    }


def _queue(view: AgentView) -> Json:
    lanes = view.queue.report()
    threads, idle, seconds = view.workers.report()
    return {
        "waiting": sum(lane.waiting for lane in lanes),
        "running": sum(lane.running for lane in lanes),
        "lanes": [
            {
                "name": lane.lane.name,
                "store": _shown(lane.lane.store),
                "waiting": lane.waiting,
                "running": lane.running,
                "oldest_seconds": round(lane.oldest_seconds, 3),
            }
            for lane in lanes
        ],
        "workers": {"threads": threads, "idle": idle, "max": MAX_WORKERS, "seconds_since_progress": round(seconds, 3)},
    }


def _parked(parked: ParkedCalls) -> list[Json]:
    return [
        {
            "request": trace.request_id,
            **trace.fields,
            "waits_for": wait.waits_for(),
            "since": _unix(since),
            "deadline": _unix(wait.deadline),
        }
        for wait, since, trace in parked.report()
    ]


def _datastores(context: Context) -> list[Json]:
    """Return the datastores of the networks, of open sessions, and of the last probes."""
    found: dict[tuple[str, str], Json] = {}

    def entry(settings: Mapping[str, str], node: str) -> Json:
        place = datastore_place(settings)
        empty = {"place": place, "node": node, "networks": [], "is_open": False, "is_up": None, "is_ready": None}
        return found.setdefault((place, node), {**empty, "held_seconds": 0.0, "checked": None, "error": None})

    for (_, network), key in list(context.networks.present.items()):
        entry(key.datastore, key.node)["networks"].append(network)
    for session in context.sessions.open_sessions():
        own = entry(session.settings, session.node)
        own |= {"is_open": True, "held_seconds": round(session.identity.known_held_seconds, 3), **_requested(session)}
    for probe in filter(_is_valid, context.health.probes()):
        if isinstance(probe.dependency.key, tuple) and probe.dependency.key[0] == _DATASTORE:
            _, node, settings = probe.dependency.key[1]
            shown = entry(dict(settings), node)
            if probe.done.is_set() or probe.is_stuck:
                shown.update(_probed(probe))
    return list(found.values())


def _requested(session: DatastoreSession) -> Json:
    """Return what the last requests of a session have shown. Probes tell more: one request may fail for its own reason."""
    meter = session.backend.meter
    if not (meter.has_served and meter.is_up):
        return {}
    return {"is_up": True, "is_ready": True if session.readiness.was_ready else None}


def _is_valid(probe: Probe) -> bool:
    """Return whether the result still holds. Only a STATUS repeats the probes of a network that is not installed."""
    return not probe.done.is_set() or time.monotonic() - probe.started < _PROBE_VALID_SECONDS


def _probed(probe: Probe) -> Json:
    """Return what a probe has found. Its failure may concern one network only, such as a pool without free addresses."""
    failure = probe.failure
    is_up = probe.done.is_set() and (failure is None or probe.has_answered or isinstance(failure, DatastoreLocked))
    is_ready = None if not is_up else not isinstance(failure, DatastoreLocked)
    reason = failure or (_STUCK if probe.is_stuck else None)
    return {"is_up": is_up, "is_ready": is_ready, "checked": _unix(probe.started), "error": _told(reason)}


def _tokens(context: Context) -> list[Json]:
    """Return the tokens for API servers with the time of their end; of several for one server, that which ends last."""
    found: dict[str, float | None] = {}
    for session in context.sessions.open_sessions():
        if session.settings["kind"] == "orch":
            _keep_latest(found, session.backend.place, session.backend.token_expires())
    for server, end in context.orchestrators.token_expiries():
        _keep_latest(found, server, end)
    return [
        {"server": server, "expires": end, "seconds_left": None if end is None else round(end - time.time(), 3)}
        for server, end in found.items()
    ]


def _keep_latest(found: dict[str, float | None], server: str, end: float | None) -> None:
    known = found.get(server)
    found[server] = end if known is None else max(known, end or 0.0)


def _counts(view: AgentView) -> dict[str, int]:
    if view.context.journal.is_exclusive:
        return dict(Counter(record.state for record in view.context.journal.all()))
    return count_rows(view.journal)


def _pending(view: AgentView) -> list[Json]:
    return [describe(record) for record in _rows(view, unfinished=True).records if record.state == DELETING]


def _errors(view: AgentView) -> list[Json]:
    """Return the failures of the dependencies, of the last ADD of each network, and of the latest failed calls."""
    health = view.context.health
    found = [
        _error(probe.dependency.name, probe.started, probe.failure, is_current=_is_valid(probe))
        for probe in health.probes()
        if probe.failure is not None
    ]
    for last in health.failures():
        name = last.network[0] if isinstance(last.network, tuple) else last.network
        found.append(_error(f"ADD in network {name}", last.since, last.failure, is_current=last.is_current))
    for key, reason in list(view.context.left_behind.items()):
        found.append(_error(f"attachment {key.container_id}", time.monotonic(), PeerError(reason), is_current=True))
    failed = [lines for lines, _ in view.ended() if b" ERROR " in lines][-MAX_FAILED_CALLS:]
    return found + [_failed_call(lines) for lines in failed]


def _error(source: str, moment: float, failure: SvcError, *, is_current: bool) -> Json:
    return {"source": source, "time": _unix(moment), **(_told(failure) or {}), "is_current": is_current}


def _failed_call(lines: bytes) -> Json:
    call = parse_call(lines)
    source = f"{call.get('verb', 'call')} of {call.get('container', 'no container')}"
    known = {"time": call["time"], "message": call["message"], "details": "", "request": call["request"]}
    return {"source": source, **known, "is_current": False}


def _tasks(periodic: Periodic | None) -> list[Json]:
    found = []
    for task, run in periodic.report() if periodic else ():
        last = None if run is None else {"time": run.began, "seconds": round(run.seconds, 6), "failure": run.failure}
        found.append({"name": task.name, "every_seconds": task.seconds, "last_run": last})
    return found


def _told(failure: SvcError | None) -> Json | None:
    return None if failure is None else {"message": failure.msg, "details": failure.details}


def _shown(text: str) -> str:
    return without_query(without_credentials(text))


def _unix(moment: float) -> float:
    """Return a point of the monotonic clock as Unix time."""
    return round(time.time() - (time.monotonic() - moment), 3)

"""Status of this node: the agent's state, the pools of its datastore, and the problems that they show."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from svc.admin.agent_client import ask
from svc.admin.datastore_view import datastores
from svc.admin.install_records import damages
from svc.admin.installed_files import missing_files
from svc.admin.routes_report import SOCKET, summary
from svc.admin.sources import Source, read_all
from svc.attach.journal_reader import count_rows, describe, read_nodes, read_origin, read_rows
from svc.attach.record import DELETING
from svc.cni.spool_file import MAX_BYTES, MAX_FILES, waiting
from svc.model.errors import CallerError, PeerError, SvcError
from svc.timestamps import rfc3339
from svc.values import asdict, dataclass

GOOD, DEGRADED, DOWN = "good", "degraded", "down"
EXIT_STATUS: Final = {GOOD: 0, DEGRADED: 3, DOWN: 4}
NOTE: Final = "note"  # a problem that does not change the verdict
TOKEN_SECONDS: Final = 3600.0  # a token that ends sooner is a problem
FULL_PERCENT: Final = 95  # use of a pool
WAITING_SECONDS: Final = 10.0  # a call that has waited longer for a worker is a problem
RECENT_SECONDS: Final = 600.0  # an older error does not count
_MARGIN_SECONDS: Final = 0.1  # that the client for the agent has to say why no answer came

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to look at: `level` is DEGRADED, DOWN or NOTE."""

    level: str
    text: str
    fix: str = ""


class NodeStatus:
    """The status of the node. `pools` returns the name of the datastore, the use of its pools and its readiness.

    `named` returns place, node and networks of the same datastore without a request to it. `load` loads its packages.
    """

    def __init__(
        self,
        state_dir: Path,
        socket: Path,
        pools: Callable[[], Json],
        named: Callable[[], Json],
        load: Callable[[], None] = lambda: None,
    ) -> None:
        journal = state_dir / "journal.db"
        self._agent_seconds = 0.0
        self.agent = Source("the agent", lambda: ask(state_dir, socket, "state", seconds=self._agent_seconds))
        self.journal = Source("the journal", lambda: _read_journal(journal))
        self.datastore = Source("the datastore", pools, load)
        self.named = Source("the network configuration", named)
        routes = socket.with_name(SOCKET)
        self.routes = Source("svc-routes", lambda: summary(routes, self._agent_seconds))
        self.spool = Source("the spool", lambda: asdict(waiting(state_dir)))
        self.records = Source("the install records", lambda: damages(state_dir))
        self.missing = Source("the installed files", lambda: missing_files(state_dir))

    @property
    def is_complete(self) -> bool:
        """Whether no source is still being read."""
        return not any(source.is_running for source in self._sources)

    @property
    def _sources(self) -> tuple[Source, ...]:
        return self.agent, self.journal, self.datastore, self.named, self.spool, self.missing, self.records, self.routes

    def read(self, seconds: float) -> Json:
        """Return the status as a document, within this time."""
        self._agent_seconds = seconds - _MARGIN_SECONDS
        read_all(self._sources, seconds)
        state = self.agent.value
        known = (state or {}).get("datastores") or ()
        document = {
            "time": time.time(),
            "state": state,
            "attachments": (state or {}).get("attachments") or (self.journal.value or {}).get("attachments"),
            "pending_releases": _known(state, self.journal.value, "pending_releases"),
            "journal": (self.journal.value or {}).get("about"),
            "spool": self.spool.value,
            "missing_files": self.missing.value,
            "routes": self.routes.value,
            "datastore": self.datastore.value,
            "datastores": datastores(known, self.named.value, self.datastore.value, self.datastore.failure),
            "nodes": self._nodes(known),
        }
        problems = sorted(self._problems(document), key=lambda problem: _RANK[problem.level])
        verdict = next((problem.level for problem in problems if problem.level != NOTE), GOOD)
        listed = [{"level": problem.level, "text": problem.text, "fix": problem.fix} for problem in problems]
        return {"verdict": verdict, "problems": listed, **document}

    def _nodes(self, known: Sequence[Json]) -> list[str]:
        """Return the names of the node in its networks and attachments, or else in the network that svcctl names."""
        names = [*(store.get("node") for store in known), *(self.journal.value or {}).get("nodes", ())]
        return sorted({name for name in names if name} or {name for name in [(self.named.value or {}).get("node")] if name})

    def _problems(self, document: Json) -> Iterator[Problem]:
        if self.agent.failure is not None:
            yield _of(self.agent.failure, DOWN)
        for damage in self.records.value or ():
            yield Problem(DEGRADED, f"{damage.msg}: calls of the runtime fail", damage.details)
        for store in document["datastores"]:
            yield from datastore_problems(store)
        if document["state"] is not None:
            yield from state_problems(document["state"])
        elif self.journal.failure is not None:
            yield _of(self.journal.failure, DEGRADED)
        if self.datastore.failure is not None:  # a CallerError: the user must name the datastore
            yield _of(self.datastore.failure, NOTE if isinstance(self.datastore.failure, CallerError) else DEGRADED)
        elif document["datastore"] is not None:
            yield from pool_problems(document["datastore"]["pools"])
        if missing := document["missing_files"]:
            text = f"files that `svcctl install` wrote do not exist any more: {', '.join(missing)}"
            yield Problem(DEGRADED, text, "repeat it: without them the runtime can neither add nor delete pods")
        if self.routes.failure is not None:
            yield _of(self.routes.failure, DEGRADED)
        yield from routes_problems(document["routes"] or {})
        yield from journal_problems(document["journal"] or {})
        yield from spool_problems(document["spool"] or {}, document["time"])
        if releases := document["pending_releases"]:
            yield Problem(DEGRADED, f"{_number(releases, 'release')} pending: {_reason(releases)}", "see `svcctl pending get`")


_RANK: Final = {DOWN: 0, DEGRADED: 1, NOTE: 2}


def state_problems(state: Json) -> Iterator[Problem]:
    """Yield the problems that the state of the agent shows, except those of the datastores."""
    if reason := (state["agent"] or {}).get("restart_reason"):
        yield Problem(DEGRADED, reason, "systemctl restart svc-agent")
    for token in state["tokens"] or ():
        if (left := token["seconds_left"]) is not None and left < TOKEN_SECONDS:
            text = f"the token for {token['server']} {f'ends in {left / 60:.0f} min' if left > 0 else 'has ended'}"
            yield Problem(DEGRADED, text, "renew it where the network configuration has it")
    if state["queue"]:
        yield from _queue_problems(state["queue"])
    yield from _findings((state["reconciliation"] or {}) if "reconciliation" in state else {})
    yield from _errors(state)
    for task in state["tasks"] or ():
        if task["last_run"] and (failure := task["last_run"]["failure"]):
            yield Problem(DEGRADED, f"the periodic task {task['name']!r} failed: {failure}", "see the agent's log")
    for section, reason in state["failed"].items():
        yield Problem(DEGRADED, f"{section.replace('_', ' ')} cannot be read: {reason}", "see the agent's log")


def _findings(report: Json) -> Iterator[Problem]:
    """Yield the findings of the last comparison, and why it was incomplete. A pending release is shown as such."""
    if errors := report.get("errors"):
        text = f"the last comparison was incomplete: {first_of(errors)}"
        yield Problem(DEGRADED, text, "it is repeated within a minute, and by `svcctl reconcile` at once")
    for finding in report.get("findings", ()):
        if finding["id"] != "attachment-unfinished":
            yield Problem(DEGRADED, f"{finding['id']}: {finding['object']}: {finding['problem']}", finding["fix"])


def _errors(state: Json) -> Iterator[Problem]:
    """Yield the failures of dependencies and networks that STATUS may still report.

    A failed call alone may concern one pod only.
    """
    told = {(store["error"] or {}).get("message") for store in state["datastores"] or ()}
    for error in state["errors"] or ():
        is_current = error.get("is_current", True) and time.time() - error["time"] < RECENT_SECONDS
        if "request" not in error and error["message"] not in told and is_current:
            yield Problem(DEGRADED, f"{error['source']}: {error['message']}", error["details"])


def routes_problems(report: Json) -> Iterator[Problem]:
    """Yield the problems of svc-routes. Networks without a route may be those of another program."""
    for text in report.get("problems", ()):
        yield Problem(DEGRADED, f"svc-routes: {text}", "`svc-routes show` has the networks that this concerns")
    if missing := report.get("missing"):
        listed = ", ".join(f"{number} {reason}" for reason, number in missing.items())
        yield Problem(NOTE, f"svc-routes has no route to {sum(missing.values())} networks ({listed})", "see `svc-routes show`")


def journal_problems(about: Json) -> Iterator[Problem]:
    """Yield that the journal replaces a damaged one, as long as that is kept."""
    if about.get("kept"):
        fix = "see `svcctl reconcile`; when nothing is missing, remove the kept file from the state directory"
        yield Problem(NOTE, f"the journal was {about['origin']}", fix)


def spooled(number: int) -> str:
    """Return the number of DELs that wait, as text."""
    return f"{number} DELs wait" if number > 1 else "1 DEL waits"


def spool_problems(spool: Json, now: float) -> Iterator[Problem]:
    """Yield the spooled DELs that wait although an agent has had the time for them, and the refused files."""
    if spool.get("number") and now - spool["since"] > WAITING_SECONDS:
        text = f"{spooled(spool['number'])} in the spool since {rfc3339(spool['since'])}"
        yield Problem(DEGRADED, text, "start the agent, or see in its log why they fail")
    if spool.get("is_full"):
        text = f"the spool is full, with {MAX_FILES} files or {MAX_BYTES >> 20} MiB: DELs fail if no agent accepts them"
        yield Problem(DEGRADED, text, "start the agent, which empties it, or see in its log why it does not")
    if number := spool.get("refused"):
        shown = spool["refused_files"]
        more = f" and {number - len(shown)} more" if number > len(shown) else ""
        text = f"{number} {'files' if number > 1 else 'file'} of the spool cannot be used: {', '.join(shown)}{more}"
        yield Problem(DEGRADED, text, "see why in the agent's log, and remove them")


def pool_problems(pools: Sequence[Json]) -> Iterator[Problem]:
    """Yield the pools that are nearly full."""
    for pool in pools:
        assignable = pool["in_use"] + pool["available"]
        percent = 100 * pool["in_use"] // assignable if assignable else 100
        if pool["capacity"] and percent >= FULL_PERCENT:
            reserved = f" without its {pool['reserved']} reserved addresses" if pool["reserved"] else ""
            text = f"pool {pool['name']} is {percent} % used{reserved}, {pool['available']} addresses are free"
            yield Problem(DEGRADED, text, "add a pool: `svcctl pool apply`")


def first_of(errors: Sequence[str]) -> str:
    """Return the first error, and how many others there are."""
    return errors[0] + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else "")


def datastore_problems(store: Json) -> Iterator[Problem]:
    """Yield the problems of a datastore. The error of one that only svcctl has asked is a problem by itself."""
    error = store["error"] or {}
    if store["is_up"] is False and error:
        yield Problem(DEGRADED, f"{store['place']} does not answer: {error.get('message', '')}", error.get("details", ""))
    elif store["is_ready"] is False:
        yield Problem(DEGRADED, f"{store['place']} is not ready: {error.get('message', '')}", error.get("details", ""))
    elif error:
        yield Problem(DEGRADED, f"{store['place']}: {error['message']}", error["details"])
    if store["held_seconds"]:
        text = f"{store['place']} has lost data: ADDs wait for up to {store['held_seconds']:.0f} s"
        yield Problem(DEGRADED, text, "wait: live attachments are claimed again; if it has no pools, apply them")


def _queue_problems(queue: Json) -> Iterator[Problem]:
    workers = queue["workers"]
    if not workers["idle"] and workers["threads"] >= workers["max"]:
        seconds = f"{workers['seconds_since_progress']:.0f} s"
        text = f"all {workers['max']} workers are occupied, and no call has begun or ended for {seconds}"
        yield Problem(DEGRADED, text, "see what they wait for: `svcctl diag`, threads")
    late = [lane for lane in queue["lanes"] if lane["waiting"] and lane["oldest_seconds"] > WAITING_SECONDS]
    for lane in late:
        calls = f"{lane['waiting']} calls ({lane['name']}{' at ' if lane['store'] else ''}{lane['store']})"
        text = f"{calls} wait for a worker, the oldest for {lane['oldest_seconds']:.0f} s"
        yield Problem(DEGRADED, text, "see whether that datastore answers")


def _read_journal(path: Path) -> Json:
    if not path.exists():
        is_file = path.parent.exists() and not path.parent.is_dir()
        problem = f"cannot exist: {str(path.parent)!r} is not a directory" if is_file else "does not exist"
        raise PeerError(f"journal {str(path)!r} {problem}", details="name the agent's directory with --state-dir")
    pending = [describe(record) for record in read_rows(path, unfinished=True).records if record.state == DELETING]
    origin = read_origin(path)
    about = {"origin": str(origin), "made": origin.made, "kept": origin.kept}
    return {"attachments": count_rows(path), "pending_releases": pending, "nodes": read_nodes(path), "about": about}


def _known(state: Json | None, journal: Json | None, name: str) -> Any:
    found = (state or {}).get(name)
    return found if found is not None else (journal or {}).get(name)


def _of(failure: SvcError, level: str) -> Problem:
    return Problem(level, failure.msg, failure.details)


def _number(found: Sequence[Any], noun: str) -> str:
    return f"{len(found)} {noun}{'s are' if len(found) > 1 else ' is'}"


def _reason(releases: Sequence[Json]) -> str:
    return next((release["reason"] for release in releases if release.get("reason")), "the reason is not recorded")

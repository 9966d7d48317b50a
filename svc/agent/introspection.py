"""The kinds of introspection requests. docs/reference/introspection.md describes requests and replies.

No kind but `reconcile` changes anything or sends a request to a datastore. No kind waits for a lock that a call keeps while it
waits. A further kind is one entry of KINDS.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

import svc
from svc.agent.call_report import ended_calls, thread_stacks
from svc.agent.introspection_server import Json, error
from svc.agent.state_report import AgentView, attachments, state
from svc.model.errors import PeerError, SvcError
from svc.values import dataclass

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request: `report` returns the data. All its `options` are texts that may be missing."""

    report: Callable[[AgentView, Options], Any]
    options: tuple[str, ...] = ()


def _metrics(view: AgentView, _: Options) -> list[Json]:
    counters = sorted(view.context.metrics.read().items())
    return [{"name": name, "labels": dict(labels), "value": value} for (name, labels), value in counters]


def _reconcile(view: AgentView, _: Options) -> Json:
    reconciliation = view.reconciliation()
    if reconciliation is None:
        raise PeerError("the agent is starting", details="repeat the request in a second")
    return reconciliation.reconcile()


KINDS: Final[Mapping[str, Kind]] = {
    "state": Kind(lambda view, _: state(view)),
    "attachments": Kind(lambda view, options: attachments(view, options.get("container", "")), ("container",)),
    "calls": Kind(lambda view, options: ended_calls(view.ended(), options.get("container", "")), ("container",)),
    "metrics": Kind(_metrics),
    "reconcile": Kind(_reconcile),
    "threads": Kind(lambda _view, _options: thread_stacks()),
}


def answer(view: AgentView, document: bytes) -> Json:
    """Return the reply to a request: its data, or an error that names field, value, problem and remedy."""
    try:
        request = orjson.loads(document)
    except ValueError as failure:
        shown = document[:40].decode(errors="replace")
        return error("", shown, f"is not JSON: {failure}", 'send an object such as {"kind": "state"}')
    if not isinstance(request, dict):
        return error("", request, "is not an object", 'send an object such as {"kind": "state"}')
    kinds = f"the kinds of version {svc.__version__} are {', '.join(KINDS)}"
    name = request.pop("kind", None)
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        return error("kind", name, "is missing" if name is None else "is not a kind of request", kinds)
    for option, value in request.items():
        if option not in kind.options:
            known = f"its options are {', '.join(kind.options)}" if kind.options else "it has no options"
            return error(option, value, f"is not an option of {name}", known)
        if not isinstance(value, str):
            return error(option, value, "is not a string", "write it in quotes")
    try:
        data = kind.report(view, request)
    except SvcError as failure:
        return error("", None, failure.msg, failure.details)
    return {"version": svc.__version__, "kind": name, "time": time.time(), "data": data}

"""The form of the agent's replies, as far as svcctl reads them. docs/reference/introspection.md describes them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from svc.model.field_errors import json_kind
from svc.values import dataclass

NUMBER: Final = (int, float, type(None))
TEXT: Final = (str, type(None))


@dataclass(frozen=True, slots=True)
class Section:
    """A value that may be null, because the agent could not read it or has none."""

    form: Any


_FINDING: Final = dict.fromkeys(("id", "object", "since", "problem", "fix"), TEXT)
_PENDING: Final = dict.fromkeys(("pod", "container", "ifname", "reason"), TEXT) | {"since": NUMBER}
_DATASTORE: Final = {
    "place": TEXT, "networks": [TEXT], "is_open": NUMBER, "is_up": NUMBER, "is_ready": NUMBER, "checked": NUMBER,
    "held_seconds": NUMBER, "error": Section({"message": TEXT, "details": TEXT}),
}  # fmt: skip
_QUEUE: Final = {
    "waiting": NUMBER, "running": NUMBER,
    "workers": dict.fromkeys(("threads", "idle", "max", "seconds_since_progress"), NUMBER),
    "lanes": [{"name": TEXT, "store": TEXT, "waiting": NUMBER, "oldest_seconds": NUMBER}],
}  # fmt: skip
_ROW: Final = {
    **dict.fromkeys(("network", "container", "ifname", "state", "pod", "host_interface"), TEXT),
    "addresses": [TEXT], "host_index": NUMBER, "since": NUMBER,
}  # fmt: skip
FORMS: Final[Mapping[str, Any]] = {  # of the data, by the kind of the request
    "state": {
        "agent": Section({"version": TEXT, "pid": NUMBER, "uptime_seconds": NUMBER}),
        "queue": Section(_QUEUE),
        "parked": Section([{"deadline": NUMBER, "since": NUMBER, "waits_for": TEXT}]),
        "datastores": Section([_DATASTORE]),
        "tokens": Section([{"server": TEXT, "seconds_left": NUMBER}]),
        "attachments": Section({}),
        "pending_releases": Section([_PENDING]),
        "errors": Section([{"source": TEXT, "time": NUMBER, "message": TEXT, "details": TEXT}]),
        "tasks": Section([{"name": TEXT, "last_run": Section({"failure": TEXT})}]),
        "failed": {},
    },
    "attachments": {"attachments": [_ROW], "unreadable": [TEXT]},
    "calls": {
        "calls": [{
            **dict.fromkeys(("outcome", "request", "message"), TEXT),
            "time": NUMBER, "phases": {}, "decisions": [TEXT], "lines": [TEXT],
        }]
    },
    "reconcile": {"errors": [TEXT], "findings": [_FINDING], "unconfirmed": {}, "attachments": NUMBER, "gone": NUMBER},
}  # fmt: skip


def problems(data: Any, form: Any, place: str = "data") -> Iterator[str]:
    """Yield what differs from a form: names that are missing, and values of another type. Further names are accepted."""
    if isinstance(form, Section):
        if data is not None:
            yield from problems(data, form.form, place)
    elif isinstance(form, tuple):
        if not isinstance(data, form):
            yield f"{place} is {json_kind(data)}"
    elif not isinstance(data, type(form)):
        yield f"{place} is {json_kind(data)}"
    elif isinstance(form, list):
        for index, item in enumerate(data):
            yield from problems(item, form[0], f"{place}[{index}]")
    else:
        for name, inner in form.items():
            yield from problems(data[name], inner, f"{place}.{name}") if name in data else (f"{place}.{name} is missing",)

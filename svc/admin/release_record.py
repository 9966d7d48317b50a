"""The limit of the addresses that svc-controllers releases in an hour, and the acknowledgement of a stop.

A mass of leaks may mean that what the controllers see is wrong, as after a restore. So they stop, and an administrator decides.
The record is in annotations of KubeControllersConfiguration `default`.

The record of releases is stored in the datastore before the releases are made. So a later leader knows of all that may have
been released, and counts at most too many.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from svc.datastore.api import Backend
from svc.model.controllers_configuration import KEY
from svc.model.errors import CallerError
from svc.model.resource import Resource, ordered
from svc.names import Names
from svc.values import dataclass, field, replace

REMEDY: Final = "delete the annotation, which `svcctl get kubecontrollersconfiguration default -o yaml` shows"

HOUR = 3600.0
MOST, SHARE, LEAST = 100, 0.2, 10  # addresses of an hour: at most MOST or SHARE of all, whichever is smaller, but LEAST
_STEP = 60.0  # seconds that share one number of the record

MASS, SETBACK = "MassRelease", "RevisionRanBackwards"  # reasons of a stop


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop of all releases. `id` identifies it for its acknowledgement, `wanted` is how many addresses looked leaked."""

    id: str
    reason: str
    message: str
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What is known across leaders: releases by minute (Unix time), and a stop.

    After an acknowledgement `allowed` further addresses may be released, in the hour before `until`.
    """

    released: Mapping[int, int] = field(default_factory=dict)
    allowed: int = 0
    until: float = 0.0
    stop: Stop | None = None

    def left(self, now: float, total: int) -> int:
        """Return how many addresses may be released now, if `total` are allocated."""
        return self._allowed(now) + max(0, limit(total) - sum(_recent(self.released, now).values()))

    def reserved(self, now: float, count: int) -> "Record":
        """Return the record with these releases. What was acknowledged is used first."""
        allowed, recent = self._allowed(now), dict(_recent(self.released, now))
        if counted := max(0, count - allowed):
            step = int(now - now % _STEP)
            recent[step] = recent.get(step, 0) + counted
        return replace(self, released=recent, allowed=max(0, allowed - count))

    def stopped(self, stop: Stop) -> "Record":
        return replace(self, stop=stop)

    def acknowledged(self, id_: str, now: float) -> "Record":
        """Return the record after the acknowledgement of its stop: as many addresses may go as that named."""
        if self.stop is None or self.stop.id != id_:
            return self
        return replace(self, stop=None, allowed=self.stop.wanted, until=now + HOUR)

    def _allowed(self, now: float) -> int:
        return self.allowed if now < self.until else 0

    def to_text(self) -> str:
        """Return the form in which the record is stored."""
        document: dict[str, Any] = {"released": {str(time): count for time, count in sorted(self.released.items())}}
        if self.allowed:
            document |= {"allowed": self.allowed, "until": int(self.until)}
        if self.stop is not None:
            document["stop"] = {name: getattr(self.stop, name) for name in ("id", "reason", "message", "wanted")}
        return orjson.dumps(document).decode()

    @staticmethod
    def from_text(text: str) -> "Record":
        """Return the inverse of `to_text`; an empty record for an empty text. Raise ValueError for any other text."""
        try:
            document = orjson.loads(text or "{}")
            stop = document.get("stop")
            return Record(
                {int(time): int(count) for time, count in document.get("released", {}).items()},
                int(document.get("allowed", 0)),
                float(document.get("until", 0)),
                None if stop is None else Stop(str(stop["id"]), str(stop["reason"]), str(stop["message"]), int(stop["wanted"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it has another form: {error}") from error


def limit(total: int) -> int:
    """Return how many addresses may be released in an hour, if `total` are allocated."""
    return max(LEAST, min(MOST, int(total * SHARE)))


def _recent(released: Mapping[int, int], now: float) -> Mapping[int, int]:
    """Return the releases of the last hour, and those that another leader's clock has in the future."""
    return {time: count for time, count in released.items() if time + _STEP > now - HOUR}


def record_annotation(names: Names) -> str:
    """Return the name of the annotation with the record of releases."""
    return f"{names.label_prefix}/released-addresses"


def acknowledgement_annotation(names: Names) -> str:
    """Return the name of the annotation with the ID of the stop that an administrator has acknowledged."""
    return f"{names.label_prefix}/acknowledged-release"


def record_of(names: Names, resource: Resource) -> Record:
    """Return the record. Raise ValueError if it is damaged."""
    return Record.from_text(_annotations(resource).get(record_annotation(names), ""))


def acknowledged_id(names: Names, resource: Resource) -> str:
    """Return the ID of the stop that was acknowledged last; empty if none was."""
    return _annotations(resource).get(acknowledgement_annotation(names), "")


def with_record(names: Names, resource: Resource, record: Record) -> Resource:
    """Return the resource with another record."""
    return _annotated(resource, record_annotation(names), record.to_text())


def present_stop(store: Backend, names: Names) -> Stop:
    """Return the present stop of the releases. Raise CallerError without a stop, StoreError."""
    entry = store.find(KEY)
    return _stop_of(names, None if entry is None else entry.value)


def acknowledge(store: Backend, names: Names, stop: Stop) -> None:
    """Acknowledge a stop that an administrator has seen. Raise CallerError if it is not the present one, StoreError."""

    def changed(resource: Resource | None) -> Resource:
        present = _stop_of(names, resource)
        if present.id != stop.id:
            raise CallerError(
                f"the stop of {stop.id} is over, and there is another one of {present.id}: {present.message}",
                details="read it, and repeat the command",
            )
        assert resource is not None
        return _annotated(resource, acknowledgement_annotation(names), stop.id)

    store.update(KEY, changed)


def _stop_of(names: Names, resource: Resource | None) -> Stop:
    if resource is None:
        raise CallerError(
            f"nothing can be acknowledged: {KEY.kind} {KEY.name} does not exist",
            details=f"{names.controllers} creates it: see whether it runs",
        )
    try:
        stop = record_of(names, resource).stop
    except ValueError as error:
        raise CallerError(f"annotation {record_annotation(names)} cannot be read: {error}", details=REMEDY) from error
    if stop is None:
        raise CallerError("no stop awaits acknowledgement", details="the controllers release leaked addresses by themselves")
    return stop


def _annotations(resource: Resource) -> dict[str, str]:
    return dict(resource.metadata.get("annotations") or {})


def _annotated(resource: Resource, name: str, text: str) -> Resource:
    annotations = _annotations(resource) | {name: text}
    return replace(resource, metadata=ordered(resource.metadata | {"annotations": annotations}))

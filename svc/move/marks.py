"""The mark of a move: an annotation of ClusterInformation that says which run has locked a datastore, and where its content is.

A source is first `leaving` and then has `left`; a target is `arriving` and then has `arrived`. Both are locked until a target
has arrived. All changes are compare-and-swaps, so of two runs at the same time one is refused.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from svc.admin.ipam_check.observation import Place
from svc.admin.resources import CLUSTER, READY
from svc.datastore.api import Entry, StoreError
from svc.model.errors import CallerError, Code
from svc.model.move_mark import ARRIVED as ARRIVED
from svc.model.move_mark import ARRIVING as ARRIVING
from svc.model.move_mark import LEAVING as LEAVING
from svc.model.move_mark import LEFT as LEFT
from svc.model.move_mark import Mark as Mark
from svc.model.move_mark import annotation as annotation
from svc.model.move_mark import mark_of as mark_of
from svc.model.resource import Resource, ordered
from svc.names import Names
from svc.values import replace

IN_FLIGHT_SECONDS: Final = 95.0
"""Time after the lock in which calls of other programs may still write: those that read the flag before it."""

_POLL_SECONDS: Final = 1.0
_LOCKED: Final = {
    "": "the lock of {0} has a mark that cannot be read",
    LEAVING: "{0} is being moved to {1}",
    LEFT: "the content of {0} has moved to {1}: an address would be assigned twice",
    ARRIVING: "the import from {1} to {0} has not ended",
}
_REMEDIES: Final = {
    "": "find out who wrote it; --although-moved removes it",
    LEAVING: "wait for the end of the move, or undo it; --although-moved if it was given up",
    LEFT: "move it back; --although-moved if the other datastore does not exist any more",
    ARRIVING: "repeat `svcctl datastore import FILE --unlock`; --although-moved if it was given up",
}


def with_mark(names: Names, info: Resource, mark: Mark | None, fields: Mapping[str, Any]) -> Resource:
    """Return the resource with another mark, or none, and with these fields of its spec."""
    annotations = dict(info.metadata.get("annotations") or {})
    annotations.pop(annotation(names), None)
    annotations |= {annotation(names): mark.text()} if mark else {}
    return replace(info, metadata=ordered(info.metadata | {"annotations": annotations}), spec=info.spec | dict(fields))


def is_locked(info: Resource) -> bool:
    """Return whether calls may not change the datastore."""
    return info.spec.get(READY) is not True


def present(place: Place) -> Resource | None:
    """Return ClusterInformation; None if the datastore was never initialised."""
    entry = place.backend.find(CLUSTER)
    return entry.value if entry else None


def change(place: Place, wanted: Callable[[Resource | None], Resource | None]) -> Entry | None:
    """Replace ClusterInformation by the one that `wanted` returns for the present one."""
    return place.backend.update(CLUSTER, wanted, durable=True)


def locked_by_others(place: Place, mark: Mark | None) -> CallerError:
    """Return the error about a lock that is not that of this run."""
    is_of_run = mark is not None and mark.run and mark.state != ARRIVED
    owner = f"by run {mark.run!r} of a move to or from {mark.other}" if mark and is_of_run else "by another program or a person"
    details = "wait for its end; if it was given up, `svcctl clusterinfo unlock`"
    return CallerError(f"{place.backend.place} is locked {owner}", details=details, code=Code.DATASTORE_LOCKED)


def not_initialised(place: Place) -> CallerError:
    """Return the error about a source without ClusterInformation."""
    details = "name the datastore that is in use; `svcctl clusterinfo init` initialises an empty one"
    return CallerError(f"{place.backend.place} is not initialised", details=details, code=Code.DATASTORE_LOCKED)


def lock(source: Place, target: Place, run: str) -> None:
    """Lock the source for this run, again if another program has unlocked it. Raise CallerError if others have locked it."""

    def wanted(info: Resource | None) -> Resource:
        if info is None:
            raise not_initialised(source)
        mark = mark_of(source.names, info)
        is_own = mark is not None and mark.run == run and mark.state in (LEAVING, LEFT)
        if is_own and is_locked(info):
            return info
        if is_locked(info):
            raise locked_by_others(source, mark)
        before = mark.before if mark and is_own else mark.run if mark and mark.state == ARRIVED else ""
        made = Mark(run, LEAVING, target.backend.place, before, math.ceil(_uptime()), boot=_boot())
        return with_mark(source.names, info, made, {READY: False})

    change(source, wanted)


def seconds_in_flight(mark: Mark) -> float:
    """Return for how many seconds calls may still write that had read the flag before a lock.

    Another machine than the one that has locked waits for the whole time, because their clocks may differ."""
    passed = _uptime() - mark.since if mark.boot == _boot() else 0.0
    return min(max(IN_FLIGHT_SECONDS - passed, 0.0), IN_FLIGHT_SECONDS)


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def wait_for_calls(source: Place, run: str, wait: Callable[[float], object] = time.sleep) -> None:
    """Wait until calls that had read the flag before the lock have ended. Raise StoreError if the lock is lost."""
    mark = require_mark(source, run, LEAVING, LEFT)
    if mark.state == LEFT:
        return
    until = time.monotonic() + seconds_in_flight(mark)
    while (left := until - time.monotonic()) > 0:
        wait(min(left, _POLL_SECONDS))
    require_mark(source, run, LEAVING)


def require_mark(place: Place, run: str, *states: str) -> Mark:
    """Return the mark of a datastore. Raise StoreError unless this run has locked it."""
    return _required(place, present(place), run, states)


def _required(place: Place, info: Resource | None, run: str, states: Collection[str]) -> Mark:
    mark = mark_of(place.names, info)
    if info is None or mark is None or mark.run != run or mark.state not in states or not is_locked(info):
        raise StoreError(
            f"{place.backend.place} is not locked by run {run!r}",
            details="another program has changed its flag: begin again",
            code=Code.DATASTORE_LOCKED,
        )
    return mark


def is_predecessor(source_info: Resource | None, target: Place) -> bool:
    """Return whether the content of the source came from this target, which is locked since."""
    info, filled = present(target), mark_of(target.names, source_info)
    emptied = mark_of(target.names, info)
    if info is None or filled is None or emptied is None or not is_locked(info) or emptied.state != LEFT:
        return False
    return emptied.run == (filled.run if filled.state == ARRIVED else filled.before)


def has_arrived(target: Place, run: str) -> bool:
    """Return whether the target is in use since this run: then no step may be repeated."""
    mark = mark_of(target.names, present(target))
    return mark is not None and mark.run == run and mark.state == ARRIVED


def leave(source: Place, run: str) -> None:
    """Mark that the content of the source is in the target from now on. It stays locked."""

    def wanted(info: Resource | None) -> Resource | None:
        mark = _required(source, info, run, (LEAVING, LEFT))
        return info and (info if mark.state == LEFT else with_mark(source.names, info, replace(mark, state=LEFT), {}))

    change(source, wanted)


def arrive(source: Place, target: Place, run: str) -> None:
    """Unlock the target, whose source has left."""
    require_mark(source, run, LEFT)
    open_target(target, run, source.backend.place)


def open_target(target: Place, run: str, origin: str) -> None:
    """Unlock the target of a run, with a mark that names its origin. The caller has compared it with its source."""

    def wanted(info: Resource | None) -> Resource | None:
        mark = mark_of(target.names, info)
        if info is None or mark is None or mark.run != run:
            raise StoreError(f"{target.backend.place} is not marked by run {run!r}", details="begin again")
        if mark.state == ARRIVED:
            return info
        return with_mark(target.names, info, Mark(run, ARRIVED, origin), {READY: True})

    change(target, wanted)


def permit_export(place: Place) -> None:
    """Raise CallerError if the content of the datastore has moved to another one, or is moving."""
    mark = mark_of(place.names, present(place))
    if mark is not None and mark.state != ARRIVED:
        details = "export the datastore that is in use; --backup exports this one as it is"
        raise CallerError(
            _LOCKED[mark.state].format(place.backend.place, mark.other), details=details, code=Code.DATASTORE_LOCKED
        )


def permit_unlock(place: Place, *, although_moved: bool) -> None:
    """Raise CallerError if a move has locked the datastore. With `although_moved`, remove its mark instead."""
    mark = mark_of(place.names, present(place))
    if mark is None or mark.state == ARRIVED:
        return
    if not although_moved:
        raise CallerError(_LOCKED[mark.state].format(place.backend.place, mark.other), details=_REMEDIES[mark.state])
    change(place, lambda info: info and with_mark(place.names, info, None, {}))

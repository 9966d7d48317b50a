"""The step that lets helm make a release from a chart, and brings back what was there before."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from svc.upgrade.bundle import WORKLOADS
from svc.upgrade.chart_steps import ChartStep
from svc.upgrade.chart_view import RELEASE_NAME, RELEASE_NAMESPACE, ChartView, Situation
from svc.upgrade.former_managers import giving_back
from svc.upgrade.helm import HelmFailed, shown
from svc.upgrade.object_states import Difference, essence
from svc.upgrade.object_states import shown as differences_shown
from svc.upgrade.object_step import OF_SERVER
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.releases import DEPLOYED, Release, newest_of, place_of, read_records, read_release
from svc.upgrade.rollouts import rollout_of
from svc.upgrade.step import PARTS, Look, Progress
from svc.upgrade.writer import Changed, Writer

Json = dict[str, Any]

RELEASE: Final = "helm-release"
_KEPT: Final = ("Namespace", "CustomResourceDefinition")
_BUSY: Final = "another operation"
_AGAIN: Final = "run the command again, or undo the upgrade"


class HelmRelease(ChartStep):
    """Install or upgrade the release, and wait for its workloads. helm never uninstalls anything.

    A revision that helm left pending because it was killed is removed, after it was saved: helm refuses to go on after one."""

    name = RELEASE

    def __init__(self, writer: Writer, view: ChartView | None = None) -> None:
        super().__init__(writer, view)
        self._is_asked = False
        self._is_undone = False
        self._workloads: list[Place] = []
        self._entry: Json | None = None
        self._made: Situation | None = None

    def look(self, saved: Sequence[Json]) -> Look:
        """Compare the newest revision with the chart and its values."""
        view, found = self._view, self._view.situation()
        if found.blockers:
            return Look(False, found.blockers)
        self._workloads = view.workloads(found)
        is_done, entry = view.is_done(found), _open_entry(saved)
        self._entry, self._made = entry, found if is_done else None
        blockers = self._blockers(found, entry)
        is_external = view.wish.is_external
        notes = [f"run this: {self._command(found)}"] if is_external and not is_done else []
        return Look(
            is_done or (is_external and self._is_asked),
            () if is_done else blockers,
            notes=tuple(notes),
            changes=() if is_done else tuple(self._changes(found)),
            before=PARTS,  # a revision that was begun has the objects of the chart
            content={"found": found},
        )

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the revision of before, or, without one, the objects of before; and a pending revision that will go."""
        found = look.content.get("found")
        if found is None or self._view.is_done(found):
            return None
        entry, current = _open_entry(saved), found.current
        if entry is not None:
            is_known = current is None or not current.is_pending or current.secret in entry["pending"]
            return None if is_known else entry | {"pending": [*entry["pending"], current.secret]}
        wish, revision = self._view.wish, current.revision if current else 0
        made: Json = {"release": wish.release, "namespace": found.namespace, "revision": revision, "pending": []}
        made |= {"chart": str(wish.chart), "config": self._view.config(found), "workloads": _rows(self._workloads)}
        return made | {"objects": [] if revision else list(self._objects(made, found, saved))}

    def _objects(self, made: Json, found: Situation, saved: Sequence[Json]) -> Iterator[list[Any]]:
        """Yield the objects of before. One of a release that does not exist is what an interrupted undoing has left."""
        known = {Place(*row): before for *row, before in saved[-1]["objects"]} if saved else {}
        for place, live in self._view.live(found):
            is_left = live is not None and place in known and _is_of(live, made)
            yield [*_row(place), known[place] if is_left else live]

    def act(self, look: Look) -> None:
        """Run helm. Raise Blocked with what it says if it fails."""
        wish, found = self._view.wish, look.content["found"]
        if wish.is_external:
            self._is_asked = True
            return
        self._remove_pending(found.current)
        values = self._view.config(found)
        words = wish.release, wish.chart.path, found.namespace, values
        self._helm(lambda: self._writer.helm.upgrade(*words, self._require))

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether the release is deployed, and its workloads have rolled out."""
        reasons: list[str] = []
        if self._is_asked:
            found = self._view.situation()
            if self._view.is_done(found):
                self._workloads, self._made = self._view.workloads(found), found
            else:
                reasons.append(f"release {self._view.wish.release} is not made from the chart yet: {self._command(found)}")
        for place in self._workloads:
            if self._is_undone and self._find(place) is None:
                continue  # the chart of before need not have it
            reasons += rollout_of(self._writer, place, detailed=detailed).reasons
        return Progress(not reasons, tuple(reasons), saves_now=self._unsaved_made())

    def _unsaved_made(self) -> Json | None:
        """Return the entry with the objects as the release has made them, unless it has them: undoing finds edits by them.

        It is saved before the workloads have rolled out: one that never does so may be edited as well."""
        found, entry = self._made, self._entry
        if self._is_undone or found is None or found.current is None or entry is None:
            return None
        revision = found.current.revision
        if (entry.get("made") or {}).get("revision") == revision:
            return None
        names = self._writer.names
        objects = [[*_row(place), essence(live, names)] for place, live in self._view.live(found) if live is not None]
        self._entry = entry | {"made": {"revision": revision, "objects": objects}}
        return self._entry

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return that the release is undone, so that the next run saves again what is there then."""
        entry = _open_entry(saved)
        return None if entry is None or look.is_done else entry | {"is_undone": True}

    def remains(self) -> bool:
        """Return whether workloads of before roll out."""
        return bool(self._workloads)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Compare the newest revision, or without a former one the objects, with those of before."""
        self._is_undone = True
        if not saved:
            return Look(True)
        entry = saved[-1]
        secrets = read_records(self._writer, entry["release"]).by_namespace.get(entry["namespace"]) or []
        newest = newest_of(self._writer, secrets)
        if entry["revision"]:
            return self._look_at_revision(entry, newest)
        return self._look_at_objects(entry, secrets, newest)

    def undo(self, look: Look) -> None:
        """Let helm roll back; without a former revision, delete the records of the new one and restore the objects.

        The records go first: a run that follows on an interrupted undoing must not find the release deployed."""
        entry = look.content["entry"]
        if entry["revision"]:
            words = entry["release"], entry["revision"], entry["namespace"]
            self._helm(lambda: self._writer.helm.roll_back(*words, self._require))
            return
        for secret in look.content["secrets"]:
            self._writer.delete(place_of(secret), secret)
        for place, live, before in look.content["objects"]:
            if before is None:
                self._writer.delete(place, live)
            elif live is None:
                self._writer.create(_body(before, None))
            else:
                self._restore(place, live, before)

    def _restore(self, place: Place, live: Json, before: Json) -> None:
        """Write an object as it was, and give its fields back to their managers."""
        names = self._writer.names
        if essence(live, names) != essence(before, names):
            live = self._writer.replace(_body(before, live), live)
        if operations := giving_back(live, before):
            self._writer.patch(place, live, operations)

    def _look_at_revision(self, entry: Json, newest: Release | None) -> Look:
        former = read_release(self._writer, _secret_of(entry))
        if newest is None or former is None:
            return Look(False, (f"{_secret_of(entry)} does not exist any more: helm cannot roll back to it",))
        self._workloads = [Place(*each) for each in entry["workloads"]]
        is_untouched = newest.revision == former.revision and not entry["pending"]
        if newest.status == DEPLOYED and (is_untouched or (newest.revision > former.revision and _is_same(newest, former))):
            return Look(True)
        if edits := self._edits(entry, newest):
            return _edited(edits)
        blockers = () if _is_same(newest, former) else _changed_since(entry, newest)
        changes = ((f"release {entry['release']}", newest.chart_name, former.chart_name),)
        return Look(False, blockers, changes=changes, content={"entry": entry})

    def _look_at_objects(self, entry: Json, secrets: Sequence[Json], newest: Release | None) -> Look:
        if newest is not None and (edits := self._edits(entry, newest)):
            return _edited(edits)
        blockers = () if newest is None else _changed_since(entry, newest)
        left = list(self._unrestored(entry))
        changes = tuple((str(place), live and "present", before and "as before") for place, live, before in left)
        full = [live for each in secrets if (live := self._find(place_of(each)))]
        self._workloads = [Place(*row) for *row, before in entry["objects"] if before and row[1] in WORKLOADS]
        content = {"entry": entry, "objects": left, "secrets": full}
        return Look(not left and not full, blockers, changes=changes, content=content)

    def _edits(self, entry: Json, newest: Release) -> dict[Place, tuple[Difference, ...]]:
        """Return the objects that are not as the release has made them, with what is different."""
        made, names = entry.get("made") or {}, self._writer.names
        if made.get("revision") != newest.revision:
            return {}  # undoing has begun
        found = {Place(*row): (state, essence(self._find(Place(*row)), names)) for *row, state in made["objects"]}
        return {place: differences_shown(*states) for place, states in found.items() if states[0] != states[1]}

    def _unrestored(self, entry: Json) -> Iterator[tuple[Place, Json | None, Json | None]]:
        """Yield the objects that are not as before: place, what is there, and what was. What the release has not made stays."""
        names = self._writer.names
        for *row, before in entry["objects"]:
            place = Place(*row)
            live = self._find(place)
            if before is None:
                is_made = live is not None and _is_of(live, entry) and "deletionTimestamp" not in live["metadata"]
                if is_made and place.kind not in _KEPT:
                    yield place, live, None
            elif live is None or essence(live, names) != essence(before, names) or giving_back(live, before):
                yield place, live, before

    def _blockers(self, found: Situation, entry: Json | None) -> tuple[str, ...]:
        """Return what forbids a run of helm. Only the revision that this run has begun may be pending."""
        current = found.current
        is_external = self._view.wish.is_external
        if current is None or not current.is_pending or is_external:
            return ()
        if entry is not None and current.revision > entry["revision"] and _is_own(entry, current):
            return ()
        return (f"{current} is {current.status}: helm is at work, or was killed; if it was: `helm rollback {current.name}`",)

    def _changes(self, found: Situation) -> Iterator[Difference]:
        view, newest = self._view, found.newest
        before = {str(view.place(each, found.namespace)): each for each in (newest.documents() if newest else ())}
        after = {str(view.place(each, found.namespace)): each for each in view.documents(found)}
        for place in {**before, **after} if found.current is not None else after:  # helm leaves what another release has
            old, new = before.get(place), after.get(place)
            if old is None or new is None:
                yield place, old and "present", new and "present"
                continue
            yield from ((f"{place}: {field}", was, becomes) for field, was, becomes in differences_shown(old, new))

    def _remove_pending(self, newest: Release | None) -> None:
        if newest is not None and newest.is_pending:
            self._writer.delete(place_of(newest.secret), newest.secret)

    def _helm(self, act: Callable[[], None]) -> None:
        try:
            with self._writer.permit():
                act()
        except HelmFailed as error:
            if _BUSY in str(error):
                raise Changed(f"helm: {error}") from error
            raise Blocked([f"helm: {error}"], details=_AGAIN) from error

    def _require(self) -> None:
        """Raise Blocked if the run has lost its Lease. The wish to stop does not break helm off."""
        with suppress(KeyboardInterrupt), self._writer.permit():
            pass

    def _command(self, found: Situation) -> str:
        wish = self._view.wish
        return shown(wish.release, wish.chart.path, found.namespace, wish.values_file)


def _edited(edits: Mapping[Place, Sequence[Difference]]) -> Look:
    """Return a look back that is blocked by what was changed since."""
    changes = [(f"{place}: {field or 'object'}", old, new) for place, found in edits.items() for field, old, new in found]
    return Look(False, tuple(f"{place} was changed since" for place in edits), changes=tuple(changes))


def _open_entry(saved: Sequence[Json]) -> Json | None:
    """Return what was saved for the run at work; None before it, and after it was undone."""
    return saved[-1] if saved and not saved[-1].get("is_undone") else None


def _changed_since(entry: Json, newest: Release) -> tuple[str, ...]:
    """Return the sentence about a release that another program has made since. A pending or failed one may be of this run."""
    if _is_own(entry, newest) or newest.status != DEPLOYED:
        return ()
    return (f"{newest} was made since, from chart {newest.chart_name}",)


def _is_own(entry: Json, newest: Release) -> bool:
    """Return whether a revision is from the chart and the values of the run."""
    return (newest.chart_name, newest.config) == (entry["chart"], entry["config"])


def _is_same(release: Release, other: Release) -> bool:
    """Return whether a revision has what another one had, as after a rollback."""
    return (release.chart_name, release.config, release.manifest) == (other.chart_name, other.config, other.manifest)


def _secret_of(entry: Json) -> Place:
    return Place("v1", "Secret", entry["namespace"], f"sh.helm.release.v1.{entry['release']}.v{entry['revision']}")


def _is_of(live: Json, entry: Json) -> bool:
    annotations = live["metadata"].get("annotations") or {}
    found = annotations.get(RELEASE_NAME), annotations.get(RELEASE_NAMESPACE)
    return found == (entry["release"], entry["namespace"])


def _body(before: Json, live: Json | None) -> Json:
    body = copy.deepcopy(before)
    for field in OF_SERVER:
        body["metadata"].pop(field, None)
    if live is not None and (owners := live["metadata"].get("ownerReferences")):
        body["metadata"]["ownerReferences"] = owners
    return body


def _row(place: Place) -> list[str]:
    return [place.api_version, place.kind, place.namespace, place.name]


def _rows(places: Sequence[Place]) -> list[list[str]]:
    return [_row(each) for each in places]

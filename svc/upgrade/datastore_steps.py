"""The steps of a move of the datastore. Each is done if its postcondition holds in the two datastores.

While the target does not bear the mark of this run, the steps after the mark cannot be looked at. When the target has arrived,
all steps but the last one are done for good, because it is in use.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from svc.ipam.blocks import allocations
from svc.ipam.errors import shortened
from svc.model.ipam import Block
from svc.move import marks, preflight, steps
from svc.move.marks import ARRIVING, LEAVING, LEFT
from svc.upgrade.datastore_archive import archived, unpacked
from svc.upgrade.datastore_sites import Documents, Sites, looking_again
from svc.upgrade.object_states import digest
from svc.upgrade.outcomes import Blocked
from svc.upgrade.step import REACHED, Look, Progress

Json = dict[str, Any]

MAX_ASKS: Final = 20  # findings that are listed
_UNKNOWN: Final = Look(False, unverified=True)


class MoveStep:
    """What the steps share. Nothing is undone by most of them: one step empties the target."""

    name = ""
    destroys = ""
    can_undo = True

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self.saves_as = self.name

    def look(self, saved: Sequence[Json]) -> Look:
        """Compare the datastores with the postcondition of the step."""
        self._sites.use(saved)
        return Look(True) if self._sites.has_arrived else self._look()

    def _look(self) -> Look:
        raise NotImplementedError

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return where the datastores are, so that an undo needs no input."""
        return None if saved else {"ends": self._sites.known.to_json()}

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: what undoing deletes has come from the source."""
        return None

    def act(self, look: Look) -> None:
        """Write what the look says."""
        with looking_again():
            self._act(look)

    def _act(self, look: Look) -> None:
        raise NotImplementedError

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return at once: the step has written all."""
        return REACHED

    def remains(self) -> bool:
        """Return False: nothing follows an undo."""
        return False

    def look_back(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Return that nothing is left to undo."""
        return Look(True)

    def undo(self, look: Look) -> None:
        """Write what a look back says."""
        raise NotImplementedError

    @property
    def is_arriving(self) -> bool:
        """Whether the target bears the mark of this run."""
        target = self._sites.target
        mark = marks.mark_of(target.names, marks.present(target))
        return mark is not None and (mark.run, mark.state) == (self._sites.run, ARRIVING)

    @property
    def lock(self) -> "marks.Mark | None":
        """The mark of the source if it is that of this run, and the source is locked."""
        source = self._sites.source
        info = marks.present(source)
        mark = marks.mark_of(source.names, info)
        is_own = mark is not None and mark.run == self._sites.run and mark.state in (LEAVING, LEFT)
        return mark if is_own and info is not None and marks.is_locked(info) else None

    @property
    def has_left(self) -> bool:
        """Whether the source says that its content is in the target."""
        lock = self.lock
        return lock is not None and lock.state == LEFT


class LockSource(MoveStep):
    """Look for what would block the move, and lock the source."""

    name = "lock-source"

    def _look(self) -> Look:
        if self.lock is not None:
            return Look(True)
        found = self._sites.blockers()
        asks = [f"{each} [{each.id}]" for each in found if each.can_be_acknowledged]
        more = [f"and {len(asks) - MAX_ASKS} more"] if len(asks) > MAX_ASKS else []
        return Look(
            False,
            blockers=tuple(f"{each} [{each.id}]" for each in found if not each.can_be_acknowledged),
            asks=(*asks[:MAX_ASKS], *more),
            changes=(("datastoreReady", True, False),),
            before=digest({"asks": asks}),
        )

    def _act(self, look: Look) -> None:  # noqa: ARG002
        marks.lock(self._sites.source, self._sites.target, self._sites.run)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Return whether this run has locked the source."""
        if not self._sites.use(saved) or self.lock is None:
            return Look(True)
        return Look(False, changes=(("datastoreReady", False, True),))

    def undo(self, look: Look) -> None:  # noqa: ARG002
        """Unlock the source."""
        with looking_again():
            steps.unlock(self._sites.source, self._sites.run)


class CallsInFlight(MoveStep):
    """Wait until calls of other programs have ended that had read the flag before the lock."""

    name = "calls-in-flight"

    def __init__(self, sites: Sites) -> None:
        super().__init__(sites)
        self._until: float | None = None
        self._has_waited = False

    def _look(self) -> Look:
        if self.lock is not None:
            return Look(True)
        change = ("calls of other programs", "in flight", f"ended, after {marks.IN_FLIGHT_SECONDS:.0f} s at most")
        return Look(False, unverified=True, changes=(change,))

    def _act(self, look: Look) -> None:  # noqa: ARG002
        raise Blocked(["the source is not locked any more"], details="another program has unlocked it: run the command again")

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return whether the time has passed. A clock that is set changes nothing."""
        lock = self.lock
        if lock is None or lock.state == LEFT:
            return REACHED
        if self._until is None:
            self._until = time.monotonic() + marks.seconds_in_flight(lock)
        left = self._until - time.monotonic()
        if left > 0:
            return Progress(False, (f"calls in flight of other programs may still write for {left:.0f} s",))
        if not self._has_waited:
            self._has_waited = True
            self._sites.forget()
        return REACHED


class AdmitTarget(MoveStep):
    """Lock and mark the target. The content of a predecessor is in the backup then."""

    name = "admit-target"
    destroys = "the content of a target that is the predecessor of the source; the backup has it"

    def _look(self) -> Look:
        if self.is_arriving:
            return Look(True)
        if self.lock is None:
            return Look(False, unverified=True, changes=(("ClusterInformation", None, "locked for this run"),))
        sites = self._sites
        if self.has_left:
            details = "the content of the source is old: `svcctl clusterinfo unlock --although-moved` if it is to be used again"
            return Look(False, (f"{sites.target.backend.place} has lost what this run has moved there: {details}",))
        found = [
            *preflight.of_target(marks.present(sites.source), sites.target, sites.run),
            *preflight.of_documents(sites.documents(), sites.target),
        ]
        return Look(False, tuple(f"{each} [{each.id}]" for each in found if not each.can_be_acknowledged))

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return where the datastores are, and the content of a predecessor."""
        sites = self._sites
        if saved and (saved[-1].get("archive") or not marks.is_predecessor(marks.present(sites.source), sites.target)):
            return None
        entry = super().unsaved(look, ()) or {}
        is_predecessor = marks.is_predecessor(marks.present(sites.source), sites.target)
        return entry | ({"archive": archived(sites.target)} if is_predecessor else {})

    def _act(self, look: Look) -> None:  # noqa: ARG002
        sites = self._sites
        steps.admit(sites.source, sites.target, sites.run)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Return whether the target has content of this run."""
        if not self._sites.use(saved) or not self.is_arriving:
            return Look(True)
        archive = next((each["archive"] for each in reversed(saved) if each.get("archive")), None)
        changes = (("content", "that of this run", "none" if archive is None else "that of before"),)
        return Look(False, changes=changes, content={"archive": archive})

    def undo(self, look: Look) -> None:
        """Delete what this run has imported, or restore what was there before it."""
        with looking_again(), unpacked(look.content["archive"]) as archive:
            steps.empty(self._sites.target, self._sites.run, archive)


class ImportDocuments(MoveStep):
    """Make the target equal to the source, with its pools disabled, and read every object back."""

    name = "import-documents"

    def _look(self) -> Look:
        if not self.is_arriving:
            return _UNKNOWN
        if self.has_left:
            return Look(True)
        found = steps.differing_documents(self._sites.documents(), self._sites.target)
        return Look(not found, changes=(("documents", f"{len(found)} differ", "equal"),) if found else ())

    def _act(self, look: Look) -> None:  # noqa: ARG002
        steps.import_(self._sites.documents(), self._sites.target)


class MoveEndpoints(MoveStep):
    """Write the endpoints of pods that are still the same."""

    name = "pod-endpoints"

    def __init__(self, sites: Sites) -> None:
        super().__init__(sites)
        self._left: tuple[str, ...] = ()

    def _look(self) -> Look:
        if not self.is_arriving:
            return _UNKNOWN
        found = [] if self.has_left else steps.differing_endpoints(self._sites.documents(), self._sites.target)
        return Look(not found, notes=self._left, changes=(("endpoints", f"{len(found)} differ", "equal"),) if found else ())

    def _act(self, look: Look) -> None:  # noqa: ARG002
        report = steps.move_endpoints(self._sites.documents(), self._sites.target)
        self._left = tuple(f"endpoint of {name} left out: {reason}" for name, reason in sorted(report.left.items()))


class Compare(MoveStep):
    """Read both datastores again and compare them. What was written to the source since is imported, too."""

    name = "compare-datastores"

    def _look(self) -> Look:
        if not self.is_arriving:
            return _UNKNOWN
        if self.has_left:
            return Look(True)
        documents = self._sites.documents(again=True)
        found = steps.compare(documents, self._sites.target)
        if not found:
            return Look(True, notes=(_counts(documents),))
        listed = ", ".join(shortened(found))
        note = f"a program has written although the datastores are locked, so these are imported again: {listed}"
        return Look(False, notes=(note,), changes=(("objects", f"{len(found)} differ", "equal"),))

    def _act(self, look: Look) -> None:  # noqa: ARG002
        steps.import_(self._sites.documents(), self._sites.target)
        steps.move_endpoints(self._sites.documents(), self._sites.target)


class EnablePools(MoveStep):
    """Enable the pools that are enabled at the source."""

    name = "enable-pools"

    def _look(self) -> Look:
        if not self.is_arriving:
            return _UNKNOWN
        found = steps.differing_pools(self._sites.documents(), self._sites.target)
        return Look(not found, changes=tuple((f"pool {name}", "disabled", "as at the source") for name in found))

    def _act(self, look: Look) -> None:  # noqa: ARG002
        steps.enable_pools(self._sites.documents(), self._sites.target)


class SwitchOver(MoveStep):
    """Mark the source with its successor, and unlock the target."""

    name = "switch-over"
    can_undo = False

    def _look(self) -> Look:
        changes = (("datastore", "the source", "the target"),)
        return Look(False, unverified=not self.is_arriving, changes=changes)

    def _act(self, look: Look) -> None:  # noqa: ARG002
        steps.finish(self._sites.source, self._sites.target, self._sites.run)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Return that this cannot be undone, if it was done."""
        return back_over_switch(self, saved, self._sites)


def back_over_switch(step: MoveStep, saved: Sequence[Json], sites: Sites) -> Look:
    """Return a look back that is blocked if the source has left."""
    if not sites.use(saved) or not step.has_left:
        return Look(True)
    done = "" if sites.has_arrived else "finish this run by `svcctl upgrade apply`, and then "
    command = "svcctl upgrade apply --procedure datastore --source NEW --target OLD"
    return Look(
        False,
        (
            f"the content of {sites.source.backend.place} has moved to {sites.target.backend.place}: going back is the reverse "
            f"move, which keeps what was assigned since: {done}`{command}`, where NEW and OLD are the network configurations "
            "of this run's target and source",
        ),
    )


def _counts(documents: Documents) -> str:
    blocks = [value for value in documents.values() if isinstance(value, Block)]
    number = sum(1 for block in blocks for _ in allocations(block))
    return f"{len(documents)} documents with {number} allocations in {len(blocks)} blocks are equal in both datastores"

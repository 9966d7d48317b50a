"""Steps of manifests whose datastore is etcd: the Secret with the files for TLS is carried; pods pass by their agents alone."""

from collections.abc import Sequence
from typing import Any, Final

from svc.upgrade.bundle import Bundle
from svc.upgrade.etcd_access import KEYS, data_of
from svc.upgrade.object_states import SECRET, digest, essence
from svc.upgrade.object_step import Former, ObjectStep
from svc.upgrade.outcomes import Blocked
from svc.upgrade.rollouts import DAEMON_SET, rollout_of
from svc.upgrade.step import REACHED, Look, Progress
from svc.upgrade.writer import Writer

Json = dict[str, Any]

_SHOWN: Final = "its content was edited during the run, and is kept"


def step_of(writer: Writer, document: Json, bundle: Bundle, former: Former) -> ObjectStep:
    """Return the step of a document."""
    kinds: dict[str, type[ObjectStep]] = {SECRET: CarriedSecret, DAEMON_SET: AgentOnly}
    return kinds.get(document["kind"], ObjectStep)(writer, document, bundle, former)


class AgentOnly(ObjectStep):
    """A DaemonSet whose pods pass if their agent is ready. Their other containers do not count."""

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether the DaemonSet has rolled out."""
        return rollout_of(self._writer, self.place, detailed=detailed, one_container=True)


class CarriedSecret(ObjectStep):
    """A Secret that keeps what it has in the cluster: a manifest is shipped with an empty one."""

    def __init__(self, writer: Writer, document: Json, bundle: Bundle, former: Former) -> None:
        super().__init__(writer, document, bundle, former)
        self._shipped = document
        self._carried: dict[str, str] = {}

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return that nothing follows. Raise Blocked if an entry is gone."""
        present = data_of(self._writer.find(self.place))
        if lost := [key for key in self._carried if key not in present]:
            details = "write it again, or look for it in the backup of the run"
            raise Blocked([f"{self.place} has lost {', '.join(lost)} during the run"], details=details)
        return REACHED

    def _change(self, live: Json, saved: Sequence[Json]) -> Look:
        """Compare with a document that has the entries of the object which is compared, so that an edit is never undone."""
        self._carried |= data_of(live)  # also what an earlier look has found
        self._document = carried(self._shipped, live)
        found = super()._change(live, saved)
        notes = (*found.notes, f"{self.place}: {_SHOWN}") if saved and _is_edited(live, saved, self._writer) else found.notes
        contradictions = [key for key in KEYS if differ(self._shipped, live, key)]
        blockers = tuple(f"{self.place} has another {key} than the manifest: leave it out there" for key in contradictions)
        return Look(
            found.is_done and not blockers, blockers, found.asks, notes, found.changes,
            before=found.before, after=found.after, content=found.content,
        )  # fmt: skip


def carried(shipped: Json, live: Json | None) -> Json:
    """Return a Secret of a manifest with the entries of the one in the cluster."""
    rest = {key: value for key, value in shipped.items() if key != "stringData"}
    data = {**data_of(shipped), **data_of(live)}
    return rest | {"data": data} if data else rest


def differ(shipped: Json, live: Json | None, key: str) -> bool:
    """Return whether manifest and cluster have different values of an entry."""
    values = {data_of(each)[key] for each in (shipped, live) if key in data_of(each)}
    return len(values) > 1


def _is_edited(live: Json, saved: Sequence[Json], writer: Writer) -> bool:
    known = {each[name] for each in saved for name in ("digest_before", "digest_after")}
    return digest(essence(live, writer.names)) not in known

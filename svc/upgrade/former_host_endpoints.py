"""The last step of the move to automatic host endpoints (specification, 9.7): the former ones are deleted."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from svc.upgrade.former_managers import giving_back
from svc.upgrade.host_endpoint_steps import HostEndpointStep
from svc.upgrade.host_endpoint_view import HostEndpointView, Successor
from svc.upgrade.object_states import Difference
from svc.upgrade.places import Place, place_of
from svc.upgrade.step import PARTS, Look
from svc.upgrade.writer import Changed, Writer

Json = dict[str, Any]

FORMER: Final = "former-host-endpoints"
_RESTORED: Final = ("name", "labels", "annotations", "finalizers")  # of the metadata, beside owners that exist


class FormerEndpoints(HostEndpointStep):
    """Delete the former host endpoints, each only when its node has an automatic one that can stand in for it.

    Just before, the automatic one gets an annotation. The controllers read a host endpoint, then the switch, and delete the
    host endpoint only if it is still what they have read. So a deletion that they decided before the switch was on comes
    either before the annotation, whose write fails then, or it fails itself. The switch is read once more after the annotation.
    """

    name = FORMER
    destroys = "the host endpoints that were made by hand; the run keeps copies"

    def __init__(self, writer: Writer, view: HostEndpointView) -> None:
        super().__init__(writer, view)
        self._is_switch_renewed = False
        self._renewed: set[str] = set()  # names of former host endpoints that got another revision by this run

    def look(self, saved: Sequence[Json]) -> Look:
        """Look for former host endpoints, and for nodes whose former one is gone and that have no other."""
        found = self._view.former()
        changes = tuple((f"HostEndpoint/{name}", "present", None) for name in sorted(found))
        bare = self._view.uncovered(map(_node_of, _documents(saved).values())) if saved else {}
        blockers = tuple(f"node {host} has no host endpoint for all interfaces: {reason}" for host, reason in bare.items())
        return Look(not found, blockers, changes=changes, before=PARTS, content={"documents": found})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the documents that are not saved as they are."""
        known = _documents(saved)
        new = {name: document for name, document in look.content["documents"].items() if known.get(name) != document}
        return {"documents": new} if new else None

    def act(self, look: Look) -> None:
        """Delete those that are replaced. Raise Changed with what keeps the others."""
        if not self._is_switch_renewed:
            self._renew_switch()
        successors, kept, reason = self._view.successors(), set[str](), self._view.why_not_followed()
        if reason:
            raise Changed(f"svc-controllers do not follow the switch: {reason}")
        for name, document in look.content["documents"].items():
            try:
                self._replace(name, document, successors.get(name), kept)
            except Changed as error:
                reason = str(error)
        if reason:
            raise Changed(reason)

    def _renew_switch(self) -> None:
        """Change the revision of the configuration: a late write of an earlier run, which was killed, fails then."""
        place = self._view.configuration
        if place is not None and (live := self._writer.find(place)) is not None:
            renew(self._writer, place, live)
        self._is_switch_renewed = True

    def _replace(self, name: str, document: Json, successor: Successor | None, kept: set[str]) -> None:
        """Delete a former host endpoint. `kept` has the UIDs of the automatic ones that this look has changed."""
        if successor is None:
            raise Changed(f"host endpoint {name} is gone")
        if successor.reason or successor.document is None:
            raise Changed(f"host endpoint {name} stays: {successor.reason}: see the log of svc-controllers")
        if keepers := _finalizers_at_work(document):
            raise Changed(f"host endpoint {name} is being deleted, and its finalizers keep it: {keepers}")
        if successor.document["metadata"]["uid"] not in kept:
            self._keep(successor.document)
            kept.add(successor.document["metadata"]["uid"])
        if reason := self._view.why_not_followed():
            raise Changed(f"host endpoint {name} stays, because svc-controllers do not follow the switch: {reason}")
        self._writer.delete(place_of(document), document)

    def _keep(self, automatic: Json) -> None:
        """Change an automatic host endpoint: programs that have read it before cannot delete it then. Each value differs."""
        metadata = automatic["metadata"]
        notes = (metadata.get("annotations") or {}) | {
            f"{self._writer.names.label_prefix}/stands-in-since": metadata["resourceVersion"]
        }
        self._writer.patch(place_of(automatic), automatic, [{"op": "add", "path": "/metadata/annotations", "value": notes}])

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for deleted host endpoints, and for what has their names and does not stand in for them."""
        documents = _documents(saved)
        found = {name: self._writer.find(place_of(document)) for name, document in documents.items()}
        missing = {name: documents[name] for name, live in found.items() if live is None}
        present = {name: live for name, live in found.items() if live is not None}
        blockers, others = list[str](), list[Difference]()
        for name, live in present.items():
            if keepers := _finalizers_at_work(live):
                blockers.append(f"host endpoint {name} is being deleted, and will be missing: remove its finalizers {keepers}")
            others += _differences(name, live, documents[name])
        if others:
            blockers.append("another host endpoint has the name of a former one")
        changes = (*others, *((f"HostEndpoint/{name}", None, "present") for name in missing))
        stale = {name: live for name, live in present.items() if name not in self._renewed}
        managed = {name: patch for name, live in present.items() if (patch := giving_back(live, documents[name]))}
        content = {"missing": missing, "stale": stale, "managed": managed, "present": present}
        return Look(not (missing or stale or managed), tuple(blockers), changes=changes, content=content)

    def undo(self, look: Look) -> None:
        """Create the missing ones. Change the revision of the others: late deletions by a run that was killed fail then."""
        for name, document in look.content["missing"].items():
            metadata = document["metadata"]
            kept = {name: metadata[name] for name in _RESTORED if metadata.get(name)}
            if owners := [each for each in metadata.get("ownerReferences") or () if self._lives(each)]:
                kept["ownerReferences"] = owners
            self._writer.create(document | {"metadata": kept})
            self._renewed.add(name)
        for name, live in look.content["stale"].items():
            renew(self._writer, place_of(live), live)
            self._renewed.add(name)
        for name, operations in look.content["managed"].items():
            if name not in look.content["stale"]:  # otherwise the next look has its new revision
                live = look.content["present"][name]
                self._writer.patch(place_of(live), live, operations)

    def _lives(self, owner: Json) -> bool:
        """Return whether an owner, which has no namespace, exists: without one, the object would be collected as garbage."""
        place = Place(str(owner.get("apiVersion")), str(owner.get("kind")), "", str(owner.get("name")))
        live = self._writer.find(place) if self._writer.served(place) else None
        return live is not None and live["metadata"]["uid"] == owner.get("uid")


def renew(writer: Writer, place: Place, live: Json) -> None:
    """Give an object another revision and the content that it has: by an annotation that is removed again."""
    name = f"{writer.names.label_prefix}/revised"
    notes = {key: value for key, value in (live["metadata"].get("annotations") or {}).items() if key != name}
    path = "/metadata/annotations"
    changed = writer.patch(
        place, live, [{"op": "add", "path": path, "value": notes | {name: live["metadata"]["resourceVersion"]}}]
    )
    back: Json = {"op": "add", "path": path, "value": notes} if notes else {"op": "remove", "path": path}
    writer.patch(place, changed, [back])


def _documents(saved: Sequence[Json]) -> dict[str, Json]:
    """Return the former host endpoints that the run has saved, by name."""
    return {name: document for each in saved for name, document in each["documents"].items()}


def _node_of(document: Json) -> str:
    return str((document.get("spec") or {}).get("node") or "")


def _finalizers_at_work(document: Json) -> str:
    """Return the finalizers of a host endpoint that is being deleted; empty if it is not."""
    metadata = document["metadata"]
    return ", ".join(metadata.get("finalizers") or ()) if metadata.get("deletionTimestamp") else ""


def _differences(name: str, live: Json, saved: Json) -> Iterator[Difference]:
    """Yield the fields in which a host endpoint is not for the same interfaces as the saved one of its name."""
    for field in ("node", "interfaceName"):
        now, before = ((each.get("spec") or {}).get(field) for each in (live, saved))
        if now != before:
            yield f"HostEndpoint/{name}: spec.{field}", now, before

"""References to objects of the API group whose UIDs may change with an upgrade, and two steps that remove and restore them.

An owner whose UID does not match is missing to the garbage collector, which then deletes the dependent. So no reference may be
left while the API changes. They are restored with the UID that the owner has then.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from svc.datastore.orch.client import ApiError
from svc.deploy.discovery import ServedKind, root_of
from svc.model.object_metadata import bit_reversed_uid
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.step import PARTS, REACHED, Between, Look, Progress
from svc.upgrade.writer import Cluster, Writer
from svc.values import dataclass

Json = dict[str, Any]

REMOVE, RESTORE = "remove-references", "restore-references"
_MISSING: Final = 404
_LIST: Final = "list"
_FIELD: Final = "/metadata/ownerReferences"
_OF_RUN: Final = "of the run"  # what is to be restored: that follows from the run, and from no plan


@dataclass(frozen=True, slots=True)
class Reference:
    """A dependent with its UID, and its reference as it is stored."""

    dependent: Place
    uid: str
    owner: Json

    def __str__(self) -> str:
        return f"{self.dependent} -> {self.owner['kind']}/{self.owner['name']}"

    def to_json(self) -> Json:
        """Return the entry of the backup."""
        place = self.dependent
        return {"place": [place.api_version, place.kind, place.namespace, place.name], "uid": self.uid, "owner": self.owner}


def reference_from(entry: Json) -> Reference:
    """Return the reference of an entry of the backup."""
    return Reference(Place(*entry["place"]), entry["uid"], entry["owner"])


def scan(cluster: Cluster) -> Iterator[Reference]:
    """Yield the references to owners in the API group, in objects of all kinds. Raise Blocked if a kind cannot be listed."""
    group, seen = cluster.names.api_version.partition("/")[0], set[str]()
    for api_version, kind, plural in _kinds(cluster):
        for item in _items(cluster, f"{root_of(api_version)}/{plural}"):
            metadata = item["metadata"]
            found = [each for each in metadata.get("ownerReferences") or () if _is_of(each, group)]
            if not found or metadata["uid"] in seen:
                continue
            seen.add(metadata["uid"])  # an object may be served in several groups
            place = Place(api_version, kind, str(metadata.get("namespace") or ""), metadata["name"])
            yield from (Reference(place, metadata["uid"], each) for each in found)


def _items(cluster: Cluster, path: str) -> Iterator[Json]:
    """Yield the metadata of the objects of a kind; nothing if its definition is being deleted."""
    try:
        yield from cluster.items(path, metadata_only=True)
    except ApiError as error:
        if error.status != _MISSING:
            raise


def _kinds(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """Yield API version, kind and plural of all objects that can be listed, if possible in the preferred version of the group.

    A group may have kinds in other versions only, such as CronJob in batch/v1beta1."""
    for versions in (["v1"], *map(_versions, cluster.client.get("/apis")["groups"])):
        seen: set[str] = set()
        for api_version in versions:
            for each in (cluster.client.get_if_served(root_of(api_version)) or {}).get("resources") or ():
                if _LIST in each["verbs"] and "/" not in each["name"] and "get" in each["verbs"] and each["name"] not in seen:
                    seen.add(each["name"])
                    yield api_version, each["kind"], each["name"]


def _versions(group: Json) -> list[str]:
    """Return the API versions of a group, the preferred one first."""
    return list(dict.fromkeys(each["groupVersion"] for each in (group["preferredVersion"], *group["versions"])))


class _ReferenceStep:
    """What both steps share."""

    can_undo = True
    saves_as = REMOVE

    def __init__(self, writer: Writer, between: Between) -> None:
        self._writer = writer
        self._between = between

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return at once: nothing follows a reference."""
        return REACHED

    def remains(self) -> bool:
        """Return True: references always can be looked at."""
        return True

    def _removal(self) -> Look:
        """Look for references that are to be removed."""
        found = list(scan(self._writer))
        changes = tuple((str(each), each.owner["uid"], None) for each in found)
        return Look(
            not found,
            changes=changes,
            before=PARTS,
            content={"references": [each.to_json() for each in found]},
        )

    def _remove(self, look: Look) -> None:
        for entry in look.content["references"]:
            self._write(reference_from(entry), None)
        if left := [str(each) for each in scan(self._writer)]:
            raise Blocked(
                [f"references were added again: {', '.join(left)}"], details="stop the program that adds them, and run again"
            )

    def _restoration(self, saved: Sequence[Json]) -> Look:
        """Look for saved references that are missing. Those whose dependent or owner is not the same any more are reported."""
        wanted, notes = [], []
        for entry in _saved(saved):
            reference = reference_from(entry)
            present, kind = _present(self._writer, reference), _kind_of_owner(self._writer, reference)
            owner = None if kind is None else self._owner(reference, kind)
            if present is not None and kind is None:
                notes.append(f"{reference} is not restored yet: the kind of its owner is not served; run again when it is")
            elif present is None or owner is None:
                notes.append(f"{reference} is not restored: {'its owner' if present else 'the object'} does not exist any more")
            elif not _has(present, owner["metadata"]["uid"]):
                wanted.append(entry | {"new": owner["metadata"]["uid"]})
                notes += _unpredicted(reference, owner["metadata"]["uid"])
        changes = tuple((str(reference_from(each)), None, each["new"]) for each in wanted)
        return Look(not wanted, notes=tuple(notes), changes=changes, before=_OF_RUN, content={"references": wanted})

    def _restore(self, look: Look) -> None:
        for entry in look.content["references"]:
            self._write(reference_from(entry), entry["new"])

    def _owner(self, reference: Reference, kind: ServedKind) -> Json | None:
        """Return the owner of a reference as it is now."""
        owner = reference.owner
        namespace = reference.dependent.namespace if kind.is_namespaced else ""
        return self._writer.find(Place(owner["apiVersion"], owner["kind"], namespace, owner["name"]))

    def _write(self, reference: Reference, new: str | None) -> None:
        """Replace a reference by one with a new UID, or remove it. Others of the object stay."""
        live = _present(self._writer, reference)
        if live is None:
            return
        old = reference.owner
        owners = live["metadata"].get("ownerReferences") or []
        kept = [each for each in owners if not (_same_owner(each, old))]
        wanted = kept if new is None else [*kept, old | {"uid": new}]
        if wanted == owners:
            return
        if not wanted:
            operation: Json = {"op": "remove", "path": _FIELD}
        else:
            operation = {"op": "add", "path": _FIELD, "value": wanted}
        self._writer.patch(reference.dependent, live, [operation])


class RemoveReferences(_ReferenceStep):
    """Remove all references into the group before the first change."""

    name = REMOVE
    destroys = "references of dependents to their owners, until they are restored"

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for references, if a later step changes something."""
        return self._removal() if self._between.is_pending else Look(True)

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the references that are not saved."""
        return _new(look, saved)

    def act(self, look: Look) -> None:
        """Remove the references, and look for others that have appeared."""
        self._remove(look)

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: undoing only adds."""
        return None

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for references that are missing."""
        return self._restoration(saved)

    def undo(self, look: Look) -> None:
        """Restore the references."""
        self._restore(look)


class RestoreReferences(_ReferenceStep):
    """Restore the references after the last change. The backup is that of the step which removed them."""

    name = RESTORE
    destroys = ""

    def look(self, saved: Sequence[Json]) -> Look:
        """Look for references that are missing; before the last change, only those that are saved count."""
        return self._restoration(saved)

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: the step only adds."""
        return None

    def act(self, look: Look) -> None:
        """Restore the references."""
        self._restore(look)

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the references that are not saved."""
        return _new(look, saved)

    def look_back(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for references that are to be removed again, if a step before this one is undone."""
        return self._removal() if self._between.is_pending else Look(True)

    def undo(self, look: Look) -> None:
        """Remove the references again."""
        self._remove(look)


def end_of(cluster: Cluster, saved: Sequence[Json]) -> Json | None:
    """Return the entry that ends a removal, after everything was restored; None if none ends.

    References that are saved before it are not restored again: they may have been removed on purpose since. It has those that
    are not restored yet, because the kind of their owner is not served."""
    wanted = _saved(saved)
    left = [each for each in wanted if _kind_of_owner(cluster, reference_from(each)) is None]
    return {"references": left, "ended": True} if left != wanted else None


def _saved(saved: Sequence[Json]) -> list[Json]:
    """Return the references that were removed, and are to be restored."""
    found: list[Json] = []
    for each in saved:
        found = [*([] if each.get("ended") else found), *each["references"]]
    return found


def _new(look: Look, saved: Sequence[Json]) -> Json | None:
    """Return the entry of the references that are found and not saved; None if all of them are."""
    known = _saved(saved)
    new = [each for each in look.content["references"] if each not in known]
    return {"references": new} if new else None


def _kind_of_owner(cluster: Cluster, reference: Reference) -> ServedKind | None:
    """Return the kind of an owner; None if it is not served, also not since the last look."""
    version, kind = reference.owner["apiVersion"], reference.owner["kind"]
    if cluster.discovery.find(version, kind) is None:
        cluster.discovery.forget(version)
    return cluster.discovery.find(version, kind)


def _present(cluster: Cluster, reference: Reference) -> Json | None:
    """Return the dependent, if it is still the same object."""
    found = cluster.find(reference.dependent) if cluster.served(reference.dependent) else None
    return found if found is not None and found["metadata"]["uid"] == reference.uid else None


def _has(present: Json, uid: str) -> bool:
    return any(each["uid"] == uid for each in present["metadata"].get("ownerReferences") or ())


def _unpredicted(reference: Reference, uid: str) -> list[str]:
    """Return a sentence if an owner has neither its former UID nor the one that follows from it."""
    former = reference.owner["uid"]
    if uid in (former, bit_reversed_uid(former)):
        return []
    return [f"{reference}: the owner has UID {uid}, not the predicted {bit_reversed_uid(former)}: it was created again"]


def _same_owner(one: Json, other: Json) -> bool:
    group = one["apiVersion"].partition("/")[0], other["apiVersion"].partition("/")[0]
    return group[0] == group[1] and (one["kind"], one["name"]) == (other["kind"], other["name"])


def _is_of(owner: Json, group: str) -> bool:
    return str(owner["apiVersion"]).partition("/")[0] == group

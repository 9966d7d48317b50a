"""The step that gives pools the label of those of an Installation, so that the operator takes them as its own."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from svc.admin.operator_resource import pool_label
from svc.admin.pools import cidr_of
from svc.admin.resources import POOL
from svc.model.custom_resources import CustomResourceCodec
from svc.model.object_metadata import ApiGroup
from svc.model.pool import with_defaults
from svc.model.resource import Resource
from svc.upgrade.former_managers import giving_back_at, managers_at
from svc.upgrade.object_states import Difference, differences, essence
from svc.upgrade.places import Place
from svc.upgrade.small_step import SmallStep
from svc.upgrade.step import PARTS, Look
from svc.upgrade.writer import Changed, Writer

Json = dict[str, Any]

NAME: Final = "pool-labels"
_FIELDS: Final = (("f:spec",), ("f:metadata", "f:labels"), ("f:metadata", "f:annotations"))
"""What undoing writes. Under the names of Calico an annotation has the labels."""


class PoolLabels(SmallStep):
    """Label the pools of these names."""

    def __init__(self, writer: Writer, pools: Sequence[str] = ()) -> None:
        super().__init__(writer, NAME)
        self._pools = pools

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for pools without the label."""
        key, value = pool_label(self._writer.names)
        bare = [name for name in self._pools if (pool := self._read(name)) and pool[1].labels.get(key) != value]
        changes = tuple((f"{POOL}/{name}: metadata.labels[{key}]", None, value) for name in bare)
        return Look(not bare, changes=changes, before=PARTS, content={"pools": bare})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the pools that the step will label, unless they are saved as they are: the operator also writes defaults."""
        known, names = _saved_pools(saved), self._writer.names
        live = {name: pool[0] for name in look.content["pools"] if (pool := self._read(name))}
        found = {name: each for name, each in live.items() if essence(known.get(name), names) != essence(each, names)}
        return {"pools": found} if found else None

    def act(self, look: Look) -> None:
        """Add the label."""
        key, value = pool_label(self._writer.names)
        for name in look.content["pools"]:
            self._label(name, {key: value})

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for pools that have the label from this run, and for those whose fields have not gone back to their managers."""
        key, value = pool_label(self._writer.names)
        pools = _saved_pools(saved)
        present = {name: pool for name in pools if (pool := self._read(name))}
        found = {name: pool for name, pool in present.items() if pool[1].labels.get(key) == value}
        changes = [each for name, (_, live) in found.items() for each in self._changes(name, pools[name], live)]
        if changes:
            changed = dict.fromkeys(field.partition(":")[0] for field, _, _ in changes)
            return Look(False, tuple(f"{name} was changed since" for name in changed), changes=tuple(changes))
        left = {name: pools[name] for name, (live, _) in present.items() if name in found or _given_back(live, pools[name])}
        return Look(not left, changes=tuple((f"{POOL}/{name}", value, None) for name in found), content={"pools": left})

    def undo(self, look: Look) -> None:
        """Write what was there, and give it back to its managers. A pool that a user has disabled since stays disabled."""
        key, value = pool_label(self._writer.names)
        for name, document in look.content["pools"].items():
            place, found = self._place(name), self._read(name)
            if place is None or found is None:
                raise Changed(f"{POOL} {name} is gone")
            live, pool = found
            head = {"apiVersion": place.api_version, "kind": POOL}
            if pool.labels.get(key) == value:
                live = self._writer.replace(live | head | _restored(live, document), live)
            if operations := _given_back(live, document):
                self._writer.patch(place, live, operations)

    def _changes(self, name: str, before: Json, live: Resource) -> Iterator[Difference]:
        """Yield what was changed since the label was given. The operator only writes defaults, and users may disable a pool."""
        place = self._place(name)
        assert place is not None
        saved = self._codec(place).decode(POOL, before)[1]
        assert isinstance(saved, Resource)  # of this kind
        label = pool_label(self._writer.names)[0]
        found = differences(_deliberate(saved, label), _deliberate(live, label))
        yield from ((f"{POOL}/{name}: {field}", old, new) for field, old, new in found)

    def _place(self, name: str) -> Place | None:
        names = self._writer.names
        places = (Place(version, POOL, "", name) for version in (names.crd_api_version, names.api_version))
        return next((place for place in places if self._writer.served(place)), None)

    def _read(self, name: str) -> tuple[Json, Resource] | None:
        place = self._place(name)
        live = self._find(place)
        if live is None or place is None:
            return None
        value = self._codec(place).decode(POOL, live)[1]
        assert isinstance(value, Resource)  # of this kind
        return live, value

    def _label(self, name: str, labels: Json) -> None:
        place, found = self._place(name), self._read(name)
        if place is None or found is None:
            raise Changed(f"{POOL} {name} is gone")
        live, pool = found
        key, _ = pool_label(self._writer.names)
        pool.metadata["labels"] = {other: text for other, text in pool.labels.items() if other != key} | labels
        codec = self._codec(place)
        encoded = codec.encode(codec.decode(POOL, live)[0], pool)
        head = {"apiVersion": place.api_version, "kind": POOL}
        self._writer.replace(live | head | {"metadata": _merged(live["metadata"], encoded["metadata"])}, live)

    def _codec(self, place: Place) -> CustomResourceCodec:
        return CustomResourceCodec(ApiGroup(self._writer.names, place.api_version))


def _saved_pools(saved: Sequence[Json]) -> dict[str, Json]:
    """Return the pools as they are saved last."""
    return {name: document for each in saved for name, document in each["pools"].items()}


def _deliberate(pool: Resource, label: str) -> Json:
    """Return what users decide about a pool, without the label and the flag that says whether it is disabled."""
    whole = pool.spec if cidr_of(pool) is None else with_defaults(pool).spec
    spec = {field: value for field, value in whole.items() if field != "disabled"}
    return {"spec": spec, "labels": {name: value for name, value in pool.labels.items() if name != label}}


def _restored(live: Json, document: Json) -> Json:
    """Return what undoing writes of a pool."""
    is_disabled = {"disabled": True} if live["spec"].get("disabled") else {}
    return {"metadata": _merged(live["metadata"], document["metadata"]), "spec": document["spec"] | is_disabled}


def _given_back(live: Json, document: Json) -> list[Json]:
    return giving_back_at(live, managers_at(document, _FIELDS), _FIELDS)


def _merged(live: Json, encoded: Json) -> Json:
    """Return the metadata of the server with labels and annotations of the codec."""
    return {**live, **{name: encoded.get(name) or {} for name in ("labels", "annotations")}}

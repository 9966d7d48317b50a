"""The undo of a move between two embedded stores: the target is as it was before."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from svc.admin.ipam_check.observation import Place
from svc.admin.resources import CLUSTER, NODE, READY, set_ready
from svc.datastore.api import Create
from svc.datastore.embedded import EmbeddedStore
from svc.model.errors import CallerError
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.move import marks, own_nodes, snapshot, steps
from svc.move.marks import ARRIVING, Mark
from svc.names import DEFAULT

KUBE = {"orchRefs": [{"nodeName": "n1", "orchestrator": DEFAULT.orchestrator}]}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    with closing(EmbeddedStore(tmp_path / "a.db")) as first, closing(EmbeddedStore(tmp_path / "b.db")) as second:
        made = Place(first, DEFAULT), Place(second, DEFAULT)
        for place in made:
            if place.backend.find(CLUSTER) is None:
                place.backend.write([Create(CLUSTER, Resource(CLUSTER.kind, {"name": CLUSTER.name}, {"clusterGUID": "g"}))])
            set_ready(place.backend, ready=True)
        put(made[0], Resource(NODE, {"name": "n1"}, KUBE | {"ipv4VXLANTunnelAddr": "10.0.0.1"}))
        put(made[0], Resource("IPReservation", {"name": "r"}, {"reservedCIDRs": ["10.0.0.0/30"]}))
        yield made


def put(place: Place, resource: Resource) -> None:
    place.backend.update(ResourceKey(resource.kind, resource.name), lambda _: resource)


def move(source: Place, target: Place, run: str, archive: Path) -> None:
    """Move up to the comparison."""
    marks.lock(source, target, run)
    steps.admit(source, target, run, archive)
    documents = steps.export_at_one_revision(source).decoded(DEFAULT)
    steps.import_(documents, target)
    steps.move_endpoints(documents, target)
    steps.require_equal(documents, target)


def contents(place: Place) -> dict[str, bytes]:
    return snapshot.take(place).documents


def there(places: tuple[Place, Place], archive: Path) -> None:
    """Move from the first to the second place, where a node changes then."""
    first, second = places
    move(first, second, "there", archive)
    steps.finish(first, second, "there")
    put(second, Resource(NODE, {"name": "n1"}, KUBE | {"bgp": {"ipv4IPIPTunnelAddr": "10.0.0.2"}}))
    put(second, Resource(NODE, {"name": "n2"}, {"orchRefs": [{"nodeName": "n2", "orchestrator": DEFAULT.orchestrator}]}))


def test_predecessor_gets_its_content_back_with_its_nodes(places: tuple[Place, Place], tmp_path: Path) -> None:
    first, second = places
    there(places, tmp_path / "unused")
    before = contents(first)
    move(second, first, "back", tmp_path / "archive")
    assert {entry.value.name for entry in first.backend.list(ResourceQuery(NODE))} == {"n1", "n2"}
    steps.undo(second, first, "back", tmp_path / "archive")
    assert contents(first) == before


def test_target_keeps_its_own_identity(places: tuple[Place, Place], tmp_path: Path) -> None:
    """It was empty, and initialised."""
    first, second = places
    marks.change(second, lambda info: info and replace(info, spec=info.spec | {"clusterGUID": "own"}))
    before = marks.present(second)
    move(first, second, "there", tmp_path / "unused")
    steps.undo(first, second, "there", tmp_path / "unused")
    assert marks.present(second) == before
    assert not marks.is_locked(before or Resource("", {}))
    move(first, second, "there", tmp_path / "unused")
    steps.finish(first, second, "there")
    assert marks.mark_of(DEFAULT, marks.present(second)) == Mark("there", marks.ARRIVED, first.backend.place)


def test_target_that_gets_content_before_its_lock_is_left_alone(
    places: tuple[Place, Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import would delete it."""
    first, second = places
    before, change = marks.present(second), marks.change

    def written_before(place: Place, wanted: Any) -> Any:
        monkeypatch.undo()
        put(second, Resource("IPReservation", {"name": "own"}, {"reservedCIDRs": ["10.9.0.0/30"]}))
        return change(place, wanted)

    monkeypatch.setattr(marks, "change", written_before)
    with pytest.raises(CallerError, match="is not empty: it has IPReservation 'own'"):
        steps.admit(first, second, "there", tmp_path / "unused")
    assert marks.present(second) == before
    assert second.backend.find(ResourceKey("IPReservation", "own")) is not None


def test_archive_of_another_datastore_is_not_restored(places: tuple[Place, Place], tmp_path: Path) -> None:
    first, second = places
    there(places, tmp_path / "unused")
    move(second, first, "back", tmp_path / "archive")
    present = contents(first)
    steps.write_file(second, snapshot.take(second), tmp_path / "other")
    with pytest.raises(CallerError, match="is not that of this target"):
        steps.undo(second, first, "back", tmp_path / "other")
    assert contents(first) == present


def test_target_that_another_run_marks_meanwhile_is_kept(
    places: tuple[Place, Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last write of an undo compares the mark, as all others compare revisions."""
    first, second = places
    move(first, second, "there", tmp_path / "unused")
    clear = own_nodes.clear

    def marked_then(target: Place) -> None:
        clear(target)
        marks.change(target, lambda info: info and marks.with_mark(DEFAULT, info, Mark("other", ARRIVING, ""), {READY: False}))

    monkeypatch.setattr(own_nodes, "clear", marked_then)
    steps.empty(second, "there", tmp_path / "unused")
    mark = marks.mark_of(DEFAULT, marks.present(second))
    assert mark is not None
    assert mark.run == "other"

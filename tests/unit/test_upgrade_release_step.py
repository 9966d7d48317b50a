"""The step that lets helm make a release: what it may remove, and the order in which it is undone."""

import base64
import gzip
import json
from typing import Any

import pytest

from harness.memory_writer import MemoryWriter
from svc.upgrade.chart_files import Chart
from svc.upgrade.chart_view import RELEASE_NAME, RELEASE_NAMESPACE, ChartView, Situation, Wish
from svc.upgrade.places import Place
from svc.upgrade.release_step import HelmRelease
from svc.upgrade.step import Look
from svc.upgrade.writer import Changed

Json = dict[str, Any]

CONFIG = Place("v1", "ConfigMap", "kube-system", "one")
ADDED = Place("v1", "ConfigMap", "kube-system", "two")
CHART = Chart("chart", "svc", "0.1.1", "0.1.1", {}, is_complete=True, digest="1")


def secret(revision: int, status: str, chart: str = "0.1.1", values: Json | None = None, manifest: str = "") -> Json:
    release = {
        "name": "pods",
        "namespace": "kube-system",
        "version": revision,
        "info": {"status": status},
        "chart": {"metadata": {"name": "svc", "version": chart, "appVersion": chart}, "templates": []},
        "config": values or {},
        "manifest": manifest,
    }
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
    metadata = {
        "name": f"sh.helm.release.v1.pods.v{revision}",
        "namespace": "kube-system",
        "labels": {"name": "pods", "owner": "helm"},
    }
    head = {"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1"}
    return head | {"metadata": metadata, "data": {"release": packed}}


def config(place: Place, value: str) -> Json:
    notes = {RELEASE_NAME: "pods", RELEASE_NAMESPACE: "kube-system"}
    metadata = {"name": place.name, "namespace": place.namespace, "annotations": notes}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}


def entry(**more: Any) -> Json:
    found: Json = {"release": "pods", "namespace": "kube-system", "revision": 0, "pending": [], "chart": "svc 0.1.1"}
    return found | {"config": {}, "workloads": [], "objects": []} | more


@pytest.mark.parametrize(
    ("pending", "is_refused"),
    [
        (secret(2, "pending-upgrade"), False),
        (secret(2, "pending-upgrade", chart="0.2.0"), True),
        (secret(2, "pending-upgrade", values={"image": "other"}), True),
        (secret(1, "pending-upgrade"), True),
    ],
    ids=["of this run", "of another chart", "with other values", "older than the run"],
)
def test_pending_revision_of_another_program_forbids_the_run(pending: Json, is_refused: bool) -> None:
    """Only what this run has begun may be removed."""
    writer = MemoryWriter(pending)
    view = ChartView(writer, Wish("pods", CHART, {}, is_external=False))
    step = HelmRelease(writer, view)
    blockers = step._blockers(view.situation(), entry(revision=1))
    assert bool(blockers) == is_refused


def test_plan_hides_what_secrets_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be written to a file that others can read."""
    old, new = ({**config(CONFIG, value), "kind": "Secret"} for value in ("old-key", "new-key"))
    view = ChartView(MemoryWriter(), Wish("pods", CHART, {}))
    monkeypatch.setattr(view, "documents", lambda _: [new])
    before = secret(1, "deployed", manifest=json.dumps(old))
    found = ChartView(MemoryWriter(before), Wish("pods", CHART, {})).situation()
    ((field, was, becomes),) = HelmRelease(MemoryWriter(), view)._changes(found)
    assert (field, was, becomes) == ("Secret/kube-system/one: data.value", "(hidden)", "(hidden)")


def test_missing_workload_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release stays deployed when an object of it is deleted."""
    writer = MemoryWriter(secret(1, "deployed"))
    view = ChartView(writer, Wish("pods", CHART, {}))
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "one", "namespace": "kube-system"}}
    monkeypatch.setattr(view, "documents", lambda _: [workload])
    step = HelmRelease(writer, view)
    assert step.look([]).is_done
    assert step.progress().reasons == ("Deployment/kube-system/one does not exist",)


def test_undoing_begins_with_the_records_of_the_release() -> None:
    """A run that follows on an undoing which was killed must not find the release deployed, and its objects of before."""
    writer = MemoryWriter(secret(1, "deployed"), config(CONFIG, "new"), config(ADDED, "new"))
    before = [("one", config(CONFIG, "old")), ("two", None)]
    saved = [entry(objects=[["v1", "ConfigMap", "kube-system", *each] for each in before])]
    step = HelmRelease(writer)
    look = step.look_back(saved)
    assert not look.is_done
    step.undo(look)
    assert writer.writes == [
        "delete Secret/kube-system/sh.helm.release.v1.pods.v1",
        "replace ConfigMap/kube-system/one",
        "delete ConfigMap/kube-system/two",
    ]
    assert step.look_back(saved).is_done


def test_undoing_goes_on_without_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = MemoryWriter(secret(1, "deployed"), config(CONFIG, "new"))
    saved = [entry(objects=[["v1", "ConfigMap", "kube-system", "one", config(CONFIG, "old")]])]
    step = HelmRelease(writer)

    def fail(document: Json, live: Json) -> Json:
        raise Changed("the answer is lost")

    with monkeypatch.context() as context:
        context.setattr(writer, "replace", fail)
        look = step.look_back(saved)
        with pytest.raises(Changed):
            step.undo(look)
    look = step.look_back(saved)
    assert (look.is_done, look.blockers) == (False, ())
    step.undo(look)
    assert step.look_back(saved).is_done


def test_run_after_an_interrupted_undoing_keeps_what_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects are still those of the release, whose records are gone."""
    writer = MemoryWriter(config(CONFIG, "new"))
    view = ChartView(writer, Wish("pods", CHART, {}))
    step = HelmRelease(writer, view)
    monkeypatch.setattr(view, "documents", lambda _: [config(CONFIG, "new")])
    found = Situation("kube-system")
    undone = entry(objects=[["v1", "ConfigMap", "kube-system", "one", config(CONFIG, "old")]], is_undone=True)
    made = step.unsaved(Look(False, content={"found": found}), [undone])
    assert made is not None
    assert made["objects"] == undone["objects"]
    live = writer.find(CONFIG)
    assert live is not None
    notes = {RELEASE_NAME: "pods", RELEASE_NAMESPACE: "default"}
    writer.replace(live | {"metadata": live["metadata"] | {"annotations": notes}}, live)
    made = step.unsaved(Look(False, content={"found": found}), [undone])
    assert made is not None
    assert made["objects"] == [["v1", "ConfigMap", "kube-system", "one", writer.find(CONFIG)]]

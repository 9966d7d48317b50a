"""The order in which steps are undone."""

from typing import Any

import pytest

from harness.memory_writer import MemoryWriter
from svc.upgrade.bundle import Bundle
from svc.upgrade.object_step import ObjectStep
from svc.upgrade.pool_labels import NAME as POOL_LABELS
from svc.upgrade.pool_labels import PoolLabels
from svc.upgrade.undo_order import undo_order

Json = dict[str, Any]

KINDS = {"ConfigMap": "v1", "Secret": "v1", "ServiceAccount": "v1", "DaemonSet": "apps/v1", "Deployment": "apps/v1"}


def document(kind: str, name: str) -> Json:
    return {"apiVersion": KINDS[kind], "kind": kind, "metadata": {"name": name, "namespace": "n"}}


@pytest.mark.parametrize(
    ("steps", "created", "wanted"),
    [
        (
            ["ServiceAccount/a", "ConfigMap/c", "Secret/s", "DaemonSet/d", "Deployment/e"], [],
            ["Secret/s", "ConfigMap/c", "Deployment/e", "DaemonSet/d", "ServiceAccount/a"],
        ),
        (
            ["ConfigMap/b", "ConfigMap/c", "DaemonSet/d"], ["ConfigMap/c"],
            ["ConfigMap/b", "DaemonSet/d", "ConfigMap/c"],
        ),
        (
            ["ConfigMap/b", "DaemonSet/d", POOL_LABELS, "Deployment/e"], ["Deployment/e"],
            ["Deployment/e", POOL_LABELS, "ConfigMap/b", "DaemonSet/d"],
        ),
        (["ConfigMap/b", "DaemonSet/d", POOL_LABELS], ["DaemonSet/d"], [POOL_LABELS, "DaemonSet/d", "ConfigMap/b"]),
        (["ConfigMap/b", "DaemonSet/unsaved"], [], ["DaemonSet/unsaved", "ConfigMap/b"]),
    ],
    ids=["settings first", "created ones last", "before the first workload that comes back", "no workload", "nothing saved"],
)  # fmt: skip
def test_settings_come_back_before_workloads(steps: list[str], created: list[str], wanted: list[str]) -> None:
    """Pods read them when they start. What the run has created is deleted after the pods that use it."""
    writer, saved = MemoryWriter(), dict[str, list[Json]]()
    made: list[Any] = []
    for name in steps:
        if name == POOL_LABELS:
            made.append(PoolLabels(writer))
            continue
        before = document(*name.split("/"))
        step = ObjectStep(writer, before, Bundle([]), lambda _: None)
        made.append(step)
        if not name.endswith("unsaved"):
            entry = {"before": None if name in created else before, "digest_before": "b", "digest_after": "a"}
            saved[step.saves_as] = [entry]
    found = undo_order(made, lambda name: saved.get(name, []))
    assert [each.name.replace("/n/", "/") for each in found] == wanted

"""Edits in a manifest that its published form shows."""

from typing import Any, cast

from svc.names import DEFAULT
from svc.upgrade.field_sets import show
from svc.upgrade.published_base import compared
from svc.upgrade.writer import Cluster

Json = dict[str, Any]

GENERATION = "deprecated.daemonset.template.generation"


class Completing:
    """A server that gives each DaemonSet the first generation of its template."""

    names = DEFAULT

    def dry_create(self, document: Json) -> Json:
        return document | {"metadata": document["metadata"] | {"annotations": {GENERATION: "1"}}}


def daemon_set(grace: int) -> Json:
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x"}, "spec": {"grace": grace}}


def test_generation_that_the_server_counts_is_no_edit() -> None:
    """The client that applied the former manifest is its manager."""
    fields = {"f:metadata": {"f:annotations": {f"f:{GENERATION}": {}}}, "f:spec": {"f:grace": {}}}
    manager = {
        "manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "apps/v1", "fieldsV1": fields,
    }  # fmt: skip
    live = daemon_set(5)
    live["metadata"] |= {"annotations": {GENERATION: "3"}, "managedFields": [manager]}
    found = compared(cast(Cluster, Completing()), live, live, daemon_set(30), daemon_set(30))
    assert [(show(each.path), each.is_carried) for each in found] == [("spec.grace", True)]

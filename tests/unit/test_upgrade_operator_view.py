"""Edits of a deployment by manifests that an Installation has no field for."""

from typing import Any

import pytest

from harness.memory_writer import MemoryWriter
from svc.deploy.manifests import controllers, node
from svc.deploy.manifests.settings import NETWORKING, NONE, ORCH, OVERLAY, Settings
from svc.upgrade.former_steps import HoldFormer, PauseControllers
from svc.upgrade.operator_view import OperatorView
from svc.upgrade.places import place_of

Json = dict[str, Any]

SETTINGS = Settings(NETWORKING, ORCH, "svc:0.1.0", crds=NONE)
AGENT, CONTROLLERS = node.daemon_set(SETTINGS), controllers.deployment(SETTINGS)


class DryWriter(MemoryWriter):
    """A cluster whose server adds nothing to objects."""

    def dry_create(self, document: Json) -> Json:
        return document


def edits(writer: MemoryWriter) -> str:
    return "\n".join(OperatorView(writer)._edits())


@pytest.fixture
def writer() -> MemoryWriter:
    return DryWriter(AGENT, CONTROLLERS)


def test_deployment_of_the_manifests_has_none(writer: MemoryWriter) -> None:
    assert edits(writer) == ""


def test_strategy_and_replicas_count(writer: MemoryWriter) -> None:
    """The operator's workloads have those of the manifests."""
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    writer.edit(place_of(AGENT), updateStrategy=strategy)
    writer.edit(place_of(CONTROLLERS), replicas=2)
    found = edits(writer)
    assert "updateStrategy.rollingUpdate.maxUnavailable is '10%', the manifest says 1" in found
    assert "replicas is 2, the manifest says 1" in found


def test_what_the_move_has_changed_does_not_count(writer: MemoryWriter) -> None:
    turn = OperatorView(writer).turn
    for step in (HoldFormer(writer, turn), PauseControllers(writer, place_of(CONTROLLERS))):
        step.act(step.look([]))
    assert len(writer.writes) == 2
    assert edits(writer) == ""


def test_svc_routes_goes_along(writer: MemoryWriter) -> None:
    """Without it, packets between nodes would end with the move."""
    found = OperatorView(writer).documents()
    (agent,) = (each for each in found if each["kind"] == "DaemonSet")
    assert node.ROUTES in [each["name"] for each in agent["spec"]["template"]["spec"]["containers"]]
    assert "svc-routes" in [each["metadata"]["name"] for each in found if each["kind"] == "ClusterRoleBinding"]


def test_cluster_without_svc_routes_gets_none() -> None:
    settings = Settings(OVERLAY, ORCH, "svc:0.1.0", crds=NONE)
    found = OperatorView(DryWriter(node.daemon_set(settings), controllers.deployment(settings))).documents()
    (agent,) = (each for each in found if each["kind"] == "DaemonSet")
    assert node.ROUTES not in [each["name"] for each in agent["spec"]["template"]["spec"]["containers"]]

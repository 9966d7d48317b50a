"""Which Deployment of a manifest is the operator."""

import pytest

from harness.memory_writer import MemoryWriter
from harness.upgrade_site import daemon_set
from svc.names import DEFAULT
from svc.upgrade.operator_procedure import OperatorProcedure


def findings(name: str, namespace: str) -> tuple[str, ...]:
    operator = daemon_set("svc:0.1.1") | {"kind": "Deployment", "metadata": {"name": name, "namespace": namespace}}
    return OperatorProcedure(MemoryWriter(), [operator], {"manifest": "digest"}).findings().blockers


@pytest.mark.parametrize("namespace", ["kube-system", "svc-system"])
def test_operator_in_any_namespace(namespace: str) -> None:
    """The move from manifests makes it in another one."""
    place = f"Deployment/{namespace}/svc-controllers"
    wanted = f"{place} does not exist: svc was not installed by an operator, or the manifest is for another namespace"
    assert wanted in findings(DEFAULT.controllers, namespace)


def test_manifest_without_an_operator() -> None:
    (blocker,) = findings("other", "kube-system")
    assert blocker.startswith("the manifest has no Deployment/kube-system/svc-controllers")

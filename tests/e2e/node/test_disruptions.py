"""Failures of a real node:

its agent is down, its datastore refuses, a namespace is deleted while its pods start, a power failure.
"""

from collections.abc import Iterator

import pytest

from harness.cluster_node import ClusterNode, audit, remains
from harness.kube import Kube
from harness.kubelet_node import RealNode
from harness.workloads import (
    NAMESPACES,
    delete_namespace,
    delete_pod,
    events,
    pod_disagreements,
    put_namespace,
    put_pod,
    sandboxes,
    unready,
)

pytestmark = [pytest.mark.root, pytest.mark.slow]

PASSING = "passing"


@pytest.fixture
def short_lived_namespace(kube: Kube, real: RealNode) -> Iterator[str]:
    """Create a namespace."""
    put_namespace(kube, PASSING)
    yield PASSING
    delete_namespace(kube, PASSING)


def put_pods(kube: Kube, *names: str, namespace: str = "default") -> None:
    for name in names:
        put_pod(kube, name, namespace=namespace)


def test_pods_start_and_end_while_agent_is_down(real: RealNode, node: ClusterNode, kube: Kube) -> None:
    put_pods(kube, "early-0", "early-1")
    real.wait_none("the pods are ready", lambda: unready(kube))
    assert node.stop_agent() == 0
    delete_pod(kube, "early-0", at_once=True)
    put_pods(kube, "late-0", "late-1")
    real.wait_none("pods without an agent are ready", lambda: unready(kube))
    real.wait_none("the deleted one has no address any more", lambda: pod_disagreements(kube, node))
    real.start_agent()
    put_pods(kube, "late-2")
    real.wait_none("pods with the next agent are ready", lambda: unready(kube))
    assert pod_disagreements(kube, node) == []


def test_kubelet_retries_until_pods_start(real: RealNode, node: ClusterNode, kube: Kube) -> None:
    """An event names the cause."""
    node.ctl("clusterinfo", "lock")
    try:
        put_pods(kube, "patient-0", "patient-1")
        (message, *_) = real.wait("kubelet reports the failure", lambda: events(kube, "FailedCreatePodSandBox"))
        assert "datastore" in message
        assert remains([node]) == []
    finally:
        node.ctl("clusterinfo", "unlock")
    real.wait_none("the pods are ready", lambda: unready(kube))
    real.wait_none("no try has left anything", lambda: pod_disagreements(kube, node))


def test_namespace_is_deleted_while_its_pods_start(
    real: RealNode, node: ClusterNode, kube: Kube, short_lived_namespace: str
) -> None:
    put_pods(kube, *(f"short-{number}" for number in range(6)), namespace=short_lived_namespace)
    real.wait("the first has an address", lambda: audit([node]).allocations)
    kube.call("DELETE", f"{NAMESPACES}/{short_lived_namespace}")
    real.wait_none("nothing is left of them", lambda: remains([node]))


def test_pods_start_again_after_a_power_failure(real: RealNode, node: ClusterNode, kube: Kube) -> None:
    """They have new sandboxes. One pod is deleted during the failure, as the control plane does with pods of a dead node."""
    put_pods(kube, *(f"steady-{number}" for number in range(5)))
    real.wait_none("the pods are ready", lambda: unready(kube))
    before = sandboxes(node)
    assert len(before) == 5
    with real.rebooted():
        delete_pod(kube, "steady-0", at_once=True)
    real.wait("there are new sandboxes", lambda: len(sandboxes(node) - before) == 4)
    real.wait_none("the pods are ready again", lambda: unready(kube))
    real.wait_none("the audit is clean", lambda: pod_disagreements(kube, node))
    assert not sandboxes(node) & before
    assert len(audit([node]).allocations) == 2 * 4
    assert events(kube, "Rebooted")

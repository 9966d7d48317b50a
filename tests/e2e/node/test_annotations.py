"""Requests of pods and networks on a real node: pools, a certain address, and a start after readiness gates and policy."""

import ipaddress
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode, remains
from harness.datastores import session
from harness.installed import install
from harness.ipam import put_pool
from harness.kube import Kube
from harness.kubelet_node import RealNode
from harness.node import POOL4, POOL6
from harness.state import pod_links
from harness.wait_stubs import DataPlane, StubGate, data_plane, serve_stub_gate
from harness.workloads import (
    addresses,
    clear_pods,
    delete_namespace,
    delete_pod,
    list_pods,
    pod_disagreements,
    put_namespace,
    put_pod,
    read_pod,
    unready,
)
from svc.names import DEFAULT

pytestmark = [pytest.mark.root, pytest.mark.slow]

POD_POOL, NAMESPACE_POOL = "10.71.0.0/24", "10.72.0.0/24"
CERTAIN = ["10.73.0.7", "fd73::7"]
HOST_PORT = 18082
GROUP = 10
NETWORKS = {"plain": POOL4, "wishing": POD_POOL, "pooled": NAMESPACE_POOL}
TIMEOUT_SECONDS = 60  # maximum wait of pods for policy
OF_POD = {f"{DEFAULT.annotation_prefix}/ipv4pools": '["of-pods"]'}
OF_NAMESPACE = {f"{DEFAULT.annotation_prefix}/ipv4pools": json.dumps([NAMESPACE_POOL])}
FIXED = {f"{DEFAULT.annotation_prefix}/ipAddrs": json.dumps(CERTAIN)}
POD_IP = f"{DEFAULT.annotation_prefix}/podIP"
LIMITED = {"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "10M"}


@pytest.fixture(scope="module")
def gate(node: ClusterNode) -> Iterator[StubGate]:
    with serve_stub_gate(node.netns) as opened:
        yield opened


@pytest.fixture(scope="module")
def policy(folder: Path, kube: Kube) -> Iterator[DataPlane]:
    with data_plane(folder / "endpoint-status", kube) as running:
        yield running


@pytest.fixture(scope="module")
def waiting_network(
    shared_real_node: RealNode, node: ClusterNode, kube: Kube, folder: Path, gate: StubGate, policy: DataPlane
) -> Iterator[RealNode]:
    """Set up a network whose pods wait for the gate and for their policy, and more pools."""
    with session(node.site) as store:
        put_pool(store, "of-pods", POD_POOL, assignmentMode="Manual")
        put_pool(store, "of-namespaces", NAMESPACE_POOL, assignmentMode="Manual")
        put_pool(store, "certain4", "10.73.0.0/24", assignmentMode="Manual")
        put_pool(store, "certain6", "fd73::/120", assignmentMode="Manual")
    install(
        folder, node, kube, readiness_gates=[gate.url], policy_setup_timeout_seconds=TIMEOUT_SECONDS,
        endpoint_status_dir=str(policy.directory),
    )  # fmt: skip
    yield shared_real_node
    install(folder, node, kube)


@pytest.fixture
def real(waiting_network: RealNode, kube: Kube) -> Iterator[RealNode]:
    yield waiting_network
    clear_pods(waiting_network, kube)


@pytest.fixture
def pooled(kube: Kube, real: RealNode) -> Iterator[str]:
    """Create a namespace whose pods use a certain pool."""
    put_namespace(kube, "pooled", OF_NAMESPACE)
    yield "pooled"
    delete_namespace(kube, "pooled")


def test_thirty_pods_with_different_annotations(
    real: RealNode, node: ClusterNode, kube: Kube, gate: StubGate, policy: DataPlane, pooled: str
) -> None:
    """No pod gets an address before the gate is ready, and none starts before its policy is programmed."""
    before, gate.is_open = gate.request_count, False
    try:
        for number in range(GROUP):
            put_pod(kube, f"plain-{number}", LIMITED if number % 3 == 0 else None, host_port=HOST_PORT + number)
            put_pod(kube, f"wishing-{number}", OF_POD)
            put_pod(kube, f"pooled-{number}", namespace=pooled)
        real.wait("the gate is asked", lambda: gate.request_count > before)
        assert [each for each in remains([node]) if not each.startswith("waiting row of ")] == []
    finally:
        gate.is_open = True
    real.wait_none("all are ready", lambda: unready(kube))
    assert pod_disagreements(kube, node) == []
    assert len(pod_links(node)) == 3 * GROUP
    assert {pod["metadata"]["name"] for pod in list_pods(kube)} <= policy.programmed
    for pod in list_pods(kube):
        network = NETWORKS[pod["metadata"]["name"].split("-")[0]]
        v4, v6 = addresses(pod)
        assert ipaddress.ip_address(v4) in ipaddress.ip_network(network)
        assert ipaddress.ip_address(v6) in ipaddress.ip_network(POOL6)


def test_recreated_pod_gets_its_requested_address_again(real: RealNode, node: ClusterNode, kube: Kube) -> None:
    """The sandbox of the previous pod may still be ending. kubelet then retries until the address is free."""
    for _ in range(2):
        put_pod(kube, "certain", FIXED)
        assert real.wait("the pod is ready", lambda: addresses(read_pod(kube, "certain"))) == CERTAIN
        for address in CERTAIN:
            assert node.netns.run("ping", "-c", "1", "-w", "5", address, check=False).returncode == 0
        real.wait_none("nothing else is allocated", lambda: pod_disagreements(kube, node))
        delete_pod(kube, "certain", at_once=True)


def test_container_starts_after_its_policy(real: RealNode, kube: Kube, policy: DataPlane) -> None:
    policy.is_idle = True
    try:
        put_pod(kube, "held")
        real.wait("it has an address", lambda: POD_IP in read_annotations(kube, "held"))
        time.sleep(2)  # without the wait it would be ready at this time
        assert unready(kube) == ["held is not ready"]
    finally:
        policy.is_idle = False
    real.wait_none("it is ready", lambda: unready(kube))


def read_annotations(kube: Kube, name: str) -> dict[str, str]:
    pod = read_pod(kube, name)
    assert pod is not None
    found: dict[str, str] = pod["metadata"].get("annotations", {})
    return found

"""Fixtures of upgrades: an API server with some of the controllers of Kubernetes, and the kubelets of two nodes."""

from collections.abc import Iterator
from typing import Any

import pytest

from harness.fake_kubelets import FakeKubelets
from harness.kube import Kube, running

WORKLOADS = ("daemonset", "deployment", "replicaset", "disruption")


def server_with(*controllers: str) -> Any:
    """Return a fixture of one module, to be named `server` there."""

    @pytest.fixture(scope="module")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
        folder = tmp_path_factory.mktemp("server")
        with running(folder, has_workloads=True, is_small=True) as kube, kube.controllers(*controllers):
            yield kube

    return server


@pytest.fixture(scope="module")
def kubelets(server: Kube) -> Iterator[FakeKubelets]:
    with FakeKubelets(server, ["node1", "node2"]).running() as made:
        yield made

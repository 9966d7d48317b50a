"""What `svcctl manifests --apply` refuses before its first write, because of what a real API server has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.deployments import manifests, remove
from harness.kube import Kube, running

pytestmark = pytest.mark.server

Json = dict[str, Any]
POOL_PATH = "/apis/crd.svc.internal/v1/ippools/default-ipv4-ippool"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(shared: Kube) -> Iterator[Kube]:
    yield shared
    remove(shared)


def applied(server: Kube, folder: Path, *options: str) -> None:
    done = manifests(server, folder, "--apply", *options)
    assert done.exit_code == 0, done.output


def refusal(server: Kube, folder: Path, *options: str) -> str:
    """Return the message of a refusal, which a dry run has too."""
    rehearsed = manifests(server, folder, "--apply", "--dry-run", *options)
    done = manifests(server, folder, "--apply", *options)
    assert (rehearsed.exit_code, done.exit_code) == (1, 1), done.output
    assert rehearsed.output == done.output
    assert " applied\n" not in done.output
    return str(done.output)


def test_range_of_a_present_pool_cannot_change(server: Kube, tmp_path: Path) -> None:
    applied(server, tmp_path, "--pool", "10.244.0.0/16")
    error = refusal(server, tmp_path, "--pool", "10.99.0.0/16", "--image", "svc:other")
    assert "spec.cidr = '10.99.0.0/16' cannot replace '10.244.0.0/16': create a pool of another name" in error
    assert server.call("GET", POOL_PATH)["spec"]["cidr"] == "10.244.0.0/16"
    stored = server.call("GET", "/apis/apps/v1/namespaces/kube-system/daemonsets/svc-node")
    assert stored["spec"]["template"]["spec"]["containers"][0]["image"] != "svc:other"


def test_pool_may_not_overlap_another_one(server: Kube, tmp_path: Path) -> None:
    applied(server, tmp_path)
    other = {"apiVersion": "crd.svc.internal/v1", "kind": "IPPool", "metadata": {"name": "a"}, "spec": {"cidr": "10.1.0.0/16"}}
    server.call("POST", POOL_PATH.rpartition("/")[0], other)
    error = refusal(server, tmp_path, "--pool", "10.0.0.0/8")
    assert "overlaps IP pool 'a' (10.1.0.0/16)" in error


def test_settings_of_a_present_pool_stay(server: Kube, tmp_path: Path) -> None:
    """The option gives the range alone. A block size that `svcctl pool apply` has set is no contradiction."""
    applied(server, tmp_path)
    pool = {
        "apiVersion": "crd.svc.internal/v1",
        "kind": "IPPool",
        "metadata": {"name": "default-ipv4-ippool"},
        "spec": {"cidr": "10.244.0.0/16", "blockSize": 28},
    }
    server.call("POST", POOL_PATH.rpartition("/")[0], pool)
    applied(server, tmp_path, "--pool", "10.244.0.0/16")
    assert server.call("GET", POOL_PATH)["spec"]["blockSize"] == 28

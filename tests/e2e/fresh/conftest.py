"""A fresh cluster with one node that has the image, and an etcd beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import built_image, fresh_cluster
from harness import fresh_etcd as fresh_etcds
from harness.audit_log import AuditLog
from harness.built_image import BuiltImage
from harness.fresh_cluster import FreshCluster
from harness.fresh_etcd import FreshEtcd


@pytest.fixture(scope="session")
def image() -> BuiltImage:
    return built_image.require()


@pytest.fixture
def fresh(image: BuiltImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshCluster]:
    """Require that each program has enough rights: the audit log shows no denied request."""
    with fresh_cluster.running(tmp_path_factory.mktemp("fresh"), image) as cluster:
        yield cluster
        assert AuditLog(cluster.kube.audit_log).denied() == set()


@pytest.fixture
def fresh_etcd(fresh: FreshCluster, tmp_path: Path) -> Iterator[FreshEtcd]:
    (tmp_path / "etcd").mkdir()
    with fresh_etcds.running(fresh, tmp_path / "etcd") as made:
        yield made

"""A move from etcd to the Kubernetes API and back, with real servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.datastores import EtcdSite, OrchSite
from harness.move_sites import Sites, contents, furnish, move, open_sites
from svc.move import marks
from svc.move.preflight import preflight

pytestmark = pytest.mark.server


@pytest.fixture
def sites(etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    with open_sites(etcd_site, orch_site, tmp_path) as made:
        furnish(etcd_site, orch_site, made.etcd.backend)
        yield made


def no_wait(_seconds: float, _counts: object) -> bool:
    return False


def test_everything_is_there_and_back(sites: Sites) -> None:
    before = contents(sites.etcd)
    assert preflight(sites.etcd, sites.kube, "there", wait=no_wait) == []
    move(sites.etcd, sites.kube, "there", sites.archive)
    assert preflight(sites.kube, sites.etcd, "back", wait=no_wait) == []
    move(sites.kube, sites.etcd, "back", sites.archive)
    assert contents(sites.etcd) == before

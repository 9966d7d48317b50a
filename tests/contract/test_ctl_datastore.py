"""svcctl datastore export and import, and what unlocks a datastore that has moved."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.datastores import EtcdSite, OrchSite
from harness.ipam import holdings, put_block
from harness.move_sites import ETCD_NODE, KUBE_NODE, Sites, contents, furnish, move, open_sites
from harness.svcctl import Cli, cli_on
from svc.ctl.commands import datastore
from svc.datastore.api import Create, Delete
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, ResourceKey
from svc.move import marks

pytestmark = pytest.mark.server


@pytest.fixture
def sites(etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    monkeypatch.setattr(datastore, "sleep", lambda _seconds: None)
    with open_sites(etcd_site, orch_site, tmp_path) as made:
        furnish(etcd_site, orch_site, made.etcd.backend)
        yield made


@pytest.fixture
def source(sites: Sites, etcd_site: EtcdSite, tmp_path: Path) -> Cli:
    return cli_on(etcd_site, tmp_path / "source")


@pytest.fixture
def target(sites: Sites, orch_site: OrchSite, tmp_path: Path) -> Cli:
    return cli_on(orch_site, tmp_path / "target")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


def test_a_datastore_moves_by_a_file(sites: Sites, source: Cli, target: Cli, file: Path) -> None:
    held = holdings(sites.etcd.backend)
    held[f"vxlan-tunnel-addr-{KUBE_NODE}"] = held.pop(f"vxlan-tunnel-addr-{ETCD_NODE}")
    source.changes("clusterinfo", "lock")
    assert f"written to {file}" in source.changes("datastore", "export", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "nothing blocks the import" in target.changes("datastore", "import", str(file), "--dry-run")
    assert marks.present(sites.kube) is None
    assert "state: locked" in target.changes("datastore", "import", str(file))
    assert holdings(sites.kube.backend) == held
    assert "state: ready" in target.changes("datastore", "import", str(file), "--unlock")
    for again in (("--unlock",), (), ("--dry-run",)):
        told = target.changes("datastore", "import", str(file), *again)
        assert "has ended" in told
        assert "state: ready" in told
    assert holdings(sites.kube.backend) == held
    info = marks.present(sites.kube)
    assert info is not None
    assert not marks.is_locked(info)


def test_an_export_needs_the_lock(source: Cli, file: Path) -> None:
    error = source.fails("datastore", "export", str(file))
    assert "is not locked" in error
    assert "svcctl clusterinfo lock" in error
    assert not file.exists()
    source.changes("datastore", "export", str(file), "--backup")
    assert file.exists()


def test_findings_block_an_export_until_they_are_acknowledged(sites: Sites, source: Cli, file: Path) -> None:
    sites.etcd.backend.write([Create(HandleKey("net.empty"), Handle({}))])
    source.changes("clusterinfo", "lock")
    result = source("datastore", "export", str(file))
    assert result.exit_code == datastore.BLOCKED_STATUS
    assert "blocked: net.empty: handle-empty" in result.stderr
    assert not file.exists()
    refused = source("datastore", "export", str(file), "--ack", "no-pod")
    assert refused.exit_code == 2
    assert "'no-pod' is not one of 'ipam-check', 'unknown'" in refused.stderr
    source.changes("datastore", "export", str(file), "--ack", "ipam-check")


def test_content_of_the_target_blocks_an_import(sites: Sites, source: Cli, target: Cli, file: Path) -> None:
    source.changes("datastore", "export", str(file), "--backup")
    put_block(sites.kube.backend, "10.99.0.0/28", "host:node1")
    result = target("datastore", "import", str(file))
    assert result.exit_code == datastore.BLOCKED_STATUS
    assert ": is not empty: it has block 10.99.0.0/28" in result.stderr
    assert result.stderr.count("API server") == 1
    assert marks.present(sites.kube) is None


def test_a_damaged_file_is_refused_before_the_first_write(sites: Sites, source: Cli, target: Cli, file: Path) -> None:
    source.changes("datastore", "export", str(file), "--backup")
    file.write_bytes(file.read_bytes()[:-30])
    assert "is damaged" in target.fails("datastore", "import", str(file))
    assert marks.present(sites.kube) is None


def test_an_endpoint_without_its_pod_is_reported(
    sites: Sites, source: Cli, target: Cli, file: Path, orch_site: OrchSite
) -> None:
    source.changes("datastore", "export", str(file), "--backup")
    orch_site.kube.call("DELETE", "/api/v1/namespaces/default/pods/api?gracePeriodSeconds=0")
    result = target("datastore", "import", str(file))
    assert result.exit_code == 0
    assert "warning: endpoint of default/api left out: its pod does not exist any more" in result.stderr


def test_a_datastore_that_has_moved_is_not_unlocked(sites: Sites, source: Cli, target: Cli, file: Path) -> None:
    """Both would assign the same addresses."""
    marks.lock(sites.etcd, sites.kube, "run")
    assert "is being moved to" in source.fails("clusterinfo", "unlock")
    move(sites.etcd, sites.kube, "run", sites.archive)
    assert "would be assigned twice" in source.fails("clusterinfo", "unlock")
    assert "has moved to" in source.fails("datastore", "export", str(file))
    source.changes("datastore", "export", str(file), "--backup")
    target.changes("clusterinfo", "lock")
    assert "unlocked" in target.changes("clusterinfo", "unlock")
    assert "unlocked" in source.changes("clusterinfo", "unlock", "--although-moved")
    assert marks.mark_of(sites.etcd.names, marks.present(sites.etcd)) is None


def test_an_import_that_has_not_ended_is_not_unlocked(sites: Sites, source: Cli, target: Cli, file: Path) -> None:
    source.changes("datastore", "export", str(file), "--backup")
    target.changes("datastore", "import", str(file))
    assert "svcctl datastore import FILE --unlock" in target.fails("clusterinfo", "unlock")


def test_a_file_goes_back_to_the_predecessor(sites: Sites, source: Cli, target: Cli, file: Path, tmp_path: Path) -> None:
    """What the predecessor had is kept in the archive."""
    move(sites.etcd, sites.kube, "run", sites.archive)
    sites.kube.backend.write([Delete(ResourceKey("IPReservation", "kept"))])
    target.changes("clusterinfo", "lock")
    target.changes("datastore", "export", str(file))
    archive = tmp_path / "archive"
    source.changes("datastore", "import", str(file), "--archive", str(archive), "--unlock")
    assert not any("ipreservations" in path for path in contents(sites.etcd))
    assert b"ipreservations/kept" in archive.read_bytes()


def test_an_import_is_undone(sites: Sites, source: Cli, target: Cli, file: Path) -> None:
    empty = contents(sites.kube)
    source.changes("datastore", "export", str(file), "--backup")
    assert "is under way" in target.fails("datastore", "import", str(file), "--undo")
    target.changes("datastore", "import", str(file))
    target.changes("datastore", "import", str(file), "--undo")
    assert contents(sites.kube) == empty
    target.changes("datastore", "import", str(file), "--unlock")
    assert "is under way" in target.fails("datastore", "import", str(file), "--undo")
    assert "excludes" in target.fails("datastore", "import", str(file), "--undo", "--unlock", code=2)

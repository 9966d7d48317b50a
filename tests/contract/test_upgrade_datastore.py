"""svcctl moves a datastore by the procedure: real etcd and a real API server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.datastores import EtcdSite, OrchSite
from harness.move_procedure import STEPS, MoveProcedure, furnished
from harness.move_sites import contents
from svc.move import marks

pytestmark = pytest.mark.server


@pytest.fixture
def procedure(
    etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MoveProcedure]:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    with furnished(etcd_site, orch_site, tmp_path) as made:
        yield made


def test_there_and_back(procedure: MoveProcedure) -> None:
    """The datastore equals the original, document by document."""
    before = contents(procedure.sites.etcd)
    procedure.move()
    record = procedure.record()
    assert record
    assert record["state"] == "done"
    assert [name for name in record["steps"] if name in STEPS] == [*STEPS]
    assert procedure.run("apply").stdout == "nothing to do\n"
    procedure.succeeds("verify")
    procedure.move(back=True)
    assert contents(procedure.sites.etcd) == before

"""The wall clock of the machine jumps during an upgrade. Neither the Lease of the run nor its times to wait depend on it."""

import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from harness.fake_kubelets import FakeKubelets
from harness.jumping_clock import JumpingClock
from harness.kube import Kube
from harness.polling import eventually, wait_until
from harness.upgrade_fixtures import kubelets, server_with
from harness.upgrade_site import DAEMON_SET_STEP, SYSTEM, UpgradeSite, old, running_site
from svc.datastore.open import open_client
from svc.leader.election import RENEW_SECONDS
from svc.names import DEFAULT
from svc.upgrade.backup import runs_with_secrets
from svc.upgrade.writer import Writer

__all__ = ["kubelets"]  # a fixture

pytestmark = [pytest.mark.server, pytest.mark.slow]
server = server_with("daemonset")

PROGRAM = "from svc.ctl.main import main; main()"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/svc-upgrade"
DAY = 24 * 3600
BACK = -50 * 60  # the certificate of the server is valid since an hour ago
SECONDS = 6  # to wait


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> JumpingClock:
    return JumpingClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def clock(library: JumpingClock) -> JumpingClock:
    library.jump(0)
    return library


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path) -> Iterator[UpgradeSite]:
    for made in running_site(server, tmp_path):
        made.install(old())
        kubelets.stuck["node2"] = ("ImagePullBackOff", "no such image")
        yield made
        kubelets.stuck.clear()


def waits(site: UpgradeSite) -> None:
    """Return when the run waits for the stuck node."""
    eventually(site.record, lambda found: found and found["steps"][DAEMON_SET_STEP] == "waiting")


def renewed(site: UpgradeSite) -> str:
    return str(site.kube.call("GET", LEASE)["spec"]["renewTime"])


@pytest.mark.parametrize("jump", [DAY, BACK], ids=["forwards", "backwards"])
def test_time_to_wait_is_neither_longer_nor_shorter(site: UpgradeSite, clock: JumpingClock, jump: int) -> None:
    began = time.monotonic()
    with clock.started(PROGRAM, site.words("apply", "--timeout", f"{SECONDS}s")) as process:
        waits(site)
        waiting, before = time.monotonic(), clock.readings
        clock.jump(jump)
        _, told = process.communicate(timeout=60)
        ended = time.monotonic()
    assert process.returncode == 5, told
    assert "ImagePullBackOff" in told
    assert clock.readings > before, "the program has read the clock after the jump"
    assert ended - began >= SECONDS
    assert ended - waiting < SECONDS + 5  # for the end of the run


def test_lease_is_held_through_jumps(
    site: UpgradeSite, kubelets: FakeKubelets, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of another machine is refused after each jump, and the run goes on for longer than without a renewal."""
    with clock.started(PROGRAM, site.words("apply", "--timeout", "60s")) as process:
        waits(site)
        began = time.monotonic()
        for jump in (DAY, BACK, 0):
            clock.jump(jump)
            before = renewed(site)
            after = eventually(lambda: renewed(site), lambda found, before=before: found != before)  # type: ignore[misc]
            tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + DAY / 2))
            assert (after > tomorrow) == (jump == DAY)
            with monkeypatch.context() as patch:
                patch.setattr("svc.upgrade.run_lease._machine", lambda: "another/machine")
                second = site.run("apply")
            assert second.exit_code == 3, second.output
            assert "another run of svcctl upgrade is at work" in second.stderr
        wait_until(lambda: time.monotonic() > began + RENEW_SECONDS + 1)
        kubelets.stuck.clear()
        out, told = process.communicate(timeout=60)
    assert process.returncode == 0, out + told
    assert not site.kube.call("GET", LEASE)["spec"].get("holderIdentity")
    site.succeeds("verify")


def test_clock_that_jumps_all_the_time(site: UpgradeSite, kubelets: FakeKubelets, clock: JumpingClock) -> None:
    """Each reading differs from the one before by a day, during a whole run and its undoing."""
    kubelets.stuck.clear()
    before = site.state(old())
    clock.jump(DAY, BACK)
    for verb in ("apply", "apply", "undo"):
        with clock.started(PROGRAM, site.words(verb, "--timeout", "20s")) as process:
            out, told = process.communicate(timeout=60)
        assert process.returncode == 0, (verb, out, told)
    assert site.state(old()) == before
    assert clock.readings > 10


def test_taken_lease_is_free_in_time(site: UpgradeSite, kubelets: FakeKubelets, clock: JumpingClock) -> None:
    """The Lease of a killed run of another machine is not taken early, and not late, by a machine whose clock has jumped."""
    kubelets.stuck.clear()
    body = {"holderIdentity": "another/machine/pid/1/2", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    path, name = LEASE.rpartition("/")[0], {"name": "svc-upgrade"}
    site.kube.call("POST", path, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": name, "spec": body})
    began = time.monotonic()
    with clock.started(PROGRAM, site.words("apply")) as process:
        reads = clock.readings
        wait_until(lambda: clock.readings > reads)
        clock.jump(DAY)
        out, told = process.communicate(timeout=90)
    assert process.returncode == 0, out + told
    assert 15 <= time.monotonic() - began < 40


def test_last_run_is_that_which_the_server_has_seen_last(site: UpgradeSite) -> None:
    """Its name has the time of its machine, whose clock was a thousand years ahead before."""
    path, created = f"/api/v1/namespaces/{SYSTEM}/secrets", list[str]()
    for run in ("30260101t000000-aaaa-00000000", "20260101t000000-bbbb-00000000"):
        eventually(lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), lambda now: now not in created)
        metadata = {"name": f"svc-upgrade-{run}-1-1", "labels": {"svc-upgrade-run": run}}
        created.append(site.kube.call("POST", path, {"metadata": metadata})["metadata"]["creationTimestamp"])
    with closing(open_client({"kubeconfig": str(site.kubeconfig)})) as client:
        assert runs_with_secrets(Writer(client, DEFAULT, nullcontext))[-1].startswith("2026")

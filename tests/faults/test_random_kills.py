"""A short run of the fault bench on each datastore; `make faults` runs longer. And tests that the bench finds faults."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.bench import LEADERS, ORCH
from faults.ledger import Ledger
from harness.kube import why_not_running

pytestmark = pytest.mark.root

TESTS = Path(__file__).parents[1]
KILLS = 16
STORES = ["embedded", *(pytest.param(name, marks=pytest.mark.server) for name in ("etcdv3", LEADERS, ORCH))]


def bench(*arguments: str, code: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the bench in its own process, which has no threads when it forks. `code` runs in it before."""
    program = f"import sys\n{code}\nfrom faults.__main__ import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("troubles", [(), ("--troubles",)], ids=["kills", "kills and refused writes"])
@pytest.mark.parametrize("store", STORES)
def test_nothing_is_lost_leaked_or_assigned_twice(store: str, troubles: tuple[str, ...]) -> None:
    if store == ORCH and (reason := why_not_running()):
        pytest.skip(reason)
    kills = KILLS if store != LEADERS else KILLS // 4  # a fault of a server lasts longer
    done = bench("--store", store, "--kills", str(kills), *troubles)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{store}: {kills} kills in " in done.stdout


FAULTS = {
    "a release that is forgotten": (
        "import svc.attach.teardown as module\nmodule.release_resources = lambda *_, **__: None",
        "is in no row",
    ),
    "a reply that names another address": (
        "from faults.ledger import Ledger\nadded = Ledger.added\n"
        "Ledger.added = lambda self, container, addresses: added(self, container, ['10.0.0.1'])",
        "was given ['10.0.0.1']",
    ),
    "an endpoint that stays": (
        "import svc.attach.teardown as module\nmodule._deletion = lambda _: None",
        "the endpoint of",
    ),
    "an interface that stays": (
        "import svc.attach.teardown as module\nmodule.unwire = lambda *_: True",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str) -> None:
    code, message = FAULTS[fault]
    done = bench("--kills", "60", code=code)
    assert done.returncode == 1
    assert message in done.stderr


def test_ledger_knows_what_callers_know(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.request("c1")
    ledger.added("c1", ["10.0.0.1", "fd00::1"])
    ledger.request("c2")
    assert (ledger.held(), ledger.unanswered()) == ({"c1": ["10.0.0.1", "fd00::1"]}, ["c2"])
    ledger.request("c1")
    assert (ledger.held(), ledger.unanswered()) == ({}, ["c1", "c2"])
    ledger.deleted("c1")
    ledger.deleted("c2")
    assert (ledger.held(), ledger.unanswered()) == ({}, [])

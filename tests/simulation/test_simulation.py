"""A small part of the simulation: regressions, a sample of small deviations, and some random schedules.

`make simulate` runs the large part.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.regressions import REGRESSIONS
from simulation.world import KINDS

TESTS = Path(__file__).parents[1]
SEED = 0
EVERY = {"embedded": 24, "etcdv3": 32, "orch": 32}  # one in so many deviations is run


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "simulation", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="session")
def regressions() -> dict[str, str]:
    """Return the violation of each regression."""
    done = simulate("--regressions")
    assert done.returncode == 0, done.stderr
    return dict(line.split("\t", 1) for line in done.stdout.splitlines())


def _parameters() -> list[object]:
    return [
        pytest.param(name, marks=[pytest.mark.xfail(reason=each.open)] if each.open else [], id=name)
        for name, each in REGRESSIONS.items()
    ]


@pytest.mark.xdist_group("simulation")
@pytest.mark.parametrize("name", _parameters())
def test_regression(name: str, regressions: dict[str, str]) -> None:
    assert not regressions[name], f"python -m simulation --replay {name}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_small_deviations_keep_every_invariant(kind: str) -> None:
    from simulation.scenarios import SCENARIOS

    chosen = [f"--scenario={name}" for name, scenario in SCENARIOS.items() if scenario.kind == kind]
    done = simulate("--bound=1", "--schedules=0", "--jobs=1", f"--every={EVERY[kind]}", f"--seed={SEED}", *chosen)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_random_schedules_keep_every_invariant() -> None:
    done = simulate("--bound=-1", "--schedules=250", "--jobs=1", f"--seed={SEED}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr


def test_interrupted_run_tells_how_far_it_came() -> None:
    command = [sys.executable, "-m", "simulation", "--bound=-1", "--schedules=1000000"]
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "0"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("1000000 random schedules from seed 0 on, ")
        process.terminate()
        end = process.stdout.read().splitlines()
    assert process.returncode == 1
    assert "of 1000000 random ones), " in end[-2]
    assert end[-1] == "interrupted"


def test_unknown_violation_fails_with_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    from simulation.command import Tally, report
    from simulation.explore import Found
    from simulation.schedule import Outcome

    tally = Tally()
    tally.add(Found("add-add-agent-orch:9:5!kill", Outcome("an address is leaked", [], 9)))
    assert report(tally) == 1
    replay = "replay: PYTHONPATH=tests python -m simulation --replay 'add-add-agent-orch:9:5!kill'"
    assert capsys.readouterr().out.splitlines()[-1].strip() == replay


def test_schedule_replays_exactly() -> None:
    """The replay runs in another process."""
    first, second = (simulate("--replay=seed:7").stdout.replace("svc-simulation-", "") for _ in range(2))
    assert first.splitlines()[-1] == second.splitlines()[-1]
    assert len(first.splitlines()) == len(second.splitlines()) > 50

"""Options that are wrong are named before anything is built or measured, and a signal ends a measurement once."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MEASUREMENT = """\
import sys
from bench.signals import tear_down_at_signals
tear_down_at_signals()
try:
    print("at work", flush=True)
    sys.stdin.readline()
finally:
    print("tears down", flush=True)
    sys.stdin.readline()
    print("all is removed", flush=True)
"""


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_help_lists_the_commands() -> None:
    shown = run("--help").stdout
    assert "compare two runs, or folders of runs" in shown
    assert "--repetitions" in shown


def test_unknown_command_is_refused_with_the_known_ones() -> None:
    done = run("cmpare", "a", "b")
    assert done.returncode == 2
    assert "'cmpare' is not a command: name one of run, compare, plots, page, alloc" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rounds", "0"], "argument --rounds: '0' is not a whole number from 1 on"),
        (["--wait", "-1"], "argument --wait: '-1' is not a number from 0 on"),
        (["--repetitions", "x"], "argument --repetitions: 'x' is not a whole number from 1 on"),
        (["--against", "HEAD", "--quick"], "--against makes calls of its own: leave out --only, --quick and --rounds"),
        (["--only", "scale", "--nodes", "10"], "--pods 30000: 10 nodes have at most 600"),
    ],
)
def test_options_that_make_no_run_are_refused(
    bench: Any, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench("runs").main(arguments)
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("module", ["page", "plots"])
def test_missing_results_are_named(bench: Any, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench(module).main(["--from", "/no/results"] if module == "plots" else ["/no/results"])
    assert "No such file or directory: '/no/results'" in capsys.readouterr().err


def test_second_signal_does_not_cut_the_teardown_short() -> None:
    """At a terminal, SIGINT reaches measurement and command, and the command then ends the measurement by SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-c", MEASUREMENT], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "tears down\n"
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate("\n")
    assert said == "all is removed\n"
    assert process.returncode == 130

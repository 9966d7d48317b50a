"""svcctl when its output cannot be written."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.svcctl import Cli

FULL = "Error: the answer cannot be written to standard output: No space left on device\n"
MAIN = "from svc.ctl.main import main; main(prog_name='svcctl')"


def svcctl(*arguments: str, to: str) -> subprocess.CompletedProcess[str]:
    with Path(to).open("w") as output:
        return subprocess.run(
            [sys.executable, "-c", MAIN, *arguments], stdout=output, stderr=subprocess.PIPE, text=True, check=False
        )


@pytest.mark.parametrize("words", ["--version", "-h", "pool get -h", "version", "crd print", "pool get"])
def test_full_device_causes_one_line_of_error(tmp_path: Path, words: str) -> None:
    """This holds for help and version as well."""
    state = Cli(tmp_path).folder / "state"
    done = svcctl("--state-dir", str(state), "--embedded", *words.split(), to="/dev/full")
    assert (done.returncode, done.stderr) == (1, FULL)


@pytest.mark.parametrize("words", ["-h", "pool", "--nothing", "--state-dir /none pool get"])
def test_exit_status_reports_an_error_that_cannot_be_printed(words: str) -> None:
    """Standard error is full as well."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", MAIN, *words.split()], stdout=full, stderr=full, check=False)
    assert done.returncode == 1


def test_closed_output_is_not_an_error() -> None:
    script = f'exec "{sys.executable}" -c "{MAIN}" --version >&-'
    done = subprocess.run(["/bin/sh", "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

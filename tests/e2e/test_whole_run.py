"""A whole run of the tests says at once that the machine has no room for its files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.second_run import OPTION
from harness.shim import ROOT


@pytest.mark.root
def test_whole_run_ends_at_once(tmp_path: Path) -> None:
    """The folder is an empty file system that the command mounts for itself alone."""
    mount = f'mount -t tmpfs -o size=1m room {tmp_path} && exec "$@"'
    pytest_alone = (sys.executable, "-m", "pytest", "-n", "0", OPTION, "--collect-only", "tests/e2e/test_whole_run.py")
    outer = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", *pytest_alone],
        cwd=ROOT, env=outer | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {tmp_path} has 0.0 GiB of room" in done.stderr
    assert "test_whole_run" not in done.stdout

"""promtool of Prometheus, which checks metrics, rules and tests of rules."""

import shutil
import subprocess

import pytest

NO_PROMTOOL = "promtool is not installed"


@pytest.fixture(scope="session")
def promtool() -> str:
    """Return the path of promtool."""
    return shutil.which("promtool") or pytest.skip(NO_PROMTOOL)


def run(promtool: str, *arguments: str, stdin: str = "", cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool, and return its exit status with standard output and standard error in one text."""
    return subprocess.run(
        [promtool, *arguments], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=cwd
    )

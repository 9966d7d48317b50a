"""A second run of the few tests that failed in a run of all: one after the other, when no other test uses the processors.

More workers than processors run the tests, so that a wait can run out of time because of the load alone. A test that fails in
both runs fails. A run with many failures has another cause, and is not repeated.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OPTION = "--second-run"
MOST = 5  # failed tests that are worth a second run


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help=f"run up to {MOST} failed tests again, alone, and report both runs")


def failed_tests(reporter: pytest.TerminalReporter) -> list[str]:
    """Return the failed tests of a distributed run, without the group that pytest-xdist appends to each name."""
    reports = [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]
    return list(dict.fromkeys(str(each.nodeid).rpartition("@")[0] for each in reports))


def passes(names: list[str], basetemp: Path) -> bool:
    """Run the tests again. Return whether all pass."""
    outer = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    words = [sys.executable, "-m", "pytest", "-n", "0", f"--basetemp={basetemp / 'second-run'}", *names]
    return subprocess.run(words, env=outer, check=False).returncode == 0

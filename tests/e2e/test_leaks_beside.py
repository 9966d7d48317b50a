"""The leak check on a machine where another program constantly makes and deletes namespaces and links.

The machine is a private network and mount namespace, so only these tests see the names of that program.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.shim import ROOT

pytestmark = [pytest.mark.root, pytest.mark.slow]

TIMEOUT_SECONDS = 120.0

MACHINE = """set -eu
ip link set lo up
mount -t tmpfs tmpfs /run/netns
"$0" -m harness.neighbour "$1/neighbour" & neighbour=$!
trap 'kill $neighbour 2>/dev/null || :' EXIT
until test -e "$1/neighbour/ready"; do kill -0 $neighbour; sleep 0.02; done
status=0; folder=$1; shift
"$0" -m pytest -p no:cacheprovider --basetemp="$folder/tests" "$@" || status=$?
kill $neighbour
wait $neighbour || { echo "the other program lost something"; exit 90; }
echo "left:" $(ls /run/netns; ip -o link | cut -d" " -f2)
exit $status
"""

LEAKY = """
import subprocess
from harness.leaks import left_since
from harness.netns import MARK, Netns, run

left_since.__kwdefaults__["timeout"] = 0.1

def test_leak(tmp_path):
    run("ip", "link", "add", "left-link", "type", "bridge")
    run("ip", "link", "set", "left-link", "alias", MARK)
    run("ip", "link", "add", "svcleft", "type", "veth", "peer", "name", "eth0", "netns", Netns("left").name)
    (tmp_path / "left-mount").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "left-mount"))
    subprocess.run(["sh", "-c", "sleep 1000001 & exit"], stdout=subprocess.DEVNULL, check=True)

def test_next():
    pass
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a directory with a short name, because the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="svc-") as name:
        yield Path(name)


def pytest_on_machine(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        ["unshare", "--net", "--mount", "--propagation=private", "sh", "-c", MACHINE, sys.executable, str(folder), *arguments],
        cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT / "tests")}, capture_output=True, text=True,
        timeout=TIMEOUT_SECONDS,
    )  # fmt: skip


def test_leak_check_ignores_other_programs(folder: Path) -> None:
    done = pytest_on_machine(folder, "tests/netns/test_shared.py", "tests/e2e/test_del.py::test_del_frees_both_families")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_own_leaks_are_found_and_removed(folder: Path) -> None:
    (folder / "test_leaky.py").write_text(LEAKY)
    done = pytest_on_machine(
        folder, "-p", "conftest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", str(folder / "test_leaky.py")
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "2 passed, 1 error" in done.stdout
    report = next(line for line in done.stdout.splitlines() if line.startswith("left behind: "))
    for part in ("namespace svc-left-", "link left-link in", "link svcleft in", "sleep 1000001", "left-mount"):
        assert part in report, report
    assert len(report.split("; ")) == 5, report
    assert done.stdout.splitlines()[-1] == "left: lo:"

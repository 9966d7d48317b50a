"""svc-routes as a command: errors of options, and an output that cannot be written. No kernel state is changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from svc.routes.settings import parse

REPORT = {"state": "off", "traces": [], "problems": [], "heldDeletions": 0, "remainingRoutes": 0, "networks": []}
SHOW = f"""
import sys
from svc.routes import main
main.read_report = lambda path: {REPORT!r}
sys.argv[1:] = ["show"]
sys.exit(main.main())
"""


def show(redirection: str) -> "subprocess.CompletedProcess[str]":
    """Run `svc-routes show` of a fixed report, buffered as outside of tests, and with a redirection of a shell."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["bash", "-o", "pipefail", "-c", f'"$0" -c "$1" {redirection}', sys.executable, SHOW]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("redirection", "words"),
    [("> /dev/full", "No space left on device"), (">&-", "it is closed")],
)
def test_a_report_that_cannot_be_written(redirection: str, words: str) -> None:
    done = show(redirection)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"cannot show: the answer cannot be written to standard output: {words}" in line


def test_a_reader_that_has_ended_is_no_error_to_tell() -> None:
    done = show("| (exec <&-; sleep 1)")
    assert (done.returncode, done.stderr) == (1, "")


def test_a_report_is_written() -> None:
    assert show("").stdout == "state: off: the mode is off, and nothing is changed\n"


@pytest.mark.parametrize("variable", ["SVC_ROUTES_MODE", "SVC_ROUTES_MTU"])
def test_a_wrong_variable_is_named(variable: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["run"], {variable: "sometimes"})
    assert f"error: variable {variable}: argument" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["run", "--mode", "never"], {})
    assert "error: argument --mode: invalid choice" in capsys.readouterr().err


def test_a_wrong_value_of_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "routes.toml"
    config.write_text('mode = "sometimes"\n')
    with pytest.raises(SystemExit):
        parse(["run", "--config", str(config)], {})
    assert f"error: mode of {config}: argument --mode: invalid choice: 'sometimes'" in capsys.readouterr().err


def netconf_in(folder: Path) -> Path:
    path = folder / "netconf.json"
    document = {"name": "n", "cniVersion": "1.0.0", "type": "svc", "datastore_type": "etcdv3", "ipam": {"type": "svc-ipam"}}
    path.write_text(json.dumps({**document, "etcd_endpoints": "http://127.0.0.1:2379", "nodename": "n"}))
    return path


def run(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run svc-routes in mode `off`, which needs no datastore."""
    common = ["--netconf", netconf_in(folder), "--state-dir", folder, "--run-dir", folder / "run"]
    command = [sys.executable, "-m", "svc.routes.main", "run", *map(str, common), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def test_once_ends_in_each_mode(tmp_path: Path) -> None:
    assert run(tmp_path, "--once").returncode == 0


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--metrics", "192.0.2.1:9406", "--metrics 192.0.2.1:9406 cannot be served: Cannot assign requested address: give an"),
        ("--run-dir", "/proc/none", "run directory '/proc/none' cannot be used: No such file or directory: '/proc/none': name"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(tmp_path: Path, option: str, value: str, words: str) -> None:
    done = run(tmp_path, option, value)
    assert done.returncode == 1
    assert f"cannot run: {words}" in done.stderr

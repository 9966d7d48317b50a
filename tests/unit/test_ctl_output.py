"""svcctl when its output cannot be written."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.documents import document, pool, text
from harness.svcctl import Cli

FULL = "Error: the answer cannot be written to standard output: No space left on device\n"
MAIN = "from svc.ctl.main import main; main(prog_name='svcctl')"


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python buffer what it writes."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


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


def test_full_device_does_not_hide_a_change(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    (tmp_path / "pool.json").write_text(text(pool()))
    words = "--state-dir", str(cli.folder / "state"), "--embedded", "apply", "-f", str(tmp_path / "pool.json")
    done = svcctl(*words, "--dry-run", to="/dev/full")
    assert (done.returncode, done.stderr) == (1, FULL)
    done = svcctl(*words, to="/dev/full")
    assert (done.returncode, done.stderr) == (1, FULL.rstrip() + "; written all the same: ippool/pods\n")
    assert "unchanged" in cli.prints("apply", "-f", str(tmp_path / "pool.json"))


@pytest.mark.parametrize("words", ["-h", "pool", "--nothing", "--state-dir /none pool get"])
def test_exit_status_reports_an_error_that_cannot_be_printed(words: str) -> None:
    """Standard error is full as well."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", MAIN, *words.split()], stdout=full, stderr=full, check=False)
    assert done.returncode == 1


def test_output_without_unicode_has_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs still read the same values."""
    cli = Cli(tmp_path)
    pool = {
        "apiVersion": "svc.internal/v3",
        "kind": "IPPool",
        "metadata": {"name": "pool4", "annotations": {"place": "\u4f60"}},
    }
    cli.prints("pool", "apply", "-f", "-", stdin=json.dumps({**pool, "spec": {"cidr": "10.0.0.0/16"}}))
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    monkeypatch.setenv("PYTHONUTF8", "0")
    for form, read in (("json", json.loads), ("yaml", lambda text: [yaml.safe_load(text)])):
        output = tmp_path / form
        done = svcctl("--state-dir", str(tmp_path / "state"), "--embedded", "pool", "get", "-o", form, to=str(output))
        assert (done.returncode, done.stderr) == (0, "")
        (found,) = read(output.read_text(encoding="latin-1"))
        assert found["metadata"]["annotations"] == {"place": "\u4f60"}


SHOWN = ["get hep -o json", "get hep", "get hep -o yaml", "apply -f {file} --dry-run -o json", "convert -f {file} --to calico"]


@pytest.mark.parametrize("words", SHOWN)
def test_objects_are_shown_without_unicode_and_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """The width of the terminal does not cut values off."""
    annotations = {"place": "\u4f60\U0001f600", "long": "x" * 100}
    file = tmp_path / "endpoint.json"
    file.write_text(json.dumps(document("HostEndpoint", "h", {"node": "n", "interfaceName": "*"}, annotations=annotations)))
    Cli(tmp_path).prints("apply", "-f", str(file))
    for name, value in {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "NO_COLOR": "1", "COLUMNS": "40"}.items():
        monkeypatch.setenv(name, value)
    output = tmp_path / "output"
    command = words.format(file=file).split()
    done = svcctl("--state-dir", str(tmp_path / "state"), "--embedded", *command, to=str(output))
    assert (done.returncode, done.stderr) == (0, "")
    shown = output.read_text(encoding="ascii")
    assert "\x1b" not in shown
    if "json" in words and "get" in words:
        assert json.loads(shown)[0]["metadata"]["annotations"] == annotations
    elif "-o" in words or "convert" in words:
        assert list(yaml.safe_load_all(shown))


@pytest.mark.parametrize("words", ["get hep", "get hep -o json", "man", "get hep -o name"])
def test_reader_that_ends_early_is_not_an_error_message(tmp_path: Path, words: str) -> None:
    Cli(tmp_path).prints("apply", "-f", "-", stdin=json.dumps([_endpoint(number) for number in range(3000)]))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", MAIN, "--state-dir", str(tmp_path / "state"), "--embedded", *words.split()]
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.stderr == ""


def _endpoint(number: int) -> dict[str, Any]:
    return document("HostEndpoint", f"h{number}", {"node": "n", "interfaceName": f"eth{number}"})


@pytest.mark.parametrize("words", ["--version", "get pools", "pool delete pods"])
def test_closed_output_is_an_error(tmp_path: Path, words: str) -> None:
    """Nothing is written to a file that has its descriptor, and nothing is changed."""
    Cli(tmp_path).changes("apply", "-f", "-", stdin=text(pool()))
    script = f'exec "{sys.executable}" -c "{MAIN}" --state-dir "{tmp_path}/state" {words} >&-'
    done = subprocess.run(["/bin/sh", "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: the answer cannot be written to standard output: it is closed\n")
    assert "10.65.0.0/24" in Cli(tmp_path).prints("get", "pools")

"""Options of svc-agent on the command line and in a file."""

import sys
from pathlib import Path

import pytest

from svc.agent import main

FILE = """
socket = "/s/agent.sock"
state_dir = "/state"
run_dir = "/run/of/file"
takeover = "60"
metrics = "127.0.0.1:9405,unix:/run/of/file/metrics.sock"
traces = "http://127.0.0.1:4318/v1/traces"
log_level = "DEBUG"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.toml"


def options(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, object]:
    monkeypatch.setattr(sys, "argv", ["svc-agent", "run", *arguments])
    return vars(main._options())


def test_file_can_set_every_option(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(FILE)
    assert options(monkeypatch, f"--config={path}") == {
        "config": path,
        "socket": Path("/s/agent.sock"),
        "state_dir": Path("/state"),
        "run_dir": Path("/run/of/file"),
        "takeover": 60.0,
        "metrics": (("127.0.0.1", 9405), Path("/run/of/file/metrics.sock")),
        "traces": "http://127.0.0.1:4318/v1/traces",
        "log_level": "DEBUG",
    }
    assert set(options(monkeypatch)) == {"config", *main.OPTIONS}, "the agent has no other option"


@pytest.mark.parametrize("option", ["--state-dir", "--run-dir", "--socket", "--config"])
def test_empty_path_is_refused(option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be the current directory."""
    with pytest.raises(SystemExit):
        options(monkeypatch, option, "")
    assert f"argument {option}: a path is empty: give one" in capsys.readouterr().err


def test_command_line_overrides_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(FILE)
    found = options(monkeypatch, "--run-dir", "/run/of/line", "--config", str(path), "--log-level=ERROR")
    assert (found["run_dir"], found["log_level"], found["state_dir"]) == (Path("/run/of/line"), "ERROR", Path("/state"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("socket", "is not TOML"),
        ('sockets = "/s"\nlog_level = 7', "sockets is not an option: use some of socket, state_dir"),
        ('sockets = "/s"\nlog_level = 7', "log_level = 7 is not a string"),
        ('log_level = "LOUD"', "invalid choice: 'LOUD'"),
        ('metrics = "here"', "'here' is not HOST:PORT"),
        ('metrics = "unix:metrics.sock"', "'unix:metrics.sock' has no absolute path: give one"),
        ('metrics = "unix:"', "'unix:' has no absolute path: give one"),
        ('metrics = "[::1]:9405,"', "'' is not HOST:PORT"),
        ('metrics = "[::1]:9405,::1:9405"', "has an address twice: name it once"),
        ('socket = "/s"\nmetrics = "unix:/s"', "--metrics unix:/s is the agent's own socket: name another path"),
        ('takeover = "soon"', "'soon' is not a whole number of seconds up to 86400: give one"),
        ('takeover = "86401"', "'86401' is not a whole number of seconds"),
        ('takeover = "-1"', "'-1' is not a whole number of seconds"),
        ('traces = ""', "a path is empty: give one"),
        ('traces = "ftp://host/"', "the value is not a URL of HTTP: give the one of a collector"),
        ('traces = "http://host:x/"', "the value is not a URL of HTTP: give the one of a collector"),
        ('traces = "http:///v1/traces"', "the value is not a URL of HTTP: give the one of a collector"),
        ('traces = "127.0.0.1:4318"', "'127.0.0.1:4318' is neither a URL nor a path: give http://127.0.0.1:4318/v1/traces"),
        ('traces = "https://user:secret@host/"', "the URL has a user name or password"),
        (None, "cannot be read: No such file"),
    ],
)
def test_error_describes_an_invalid_file(
    path: Path, text: str | None, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as caught:
        options(monkeypatch, f"--config={path}")
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert "secret" not in told


def test_trace_file_is_found_after_a_change_of_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert options(monkeypatch, "--traces", "spans.json")["traces"] == str(tmp_path / "spans.json")

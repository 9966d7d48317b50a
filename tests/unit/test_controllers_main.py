"""The command line of svc-controllers, and errors that end its start."""

import logging
import os
import sys

import pytest

from svc import __version__
from svc.controllers import main


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove variables of the developer, and keep the logging of pytest."""
    monkeypatch.setattr(main, "log_to_stderr", lambda _level: None)
    for name in [name for name in os.environ if name.startswith(("ETCD_", "KUBE"))]:
        monkeypatch.delenv(name)


def start(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["svc-controllers", *arguments])
    return main.main()


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        start(monkeypatch, "--version")
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"svc-controllers {__version__}\n"


def test_command_is_required(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        start(monkeypatch)
    assert caught.value.code == 2
    assert "required: COMMAND" in capsys.readouterr().err


def test_each_invalid_variable_has_a_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("ENABLED_CONTROLLERS", "flannelmigration")
    monkeypatch.setenv("SVC_LOG_LEVEL", "loud")
    assert start(monkeypatch, "run") == 1
    first, *lines = caplog.messages[0].splitlines()
    assert first == "cannot run: invalid settings: 3 errors"
    assert [line.split()[0] for line in lines] == ["ENABLED_CONTROLLERS", "SVC_LOG_LEVEL", "KUBECONFIG"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--netconf", "/missing"], "file '/missing' cannot be read"),
        (["--names", "zebra"], "names profile 'zebra' does not exist"),
        ([], "KUBECONFIG is missing: name a kubeconfig file; only a pod needs none"),
    ],
)
def test_error_ends_the_start(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert start(monkeypatch, "run", *arguments) == 1
    assert message in caplog.text


def test_debug_log_lacks_lines_that_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of HTTP logs how it converts its arguments, twice for each request."""
    retries = logging.getLogger("urllib3.util.retry")
    monkeypatch.setattr(retries, "level", logging.NOTSET)
    monkeypatch.setenv("KUBECONFIG", __file__)  # which is no kubeconfig
    monkeypatch.setenv("LOG_LEVEL", "debug")
    assert start(monkeypatch, "run") == 1
    assert retries.level == logging.INFO

"""The file of the health of svc-controllers, and the command that reads it."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from svc.controllers import health_file, main
from svc.controllers.configuration import Configuration, Live
from svc.controllers.health import LATE_SECONDS, Health
from svc.datastore.api import StoreError
from svc.datastore.embedded import EmbeddedStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "health"


def note(path: Path, *, enabled: bool = True, live: Any = (), ready: Any = ()) -> None:
    health_file.write(path, enabled=enabled, problems={"live": list(live), "ready": list(ready)})


def probe(path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, variable: str = "HEALTH_FILE") -> int:
    monkeypatch.setattr("sys.argv", ["svc-controllers", "health", *arguments])
    monkeypatch.setattr(main, "log_to_stderr", lambda _level: None)
    monkeypatch.setenv(variable, str(path))
    return main.main()


@pytest.mark.parametrize(("option", "status"), [("-l", 0), ("--live", 0), ("-r", 1), ("--ready", 1)])
def test_command_answers_each_probe(
    option: str, status: int, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note(path, ready=["the datastore has not answered for 31 s"])
    assert probe(path, monkeypatch, option, variable="SVC_HEALTH_FILE") == status
    shown = capsys.readouterr()
    assert shown.out + shown.err in (f"process {os.getpid()} is live\n", "the datastore has not answered for 31 s\n")


def test_one_aspect_is_required(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("-l", "-r")):
        with pytest.raises(SystemExit) as caught:
            probe(path, monkeypatch, *arguments)
        assert caught.value.code == 2
    assert "health" in capsys.readouterr().err


def test_disabled_checks_say_so_and_never_fail(path: Path) -> None:
    note(path, enabled=False, live=["stuck"])
    assert health_file.check(path, "live") == (True, "health checks are disabled in the configuration: this says nothing")


def test_missing_and_foreign_files_fail(path: Path) -> None:
    assert "the program has not begun" in health_file.check(path, "live")[1]
    for content in ("", "{}", "[]", '{"enabled": true, "pid": 1, "at": "x", "live": []}'):
        path.write_text(content)
        assert health_file.check(path, "live") == (
            False,
            f"'{path}' is not written by svc-controllers: give HEALTH_FILE as the program has it",
        )


@pytest.mark.root
def test_file_of_another_user_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note(path)
    os.chown(path, 65534, 65534)
    assert "it belongs to another user" in health_file.check(path, "live")[1]


@pytest.mark.parametrize("age", [-5.0, health_file.MAX_AGE_SECONDS + 1])
def test_file_that_is_not_renewed_fails(age: float, path: Path) -> None:
    """The process is dead or stopped, or the machine was started again."""
    note(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"at": time.monotonic() - age}))
    assert "has not noted its health for more than 30 s" in health_file.check(path, "live")[1]


def test_file_is_only_for_its_user(path: Path) -> None:
    note(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == [path.name]


# the thread


@pytest.fixture
def health(path: Path, tmp_path: Path) -> Any:
    store = EmbeddedStore(tmp_path / "store.db")
    made = Health(str(path), "svc-controllers", Live(Configuration()), store, lambda: made.troubles)  # type: ignore[attr-defined]
    made.troubles = []  # type: ignore[attr-defined]
    yield made
    store.close()


def test_threads_and_servers_are_judged(health: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    late = ["the API server has not answered yet", "the datastore has not answered yet"]
    time.sleep(0.01)
    assert health.problems() == {"live": [], "ready": late}
    health.stepped(None)
    health._ask_datastore()
    assert health.problems() == {"live": [], "ready": []}
    health.troubles.append("controller node has ended")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + LATE_SECONDS + 40)
    found = health.problems()
    assert found["live"] == ["controller node has ended", "the election has been stuck for 70 s"]
    assert found["ready"] == ["the API server has not answered for 70 s", "the datastore has not answered for 70 s"]
    health.stepped(StoreError("GET /leases: 403 no right"))
    assert health.problems()["ready"][0] == "the API server has not answered for 70 s: GET /leases: 403 no right"
    health.stepped(None)
    assert health.problems()["ready"] == ["the datastore has not answered for 70 s"]


def test_file_follows_the_configuration_and_goes_with_the_thread(health: Any, path: Path) -> None:
    health.stepped(None)
    health.start()
    until = time.monotonic() + 10
    while not path.exists() or not health_file.check(path, "ready")[0]:
        assert time.monotonic() < until
        time.sleep(0.01)
    health._live.replace(Configuration(serves_health=False))
    while "disabled" not in health_file.check(path, "ready")[1]:
        assert time.monotonic() < until
        time.sleep(0.01)
    health.stop()
    assert not path.exists()


def test_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = EmbeddedStore(tmp_path / "store.db")
    health = Health(str(tmp_path / "missing" / "health"), "svc-controllers", Live(Configuration()), store, lambda: ())
    for _ in range(2):
        health._note(is_enabled=True)
    store.close()
    assert len(caplog.messages) == 1
    assert "cannot be written: No such file or directory: name one in a directory of this user" in caplog.messages[0]


def test_default_file_is_in_a_directory_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = EmbeddedStore(tmp_path / "store.db")
    health = Health("", "svc-controllers", Live(Configuration()), store, lambda: ())
    health._note(is_enabled=True)
    store.close()
    folder = tmp_path / f"svc-controllers-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert health_file.check(folder / "health.json", "live")[0]

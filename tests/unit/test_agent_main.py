"""The start of svc-agent: its process settings and exit status."""

import gc
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc.agent import main
from svc.agent.server import Settings
from svc.model.errors import CallerError


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, ...]]]:
    """Yield the settings of the process that the agent would change."""
    made: list[tuple[object, ...]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda *limits: made.append(("limit", *limits)))
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    monkeypatch.setattr(os, "setpriority", lambda *priority: made.append(("priority", *priority)))
    monkeypatch.setattr(main, "log_to_stderr", lambda level: made.append(("level", level)))
    monkeypatch.setattr(main, "limit_arenas", lambda number: made.append(("arenas", number)))
    thresholds = gc.get_threshold()
    yield made
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: int | BaseException) -> int:
    """Run `main` with an agent that has this outcome."""

    class Agent:
        def __init__(self, settings: Settings) -> None:
            assert settings == Settings(tmp_path / "run" / "agent.sock", tmp_path / "state", tmp_path / "run")

        def run(self) -> int:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

    monkeypatch.setattr(main, "Agent", Agent)
    directories = [f"--{name}-dir={tmp_path / name}" for name in ("state", "run")]
    monkeypatch.setattr(sys, "argv", ["svc-agent", "run", *directories])
    return main.main()


def test_process_is_prepared_before_the_agent_runs(
    changes: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(monkeypatch, tmp_path, 0) == 0
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert changes == [
        ("level", "INFO"),
        ("limit", resource.RLIMIT_NOFILE, (hard, hard)),
        ("arenas", 2),
        ("priority", os.PRIO_PROCESS, 0, -10),
    ]


@pytest.mark.usefixtures("changes")
@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (CallerError("--socket '/s' cannot be used", details="name another one"), "--socket '/s' cannot be used"),
        (MemoryError(), "the system gives no further memory"),
        (RuntimeError("can't start new thread"), "the system gives no further thread"),
    ],
    ids=["error", "memory", "threads"],
)
def test_agent_that_cannot_run_logs_the_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, failure: BaseException, text: str
) -> None:
    assert run(monkeypatch, tmp_path, failure) == 1
    assert text in caplog.text


@pytest.mark.usefixtures("changes")
def test_bug_ends_the_agent_with_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        run(monkeypatch, tmp_path, RuntimeError("a bug"))


def test_help_names_each_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["svc-agent", "run", "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main.main()
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"(default: {value})" in text for value in ("/var/lib/svc", "/var/run/svc", "none", "INFO"))

"""Builds beside the checkout: another commit, and cores for profilers. Each takes a minute."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


def output(*command: object) -> str:
    done = subprocess.run([*map(str, command)], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commit_is_built_with_the_packages_of_this_environment(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_build = bench("other_build")
    monkeypatch.setattr(other_build, "FOLDER", tmp_path)
    programs = other_build.built("HEAD")
    where = output(programs / "python", "-c", "import orjson, svc._core.rtnl as core; print(core.__file__, orjson.__file__)")
    assert where.startswith(str(programs.parent))
    assert "svc" in output(programs / "svcctl", "--help")
    monkeypatch.setattr(other_build, "_build", pytest.fail)
    assert other_build.built("HEAD") == programs


def test_lines_of_the_core_are_profiled(bench: Any, tmp_path: Path) -> None:
    bench("alloc")
    command = [sys.executable, "-m", "bench", "alloc", "--store", "embedded", "--parts", "lines", "--rounds", "50"]
    command += ["--output", str(tmp_path), "--json", str(tmp_path / "a.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "alloc-embedded-lines.txt").read_text()
    assert "_core/bitmap.pyx:" in lines
    assert "_core/cidr.pyx:" in lines


def test_unknown_commit_is_refused(bench: Any) -> None:
    with pytest.raises(SystemExit, match="'no-such-commit' is not a commit"):
        bench("other_build").built("no-such-commit")


def test_sources_that_cannot_be_built_are_named(bench: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(SystemExit, match=f"{tmp_path}/source cannot be built with the packages of this environment"):
        bench("other_build")._build(tmp_path, tmp_path / "source")
    assert "ERROR: " in capfd.readouterr().err

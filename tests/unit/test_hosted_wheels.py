"""Hosted CI builds the wheels that `make wheels` builds."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.shim import ROOT
from harness.skips import OLD_CIBUILDWHEEL
from harness.wheel_scripts import wheels

__all__ = ["wheels"]

WORKFLOW = ROOT / ".github/workflows/wheels.yml"
PROGRAMS = Path(sys.executable).parent


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return found


def commands() -> str:
    return "\n".join(step["run"] for job in jobs().values() for step in job["steps"] if "run" in step)


def test_workflow_fits_its_schema() -> None:
    command = [str(PROGRAMS / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_actions_of_others_are_pinned_and_tokens_read_only() -> None:
    document = yaml.safe_load(WORKFLOW.read_text())
    assert document["permissions"] == {"contents": "read"}
    used = [step["uses"] for job in jobs().values() for step in job["steps"] if "uses" in step]
    assert [each for each in used if len(each.partition("@")[2]) != 40] == []


def test_files_that_the_workflow_names_exist() -> None:
    named = {word for word in commands().split() if word.startswith(("requirements/", "wheels/"))}
    assert named
    assert [word for word in named if not (ROOT / word).exists()] == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason=OLD_CIBUILDWHEEL)
def test_cibuildwheel_builds_the_same_targets(wheels: Any) -> None:
    machines = {row["machine"] for row in jobs()["wheels"]["strategy"]["matrix"]["include"]}
    found = set()
    for machine in machines:
        options = ["--platform", "linux", "--archs", machine, "--print-build-identifiers", str(ROOT)]
        command = [str(PROGRAMS / "cibuildwheel"), *options]
        found |= set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert found == set(wheels("hosted").IDENTIFIERS)


def test_wheel_without_the_licence_of_its_executable_is_named(wheels: Any, tmp_path: Path) -> None:
    for name in ("with", "without"):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as archive:
            archive.writestr(f"svc.dist-info/licenses/{'COPYRIGHT.musl' if name == 'with' else 'LICENSE'}", "")
    assert list(wheels("hosted").missing_licenses(tmp_path)) == ["without.whl: the licence COPYRIGHT.musl is missing"]


def test_missing_doubled_and_foreign_wheels_are_named(wheels: Any, tmp_path: Path) -> None:
    hosted, targets = wheels("hosted"), wheels("targets").ALL
    for each in targets:
        (tmp_path / f"svc_cni-1.0-{each.tag}-{each.tag}-{each.platform}.whl").touch()
    assert list(hosted.problems(tmp_path)) == []
    (tmp_path / "svc_cni-1.0-cp310-cp310-manylinux_2_17_x86_64.whl").rename(
        tmp_path / "svc_cni-1.0-cp310-cp310-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    )  # as auditwheel names it
    assert list(hosted.problems(tmp_path)) == []
    foreign = tmp_path / "svc_cni-1.0-cp311-cp311-linux_aarch64.whl"
    (tmp_path / "svc_cni-1.0-cp311-cp311-musllinux_1_2_aarch64.whl").rename(foreign)
    assert list(hosted.problems(tmp_path)) == [
        "cp311-musllinux-aarch64: no wheel",
        "svc_cni-1.0-cp311-cp311-linux_aarch64.whl is for no target",
    ]

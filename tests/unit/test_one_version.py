"""pyproject.toml has the version of the project. What repeats it agrees."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

import svc
from harness.shim import ROOT
from harness.wheel_scripts import wheels

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["wheels"]

ABOUT_TWO_VERSIONS = ROOT / "docs/upgrade.md"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PROGRAMS = Path(sys.executable).parent


def printed(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_installed_package_has_it() -> None:
    assert version(svc.__distribution__) == VERSION
    assert svc.__version__ == VERSION


@pytest.mark.parametrize("program", ["svcctl", "svc-agent", "svc-controllers", "svc-routes"])
def test_programs_print_it(program: str) -> None:
    assert printed(PROGRAMS / program, "--version") == f"{program} {VERSION}"


@pytest.mark.parametrize("program", ["svc", "svc-ipam"])
def test_executables_print_it(program: str) -> None:
    assert printed(PROGRAMS / program, "-v") == VERSION


def test_build_takes_it_from_the_build_system() -> None:
    text = (ROOT / "CMakeLists.txt").read_text()
    assert '-DSVC_VERSION=\\"${SKBUILD_PROJECT_VERSION}\\"' in text
    assert not re.search(r"project\([^)]*VERSION", text)


def test_wheel_has_it_in_its_name(tmp_path: Path) -> None:
    code = "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as p; p(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=ROOT, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == [f"svc_cni-{VERSION}.dist-info"]


def test_unit_has_none_of_its_own() -> None:
    """The unit starts the installed package of any version."""
    unit = (ROOT / "deploy/systemd/svc-agent.service").read_text()
    assert re.findall(r"\d+\.\d+\.\d+", unit) == []


def test_debian_changelog_begins_with_it(wheels: Any) -> None:
    assert wheels("deb").package_version() == VERSION


def test_first_section_of_the_changes_is_about_it() -> None:
    found = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found
    assert found[1] == VERSION


def test_charts_have_it() -> None:
    for chart in ("chart", "crd-chart"):
        document = yaml.safe_load((ROOT / "deploy" / chart / "Chart.yaml").read_text())
        assert str(document["appVersion"]) == VERSION


def test_documents_name_no_other_version_of_images_and_archives() -> None:
    pattern = re.compile(r"(?:\bsvc:|svc-|svc_cni-)(\d+\.\d+\.\d+)\b")
    files = {ROOT / "README.md", *(path for part in ("docs", "wheels", "deploy") for path in (ROOT / part).rglob("*.md"))}
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files - {ABOUT_TWO_VERSIONS}}
    found = {(name, each) for name, text in texts.items() for each in pattern.findall(text)}
    assert {(path, each) for path, each in found if each != VERSION} == set()

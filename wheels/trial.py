"""Try wheels: python -m wheels.trial [TARGET ...] [--wheels FOLDER].

Each manylinux wheel for this machine is installed into a fresh environment of its Python, in a root file system of its own
(wheels/roots.py), and tests/unit and tests/netns run from it. The sources are not in that root. Exit status: 0 all passed, 1 a
test failed, or a Python whose name was given cannot be had, 2 wrong use.
"""

import argparse
import os
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from wheels.compiling import ROOT
from wheels.headers import Unavailable
from wheels.roots import root_with, run_in
from wheels.targets import GLIBC, Target, add_targets, targets_of

OF_SOURCES: Final = (  # they read the sources, their documents or their repository
    "unit/test_declared.py",
    "unit/test_deploy.py",
    "unit/test_deploy_folders.py",
    "unit/test_documentation.py",
    "unit/test_hosted_wheels.py",
    "unit/test_layers.py",
    "unit/test_one_version.py",
    "unit/test_reference.py",
    "unit/test_sbom.py",
    "unit/test_wheels.py",
    "unit/test_wheels_trial.py",
    "unit/test_ctl_remedies.py::test_every_named_command_exists",
    "unit/test_errors.py::test_every_code_is_used",
    "unit/test_errors.py::test_reference_has_every_code",
    "unit/test_errors.py::test_reference_has_no_other_code",
    "unit/test_ipam_findings.py::test_page_lists_the_findings",
    "unit/test_kinds.py::test_documented_kinds_are_those_of_the_table",
    "unit/test_manifests.py::test_pages_say_that_nothing_enforces_policy_while_the_slot_is_empty",
    "unit/test_names.py::test_exceptions_are_still_necessary",
    "unit/test_names.py::test_names_occur_nowhere_else",
    "unit/test_names.py::test_reference_lists_every_name",
    "unit/test_results.py::test_every_code_is_documented_once",
    "unit/test_rights.py::test_documented_rights_are_those_of_the_manifests",
    "unit/test_rights.py::test_documented_rights_with_host_local",
    "unit/test_rights.py::test_roles_of_controllers_are_the_documented_rights",
    "unit/test_route_rules.py::test_every_reason_is_documented",
    "unit/test_route_rules.py::test_every_state_is_documented",
)
OF_HOST: Final = ("unit/test_leaks.py::test_mounted_file_is_reported_elsewhere_too",)  # the root of the file system is another
_SVC: Final = "import svc, svc._core.rtnl as core; print(svc.__file__, core.__file__)"
_EXTRAS: Final = "etcd,orch,routes"


def main() -> int:
    """Try the wheels that the command line asks for. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wheels.trial", description=__doc__)
    add_targets(parser)
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheelhouse", help="folder of the wheels [wheelhouse]")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/roots", help="folder of root file systems [build/roots]")
    given = parser.parse_args()
    status = 0
    for target in targets_of(given.targets):
        if (target.library, target.machine) != (GLIBC, platform.machine()):
            continue
        try:
            is_passed = _try(
                target, wheel_of(target, given.wheels), root_with(target.python, target.machine, given.cache.resolve())
            )
        except Unavailable as error:
            print(f"{target}: not tried: {error}", flush=True)
            is_passed = not given.targets
        status |= not is_passed
    return status


def wheel_of(target: Target, folder: Path) -> Path:
    """Return the wheel of a target. Raise Unavailable."""
    found = sorted(folder.glob(f"*-{target.tag}-{target.tag}-{target.platform}.whl"), key=os.path.getmtime)
    if not found:
        raise Unavailable(f"{folder} has no wheel for it")
    return found[-1]


def _try(target: Target, wheel: Path, root: Path) -> bool:
    """Run the tests, and print what came of them. Return whether they passed."""
    _lay_out(root, wheel)
    for command in _installation(target, wheel):
        done = run_in(root, command)
        if done.returncode:
            return _report(target, f"{' '.join(command)}:\n{done.stdout}{done.stderr}", is_good=False)
    used = run_in(root, ["/trial/env/bin/python", "-c", _SVC]).stdout.split()
    if len(used) != 2 or not all(path.startswith("/trial/env/") and "/site-packages/" in path for path in used):
        return _report(target, f"svc is not that of the wheel: {used}", is_good=False)
    options = ["-p", "no:cacheprovider", "-q", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "--second-run"]
    tested = ["tests/unit", "tests/netns", *map(_left_out, (*OF_SOURCES, *OF_HOST))]
    script = f"cd /trial/home && exec ../env/bin/pytest {' '.join([*options, *tested])}"
    done = run_in(root, ["sh", "-c", script], variables={"PATH": "/trial/env/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
    return _report(target, done.stdout[-6000:] + done.stderr[-1000:], is_good=not done.returncode)


def _left_out(name: str) -> str:
    """Return the option that leaves a module or a test out."""
    return f"--{'deselect' if '::' in name else 'ignore'}=tests/{name}"


def _lay_out(root: Path, wheel: Path) -> None:
    """Put wheel, tests and their settings into the root file system, and nothing else of the sources."""
    trial = root / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    home = trial / "home"
    shutil.copytree(ROOT / "tests", home / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(wheel, trial)
    text = (ROOT / "pyproject.toml").read_text()
    (home / "pyproject.toml").write_text(text[text.index("[tool.pytest") : text.index("[tool.coverage")])
    (trial / "constraints.txt").write_text(constraints())
    (trial / "tests.txt").write_text("".join(f"{name}\n" for name in tools()))


def _installation(target: Target, wheel: Path) -> list[list[str]]:
    pip = ["/trial/env/bin/python", "-m", "pip", "install", "--quiet", "-c", "/trial/constraints.txt"]
    return [
        [f"/usr/bin/python{target.python}", "-m", "venv", "/trial/env"],
        [*pip, f"/trial/{wheel.name}[{_EXTRAS}]"],
        [*pip, "-r", "/trial/tests.txt"],
    ]


def constraints() -> str:
    """Return the versions of the lock file of the tests."""
    lines = (ROOT / "requirements/ci.txt").read_text().splitlines()
    return "".join(f"{line.removesuffix(chr(92)).strip()}\n" for line in lines if re.match(r"[a-zA-Z0-9]", line))


def tools() -> list[str]:
    """Return what the tests need besides the wheel and its extras."""
    text = (ROOT / "pyproject.toml").read_text()
    group = text[text.index("\ntest = [") :].partition("\n]")[0]
    return re.findall(r'^    "(.+?)"', group, re.MULTILINE)


def _report(target: Target, text: str, *, is_good: bool) -> bool:
    print(f"{target}: {'passed' if is_good else 'failed'}\n{text}", flush=True)
    return is_good


if __name__ == "__main__":
    sys.exit(main())

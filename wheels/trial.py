"""Try wheels: python -m wheels.trial [TARGET ...] [--wheels FOLDER].

Each manylinux wheel for this machine is installed into a fresh environment of its Python, in a root file system of its own
(wheels/roots.py), and tests/unit and tests/netns run from it. The sources are not in that root. Exit status: 0 all passed, 1 a
test failed, or a Python whose name was given cannot be had.
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
from wheels.targets import GLIBC, Target, targets_of

# These read the sources, their documents or their repository.
OF_SOURCES: Final[tuple[str, ...]] = ()
_SVC: Final = "import svc, svc._core.rtnl as core; print(svc.__file__, core.__file__)"
_EXTRAS: Final = "etcd,orch,routes"


def main() -> int:
    """Try the wheels that the command line asks for. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wheels.trial", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
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
    options = ["-p", "no:cacheprovider", "-q", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    tested = ["tests/unit", "tests/netns", *(f"--ignore=tests/{name}" for name in OF_SOURCES)]
    script = f"cd /trial/home && exec ../env/bin/pytest {' '.join([*options, *tested])}"
    done = run_in(root, ["sh", "-c", script], variables={"PATH": "/trial/env/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
    return _report(target, done.stdout[-6000:] + done.stderr[-1000:], is_good=not done.returncode)


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

"""Build the Debian packages: python -m wheels.deb [--out FOLDER] [--source].

Writes a source package whose second archive has the wheels that svc needs, with the hashes of the lock files, for the Python of
this release and all machines. Then dpkg-buildpackage builds it and lintian checks it. Exit status: 0 all is built and without
errors, 1 not, 2 wrong use.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from scikit_build_core.build import build_sdist

from wheels.compiling import ROOT
from wheels.locks import Locked, read_lock, without
from wheels.targets import MACHINES

DEBIAN: Final = ROOT / "wheels/debian"
EXTRAS: Final = ("etcd", "orch", "routes")
TOOLS: Final = ("cython", "scikit-build-core", "packaging", "pathspec")
_PYTHON: Final = "/usr/bin/python3"
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_NEWEST_GLIBC: Final = 36  # 2.36, of Debian 12
_OFFLINE: Final = ("unshare", "--net")  # a build gets nothing but the source package
_WITHOUT_WHEELS: Final = ("etcd3",)
# Only the part of the Kubernetes client that svc does not use needs these: debian/rules removes that part.
_UNUSED: Final = (
    *("aiohttp", "aiohttp-retry", "aiohappyeyeballs", "aiosignal", "frozenlist", "multidict", "propcache", "yarl"),
    *("async-timeout", "attrs"),
)


def main() -> int:
    """Build what the command line asks for. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wheels.deb", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/deb", help="folder of the packages [build/deb]")
    parser.add_argument("--source", action="store_true", help="write the source package alone")
    given = parser.parse_args()
    out = given.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        tree = source_tree(out)
        command = ["dpkg-buildpackage", "--unsigned-source", "--unsigned-changes", "--diff-ignore"]
        _run([*_OFFLINE, *command, *(["--build=source"] if given.source else [])], tree)
        (changes,) = out.glob("*.changes")
        _run(["lintian", "--fail-on", "error", "--allow-root", "--no-tag-display-limit", str(changes)], out)
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[0]} failed with status {error.returncode}", file=sys.stderr)
        return 1
    print(f"the packages are in {out}")
    return 0


def package_version() -> str:
    """Return the version of the package, which is the first one in its changelog, without the revision."""
    found = re.match(r"svc-cni \(([^)-]+)-[^)]+\)", (DEBIAN / "changelog").read_text())
    assert found
    return found[1]


def source_tree(out: Path) -> Path:
    """Return the unpacked source package, with its archives beside."""
    version, epoch = package_version(), _time_of_changelog()
    os.environ["SOURCE_DATE_EPOCH"] = epoch
    os.chdir(ROOT)
    sdist = out / build_sdist(str(out))
    original = sdist.rename(out / f"svc-cni_{version}.orig.tar.gz")
    with tarfile.open(original) as archive:
        archive.extractall(out, filter="data")
    tree = (out / sdist.name.removesuffix(".tar.gz")).rename(out / f"svc-cni-{version}")
    _fetch(tree / "vendor", out / "python")
    component = out / f"svc-cni_{version}.orig-vendor.tar.gz"
    same = ["--sort=name", f"--mtime=@{epoch}", "--owner=0", "--group=0", "--numeric-owner", "--mode=go+rX,go-w"]
    _run(["tar", *same, "-czf", str(component), "vendor"], tree)
    shutil.copytree(DEBIAN, tree / "debian", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def _fetch(folder: Path, environment: Path) -> None:
    """Fetch wheels into a folder for each use, with one below for each architecture."""
    _run([_PYTHON, "-m", "venv", str(environment)])
    pip = [str(environment / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "install", "--upgrade", "pip"])
    base = read_lock("node.txt")
    wanted = {name: without(read_lock(f"node-{name}.txt"), base) for name in EXTRAS} | {"base": base}
    wanted["tools"] = [each for each in read_lock("wheels.txt") if each.name in TOOLS]
    for name, locked in wanted.items():
        _fetch_part(pip, [each for each in locked if each.name not in _UNUSED], folder / name)
    shutil.rmtree(environment)


def _fetch_part(pip: Sequence[str], locked: Iterable[Locked], folder: Path) -> None:
    draft = folder / "draft"
    draft.mkdir(parents=True)
    for is_built in (False, True):
        lock = draft / "lock.txt"
        lock.write_text("".join(each.text for each in locked if (each.name in _WITHOUT_WHEELS) == is_built))
        if not lock.read_text():
            continue
        options = ["--require-hashes", "--no-deps", "--requirement", str(lock)]
        if is_built:
            _run([*pip, "wheel", *options, "--wheel-dir", str(draft)])
            continue
        for machine in MACHINES:
            platforms = [word for tag in _platforms(machine) for word in ("--platform", tag)]
            _run([*pip, "download", *options, "--only-binary", ":all:", *platforms, "--dest", str(draft)])
    for wheel in draft.glob("*.whl"):
        target = folder / next((_ARCHITECTURES[each] for each in MACHINES if f"_{each}." in wheel.name), "any")
        target.mkdir(exist_ok=True)
        wheel.rename(target / wheel.name)
    shutil.rmtree(draft)


def _platforms(machine: str) -> list[str]:
    return [*(f"manylinux_2_{minor}_{machine}" for minor in range(_NEWEST_GLIBC, 4, -1)), f"manylinux2014_{machine}", "any"]


def _time_of_changelog() -> str:
    command = ["dpkg-parsechangelog", "--file", str(DEBIAN / "changelog"), "--show-field", "Timestamp"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _run(command: Sequence[str], folder: Path = ROOT) -> None:
    """Run a command of the system, also where a virtual environment is active. Raise CalledProcessError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    subprocess.run(command, check=True, cwd=folder, env=environment | {"PATH": _PATH})


if __name__ == "__main__":
    sys.exit(main())

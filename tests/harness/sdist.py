"""The sdist, built where neither a network nor a compiler but gcc is there."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from harness.shim import ROOT

BUILD_REQUIREMENTS: Final = ("scikit-build-core", "cython", "cmake", "ninja")
_INDIRECT: Final = ("packaging", "pathspec")  # of scikit-build-core
_OLDER_PYTHON: Final = ("tomli", "exceptiongroup", "typing-extensions", "importlib-resources")
TOOLS: Final = ("gcc", "cc", "as", "ld", "ar", "nm", "ranlib", "strip", "objcopy", "objdump", "readelf", "sh", "uname")


def build_sdist(folder: Path) -> Path:
    """Build the sdist of the checkout."""
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def build_offline(sdist: Path, folder: Path) -> tuple[Path, str]:
    """Return the wheel that pip builds from an sdist in an isolated environment, without a network; and the log."""
    packages, programs, home = (folder / name for name in ("packages", "programs", "home"))
    for each in (packages, programs, home):
        each.mkdir(parents=True)
    _fill(packages)
    for name in TOOLS:
        (programs / name).symlink_to(os.path.realpath(str(shutil.which(name))))
    options = ["--no-index", "--find-links", str(packages), "--no-deps", "--no-cache-dir", "-v", "--wheel-dir", str(folder)]
    command = [*_without_network_and_musl(), sys.executable, "-m", "pip", "wheel", *options, str(sdist)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(programs), "HOME": str(home), "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("svc_cni-*.whl")
    return wheel, done.stdout


def _without_network_and_musl() -> list[str]:
    """Return the words before a command that finds neither, also where CMake looks beside PATH."""
    hidden = shutil.which("musl-gcc")
    hide = f"{shutil.which('mount')} --bind /dev/null {hidden} && " if hidden else ""
    return [str(shutil.which("unshare")), "--net", "--mount", str(shutil.which("sh")), "-c", f'{hide}exec "$@"', "sh"]


def _fill(folder: Path) -> None:
    """Put wheels of what the build system requires into a folder, as a packager has them."""
    for name in (*BUILD_REQUIREMENTS, *_INDIRECT, *_OLDER_PYTHON):
        found = next(iter(Distribution.discover(name=name)), None)
        assert found or name in _OLDER_PYTHON, f"{name} is not installed"
        if found:
            _pack(distribution(name), folder)


def _pack(installed: Distribution, folder: Path) -> None:
    """Write the wheel that an installed distribution came from. pip makes its programs again."""
    tag = next(line for line in str(installed.read_text("WHEEL")).splitlines() if line.startswith("Tag: "))
    name = installed.metadata["Name"].replace("-", "_")
    path = folder / f"{name}-{installed.version}-{tag.removeprefix('Tag: ')}.whl"
    left_out = ("INSTALLER", "REQUESTED", "direct_url.json")
    files = [file for file in installed.files or () if ".." not in file.parts and file.name not in left_out]
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            if file.name == "RECORD":
                archive.writestr(str(file), "".join(f"{each},,\n" for each in files))
            elif "__pycache__" not in file.parts:
                archive.write(str(installed.locate_file(file)), str(file))

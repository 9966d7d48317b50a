"""Build another commit, or a core with line tracing, in an environment of its own that shares the packages of this one."""

import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

from bench import ROOT
from bench.environment import commit

FOLDER = ROOT / "build" / "against"


def built(revision: str) -> Path:
    """Return the directory of the programs of a commit. Build them once. Raise SystemExit for an unknown commit."""
    git = ("git", "-C", str(ROOT), "-c", "safe.directory=*")
    named = subprocess.run(
        [*git, "rev-parse", "--verify", f"{revision}^{{commit}}"], capture_output=True, text=True, check=False
    )
    if named.returncode:
        raise SystemExit(f"{revision!r} is not a commit of this repository: {named.stderr.strip()}")
    folder = FOLDER / named.stdout.strip()
    programs = folder / "venv" / "bin"
    if not (folder / "complete").exists():
        print(f"building {named.stdout.strip()[:12]} in {folder}, to compare it with {commit()}", flush=True)
        archive = subprocess.run([*git, "archive", named.stdout.strip()], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder / "source", filter="data")
        _build(folder, folder / "source")
        (folder / "complete").touch()
    return programs


def with_line_tracing() -> Path:
    """Build this checkout with line tracing in the core, and return its Python."""
    return _variant("linetrace", "cmake.define.SVC_LINETRACE=ON")


def with_symbols() -> Path:
    """Build this checkout with the names and lines of the core's functions, and return its Python."""
    return _variant("symbols", "cmake.build-type=RelWithDebInfo", "install.strip=false")


def _variant(name: str, *settings: str) -> Path:
    """Build this checkout, unless it is built already and has no changes since."""
    folder, now = ROOT / "build" / name, commit()
    mark = folder / "commit"
    if not mark.exists() or mark.read_text() != now or now.endswith("-dirty") or not now:
        print(f"building a core with {name} in {folder}", flush=True)
        mark.unlink(missing_ok=True)
        _build(folder, ROOT, f"build-dir={folder / 'objects'}", *settings)
        mark.write_text(now)
    return folder / "venv" / "bin" / "python"


def _build(folder: Path, source: Path, *settings: str) -> None:
    """Build a wheel with the packages of this environment, and install it alone. Its dependencies are those of here."""
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), *(f"-C{setting}" for setting in settings)]
    if subprocess.run([*pip, "wheel", *options, str(source)], check=False).returncode:
        raise SystemExit(f"{source} cannot be built with the packages of this environment: the reason is above")
    venv.create(folder / "venv", clear=True)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    shared = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")})) / "shared.pth"
    shared.write_text(f"{sysconfig.get_path('purelib')}\n")  # after its own packages, and without the .pth files there
